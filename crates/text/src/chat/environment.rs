//! The Jinja environment of transformers: its settings, functions and filters.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::json;

/// Limit on the call depth.
const DEPTH: usize = 100;

/// The message of a template that rejects a conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// An environment without templates.
pub fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the usual delimiters"));
    environment.set_recursion_limit(DEPTH);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise);
    environment.add_filter("tojson", tojson);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment
}

/// Converts an error of template `name`.
pub fn error(name: &str, error: &Error) -> crate::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(found) = cause {
        if let Some(Refusal(reason)) = found.downcast_ref() {
            return crate::Error::Refused { name: name.to_owned(), reason: reason.clone() };
        }
        cause = found.source();
    }
    let name = name.to_owned();
    if error.kind() == ErrorKind::OutOfFuel {
        return crate::Error::Endless { name };
    }
    let reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    crate::Error::Template { name, line: error.line().unwrap_or(0), reason }
}

fn raise(reason: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(reason)))
}

/// Python's `json.dumps`, with the arguments that transformers passes on.
#[expect(clippy::needless_pass_by_value, reason = "how filters take their arguments")]
fn tojson(_: &State, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let separators: Option<Vec<String>> = options.get("separators")?;
    let indent: Option<Value> = options.get("indent")?;
    let style = json::Style {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent: indent.as_ref().map(indentation).transpose()?.flatten(),
        separators: separators.map(pair).transpose()?,
    };
    options.assert_all_used()?;
    json::write(value, &style).map(Value::from)
}

fn pair(given: Vec<String>) -> Result<(String, String), Error> {
    <[String; 2]>::try_from(given).map(Into::into).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two texts")
    })
}

/// Indentation by a number of spaces, or by the given text.
fn indentation(given: &Value) -> Result<Option<String>, Error> {
    if given.is_none() {
        return Ok(None);
    }
    if let Some(text) = given.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let spaces = given.as_usize().filter(|spaces| *spaces <= 64).ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, "tojson: indent must be 0 to 64 spaces or a text")
    })?;
    Ok(Some(" ".repeat(spaces)))
}

/// In Python, undefined has length 0.
fn length(value: &Value) -> Result<usize, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(0),
        _ => minijinja::filters::length(value),
    }
}
