//! Closes objects that list properties and do not say whether they may have others, as llama.cpp does: by the specification a
//! model could invent some.
//!
//! Only a schema that alone describes its value is closed. Whatever it allows, it allows without the names that it does not
//! list, so it stays satisfiable. Where several schemas describe one value, each may need names that only another lists:
//! they stay open, and so does all that they contain or refer to, also where it is used alone. Options of a `oneOf` that
//! may overlap stay open as well: a value of one that is closed could be valid under another.
//!
//! As in llama.cpp, such a schema is one of objects, also where it names no type.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::exclusive::{Proofs, distinct_options, types};
use super::{DEFINITIONS, LIST, MAP, SCHEMA, plain_references, target};
use crate::limits::PROPERTIES_MAX;

/// Keywords with which more than one schema may describe a value, or which list whole values.
const COMBINING: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "dependencies",
    "dependentSchemas",
    "else",
    "enum",
    "if",
    "not",
    "oneOf",
    "then",
];

/// Keywords that say which other properties an object has.
const OTHERS: &[&str] = &["additionalProperties", "dependentRequired", "unevaluatedProperties"];

/// Keywords that describe objects and arrays by themselves. Beside references and options others say nothing about them.
const OWN: &[&str] = &[
    "additionalItems",
    "items",
    "maxProperties",
    "minProperties",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "unevaluatedItems",
    "uniqueItems",
];

/// Keywords that allow some value, in whatever combination.
const SATISFIABLE: &[&str] = &[
    "additionalProperties",
    "default",
    "description",
    "examples",
    "format",
    "items",
    "properties",
    "title",
    "type",
];

/// Keywords that allow some value where nothing but [`NOTES`] stands beside them.
const LONE: &[&str] = &[
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxItems",
    "maxLength",
    "maximum",
    "minLength",
    "minimum",
];

/// Keywords that say nothing of values, and the type.
const NOTES: &[&str] = &["default", "description", "examples", "title", "type"];

/// What becomes of a `oneOf` whose options may overlap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Overlaps {
    /// It is not followed.
    Refused,
    /// It is followed as `anyOf`.
    Allowed,
}

/// Closes the objects of a schema, in time linear in its size but for the comparison of options, which is bounded; its
/// references become plain, and each `oneOf` whose options exclude each other an `anyOf`.
pub fn close(schema: &mut Value, overlaps: Overlaps) {
    plain_references(schema);
    distinct_options(schema);
    let roles = roles(schema, overlaps);
    let is_alone = |object: &Value| roles.get(&std::ptr::from_ref(object)) == Some(&Role::Alone);
    let changed = |object: &Value| {
        let keywords = object.as_object().filter(|_| is_alone(object));
        keywords.map(|keywords| (may_close(keywords), is_object(keywords))).unwrap_or_default()
    };
    // Objects move in memory as others are closed, but keep their order: what is added has none.
    let (mut changes, mut open) = (Vec::new(), vec![&*schema]);
    while let Some(value) = open.pop() {
        changes.extend(value.is_object().then(|| changed(value)));
        open.extend(below(value));
    }
    let (mut changes, mut open) = (changes.into_iter(), vec![schema]);
    while let Some(value) = open.pop() {
        match value {
            Value::Object(keywords) => {
                let (may_close, is_object) = changes.next().unwrap_or_default();
                if is_object {
                    keywords.insert("type".to_owned(), "object".into());
                }
                if may_close {
                    close_object(keywords);
                }
                open.extend(keywords.values_mut());
            }
            Value::Array(values) => open.extend(values),
            _ => {}
        }
    }
}

/// How a schema describes a value; the later one prevails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Alone,
    /// Together with others, or in a schema that does.
    Combined,
}

/// The roles of all schemas that are used. A definition has those of its uses.
fn roles(root: &Value, overlaps: Overlaps) -> HashMap<*const Value, Role> {
    let (mut roles, mut proofs) = (HashMap::new(), Proofs::new(root));
    let mut open = vec![(root, Role::Alone)];
    while let Some((value, mut role)) = open.pop() {
        if value.as_object().is_some_and(is_combined) {
            role = Role::Combined;
        }
        match roles.entry(std::ptr::from_ref(value)) {
            Entry::Occupied(known) if *known.get() >= role => continue,
            known => known.insert_entry(role),
        };
        match (value.as_object(), role) {
            (Some(keywords), Role::Alone) => {
                let overlap = overlaps == Overlaps::Refused
                    && given(keywords, "oneOf").is_some()
                    && !proofs.are_exclusive(keywords);
                let role_of_options = if overlap { Role::Combined } else { Role::Alone };
                parts(keywords, role_of_options, &mut open);
            }
            _ => open.extend(below(value).map(|value| (value, role))),
        }
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            open.extend(target(root, reference).map(|value| (value, role)));
        }
    }
    roles
}

/// Adds the schemas in one that describes a value alone, with the role of the options of its `oneOf`.
fn parts<'a>(
    keywords: &'a Map<String, Value>,
    role_of_options: Role,
    open: &mut Vec<(&'a Value, Role)>,
) {
    let is_map =
        |key: &str| matches!(given(keywords, key), Some(Value::Object(all)) if !all.is_empty());
    // Both describe the value of a name that is listed and matches.
    let role_of_properties = match is_map("properties") && is_map("patternProperties") {
        true => Role::Combined,
        false => Role::Alone,
    };
    for (key, value) in keywords {
        let key = key.as_str();
        match value {
            Value::Array(_) if LIST.contains(&key) => {
                let role = if key == "oneOf" { role_of_options } else { Role::Alone };
                open.extend(below(value).map(|part| (part, role)));
            }
            Value::Object(_) if SCHEMA.contains(&key) => open.push((value, Role::Alone)),
            Value::Object(_) if MAP.contains(&key) && !DEFINITIONS.contains(&key) => {
                open.extend(below(value).map(|part| (part, role_of_properties)));
            }
            _ => {}
        }
    }
}

/// The values directly in another.
fn below(value: &Value) -> impl Iterator<Item = &Value> {
    let fields = value.as_object().into_iter().flat_map(Map::values);
    fields.chain(value.as_array().into_iter().flatten())
}

fn given<'a>(keywords: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    keywords.get(key).filter(|value| !value.is_null())
}

fn has_any(keywords: &Map<String, Value>, keys: &[&str]) -> bool {
    keys.iter().any(|key| given(keywords, key).is_some())
}

/// Whether more than one schema may describe the value, or an object with `properties` is one of several values. It is not
/// so where a schema has only a reference, or only options.
fn is_combined(keywords: &Map<String, Value>) -> bool {
    let mut found = COMBINING.iter().filter_map(|key| Some((*key, given(keywords, key)?)));
    let Some((key, value)) = found.next() else { return false };
    let is_plain = match key {
        "$ref" | "anyOf" | "oneOf" => true,
        "allOf" => value.as_array().is_none_or(|parts| parts.len() == 1),
        _ => false,
    };
    !is_plain || found.next().is_some() || has_any(keywords, OWN) || has_any(keywords, OTHERS)
}

/// Whether a schema that alone describes its value can be closed.
fn may_close(keywords: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = given(keywords, "properties") else { return false };
    if has_any(keywords, COMBINING) || has_any(keywords, OTHERS) {
        return false;
    }
    let required: HashSet<&str> = required(keywords).collect();
    let unlisted = required.iter().filter(|name| !properties.contains_key(**name)).count();
    // A property that is not required may have a schema that allows nothing, or nothing finite.
    let is_more = |(name, property): &(&String, &Value)| {
        !required.contains(name.as_str()) && is_satisfiable(property)
    };
    let possible = required.len() + properties.iter().filter(is_more).count();
    let least = match given(keywords, "minProperties") {
        Some(least) => least.as_f64().unwrap_or(f64::INFINITY),
        None => 0.0,
    };
    least <= possible as f64 && properties.len() + unlisted <= PROPERTIES_MAX
}

/// Whether a schema that alone describes its value, without a type, is one of objects.
fn is_object(keywords: &Map<String, Value>) -> bool {
    let has_names = matches!(given(keywords, "properties"), Some(Value::Object(_)));
    let others = given(keywords, "additionalProperties");
    let has_others = matches!(others, Some(Value::Object(_) | Value::Bool(false)));
    (has_names || has_others) && given(keywords, "type").is_none() && !has_any(keywords, COMBINING)
}

/// Whether it is clear that a schema allows some value.
fn is_satisfiable(schema: &Value) -> bool {
    let Some(keywords) = schema.as_object() else { return *schema == Value::Bool(true) };
    let mut lone = keywords.keys().map(String::as_str).filter(|key| !NOTES.contains(key));
    let is_lone = lone.next().is_some_and(|key| LONE.contains(&key)) && lone.next().is_none();
    is_lone && types(keywords) != 0
        || keywords.keys().all(|key| SATISFIABLE.contains(&key.as_str()))
}

fn required(keywords: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let names = given(keywords, "required").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str)
}

fn close_object(keywords: &mut Map<String, Value>) {
    let names: Vec<String> = required(keywords).map(str::to_owned).collect();
    if let Some(Value::Object(properties)) = keywords.get_mut("properties") {
        for name in names {
            properties.entry(name).or_insert(Value::Bool(true));
        }
    }
    keywords.insert("additionalProperties".to_owned(), false.into());
}
