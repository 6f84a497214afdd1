//! JSON in which no object gives a key twice.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A value whose objects give each key once.
struct Unique(Value);

/// Reads a line of JSON. The message of an error ends with the column.
///
/// # Errors
/// The text is not JSON, or an object in it gives a key twice.
pub fn read(line: &str) -> Result<Value, String> {
    serde_json::from_str(line).map(|Unique(value)| value).map_err(|error| {
        let text = error.to_string();
        // Serde's own line number is always 1.
        let text = text.rsplit_once(" at line ").map_or(&*text, |(text, _)| text);
        let text = format!("{text} at column {}", error.column());
        if error.is_data() { text } else { format!("not JSON: {text}") }
    })
}

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Unique, D::Error> {
        from.deserialize_any(Reader).map(Unique)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Unique(value)) = list.next_element()? {
            all.push(value);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = object.next_key::<String>()? {
            if all.contains_key(&key) {
                return Err(A::Error::custom(format!("`{key}` is given twice")));
            }
            let Unique(value) = object.next_value()?;
            all.insert(key, value);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn every_value_is_read_as_it_is() {
        let text = r#"{"a":[null,true,-1,18446744073709551615,0.5,"t"],"b":{"a":{}}}"#;
        assert_eq!(read(text).expect("JSON").to_string(), text);
    }

    #[test]
    fn errors_have_a_column_and_keys_are_given_once() {
        let cases = [
            (r#"{"a": 1, "a": 2}"#, "`a` is given twice at column 12"),
            (r#"{"b": [{"a": 1, "a": 1}]}"#, "`a` is given twice at column 19"),
            (r#"{"a": }"#, "not JSON: expected value at column 7"),
            ("{} {}", "not JSON: trailing characters at column 4"),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text).expect_err(text), expected, "{text}");
        }
    }
}
