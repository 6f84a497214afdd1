//! Lark grammars, which llguidance parses itself: bounds before that, and where its errors are.

use crate::grammar::reason;
use crate::{Error, Limits};

/// Most rules and terminals of a grammar: each may refer to the next, and references are followed recursively.
const RULES_MAX: usize = 4096;

/// Checks what llguidance does not bound.
///
/// # Errors
/// [`Error::Grammar`].
pub fn check(source: &str, limits: &Limits) -> Result<(), Error> {
    let refused = |reason| Err(Error::Grammar { what: "the Lark grammar", reason });
    if source.trim().is_empty() {
        return refused("it is empty".to_owned());
    }
    let rules = source.lines().filter(|line| line.contains(':')).count();
    if rules > RULES_MAX {
        return refused(format!("{rules} rules, where at most {RULES_MAX} are allowed"));
    }
    // Only JSON inside a grammar can nest deeper than llguidance allows; brackets in strings count as well.
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in source.bytes() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > limits.depth * 2 {
        return refused(format!("brackets nest {deepest} deep, more than {}", limits.depth * 2));
    }
    Ok(())
}

/// The error for a message of llguidance, which begins with `line(column):`, `at line(column):` or neither.
pub fn refused(what: &'static str, message: &str) -> Error {
    let reason = reason(message);
    let located = || {
        let (at, rest) = reason.strip_prefix("at ").unwrap_or(&reason).split_once("): ")?;
        let (line, column) = at.split_once('(')?;
        let (line, column) = (line.parse().ok()?, column.parse().ok()?);
        Some(Error::Syntax { what, line, column, reason: rest.to_owned() })
    };
    located().unwrap_or(Error::Grammar { what, reason })
}
