//! Other APIs in terms of chat completions: requests, results and streams as JSON in, JSON out.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

pub mod functions;
pub mod messages;
pub mod responses;
mod spelled;
#[cfg(test)]
mod tests;

/// A request that cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Untranslatable {
    /// The field, as a path such as `messages[0].content`.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

type Result<T> = std::result::Result<T, Untranslatable>;

fn refused<T>(field: impl Into<String>, reason: impl Into<String>) -> Result<T> {
    Err(Untranslatable { field: field.into(), reason: reason.into() })
}

/// The error for a function at `at` with the name of another.
pub fn same_name(at: &str, name: &str) -> Untranslatable {
    let reason = format!("gives two functions the name {name:?}");
    Untranslatable { field: format!("{at}.name"), reason }
}

/// Refuses to make more than one answer, which other APIs have no place for.
fn one_answer(body: &Map<String, Value>) -> Result<()> {
    let is_one = |key: &&str| {
        let count = body.get(*key).filter(|count| !count.is_null());
        count.is_none_or(|count| count.as_f64() == Some(1.0))
    };
    match ["n", "n_cmpl"].iter().find(|key| !is_one(key)) {
        Some(key) => refused(*key, "must be 1: a request has one answer"),
        None => Ok(()),
    }
}

/// The fields of `value`, which must be an object.
fn object<'v>(value: &'v Value, field: &str) -> Result<&'v Map<String, Value>> {
    match value.as_object() {
        Some(fields) => Ok(fields),
        None => refused(field, "must be an object"),
    }
}

/// The items of `value`, which must be an array.
fn array<'v>(value: &'v Value, field: &str) -> Result<&'v [Value]> {
    match value.as_array() {
        Some(items) => Ok(items),
        None => refused(field, "must be an array"),
    }
}

/// A field that must be a string.
fn text<'v>(fields: &'v Map<String, Value>, key: &str, at: &str) -> Result<&'v str> {
    match fields.get(key) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => refused(format!("{at}.{key}"), "must be a string"),
        None => refused(format!("{at}.{key}"), "is missing"),
    }
}

/// Functions that a request may have.
pub const FUNCTIONS_MAX: usize = 256;

/// Functions of a request, as chat completions hold them.
#[derive(Default)]
struct Functions {
    list: Vec<Value>,
    names: HashSet<String>,
}

impl Functions {
    /// Adds a function that `at` in the list `list` gives.
    ///
    /// # Errors
    /// It has the name of another one, or is one too many.
    fn add(&mut self, function: Value, list: &str, at: &str) -> Result<()> {
        if self.list.len() == FUNCTIONS_MAX {
            return refused(
                list,
                format!("has too many functions; at most {FUNCTIONS_MAX} in all"),
            );
        }
        let name = function["name"].as_str().unwrap_or_default();
        if !self.names.insert(name.to_owned()) {
            return Err(same_name(at, name));
        }
        let kind = ("type".to_owned(), "function".into());
        let tool = Map::from_iter([kind, ("function".to_owned(), function)]);
        self.list.push(tool.into());
        Ok(())
    }

    /// Refuses a choice that needs one of the functions if all tools are left out, those of types `left_out`.
    fn required(&self, left_out: &[&str]) -> Result<()> {
        if !self.list.is_empty() || left_out.is_empty() {
            return Ok(());
        }
        let mut seen = HashSet::new();
        let kinds = left_out.iter().filter(|kind| seen.insert(**kind)).take(4);
        let kinds: Vec<String> = kinds.map(|kind| kind.chars().take(40).collect()).collect();
        let kinds = kinds.join(", ");
        let problem = format!(
            "needs a function; the tools are left out, since only functions are supported: {kinds}"
        );
        refused("tool_choice", problem)
    }
}

/// A call as chat completions hold it.
fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// The number of a usage's field.
fn count(usage: &Value, pointer: &str) -> u64 {
    usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// An identifier with another prefix than that of chat completions.
fn renamed(prefix: &str, id: &str) -> String {
    format!("{prefix}{}", id.strip_prefix("chatcmpl-").unwrap_or(id))
}
