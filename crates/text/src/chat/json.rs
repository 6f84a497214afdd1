//! JSON as Python's `json.dumps` writes it.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::{integers, repr};

/// Limit on nesting.
const DEPTH: usize = 100;

/// The arguments of `json.dumps`.
#[derive(Debug, Default)]
pub struct Style {
    /// Write non-ASCII characters as `\uXXXX`.
    pub ensure_ascii: bool,
    /// Sort keys.
    pub sort_keys: bool,
    /// One line per entry, indented by this text per level.
    pub indent: Option<String>,
    /// The separators between entries and after a key.
    pub separators: Option<(String, String)>,
}

/// `value` as JSON.
pub fn write(value: &Value, style: &Style) -> Result<String, Error> {
    let usual = if style.indent.is_some() { "," } else { ", " };
    let (item, key) = match &style.separators {
        Some((item, key)) => (item.as_str(), key.as_str()),
        None => (usual, ": "),
    };
    let mut writer = Writer { out: String::new(), style, item, key };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'s> {
    out: String,
    style: &'s Style,
    item: &'s str,
    key: &'s str,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "tojson: nested too deep"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(['[', ']'], depth, &items, |writer, item| writer.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort_keys {
                    keys.sort();
                }
                self.list(['{', '}'], depth, &keys, |writer, key| {
                    writer.key(key);
                    writer.out.push_str(writer.key);
                    writer.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            _ if integers::wide(value).is_some() => self.out.push_str(&value.to_string()),
            kind => {
                let reason = format!("tojson: a value of type {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, reason));
            }
        }
        Ok(())
    }

    /// A key: a text, or what JSON has for None, a truth value or a number, in quotes.
    fn key(&mut self, key: &Value) {
        match key.kind() {
            ValueKind::None => self.text("null"),
            ValueKind::Bool => self.text(if key.is_true() { "true" } else { "false" }),
            _ => match repr::as_float(key) {
                Some(x) => self.text(&float(x)),
                None => self.text(&key.to_string()),
            },
        }
    }

    fn list(
        &mut self,
        [open, close]: [char; 2],
        depth: usize,
        items: &[Value],
        mut each: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(self.item);
            }
            self.line(depth + 1);
            each(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                _ if c < ' ' || (self.style.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string does not fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A float, and the names that `json.dumps` has for those that JSON lacks.
fn float(x: f64) -> String {
    match x {
        _ if x.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ => repr::float(x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_writes_them() {
        let of_keys = |key: Value| Value::from_pairs([(key, Value::from(1))]);
        let cases = [
            (Value::from(1e16), "1e+16"),
            (Value::from(0.00001), "1e-05"),
            (Value::from(f64::INFINITY), "Infinity"),
            (Value::from(f64::NEG_INFINITY), "-Infinity"),
            (Value::from(f64::NAN), "NaN"),
            (of_keys(Value::from(())), "{\"null\": 1}"),
            (of_keys(Value::from(true)), "{\"true\": 1}"),
            (of_keys(Value::from(false)), "{\"false\": 1}"),
            (of_keys(Value::from(2)), "{\"2\": 1}"),
            (of_keys(Value::from(1e-5)), "{\"1e-05\": 1}"),
        ];
        for (value, expected) in cases {
            assert_eq!(write(&value, &Style::default()).ok().as_deref(), Some(expected));
        }
    }

    #[test]
    fn the_arguments_of_dumps_have_their_effect() {
        let value = Value::from_pairs([("b", Value::from(vec![1, 2])), ("a", Value::from("é\n<"))]);
        let written = |style| write(&value, &style).ok();
        let usual = Style::default();
        assert_eq!(written(usual).as_deref(), Some(r#"{"b": [1, 2], "a": "é\n<"}"#));
        let ascii = Style { ensure_ascii: true, sort_keys: true, ..Style::default() };
        assert_eq!(written(ascii).as_deref(), Some(r#"{"a": "\u00e9\n<", "b": [1, 2]}"#));
        let narrow = Some((",".to_owned(), ":".to_owned()));
        let narrow = Style { separators: narrow, ..Style::default() };
        assert_eq!(written(narrow).as_deref(), Some(r#"{"b":[1,2],"a":"é\n<"}"#));
        let tall = Style { indent: Some("  ".to_owned()), ..Style::default() };
        let expected = "{\n  \"b\": [\n    1,\n    2\n  ],\n  \"a\": \"é\\n<\"\n}";
        assert_eq!(written(tall).as_deref(), Some(expected));
    }
}
