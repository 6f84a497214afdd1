//! Lark grammars, which llguidance parses itself: bounds before that, and where its errors are.

use serde_json::{Deserializer, Value};

use crate::expansion::Work;
use crate::grammar::reason;
use crate::{Error, Limits, schema};

/// Most rules and terminals of a grammar: each may refer to the next, and references are followed recursively.
const RULES_MAX: usize = 4096;

/// What a schema within a grammar follows.
const SCHEMA: &str = "%json";

/// Where a schema has llguidance's options; only the root of a schema within a grammar may have them.
const OPTIONS: &str = "x-guidance";

/// Checks what llguidance does not bound, and the schemas in the grammar; returns it without what says nothing in them.
///
/// # Errors
/// [`Error::Grammar`].
pub fn check(source: &str, limits: &Limits) -> Result<String, Error> {
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
    check_schemas(source, limits)
}

/// Checks each schema of a grammar. Its title is its name in errors.
fn check_schemas(source: &str, limits: &Limits) -> Result<String, Error> {
    let (mut checked, mut rest, mut work) = (String::new(), source, Work::default());
    while let Some(at) = rest.find(SCHEMA) {
        let (before, after) = rest.split_at(at + SCHEMA.len());
        checked.push_str(before);
        rest = after;
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        // Anything else is within a string, or is refused by llguidance.
        let Some(Ok(Value::Object(mut fields))) = values.next() else { continue };
        let len = values.byte_offset();
        let options = fields.shift_remove(OPTIONS);
        let mut schema = Value::Object(fields);
        let given = schema.clone();
        schema::check_whole(&mut schema, limits, &mut work).map_err(|error| match error {
            Error::Schema { path, reason } => {
                let title = given.get("title").and_then(Value::as_str);
                let title = title.map(|title| format!(" '{title}'")).unwrap_or_default();
                let reason = format!("schema{title} at {path}: {reason}");
                Error::Grammar { what: "the Lark grammar", reason }
            }
            error => error,
        })?;
        if schema != given {
            if let (Some(options), Some(fields)) = (options, schema.as_object_mut()) {
                fields.insert(OPTIONS.to_owned(), options);
            }
            checked.push_str(&format!(" {schema}"));
        } else {
            checked.push_str(&rest[..len]);
        }
        rest = &rest[len..];
    }
    checked.push_str(rest);
    Ok(checked)
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
