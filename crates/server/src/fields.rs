//! Fields of request bodies: declared in tables, checked before anything uses them, listed in the OpenAPI document.
//!
//! A body may have fields that no table names; they are ignored, as OpenAI's API does, and take no memory. A field of a table with the wrong
//! type or out of range is an error that names it; null counts as absent.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// What a field may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accepts {
    /// true or false.
    Bool,
    /// An integer from the first to the second.
    Integer(i64, i64),
    /// A number from the first to the second.
    Number(f64, f64),
    /// A text of at most so many bytes.
    Text(usize),
    /// One of some words.
    Word(&'static [&'static str]),
    /// A text or a list of at most so many texts of at most so many bytes.
    Texts(usize, usize),
    /// A list of at most so many elements.
    List(usize),
    /// An object.
    Object,
    /// Anything; checked by whoever uses it.
    Any,
}

/// A field of a body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it may hold.
    pub accepts: Accepts,
    /// What it means, with unit and default.
    pub doc: &'static str,
}

impl Field {
    /// A field of a table.
    pub const fn new(name: &'static str, accepts: Accepts, doc: &'static str) -> Field {
        Field { name, accepts, doc }
    }

    fn check(&self, value: &Value) -> Result<(), ApiError> {
        let wrong = |expected: &str| {
            let problem = format!("is {}; it must be {expected}", shown(value));
            Err(ApiError::field(self.name, problem))
        };
        match self.accepts {
            Accepts::Any => Ok(()),
            Accepts::Bool if value.is_boolean() => Ok(()),
            Accepts::Bool => wrong("true or false"),
            Accepts::Integer(low, high) => match integer(value) {
                Some(number) if (low..=high).contains(&number) => Ok(()),
                _ => wrong(&format!("an integer from {low} to {high}")),
            },
            Accepts::Number(low, high) => match value.as_f64() {
                Some(number) if (low..=high).contains(&number) => Ok(()),
                _ => wrong(&format!("a number from {low} to {high}")),
            },
            Accepts::Text(most) => match value.as_str() {
                Some(text) if text.len() <= most => Ok(()),
                Some(text) => wrong(&format!("at most {most} bytes, not {}", text.len())),
                None => wrong("a string"),
            },
            Accepts::Word(words) => match value.as_str() {
                Some(text) if words.contains(&text) => Ok(()),
                _ => wrong(&format!("one of {}", words.join(", "))),
            },
            Accepts::Texts(most, bytes) => {
                let fits = |value: &Value| value.as_str().is_some_and(|text| text.len() <= bytes);
                match value {
                    Value::String(_) if fits(value) => Ok(()),
                    Value::Array(list) if list.len() <= most && list.iter().all(fits) => Ok(()),
                    _ => wrong(&format!(
                        "a string or a list of at most {most} strings, each of at most {bytes} bytes"
                    )),
                }
            }
            Accepts::List(most) => match value.as_array() {
                Some(list) if list.len() <= most => Ok(()),
                Some(list) => wrong(&format!("at most {most} elements, not {}", list.len())),
                None => wrong("a list"),
            },
            Accepts::Object if value.is_object() => Ok(()),
            Accepts::Object => wrong("an object"),
        }
    }

    /// Its JSON schema.
    pub fn schema(&self) -> Value {
        let mut schema = match self.accepts {
            Accepts::Any => json!({}),
            Accepts::Bool => json!({ "type": "boolean" }),
            Accepts::Integer(low, high) => {
                json!({ "type": "integer", "minimum": low, "maximum": high })
            }
            Accepts::Number(low, high) => {
                json!({ "type": "number", "minimum": low, "maximum": high })
            }
            Accepts::Text(_) => json!({ "type": "string" }),
            Accepts::Word(words) => json!({ "type": "string", "enum": words }),
            Accepts::Texts(most, _) => json!({ "oneOf": [
                { "type": "string" },
                { "type": "array", "items": { "type": "string" }, "maxItems": most },
            ] }),
            Accepts::List(most) => json!({ "type": "array", "items": {}, "maxItems": most }),
            Accepts::Object => json!({ "type": "object" }),
        };
        if let Some(object) = schema.as_object_mut() {
            object.insert("description".to_owned(), json!(self.doc));
        }
        schema
    }
}

/// An integer, which clients also write as `8.0`.
fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64().filter(|number| number.fract() == 0.0)?;
        (number.abs() < 9e15).then_some(number as i64)
    })
}

/// A value in a message, shortened.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    };
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Nesting that a body may have.
const DEPTH_MAX: usize = 64;

/// JSON values that a body may have: in memory they take many times the bytes of their text.
const VALUES_MAX: usize = 1_000_000;

/// Parses JSON within the limits of bodies.
///
/// # Errors
/// It is no JSON, is nested too deeply, or has too many values.
pub fn value(bytes: &[u8]) -> Result<Value, ApiError> {
    check_shape(bytes)?;
    serde_json::from_slice(bytes).map_err(|error| not_json(&error))
}

fn not_json(error: &serde_json::Error) -> ApiError {
    ApiError::invalid(format!("the body is not valid JSON: {error}"))
}

/// Reads an object without the fields that are neither in a table nor known.
struct KnownFields<'a> {
    tables: &'a [&'a [Field]],
    is_known: fn(&str) -> bool,
}

impl<'de> Visitor<'de> for KnownFields<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Map<String, Value>, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let mut listed = self.tables.iter().copied().flatten();
            if (self.is_known)(&name) || listed.any(|field| field.name == name) {
                object.insert(name, fields.next_value()?);
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(object)
    }
}

/// A checked body.
#[derive(Clone, Debug, Default)]
pub struct Body {
    object: Map<String, Value>,
}

impl Body {
    /// Parses and checks a body against tables of fields. Of others it keeps those of which `is_known` is true.
    ///
    /// # Errors
    /// It is not a JSON object, is nested too deeply, has too many values, or a field is wrong.
    pub fn parse(
        bytes: &[u8],
        tables: &[&[Field]],
        is_known: fn(&str) -> bool,
    ) -> Result<Body, ApiError> {
        // Before parsing, so that no tree is built of it.
        check_shape(bytes)?;
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let object = json.deserialize_any(KnownFields { tables, is_known }).and_then(|object| {
            json.end()?;
            Ok(object)
        });
        let object = object.map_err(|error| match error.is_data() {
            true => not_an_object(),
            false => not_json(&error),
        })?;
        Body::checked(object, tables)
    }

    /// Checks a parsed body.
    ///
    /// # Errors
    /// It is not an object, or a field is wrong.
    pub fn check(value: Value, tables: &[&[Field]]) -> Result<Body, ApiError> {
        match value {
            Value::Object(object) => Body::checked(object, tables),
            _ => Err(not_an_object()),
        }
    }

    fn checked(mut object: Map<String, Value>, tables: &[&[Field]]) -> Result<Body, ApiError> {
        object.retain(|_, value| !value.is_null());
        for field in tables.iter().copied().flatten() {
            if let Some(value) = object.get(field.name) {
                field.check(value)?;
            }
        }
        Ok(Body { object })
    }

    /// Drops all fields but these.
    pub fn retain(&mut self, names: &[&str]) {
        self.object.retain(|name, _| names.contains(&name.as_str()));
    }

    /// The whole body.
    pub fn value(&self) -> Value {
        Value::Object(self.object.clone())
    }

    /// All fields.
    pub fn into_object(self) -> Map<String, Value> {
        self.object
    }

    /// A field that must be there.
    ///
    /// # Errors
    /// It is absent.
    pub fn required(&self, name: &str) -> Result<&Value, ApiError> {
        self.get(name).ok_or_else(|| ApiError::field(name, "is required"))
    }

    /// A field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.object.get(name)
    }

    /// A switch; absent is false.
    pub fn flag(&self, name: &str) -> bool {
        self.bool(name).unwrap_or(false)
    }

    /// A switch.
    pub fn bool(&self, name: &str) -> Option<bool> {
        self.get(name).and_then(Value::as_bool)
    }

    /// An integer.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(integer)
    }

    /// A number of things: an integer that is not negative.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.integer(name).and_then(|number| usize::try_from(number).ok())
    }

    /// A number.
    pub fn number(&self, name: &str) -> Option<f32> {
        self.get(name).and_then(Value::as_f64).map(|number| number as f32)
    }

    /// A text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }

    /// A text, or the texts of a list.
    pub fn texts(&self, name: &str) -> Vec<String> {
        match self.get(name) {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(list)) => {
                list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        }
    }

    /// A field of an object within the body.
    pub fn within(&self, object: &str, name: &str) -> Option<&Value> {
        self.get(object).and_then(|object| object.get(name)).filter(|value| !value.is_null())
    }
}

fn not_an_object() -> ApiError {
    ApiError::invalid("the body must be a JSON object")
}

/// Whether a body is nested too deeply or has too many values, of which each list and object is one.
fn check_shape(bytes: &[u8]) -> Result<(), ApiError> {
    let (mut depth, mut is_string, mut is_escaped) = (0usize, false, false);
    let (mut values, mut begins) = (1usize, false);
    for &byte in bytes {
        // What follows a comma or an opening bracket is a value, or a name with one.
        if begins && !byte.is_ascii_whitespace() {
            values += usize::from(!matches!(byte, b']' | b'}'));
            begins = false;
        }
        begins |= !is_string && matches!(byte, b'[' | b'{' | b',');
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b'[' | b'{' if !is_string => depth += 1,
            b']' | b'}' if !is_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            let message = format!("the body is nested more than {DEPTH_MAX} levels deep");
            return Err(ApiError::invalid(message));
        }
    }
    if values > VALUES_MAX {
        let message = format!("the body has {values} values; at most {VALUES_MAX} are allowed");
        return Err(ApiError::invalid(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Accepts, Body, Field, VALUES_MAX};
    use crate::error::ApiError;

    const TABLE: &[Field] = &[
        Field::new("n", Accepts::Integer(1, 8), ""),
        Field::new("temperature", Accepts::Number(0.0, 100.0), ""),
        Field::new("stream", Accepts::Bool, ""),
        Field::new("stop", Accepts::Texts(2, 4), ""),
        Field::new("mode", Accepts::Word(&["a", "b"]), ""),
        Field::new("user", Accepts::Text(3), ""),
        Field::new("list", Accepts::List(1), ""),
        Field::new("object", Accepts::Object, ""),
    ];

    fn parse(bytes: &[u8], table: &[Field]) -> Result<Body, ApiError> {
        Body::parse(bytes, &[table], |name| name == "metadata")
    }

    #[test]
    fn wrong_fields_are_named_and_unknown_ones_ignored() {
        let good = br#"{"n": 8.0, "stop": ["ab"], "mode": "b", "user": null, "other": [[]]}"#;
        let body = parse(good, TABLE).expect("a good body");
        assert_eq!(body.count("n"), Some(8));
        assert_eq!(body.texts("stop"), ["ab"]);
        assert!(body.get("user").is_none());
        let bad = [
            r#"{"n": 0}"#,
            r#"{"n": "1"}"#,
            r#"{"n": 1.5}"#,
            r#"{"temperature": "hot"}"#,
            r#"{"temperature": -1}"#,
            r#"{"stream": 1}"#,
            r#"{"stop": ["abcde"]}"#,
            r#"{"stop": [1]}"#,
            r#"{"mode": "c"}"#,
            r#"{"user": "abcd"}"#,
            r#"{"list": [1, 2]}"#,
            r#"{"object": []}"#,
        ];
        for text in bad {
            let error = parse(text.as_bytes(), TABLE).expect_err(text);
            let name = text.split('"').nth(1);
            assert_eq!(error.param.as_deref(), name, "{text}: {}", error.message);
            assert!(error.message.contains("must be"), "{text}: {}", error.message);
        }
    }

    #[test]
    fn fields_that_nothing_reads_are_checked_as_json_and_not_kept() {
        let body = br#"{"x": [0, {"a": [1e9]}], "n": 2, "n": 3, "metadata": 1, "y": "\u00e9"}"#;
        let body = parse(body, TABLE).expect("a good body");
        let kept: Vec<_> = body.into_object().into_iter().map(|(name, _)| name).collect();
        assert_eq!(kept, ["n", "metadata"]);
        for text in [r#"{"x": [0,]}"#, r#"{"x": 01}"#, r#"{"x": "}"#, r#"{"x": 1} 2"#] {
            let error = parse(text.as_bytes(), TABLE).expect_err(text);
            assert!(error.message.contains("not valid JSON"), "{text}: {}", error.message);
        }
    }

    #[test]
    fn the_number_of_values_is_bounded_before_parsing() {
        // The body, its list and the elements of the list; brackets and commas of texts do not count.
        let list =
            |elements: usize| format!(r#"{{"x": [[ ], ",[{{"{}]}}"#, ",0".repeat(elements - 2));
        for (elements, is_good) in [(VALUES_MAX - 2, true), (VALUES_MAX - 1, false)] {
            let parsed = parse(list(elements).as_bytes(), TABLE);
            assert_eq!(parsed.is_ok(), is_good, "{elements}: {:?}", parsed.err());
        }
        let error = super::value(list(VALUES_MAX).as_bytes()).expect_err("too many values");
        assert!(error.message.contains("1000002 values"), "{}", error.message);
    }

    #[test]
    fn depth_is_bounded_before_parsing() {
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        assert!(parse(deep.as_bytes(), &[]).is_err());
        let text = format!(r#"{{"a": "{}"}}"#, "[".repeat(500));
        assert!(parse(text.as_bytes(), &[]).is_ok(), "brackets in strings do not count");
        for text in ["", "[]", "1", "{", "\u{0}"] {
            assert!(parse(text.as_bytes(), &[]).is_err(), "{text}");
        }
    }
}
