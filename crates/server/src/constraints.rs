//! What an answer must follow: `response_format`, `json_schema` and `grammar`, compiled for the model's vocabulary.

use bilayer_engine::constrain::{Constraint, Grammar};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Body;
use crate::log;
use crate::models::Loaded;

/// The grammar that a body asks for.
///
/// # Errors
/// Fields contradict each other, or the format is unknown.
pub fn grammar(body: &Body) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    let schema = |name: &'static str, schema: &Value| match schema {
        Value::Object(_) | Value::Bool(_) => Ok((name, Grammar::json_schema(schema.to_string()))),
        _ => Err(ApiError::field(name, "must be a JSON schema, an object")),
    };
    let mut found = Vec::new();
    if let Some(text) = body.text("grammar").filter(|text| !text.is_empty()) {
        found.push(("grammar", Grammar::gbnf(text)));
    }
    if let Some(value) = body.get("json_schema") {
        found.push(schema("json_schema", value)?);
    }
    if let Some(format) = body.get("response_format") {
        let kind = format.get("type").and_then(Value::as_str);
        let own = format.get("schema").filter(|schema| !schema.is_null());
        match kind {
            Some("text") => {}
            Some("json_object") => found.push(match own {
                Some(value) => schema("response_format", value)?,
                None => ("response_format", Grammar::json_object()),
            }),
            Some("json_schema") => {
                let nested = format.get("json_schema").and_then(|named| named.get("schema"));
                let value = nested.or(own).ok_or_else(|| {
                    ApiError::field("response_format", "has no json_schema.schema")
                })?;
                found.push(schema("response_format", value)?);
            }
            _ => {
                let problem = "must have a type: text, json_object or json_schema";
                return Err(ApiError::field("response_format", problem));
            }
        }
    }
    match found.as_slice() {
        [] | [_] => Ok(found.pop()),
        [(first, _), (second, _), ..] => {
            Err(ApiError::field(first, format!("cannot be combined with {second}")))
        }
    }
}

/// The compiled constraint of a body.
///
/// # Errors
/// The grammar or schema is invalid or not supported: the answer is never left without it.
pub fn constraint(loaded: &Loaded, body: &Body) -> Result<Option<Constraint>, ApiError> {
    let Some((field, grammar)) = grammar(body)? else { return Ok(None) };
    compile(loaded, field, &grammar).map(Some)
}

/// Compiles a grammar for a model.
///
/// # Errors
/// As [`constraint`].
pub fn compile(loaded: &Loaded, field: &str, grammar: &Grammar) -> Result<Constraint, ApiError> {
    let compiled = loaded.model.constraint(grammar);
    let compiled =
        compiled.map_err(|error| ApiError::field(field, format!("cannot be followed: {error}")))?;
    warn(field, compiled.notes());
    Ok(compiled)
}

/// Logs what of a request's field is left out, unless that was logged before.
pub fn warn(field: &str, notes: &[String]) {
    let warnings = warnings(field, notes).into_iter();
    warnings.filter(|warning| log::is_new(warning)).for_each(|warning| log::warning(&warning));
}

/// Logs which tools are left out, by their types.
pub fn warn_of_tools(kinds: &[&str]) {
    let note = |kind: &&str| format!("a tool of type {kind}, since only functions are supported");
    warn("tools", &kinds.iter().map(note).collect::<Vec<_>>());
}

/// Warnings of the notes on a request's field, of which a client can make as many and as long as it likes.
const WARNINGS_MAX: usize = 4;

/// Characters of such a warning.
const WARNING_CHARS: usize = 200;

/// The warnings of notes.
fn warnings(field: &str, notes: &[String]) -> Vec<String> {
    let shown = notes.iter().take(WARNINGS_MAX).map(|note| {
        let warning = format!("{field}: left out: {note}");
        match warning.char_indices().nth(WARNING_CHARS) {
            Some((end, _)) => format!("{}…", &warning[..end]),
            None => warning,
        }
    });
    let more = notes.len().checked_sub(WARNINGS_MAX).filter(|&more| more > 0);
    shown.chain(more.map(|more| format!("{field}: left out: {more} more"))).collect()
}

#[cfg(test)]
mod tests {
    use super::{WARNING_CHARS, WARNINGS_MAX, warnings};

    #[test]
    fn a_schema_has_few_and_short_warnings() {
        assert_eq!(warnings("tools", &["a".to_owned()]), ["tools: left out: a"]);
        let notes = vec!["é".repeat(100_000); 500];
        let found = warnings("tools", &notes);
        assert_eq!(found.len(), WARNINGS_MAX + 1);
        assert!(found.iter().all(|warning| warning.chars().count() <= WARNING_CHARS + 1));
        assert_eq!(found.last().map(String::as_str), Some("tools: left out: 496 more"));
    }
}
