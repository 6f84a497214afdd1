//! JSON schemas: checks with a place for each error, before and after llguidance has seen the schema.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::expansion::{self, Work};
use crate::{Error, Limits};

/// Keywords that would be needed to be right but are not supported.
const UNSUPPORTED: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "x-guidance",
];

/// Keywords whose value is a schema.
const SCHEMA: &[&str] = &["additionalItems", "additionalProperties", "items"];

/// Keywords whose value is an array of schemas.
const LIST: &[&str] = &["allOf", "anyOf", "oneOf", "prefixItems", "items"];

/// Keywords whose value is an object of schemas.
const MAP: &[&str] = &["$defs", "definitions", "patternProperties", "properties"];

/// Those of them whose schemas hold only where something refers to them.
const DEFINITIONS: &[&str] = &["$defs", "definitions"];

/// Keywords whose value is a number of items, properties or characters.
const COUNT: &[&str] =
    &["maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"];

/// Most properties of an object: the time to compile them grows with their square.
pub(crate) const PROPERTIES_MAX: usize = 1000;

/// Most patterns of an object's `patternProperties`, which are compared in pairs.
const PATTERNS_MAX: usize = 64;

/// Most values of an `enum`.
const VALUES_MAX: usize = 2000;

/// Most parts of a schema that are compiled on their own to find the one at fault.
const TRIALS: usize = 200;

/// Time after which no further part is compiled.
const TRIAL_TIME: Duration = Duration::from_millis(250);

/// Parses a schema and checks what can be checked without compiling it.
///
/// # Errors
/// [`Error::Json`], [`Error::Schema`].
pub fn parse(source: &str, limits: &Limits) -> Result<Value, Error> {
    let json = |error: serde_json::Error| Error::Json { reason: error.to_string() };
    let mut schema: Value = serde_json::from_str(source).map_err(json)?;
    check_whole(&mut schema, limits, &mut Work::default())?;
    Ok(schema)
}

/// Checks a schema and drops what says nothing. `work` adds up over the schemas of a grammar.
///
/// # Errors
/// [`Error::Schema`].
pub fn check_whole(schema: &mut Value, limits: &Limits, work: &mut Work) -> Result<(), Error> {
    check_depth(schema, limits.depth)?;
    if *schema == Value::Bool(false) {
        return Err(refused("#", "the schema false allows no value".to_owned()));
    }
    // A list of work instead of recursion: (path, schema). Definitions are checked where something refers to them.
    let mut open = vec![("#".to_owned(), &*schema)];
    let mut checked = HashSet::new();
    while let Some((path, part)) = open.pop() {
        if !checked.insert(std::ptr::from_ref(part)) {
            continue;
        }
        check(&path, part, schema)?;
        let used = |key: &str| !DEFINITIONS.contains(&key);
        open.extend(children_where(&path, part, used));
        if let Some(reference) = part.get("$ref").and_then(Value::as_str) {
            open.extend(target(schema, reference).map(|part| (reference.to_owned(), part)));
        }
    }
    drop_void(schema);
    expansion::check(schema, work)
}

fn refused(path: &str, reason: String) -> Error {
    Error::Schema { path: path.to_owned(), reason }
}

fn check_depth(schema: &Value, most: usize) -> Result<(), Error> {
    let mut open = vec![(String::from("#"), schema, 1)];
    while let Some((path, value, depth)) = open.pop() {
        if depth > most {
            return Err(refused(&path, format!("it is nested more than {most} deep")));
        }
        match value {
            Value::Array(items) => {
                let below = items.iter().enumerate();
                open.extend(below.map(|(at, item)| (format!("{path}/{at}"), item, depth + 1)));
            }
            Value::Object(fields) => {
                let below = fields.iter();
                open.extend(below.map(|(key, field)| (child(&path, key), field, depth + 1)));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks one schema without those in it.
fn check(path: &str, schema: &Value, root: &Value) -> Result<(), Error> {
    let keywords = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(keywords) => keywords,
        _ => return Err(refused(path, "a schema must be an object, true or false".to_owned())),
    };
    for (key, value) in keywords {
        let at = child(path, key);
        if UNSUPPORTED.contains(&key.as_str()) && !is_void(key, value) {
            return Err(refused(&at, format!("the keyword `{key}` is not supported")));
        }
        let (count, most) = match (key.as_str(), value) {
            ("properties", Value::Object(fields)) => (fields.len(), PROPERTIES_MAX),
            ("patternProperties", Value::Object(fields)) => (fields.len(), PATTERNS_MAX),
            ("enum", Value::Array(values)) => (values.len(), VALUES_MAX),
            _ => (0, 0),
        };
        if count > most {
            return Err(refused(
                &at,
                format!("it has {count} entries; at most {most} are allowed"),
            ));
        }
        let expected = match key.as_str() {
            "$ref" => {
                check_reference(&at, value, root)?;
                continue;
            }
            "items" if value.is_array() || value.is_object() || value.is_boolean() => continue,
            key if SCHEMA.contains(&key) && !value.is_object() && !value.is_boolean() => {
                "a schema: an object, true or false"
            }
            key if LIST.contains(&key) && value.as_array().is_none_or(Vec::is_empty) => match key {
                "prefixItems" if value.is_array() => continue,
                _ => "an array of schemas, not empty",
            },
            key if MAP.contains(&key) && !value.is_object() => "an object of schemas",
            key if COUNT.contains(&key) && !is_count(value) => "a number of 0 or more",
            "enum" if value.as_array().is_none_or(Vec::is_empty) => "an array that is not empty",
            // Beside another type it says nothing, and some write true in place of a list of names.
            "required" if !is_strings(value) && may_be_object(keywords) => "an array of strings",
            "pattern" | "format" if !value.is_string() => "a string",
            "minimum" | "maximum" | "multipleOf" if !value.is_number() => "a number",
            _ => continue,
        };
        return Err(refused(&at, format!("it must be {expected}")));
    }
    Ok(())
}

/// Whether a keyword says nothing, but would be refused: `uniqueItems: false`, and numbers that no text or array exceeds,
/// such as the largest integer of JavaScript.
fn is_void(key: &str, value: &Value) -> bool {
    let exceeds = || value.as_f64().is_some_and(|most| most > f64::from(u32::MAX));
    match key {
        "uniqueItems" => *value == Value::Bool(false),
        "maxItems" | "maxLength" | "maxProperties" => exceeds(),
        _ => false,
    }
}

fn is_count(value: &Value) -> bool {
    value.as_u64().is_some() || value.as_f64().is_some_and(|x| x >= 0.0 && x.fract() == 0.0)
}

/// Whether a schema allows objects.
fn may_be_object(keywords: &Map<String, Value>) -> bool {
    match keywords.get("type") {
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        _ => true,
    }
}

fn is_strings(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(Value::is_string))
}

fn check_reference(path: &str, value: &Value, root: &Value) -> Result<(), Error> {
    let Some(reference) = value.as_str() else {
        return Err(refused(path, "it must be a string".to_owned()));
    };
    let is_own = reference == "#" || reference.starts_with("#/");
    if !is_own || reference.contains(['~', '%']) {
        let supported = "only references into the schema itself are, such as #/$defs/name";
        return Err(refused(
            path,
            format!("the reference {reference} is not supported; {supported}"),
        ));
    }
    match target(root, reference) {
        Some(_) => Ok(()),
        None => Err(refused(path, format!("the schema has no {reference}"))),
    }
}

/// The part of the schema that a reference means.
pub fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match reference {
        "#" | "#/" => Some(root),
        _ => root.pointer(reference.strip_prefix('#')?),
    }
}

/// The path of a key below another.
pub fn child(path: &str, key: &str) -> String {
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// The schemas directly in another, with their paths.
fn children<'a>(path: &str, schema: &'a Value) -> Vec<(String, &'a Value)> {
    children_where(path, schema, |_| true)
}

/// The schemas below those keywords of another that are wanted, with their paths.
fn children_where<'a>(
    path: &str,
    schema: &'a Value,
    is_wanted: impl Fn(&str) -> bool,
) -> Vec<(String, &'a Value)> {
    let mut found = Vec::new();
    for (key, value) in schema.as_object().into_iter().flatten().filter(|(key, _)| is_wanted(key)) {
        let at = child(path, key);
        match value {
            Value::Array(items) if LIST.contains(&key.as_str()) => {
                let items = items.iter().enumerate();
                found.extend(items.map(|(index, item)| (format!("{at}/{index}"), item)));
            }
            Value::Object(fields) if MAP.contains(&key.as_str()) => {
                found.extend(fields.iter().map(|(name, field)| (child(&at, name), field)));
            }
            value if SCHEMA.contains(&key.as_str()) => found.push((at, value)),
            _ => {}
        }
    }
    found
}

/// Removes the keywords that say nothing.
fn drop_void(schema: &mut Value) {
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        let Some(keywords) = schema.as_object_mut() else { continue };
        keywords.retain(|key, value| !is_void(key, value));
        for (key, value) in keywords {
            let key = key.as_str();
            if LIST.contains(&key) && value.is_array() {
                open.extend(value.as_array_mut().into_iter().flatten());
            } else if MAP.contains(&key) {
                open.extend(value.as_object_mut().into_iter().flatten().map(|(_, field)| field));
            } else if SCHEMA.contains(&key) {
                open.push(value);
            }
        }
    }
}

/// The error for a schema that cannot be compiled, with the path of the innermost part that fails with the same
/// message on its own. `fails` compiles a schema.
pub fn locate(schema: &Value, message: &str, fails: &dyn Fn(Value) -> Option<String>) -> Error {
    let (mut path, mut part) = ("#".to_owned(), schema);
    // What is too large as a whole has no part at fault.
    let is_size = message.contains("too big") || message.contains("too large");
    let mut trials = if is_size { TRIALS } else { 0 };
    let start = Instant::now();
    'deeper: loop {
        for (at, child) in children(&path, part) {
            trials += 1;
            if trials > TRIALS || start.elapsed() > TRIAL_TIME {
                break 'deeper;
            }
            if fails(alone(schema, &at)).is_some_and(|error| error == message) {
                (path, part) = (at, child);
                continue 'deeper;
            }
        }
        break;
    }
    refused(&path, message.to_owned())
}

/// The part of a schema at `path` as a schema of its own, next to the whole for its references.
fn alone(schema: &Value, path: &str) -> Value {
    const WHOLE: &str = "#/$defs/whole";
    let mut whole = schema.clone();
    let mut open = vec![&mut whole];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get_mut("$ref") {
                    *reference = reference.replacen('#', WHOLE, 1);
                }
                open.extend(fields.iter_mut().map(|(_, field)| field));
            }
            _ => {}
        }
    }
    let mut found = Map::new();
    found.insert("$ref".to_owned(), json!(path.replacen('#', WHOLE, 1)));
    found.insert("$defs".to_owned(), json!({ "whole": whole }));
    if let Some(draft) = schema.get("$schema") {
        found.insert("$schema".to_owned(), draft.clone());
    }
    Value::Object(found)
}
