//! The Jinja environment of transformers: its settings, functions and filters.

use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, functions};

use super::budget::{Spent, deep, spend};
use super::lists::List;
use super::{charges, cost, json, methods, python, repr};

/// Limit on the call depth.
const DEPTH: usize = 100;

/// Limit on instructions, those that charge for others included, beside [`FUEL_PER_PAIR`]. A message takes some hundreds, a
/// conversation with tools some ten thousand.
const FUEL: u64 = 5_000_000;

/// Instructions for every message and each that may come before it: templates look through the earlier messages, or through
/// the later ones, at each.
const FUEL_PER_PAIR: u64 = 16;

/// Messages for which instructions are added.
const MESSAGES_MAX: u64 = 4096;

/// Limit on the message of a template that rejects a conversation, in bytes.
const REASON_BYTES_MAX: usize = 4096;

/// The message of a template that rejects a conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// The environment of all templates.
pub static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(environment);

/// The environment of probes, with fewer instructions.
pub static PROBES: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = ENVIRONMENT.clone();
    environment.set_fuel(Some(FUEL / super::PROBES_PER_BUDGET));
    environment
});

/// The environment of a rendering of so many messages.
pub fn for_messages(messages: usize) -> Environment<'static> {
    let messages = (messages as u64).min(MESSAGES_MAX);
    let mut environment = ENVIRONMENT.clone();
    environment.set_fuel(Some(FUEL + FUEL_PER_PAIR * messages * messages));
    environment
}

fn environment() -> Environment<'static> {
    // Empty, so that there is no filter, test or function without its cost.
    let mut environment = Environment::empty();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the usual delimiters"));
    environment.set_recursion_limit(DEPTH);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(write);
    environment.set_unknown_method_callback(methods::call);
    environment.add_function("range", functions::range);
    environment.add_function("raise_exception", raise);
    let dict = cost::paying(Value::from_function(functions::dict), cost::written);
    environment.add_function("dict", dict);
    let namespace = cost::paying(namespace(), cost::written);
    environment.add_function("namespace", namespace);
    cost::add_filters(&mut environment);
    cost::add_tests(&mut environment);
    python::add(&mut environment);
    charges::add(&mut environment);
    cost::filter(&mut environment, "tojson", Value::from_function(tojson), cost::written);
    cost::filter(&mut environment, "length", Value::from_function(length), cost::read);
    cost::filter(&mut environment, "count", Value::from_function(length), cost::read);
    environment
}

/// Writes a value to the output or a captured text.
fn write(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    spend(deep(value)?)?;
    match repr::of_floats(value) {
        Some(text) => Ok(out.write_str(&text)?),
        None => minijinja::escape_formatter(out, state, value),
    }
}

/// The function of minijinja, which takes a mapping and names as well, as Python's `dict`, and whose lists can be changed.
fn namespace() -> Value {
    let namespace = Value::from_function(functions::namespace);
    Value::from_function(move |state: &mut State, given: Rest<Value>, named: Kwargs| {
        let map = match &*given.0 {
            [] => None,
            [map] if map.kind() == ValueKind::Map => Some(map),
            _ => return namespace.call(state, &given.0),
        };
        let mut pairs = Vec::new();
        if let Some(map) = map {
            for key in map.try_iter()? {
                pairs.push((key.clone(), List::of(map.get_item(&key)?)?));
            }
        }
        for name in named.args() {
            pairs.push((Value::from(name), List::of(named.peek(name)?)?));
        }
        namespace.call(state, &[Value::from_pairs(pairs)])
    })
}

/// Converts an error of template `name`, which was given so many messages.
pub fn error(name: &str, messages: usize, error: &Error) -> crate::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(found) = cause {
        if let Some(Refusal(reason)) = found.downcast_ref() {
            return crate::Error::Refused { name: name.to_owned(), reason: reason.clone() };
        }
        if found.is::<Spent>() {
            return crate::Error::Costly { name: name.to_owned() };
        }
        cause = found.source();
    }
    let name = name.to_owned();
    if error.kind() == ErrorKind::OutOfFuel {
        return crate::Error::Endless { name, messages };
    }
    let reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    crate::Error::Template { name, line: error.line().unwrap_or(0), reason }
}

fn raise(mut reason: String) -> Result<Value, Error> {
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
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
