//! Schemas written as llguidance takes them: without keywords that say nothing, with plain references.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{COUNT, LIST, MAP, SCHEMA, UNSUPPORTED, children_mut, target};

/// Formats that are enforced. By the specification any other is an annotation.
const FORMATS: &[&str] =
    &["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// Keywords for readers.
const ANNOTATIONS: &[&str] = &["$comment", "default", "description", "examples", "title"];

/// Other keywords whose value null means that they are absent, as some clients write them.
const NULLABLE: &[&str] = &[
    "$ref",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maximum",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
    "type",
];

/// The largest number that both a double and an `i64` hold: llguidance computes bounds with both.
pub const BOUND_MAX: i64 = i64::MAX - 1023;

/// A bound of this size is the end of a floating-point type, and excludes nothing.
const ENDLESS: f64 = 1e300;

/// From here on llguidance needs both bounds of a number.
const BOTH_FROM: f64 = 1e18;

/// Removes what says nothing, and writes what is left as llguidance takes it.
pub fn normalize(schema: &mut Value) {
    plain_references(schema);
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        if schema.get("not").is_some_and(says_nothing) {
            *schema = Value::Bool(false);
        }
        if let Some(keywords) = schema.as_object_mut() {
            normalize_keywords(keywords);
        }
        open.extend(children_mut(schema));
    }
}

fn normalize_keywords(keywords: &mut Map<String, Value>) {
    let is_absent = |key: &str, value: &Value| {
        value.is_null()
            && [UNSUPPORTED, SCHEMA, LIST, MAP, COUNT, NULLABLE]
                .iter()
                .any(|all| all.contains(&key))
    };
    keywords.retain(|key, value| !is_absent(key, value) && !is_void(key, value));
    let has = |key: &str| keywords.contains_key(key);
    let lone = match (has("if"), has("then") || has("else"), has("contains")) {
        (false, _, false) => &["then", "else", "minContains", "maxContains"][..],
        (true, false, false) => &["if", "minContains", "maxContains"],
        (true, true, false) => &["minContains", "maxContains"],
        (false, _, true) => &["then", "else"],
        (true, false, true) => &["if"],
        (true, true, true) => &[],
    };
    keywords.retain(|key, _| !lone.contains(&key.as_str()));
    for key in COUNT {
        let Some(count) = keywords.get_mut(*key).filter(|value| !value.is_u64()) else { continue };
        if let Some(whole) = count.as_f64().filter(|x| *x >= 0.0 && x.fract() == 0.0) {
            *count = json!(whole as u64);
        }
    }
    bound(keywords, ["minimum", "exclusiveMinimum"], ("maximum", "exclusiveMaximum"), 1);
    bound(keywords, ["maximum", "exclusiveMaximum"], ("minimum", "exclusiveMinimum"), -1);
}

/// Brings bounds into the range in which llguidance computes. `inward` is the sign of the direction in which the
/// keywords exclude less than zero does.
fn bound(
    keywords: &mut Map<String, Value>,
    keys: [&str; 2],
    (other, other_exclusive): (&str, &str),
    inward: i64,
) {
    for key in keys {
        let Some(number) = keywords.get(key).and_then(Value::as_f64) else { continue };
        let outward = -number * inward as f64;
        if outward >= ENDLESS {
            keywords.shift_remove(key);
        } else if outward >= BOUND_MAX as f64 {
            keywords.insert(key.to_owned(), json!(-inward * BOUND_MAX));
        }
        let is_bounded = [other, other_exclusive].iter().any(|key| keywords.contains_key(*key));
        if -outward >= BOTH_FROM && !is_bounded {
            keywords.insert(other.to_owned(), json!(inward * BOUND_MAX));
        }
    }
}

/// Whether a keyword says nothing whatever stands beside it: numbers that no text or array exceeds, such as the largest
/// integer of JavaScript, formats that are annotations, and schemas of anything.
fn is_void(key: &str, value: &Value) -> bool {
    let exceeds = || value.as_f64().is_some_and(|most| most > f64::from(u32::MAX));
    match key {
        "maxItems" | "maxLength" | "maxProperties" => exceeds(),
        "uniqueItems" | "not" => *value == Value::Bool(false),
        "format" => value.as_str().is_some_and(|name| !FORMATS.contains(&name)),
        "propertyNames" => says_nothing(value) || is_any_text(value),
        "unevaluatedItems" | "unevaluatedProperties" => says_nothing(value),
        "dependencies" | "dependentRequired" | "dependentSchemas" => {
            value.as_object().is_some_and(Map::is_empty)
        }
        "$dynamicAnchor" | "$recursiveAnchor" => true,
        _ => false,
    }
}

/// Whether a schema allows any value.
fn says_nothing(schema: &Value) -> bool {
    let is_note = |key: &String| ANNOTATIONS.contains(&key.as_str());
    *schema == Value::Bool(true) || schema.as_object().is_some_and(|all| all.keys().all(is_note))
}

/// Whether a schema allows any text and says no more.
fn is_any_text(schema: &Value) -> bool {
    let is_note = |key: &String| key == "type" || ANNOTATIONS.contains(&key.as_str());
    schema.get("type").is_some_and(|kind| kind == "string")
        && schema.as_object().is_some_and(|all| all.keys().all(is_note))
}

/// Rewrites references with escapes (RFC 3986, RFC 6901), which llguidance does not decode. What only an escaped
/// reference reaches is moved to a definition with a plain name.
pub fn plain_references(schema: &mut Value) {
    let mut pointers = BTreeMap::new();
    each_reference(schema, |reference| {
        if let Some(escaped) = reference.strip_prefix('#').filter(|at| at.contains(['~', '%'])) {
            pointers.insert(reference.clone(), decoded(escaped));
        }
    });
    let definitions = schema.get("$defs").filter(|all| !all.is_null());
    // What has no room for definitions is refused later.
    if pointers.is_empty() || definitions.is_some_and(|all| !all.is_object()) {
        return;
    }
    let mut moved: BTreeMap<String, String> = BTreeMap::new();
    // Inner parts are moved before those that they are in.
    let mut inner_first: Vec<String> = pointers.values().cloned().collect();
    inner_first.sort_by_key(|pointer| std::cmp::Reverse(pointer.split('/').count()));
    inner_first.dedup();
    for pointer in inner_first.into_iter().filter(|pointer| pointer.contains(['~', '%'])) {
        let is_schema = |part: &&Value| part.is_object() || part.is_boolean();
        if moved.contains_key(&pointer) || schema.pointer(&pointer).filter(is_schema).is_none() {
            continue;
        }
        let name = free_name(schema, &pointer);
        let reference = format!("#/$defs/{name}");
        let Some(part) = schema.pointer_mut(&pointer) else { continue };
        let part = std::mem::replace(part, json!({ "$ref": reference }));
        if let Some(keywords) = schema.as_object_mut() {
            let definitions = keywords.entry("$defs").or_insert(Value::Null);
            if definitions.is_null() {
                *definitions = json!({});
            }
            if let Some(definitions) = definitions.as_object_mut() {
                definitions.insert(name, part);
            }
        }
        moved.insert(pointer, reference);
    }
    each_reference(schema, |reference| {
        let Some(pointer) = pointers.get(reference) else { return };
        match moved.get(pointer) {
            Some(plain) => reference.clone_from(plain),
            None if !pointer.contains(['~', '%']) => *reference = format!("#{pointer}"),
            None => {}
        }
    });
}

/// Visits the references of a schema.
fn each_reference(schema: &mut Value, mut visit: impl FnMut(&mut String)) {
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        if let Some(Value::String(reference)) = schema.get_mut("$ref") {
            visit(reference);
        }
        open.extend(children_mut(schema));
    }
}

/// Whether a reference has one of these texts. What it names cannot be moved, as the reference would have to follow.
pub fn has_reference_into(schema: &mut Value, parts: &[&str]) -> bool {
    let mut found = false;
    each_reference(schema, |reference| {
        found |= parts.iter().any(|part| reference.contains(part));
    });
    found
}

/// A fragment without its percent-encoding; it stays as it is where that is not one of UTF-8.
fn decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = (first == b'%').then(|| after.get(..2)).flatten();
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| fragment.to_owned())
}

/// A name for a definition, which the schema does not have, after the end of a pointer.
fn free_name(schema: &Value, pointer: &str) -> String {
    let last = pointer.rsplit('/').next().unwrap_or_default();
    let mut name = last.replace("~1", "_").replace("~0", "_").replace(['~', '%'], "_");
    while target(schema, &format!("#/$defs/{name}")).is_some() {
        name.push('_');
    }
    name
}
