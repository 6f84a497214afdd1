//! Whether the options of a `oneOf` exclude each other, as the schema says it: before its objects are closed.

use serde_json::{Map, Value};

use super::normal::has_reference_into;
use super::{children_mut, target};

/// References that are followed one after another.
const REFERENCES_MAX: usize = 16;

/// Deepest properties that are compared.
const DEPTH_MAX: usize = 8;

/// Most comparisons of schemas and values: some tenths of a second.
const STEPS_MAX: usize = 1_000_000;

/// The types of values, a bit each; a number may be an integer.
const TYPES: &[(&str, u8)] = &[
    ("null", 1),
    ("boolean", 2),
    ("integer", INTEGER),
    ("number", INTEGER | FRACTION),
    ("string", 16),
    ("array", 32),
    ("object", OBJECT),
];
const INTEGER: u8 = 4;
const FRACTION: u8 = 8;
const OBJECT: u8 = 64;
const ANY: u8 = u8::MAX;

/// Writes `oneOf` as `anyOf` where the options exclude each other: llguidance does not compare what references name, and
/// compares objects as they are closed.
pub fn distinct_options(schema: &mut Value) {
    if has_reference_into(schema, &["/oneOf/"]) {
        return;
    }
    let whole = schema.clone();
    let mut proofs = Proofs::new(&whole);
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        if let Some(keywords) = schema.as_object_mut()
            && !keywords.contains_key("anyOf")
            && proofs.are_exclusive(keywords)
            && let Some(options) = keywords.shift_remove("oneOf")
        {
            keywords.insert("anyOf".to_owned(), options);
        }
        open.extend(children_mut(schema));
    }
}

/// Proofs that no value is valid under two schemas. Keywords that are not understood are taken to exclude nothing.
pub struct Proofs<'a> {
    root: &'a Value,
    steps: usize,
}

impl<'a> Proofs<'a> {
    /// References are into `root`.
    pub fn new(root: &'a Value) -> Proofs<'a> {
        Proofs { root, steps: STEPS_MAX }
    }

    /// Whether a schema has a `oneOf` of which no value is valid under two options.
    pub fn are_exclusive(&mut self, keywords: &Map<String, Value>) -> bool {
        let types = types(keywords);
        let Some(Value::Array(options)) = keywords.get("oneOf") else { return false };
        (0..options.len()).all(|first| {
            let mut others = options[first + 1..].iter();
            others.all(|other| self.excludes(&options[first], other, types, 0))
        })
    }

    /// Whether no value of `types` is valid under both schemas.
    fn excludes(&mut self, a: &Value, b: &Value, types: u8, depth: usize) -> bool {
        if depth > DEPTH_MAX || !self.spend(1) {
            return false;
        }
        let (Some(a), Some(b)) = (self.resolved(a), self.resolved(b)) else { return false };
        if *a == Value::Bool(false) || *b == Value::Bool(false) {
            return true;
        }
        let (Some(keywords), Some(others)) = (a.as_object(), b.as_object()) else { return false };
        let count = |keywords| {
            values(keywords).map_or(0, <[Value]>::len) + list(keywords, "required").len()
        };
        if !self.spend(count(keywords) + count(others)) {
            return false;
        }
        let types = types & self::types(keywords) & self::types(others);
        if types == 0 || self.have_other_values(keywords, others) {
            return true;
        }
        for (from, other) in [(keywords, b), (others, a)] {
            let mut excludes = |part: &Value| self.excludes(part, other, types, depth + 1);
            let has_options = |key: &&&str| !list(from, key).is_empty();
            let mut options = ["anyOf", "oneOf"].iter().filter(has_options);
            if options.any(|key| list(from, key).iter().all(&mut excludes))
                || list(from, "allOf").iter().any(&mut excludes)
            {
                return true;
            }
        }
        let mut names = required(keywords).chain(required(others));
        types == OBJECT
            && names.any(|name| {
                let [a, b] = [keywords, others].map(|keywords| property(keywords, name));
                a.zip(b).is_some_and(|(a, b)| self.excludes(a, b, ANY, depth + 1))
            })
    }

    /// What a schema refers to. Beside a reference, keywords could only exclude more.
    fn resolved<'s>(&self, mut schema: &'s Value) -> Option<&'s Value>
    where
        'a: 's,
    {
        for _ in 0..REFERENCES_MAX {
            match schema.get("$ref") {
                None | Some(Value::Null) => return Some(schema),
                Some(reference) => schema = target(self.root, reference.as_str()?)?,
            }
        }
        None
    }

    /// Whether both schemas list their values, and have none in common.
    fn have_other_values(&mut self, a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
        let (Some(a), Some(b)) = (values(a), values(b)) else { return false };
        self.spend(a.len().saturating_mul(b.len()))
            && a.iter().all(|one| b.iter().all(|other| !is_equal(one, other)))
    }

    fn spend(&mut self, steps: usize) -> bool {
        let left = self.steps.checked_sub(steps);
        self.steps = left.unwrap_or(0);
        left.is_some()
    }
}

/// The types that a schema allows, by the keywords that name types and values.
pub fn types(keywords: &Map<String, Value>) -> u8 {
    let bits = |name: &Value| {
        let found = TYPES.iter().find(|(known, _)| name == known);
        found.map_or(ANY, |(_, bits)| *bits)
    };
    let named = match keywords.get("type") {
        None | Some(Value::Null) => ANY,
        Some(Value::Array(names)) => names.iter().fold(0, |all, name| all | bits(name)),
        Some(name) => bits(name),
    };
    let kind = |value: &Value| match value {
        Value::Null => bits(&"null".into()),
        Value::Bool(_) => bits(&"boolean".into()),
        Value::Number(number) => {
            match number.as_f64().is_some_and(|number| number.fract() == 0.0) {
                true => INTEGER,
                false => FRACTION,
            }
        }
        Value::String(_) => bits(&"string".into()),
        Value::Array(_) => bits(&"array".into()),
        Value::Object(_) => OBJECT,
    };
    let listed = values(keywords);
    named & listed.map_or(ANY, |all| all.iter().fold(0, |all, value| all | kind(value)))
}

/// The values that a schema lists.
fn values(keywords: &Map<String, Value>) -> Option<&[Value]> {
    match (keywords.get("const"), keywords.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        (None, _) => None,
    }
}

/// Whether values are equal; numbers are, however they are written.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let has = |(name, value)| b.get(name).is_some_and(|other| is_equal(value, other));
            a.len() == b.len() && a.iter().all(has)
        }
        _ => a == b,
    }
}

fn required(keywords: &Map<String, Value>) -> impl Iterator<Item = &str> {
    list(keywords, "required").iter().filter_map(Value::as_str)
}

fn list<'s>(keywords: &'s Map<String, Value>, key: &str) -> &'s [Value] {
    keywords.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A schema of the property with a name, if there is one.
fn property<'s>(keywords: &'s Map<String, Value>, name: &str) -> Option<&'s Value> {
    let named = |key| keywords.get(key).and_then(Value::as_object);
    let listed = named("properties").and_then(|all| all.get(name));
    let has_patterns = named("patternProperties").is_some_and(|all| !all.is_empty());
    listed.or_else(|| keywords.get("additionalProperties").filter(|_| !has_patterns))
}
