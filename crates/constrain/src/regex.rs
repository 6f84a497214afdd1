//! Regular expressions: checked, then written as a Lark grammar of one terminal.

use llguidance::regex_to_lark;
use regex_syntax::ParserBuilder;

use crate::Error;

const WHAT: &str = "the regular expression";

/// The Lark grammar of the texts that an expression matches whole.
///
/// # Errors
/// [`Error::Syntax`], [`Error::Grammar`].
pub fn to_lark(expression: &str) -> Result<String, Error> {
    if expression.is_empty() {
        let reason = "it is empty, so it allows no text".to_owned();
        return Err(Error::Grammar { what: WHAT, reason });
    }
    check(expression)?;
    // The whole text is matched anyway, so anchors around the expression say nothing.
    let inner = expression.strip_prefix('^').unwrap_or(expression);
    let inner = match inner.strip_suffix('$') {
        Some(shorter) if !ends_with_escape(shorter) => shorter,
        _ => inner,
    };
    check(inner)?;
    Ok(format!("start: /(?:{})/\n", regex_to_lark(inner, "")))
}

/// Whether the character after `text` is escaped by it.
fn ends_with_escape(text: &str) -> bool {
    text.chars().rev().take_while(|&c| c == '\\').count() % 2 == 1
}

/// What is wrong with an expression.
pub fn error(expression: &str) -> Option<String> {
    match ParserBuilder::new().build().parse(expression).err()? {
        regex_syntax::Error::Parse(error) => Some(error.kind().to_string()),
        regex_syntax::Error::Translate(error) => Some(error.kind().to_string()),
        error => Some(error.to_string()),
    }
}

fn check(expression: &str) -> Result<(), Error> {
    let parsed = ParserBuilder::new().nest_limit(100).build().parse(expression);
    let (start, reason) = match parsed {
        Ok(_) => return Ok(()),
        Err(regex_syntax::Error::Parse(error)) => (error.span().start, error.kind().to_string()),
        Err(regex_syntax::Error::Translate(error)) => {
            (error.span().start, error.kind().to_string())
        }
        Err(error) => return Err(Error::Grammar { what: WHAT, reason: error.to_string() }),
    };
    Err(Error::Syntax { what: WHAT, line: start.line, column: start.column, reason })
}
