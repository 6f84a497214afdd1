//! A validator of its own for the keywords that the schemas of the tests use, after the text of draft 2020-12.

use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Map, Value};

/// Whether a value is valid under a schema, whose references are into `root`.
pub fn check(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    let keywords = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(keywords) => keywords,
        _ => return Err("no value is valid under false".into()),
    };
    for (keyword, given) in keywords {
        let is_valid = match keyword.as_str() {
            "$ref" => {
                let at = given.as_str().and_then(|at| root.pointer(&at[1..]));
                check(value, at.ok_or("no such reference")?, root).is_ok()
            }
            "type" => match given {
                Value::Array(types) => types.iter().any(|name| is_of(value, name)),
                name => is_of(value, name),
            },
            "const" => value == given,
            "enum" => list(given).contains(value),
            "anyOf" => list(given).iter().any(|option| check(value, option, root).is_ok()),
            "allOf" => list(given).iter().all(|option| check(value, option, root).is_ok()),
            "oneOf" => {
                list(given).iter().filter(|option| check(value, option, root).is_ok()).count() == 1
            }
            keyword => match value {
                Value::Object(fields) => object(fields, (keyword, given), keywords, root),
                Value::Array(items) => array(items, (keyword, given), keywords, root),
                Value::String(text) => string(text, keyword, given),
                Value::Number(number) => {
                    bounds(number.as_f64().unwrap_or(f64::NAN), keyword, given)
                }
                _ => true,
            },
        };
        if !is_valid {
            return Err(format!("{keyword} {given}"));
        }
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn is_of(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}

fn object(
    fields: &Map<String, Value>,
    (keyword, given): (&str, &Value),
    keywords: &Map<String, Value>,
    root: &Value,
) -> bool {
    let count = given.as_u64().unwrap_or_default() as usize;
    let empty = Map::new();
    let named = |keyword: &str| keywords.get(keyword).and_then(Value::as_object).unwrap_or(&empty);
    match keyword {
        "required" => {
            list(given).iter().all(|name| fields.contains_key(name.as_str().unwrap_or_default()))
        }
        "properties" => named(keyword).iter().all(|(name, schema)| {
            fields.get(name).is_none_or(|field| check(field, schema, root).is_ok())
        }),
        "patternProperties" => named(keyword).iter().all(|(pattern, schema)| {
            let mut matching = fields.iter().filter(|(name, _)| finds(pattern, name));
            matching.all(|(_, field)| check(field, schema, root).is_ok())
        }),
        "additionalProperties" => {
            let patterns = named("patternProperties");
            let is_listed = |name: &str| {
                named("properties").contains_key(name)
                    || patterns.keys().any(|pattern| finds(pattern, name))
            };
            let mut others = fields.iter().filter(|(name, _)| !is_listed(name));
            others.all(|(_, field)| check(field, given, root).is_ok())
        }
        "minProperties" => fields.len() >= count,
        "maxProperties" => fields.len() <= count,
        _ => true,
    }
}

fn array(
    items: &[Value],
    (keyword, given): (&str, &Value),
    keywords: &Map<String, Value>,
    root: &Value,
) -> bool {
    let count = given.as_u64().unwrap_or_default() as usize;
    // Before draft 2020-12 a list of schemas was called `items`, and what follows `additionalItems`.
    let first = keywords.get("prefixItems").or(keywords.get("items").filter(|i| i.is_array()));
    let first = first.map(list).unwrap_or_default();
    let others = || items.iter().skip(first.len()).all(|item| check(item, given, root).is_ok());
    match keyword {
        "items" | "prefixItems" if given.is_array() => {
            items.iter().zip(first).all(|(item, schema)| check(item, schema, root).is_ok())
        }
        "items" | "additionalItems" => others(),
        "minItems" => items.len() >= count,
        "maxItems" => items.len() <= count,
        _ => true,
    }
}

fn string(text: &str, keyword: &str, given: &Value) -> bool {
    let (count, length) = (given.as_u64().unwrap_or_default() as usize, text.chars().count());
    match keyword {
        "minLength" => length >= count,
        "maxLength" => length <= count,
        "pattern" => finds(given.as_str().unwrap_or_default(), text),
        "format" => finds(format(given.as_str().unwrap_or_default()), text),
        _ => true,
    }
}

/// An expression that all texts of a format match.
fn format(name: &str) -> &'static str {
    match name {
        "date" => "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$",
        "time" => "^[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\\.[0-9]+)?([zZ]|[+-][0-2][0-9]:[0-5][0-9])$",
        "date-time" => "^[0-9]{4}-[01][0-9]-[0-3][0-9][tT ][0-2][0-9]:[0-5][0-9]:[0-6][0-9].*$",
        "uuid" => "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
        "ipv4" => "^([0-9]{1,3}\\.){3}[0-9]{1,3}$",
        "email" => "^[^@]+@.+$",
        _ => "^$.",
    }
}

fn bounds(number: f64, keyword: &str, given: &Value) -> bool {
    let bound = given.as_f64().unwrap_or(f64::NAN);
    match keyword {
        "minimum" => number >= bound,
        "maximum" => number <= bound,
        "exclusiveMinimum" => number > bound,
        "exclusiveMaximum" => number < bound,
        "multipleOf" => (number / bound).fract() == 0.0,
        _ => true,
    }
}

/// Whether an expression matches somewhere in a text: by all its ways, which are few here.
fn finds(expression: &str, text: &str) -> bool {
    let parsed = regex_syntax::parse(expression).expect("an expression");
    let characters: Vec<char> = text.chars().collect();
    (0..=characters.len()).any(|start| !ends(&parsed, &characters, vec![start]).is_empty())
}

/// Where matches that begin at one of `starts` may end.
fn ends(part: &Hir, text: &[char], starts: Vec<usize>) -> Vec<usize> {
    let mut found: Vec<usize> = match part.kind() {
        HirKind::Empty => starts,
        HirKind::Literal(literal) => {
            let literal: Vec<char> = String::from_utf8_lossy(&literal.0).chars().collect();
            let fits = |at: &usize| text[*at..].starts_with(&literal);
            starts.into_iter().filter(fits).map(|at| at + literal.len()).collect()
        }
        HirKind::Class(Class::Unicode(class)) => {
            let has =
                |c: char| class.iter().any(|range| (range.start()..=range.end()).contains(&c));
            let fits = |at: &usize| text.get(*at).is_some_and(|&c| has(c));
            starts.into_iter().filter(fits).map(|at| at + 1).collect()
        }
        HirKind::Class(Class::Bytes(class)) => {
            let has = |c: char| {
                class
                    .iter()
                    .any(|range| (char::from(range.start())..=char::from(range.end())).contains(&c))
            };
            let fits = |at: &usize| text.get(*at).is_some_and(|&c| has(c));
            starts.into_iter().filter(fits).map(|at| at + 1).collect()
        }
        HirKind::Look(look) => {
            let is_start = *look == regex_syntax::hir::Look::Start;
            starts.into_iter().filter(|&at| at == if is_start { 0 } else { text.len() }).collect()
        }
        HirKind::Repetition(repetition) => {
            let (mut all, mut now) = (Vec::new(), starts);
            for count in 0..=repetition.max.unwrap_or(u32::MAX).min(text.len() as u32 + 1) {
                if count >= repetition.min {
                    all.extend(&now);
                }
                now = ends(&repetition.sub, text, now);
            }
            all
        }
        HirKind::Capture(capture) => ends(&capture.sub, text, starts),
        HirKind::Concat(parts) => {
            parts.iter().fold(starts, |starts, part| ends(part, text, starts))
        }
        HirKind::Alternation(parts) => {
            parts.iter().flat_map(|part| ends(part, text, starts.clone())).collect()
        }
    };
    found.sort_unstable();
    found.dedup();
    found
}
