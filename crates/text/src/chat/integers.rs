//! Integers of JSON with more than 64 bits, which Python keeps and serde_json rounds.
//!
//! [`parse`] writes such an integer as an object with one key, by which [`digits`] knows it. A request that has such an object
//! of its own gets an integer for it.

use std::fmt::{self, Write};
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};
use serde_json::{Map, Value as Json};

/// The key of an integer's digits.
const KEY: &str = "\0integer";

/// Parses a JSON object; integers with more than 64 bits keep their digits. JSON of other types is parsed as by serde_json.
///
/// # Errors
/// The text is not JSON.
pub fn parse(text: &str) -> serde_json::Result<Json> {
    match text.trim_start().starts_with('{') {
        true => serde_json::from_str(&marked(text)),
        false => serde_json::from_str(text),
    }
}

/// The digits of an integer that [`parse`] has kept.
pub fn digits(object: &Map<String, Json>) -> Option<&str> {
    let digits = object.get(KEY).filter(|_| object.len() == 1)?.as_str()?;
    is_wide(digits).then_some(digits)
}

/// An integer as templates see it.
pub fn value(digits: &str) -> Value {
    match (digits.parse::<i128>(), digits.parse::<u128>()) {
        (Ok(integer), _) => Value::from(integer),
        (_, Ok(integer)) => Value::from(integer),
        _ => Value::from_object(Wide(digits.to_owned())),
    }
}

/// The digits of an integer with more than 128 bits.
pub fn wide(value: &Value) -> Option<&str> {
    value.downcast_object_ref::<Wide>().map(|Wide(digits)| digits.as_str())
}

/// An integer with more than 128 bits, which templates can only write.
struct Wide(String);

impl fmt::Debug for Wide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Object for Wide {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text of a JSON value with its wide integers as objects.
fn marked(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut made, mut copied, mut at) = (String::with_capacity(text.len()), 0, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at += string_bytes(&bytes[at..]),
            b'-' | b'0'..=b'9' => {
                let is_number =
                    |c: &&u8| matches!(c, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let end = at + bytes[at..].iter().take_while(is_number).count();
                let number = &text[at..end];
                if is_wide(number) {
                    made += &text[copied..at];
                    // Writing to a string does not fail.
                    let _ = write!(made, "{{{}:\"{number}\"}}", Json::from(KEY));
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    made + &text[copied..]
}

/// Bytes of the string that begins `bytes`, its quotes included.
fn string_bytes(bytes: &[u8]) -> usize {
    let mut is_escaped = true;
    let is_end = |&byte: &u8| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    };
    bytes.iter().position(is_end).map_or(bytes.len(), |last| last + 1)
}

/// Whether a number is an integer with more than 64 bits.
fn is_wide(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    let is_integer = !digits.starts_with('0') && digits.bytes().all(|c| c.is_ascii_digit());
    is_integer
        && digits.len() >= 19
        && number.parse::<i64>().is_err()
        && number.parse::<u64>().is_err()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::{Inputs, Template};

    #[test]
    fn only_wide_integers_are_kept_as_digits() {
        let wide = |digits: &str| json!({ KEY: digits });
        for (text, expected) in [
            ("18446744073709551616", wide("18446744073709551616")),
            ("-9223372036854775809", wide("-9223372036854775809")),
            ("[1,123456789012345678901]", json!([1, wide("123456789012345678901")])),
            ("18446744073709551615", json!(u64::MAX)),
            ("-9223372036854775808", json!(i64::MIN)),
            (r#""\"123456789012345678901""#, json!("\"123456789012345678901")),
            (r#""\\",  "b": 123456789012345678901"#, json!("\\")),
        ] {
            let parsed = parse(&format!("{{\"a\": {text}}}")).unwrap();
            assert_eq!(parsed["a"], expected, "{text}");
        }
        for wrong in
            ["{\"a\": 0123456789012345678901}", "{123456789012345678901: 1}", "{\"a", "{\"\\"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for float in ["123456789012345678901.0", "123456789012345678901e2"] {
            assert!(parse(&format!("{{\"a\": {float}}}")).unwrap()["a"].is_f64(), "{float}");
        }
        assert!(parse("123456789012345678901").unwrap().is_f64(), "no object");
        assert_eq!(digits(json!({ KEY: "<|im_end|>" }).as_object().unwrap()), None);
        assert_eq!(digits(json!({ KEY: "3" }).as_object().unwrap()), None);
    }

    /// Expected are the texts of Jinja2 3.1.6.
    #[test]
    fn wide_integers_are_written_as_by_jinja2() {
        let numbers =
            ["18446744073709551616", "-9223372036854775809", &"12345678901234567890".repeat(3)];
        let source = "{{ x }} {{ [x] }} {{ {'a': x} }} {{ x | tojson }} {{ [x] | tojson }} {{ x ~ '' }} {{ x | string }}";
        let template = Template::new("integers", source).unwrap();
        for number in numbers {
            let object = parse(&format!("{{\"x\": {number}}}")).unwrap();
            let extra = object.as_object().unwrap().clone();
            let text = template.render(&Inputs { extra, ..Inputs::new(&[]) }).unwrap();
            let expected = "# [#] {'a': #} # [#] # #".replace('#', number);
            assert_eq!(text, expected);
        }
    }
}
