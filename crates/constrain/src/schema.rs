//! JSON schemas: checks with a place for each error, before and after llguidance has seen the schema.

use std::collections::HashSet;

use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use crate::limits::PROPERTIES_MAX;
use crate::{Error, Limits, regex};
use closed::Overlaps;
use expansion::Work;
use normal::{BOUND_MAX, normalize, plain_references};

pub mod closed;
pub mod counted;
mod exclusive;
pub mod expansion;
pub mod lenient;
mod normal;
mod patterns;
pub mod trials;

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

/// Most patterns of an object's `patternProperties`, which are compared in pairs.
const PATTERNS_MAX: usize = 64;

/// Most values of an `enum`.
const VALUES_MAX: usize = 2000;

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

/// Checks a schema and normalizes it. `work` adds up over the schemas of a grammar.
///
/// # Errors
/// [`Error::Schema`].
pub fn check_whole(schema: &mut Value, limits: &Limits, work: &mut Work) -> Result<(), Error> {
    check_depth(schema, limits.depth)?;
    // Errors name places in the schema as it was written.
    let mut written = schema.clone();
    normalize(&mut written);
    if let Some(fault) = faults(&written, 1).pop() {
        return Err(fault.into());
    }
    closed::close(schema, Overlaps::Refused);
    normalize(schema);
    patterns::apply_listed(schema);
    counted::check(schema, work)
}

/// What is wrong with a schema.
struct Fault {
    /// The keyword or schema at fault.
    path: String,
    reason: String,
    kind: FaultKind,
}

/// What is at fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FaultKind {
    Keyword,
    /// An entry of `patternProperties`.
    Pattern,
    /// A schema.
    Schema,
    /// The size.
    Limit,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        refused(&fault.path, fault.reason)
    }
}

/// The first faults of a schema that is normalized.
fn faults(schema: &Value, most: usize) -> Vec<Fault> {
    if *schema == Value::Bool(false) {
        let reason = "the schema false allows no value".to_owned();
        return vec![Fault { path: "#".to_owned(), reason, kind: FaultKind::Schema }];
    }
    let mut found = Vec::new();
    for (path, part) in used(schema) {
        if found.len() >= most {
            break;
        }
        check(&path, part, schema, &mut found);
    }
    found.truncate(most);
    found
}

/// The schemas in another, itself included, with their paths: definitions only where something refers to them.
fn used(schema: &Value) -> Vec<(String, &Value)> {
    // A list of work instead of recursion.
    let mut open = vec![("#".to_owned(), schema)];
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    while let Some((path, part)) = open.pop() {
        if !seen.insert(std::ptr::from_ref(part)) {
            continue;
        }
        let is_used = |key: &str| !DEFINITIONS.contains(&key);
        open.extend(children_where(&path, part, is_used));
        if let Some(reference) = part.get("$ref").and_then(Value::as_str) {
            let path = reference.trim_end_matches('/').to_owned();
            open.extend(target(schema, reference).map(|part| (path, part)));
        }
        found.push((path, part));
    }
    found
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

/// Adds the faults of one schema without those in it.
fn check(path: &str, schema: &Value, root: &Value, found: &mut Vec<Fault>) {
    let keywords = match schema {
        Value::Bool(_) => return,
        Value::Object(keywords) => keywords,
        _ => {
            let reason = "a schema must be an object, true or false".to_owned();
            return found.push(Fault { path: path.to_owned(), reason, kind: FaultKind::Schema });
        }
    };
    for (key, value) in keywords {
        let at = child(path, key);
        if let Some((count, most)) = count(key, value).filter(|(count, most)| count > most) {
            let reason = format!("it has {count} entries; at most {most} are allowed");
            found.push(Fault { path: at, reason, kind: FaultKind::Limit });
        } else if let Some(reason) = fault(key, value, keywords, root) {
            found.push(Fault { path: at, reason, kind: FaultKind::Keyword });
        } else if let ("patternProperties", Value::Object(patterns)) = (key.as_str(), value)
            && may_be("object", keywords)
        {
            let faults =
                patterns.keys().filter_map(|pattern| Some((pattern, expression(pattern)?)));
            found.extend(faults.map(|(pattern, reason)| Fault {
                path: child(&at, pattern),
                reason,
                kind: FaultKind::Pattern,
            }));
        }
    }
}

/// The number of entries of a keyword whose number is limited, and the limit.
fn count(key: &str, value: &Value) -> Option<(usize, usize)> {
    match (key, value) {
        ("properties", Value::Object(fields)) => Some((fields.len(), PROPERTIES_MAX)),
        ("patternProperties", Value::Object(fields)) => Some((fields.len(), PATTERNS_MAX)),
        ("enum", Value::Array(values)) => Some((values.len(), VALUES_MAX)),
        _ => None,
    }
}

/// Why a keyword cannot be followed; `None` if it may be.
fn fault(key: &str, value: &Value, keywords: &Map<String, Value>, root: &Value) -> Option<String> {
    if UNSUPPORTED.contains(&key) {
        return Some(format!("the keyword `{key}` is not supported"));
    }
    let expected = match key {
        "$ref" => return reference_fault(value, root),
        "items" if value.is_array() || value.is_object() || value.is_boolean() => return None,
        key if SCHEMA.contains(&key) && !value.is_object() && !value.is_boolean() => {
            "a schema: an object, true or false"
        }
        "prefixItems" if value.is_array() => return None,
        key if LIST.contains(&key) && value.as_array().is_none_or(Vec::is_empty) => {
            "an array of schemas, not empty"
        }
        key if MAP.contains(&key) && !value.is_object() => "an object of schemas",
        key if COUNT.contains(&key) && !value.is_u64() => "a number of 0 or more",
        "enum" if value.as_array().is_none_or(Vec::is_empty) => "an array that is not empty",
        // Beside another type it says nothing, and some write true in place of a list of names.
        "required" if !is_strings(value) && may_be("object", keywords) => "an array of strings",
        "pattern" | "format" if !value.is_string() => "a string",
        "pattern" if may_be("string", keywords) => return expression(value.as_str()?),
        "minimum" | "maximum" | "multipleOf" if !value.is_number() => "a number",
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum"
            if value.as_f64().is_some_and(|bound| bound.abs() > BOUND_MAX as f64) =>
        {
            return Some(format!("numbers beyond {BOUND_MAX} are not supported"));
        }
        _ => return None,
    };
    Some(format!("it must be {expected}"))
}

/// What is wrong with a pattern as llguidance reads it.
fn expression(pattern: &str) -> Option<String> {
    let error = regex::error(&regex_to_lark(pattern, "dw"))?;
    Some(format!("regex parse error: {error}"))
}

/// Whether a schema allows values of a type.
fn may_be(name: &str, keywords: &Map<String, Value>) -> bool {
    match keywords.get("type") {
        Some(Value::String(only)) => only == name,
        Some(Value::Array(names)) => names.iter().any(|one| one == name),
        _ => true,
    }
}

fn is_strings(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(Value::is_string))
}

fn reference_fault(value: &Value, root: &Value) -> Option<String> {
    let Some(reference) = value.as_str() else {
        return Some("it must be a string".to_owned());
    };
    if reference != "#" && !reference.starts_with("#/") {
        let supported = "only references into the schema itself are, such as #/$defs/name";
        return Some(format!("the reference {reference} is not supported; {supported}"));
    }
    let is_missing = target(root, reference).is_none();
    is_missing.then(|| format!("the schema has no {reference}"))
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

/// The schemas directly in another.
fn children_mut(schema: &mut Value) -> Vec<&mut Value> {
    let mut found = Vec::new();
    for (key, value) in schema.as_object_mut().into_iter().flatten() {
        let key = key.as_str();
        if LIST.contains(&key) && value.is_array() {
            found.extend(value.as_array_mut().into_iter().flatten());
        } else if MAP.contains(&key) {
            found.extend(value.as_object_mut().into_iter().flat_map(Map::values_mut));
        } else if SCHEMA.contains(&key) {
            found.push(value);
        }
    }
    found
}

/// llguidance's escapes in strings, where those of printable characters would allow names of properties to be written
/// as others: in objects that have names and allow more. All `\u` is left out there.
pub fn escapes(schema: &Value) -> Option<&'static str> {
    let mut open = vec![(String::new(), schema)];
    while let Some((path, schema)) = open.pop() {
        let is_named =
            |key| schema.get(key).and_then(Value::as_object).is_some_and(|all| !all.is_empty());
        let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        if !is_closed && (is_named("properties") || is_named("patternProperties")) {
            return Some("nrbtf\\\"");
        }
        open.extend(children(&path, schema));
    }
    None
}
