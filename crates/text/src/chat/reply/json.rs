//! JSON character by character: where a value ends, and text as JSON.

use std::fmt::Write;

/// Limit on nesting, so that a reply cannot grow the stack without bound.
const DEPTH: usize = 128;

/// The effect of a character on a [`JsonValue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fed {
    /// It belongs to the value, which goes on.
    More,
    /// It ends the value and belongs to it.
    Last,
    /// The value ended before it.
    After,
    /// No JSON value goes on like this.
    Bad,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Value,
    /// Directly after `[`, where `]` may follow.
    FirstItem,
    /// Directly after `{`, where `}` may follow.
    FirstKey,
    Key,
    Colon,
    /// After an item, where `,` or the closing bracket follows.
    Next,
    Text {
        is_key: bool,
    },
    Escape {
        is_key: bool,
    },
    /// Hexadecimal digits left of `\uXXXX`.
    Hex {
        is_key: bool,
        left: u8,
    },
    Word {
        rest: &'static str,
    },
    Number(Digits),
}

/// The position within a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digits {
    Sign,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    Power,
}

impl Digits {
    fn is_complete(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Power)
    }

    fn next(self, c: char) -> Option<Self> {
        Some(match (self, c) {
            (Self::Sign, '0') => Self::Zero,
            (Self::Sign | Self::Whole, '0'..='9') => Self::Whole,
            (Self::Zero | Self::Whole, '.') => Self::Point,
            (Self::Point | Self::Fraction, '0'..='9') => Self::Fraction,
            (Self::Zero | Self::Whole | Self::Fraction, 'e' | 'E') => Self::Exponent,
            (Self::Exponent, '+' | '-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::Power, '0'..='9') => Self::Power,
            _ => return None,
        })
    }
}

/// Follows one JSON value. Control characters within strings are accepted, because models write them;
/// [`write`](Self::write) escapes them. So are backslashes that begin no escape, which are text there.
#[derive(Debug, Clone)]
pub struct JsonValue {
    state: State,
    /// An escape that [`write`](Self::write) has not read to its end.
    held: String,
    /// Whether each open container is an object.
    open: Vec<bool>,
}

impl JsonValue {
    /// A value that has not begun.
    pub fn new() -> Self {
        Self { state: State::Value, held: String::new(), open: Vec::new() }
    }

    /// Whether the last character lies within a string.
    fn is_text(&self) -> bool {
        matches!(self.state, State::Text { .. } | State::Escape { .. } | State::Hex { .. })
    }

    /// Feeds a character and, if it belongs to the value, appends it to `out` as valid JSON. An escape is appended with
    /// its last character.
    pub fn write(&mut self, c: char, out: &mut String) -> Fed {
        let was_text = self.is_text();
        let fed = self.feed(c);
        match fed {
            Fed::More | Fed::Last if was_text => self.write_text(c, out),
            Fed::More | Fed::Last => out.push(c),
            Fed::After | Fed::Bad => {}
        }
        fed
    }

    /// Appends a character of a string, its last quote included.
    fn write_text(&mut self, c: char, out: &mut String) {
        match (self.held.len(), c) {
            (0, '\\') => self.held.push(c),
            (0, '"') => out.push(c),
            (0, _) => escape_control(c, out),
            (1, 'u') => self.held.push(c),
            (1, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => {
                out.push('\\');
                out.push(c);
                self.held.clear();
            }
            // As in Python and JavaScript.
            (1, '\'') => {
                out.push(c);
                self.held.clear();
            }
            (2.., _) if c.is_ascii_hexdigit() => {
                self.held.push(c);
                if self.held.len() == "\\u0000".len() {
                    out.push_str(&self.held);
                    self.held.clear();
                }
            }
            _ => {
                out.push('\\');
                out.push_str(&self.held);
                self.held.clear();
                self.write_text(c, out);
            }
        }
    }

    /// Feeds a character.
    pub fn feed(&mut self, c: char) -> Fed {
        match self.state {
            State::Text { is_key } => {
                match c {
                    '"' if is_key => self.state = State::Colon,
                    '"' => return self.ended(),
                    '\\' => self.state = State::Escape { is_key },
                    _ => {}
                }
                Fed::More
            }
            State::Escape { is_key } => match c {
                'u' => self.go(State::Hex { is_key, left: 4 }),
                _ => self.go(State::Text { is_key }),
            },
            State::Hex { is_key, left } if c.is_ascii_hexdigit() => match left {
                1 => self.go(State::Text { is_key }),
                _ => self.go(State::Hex { is_key, left: left - 1 }),
            },
            State::Hex { is_key, .. } => {
                self.state = State::Text { is_key };
                self.feed(c)
            }
            State::Word { rest } => match rest.strip_prefix(c) {
                Some("") => self.ended(),
                Some(rest) => self.go(State::Word { rest }),
                None => Fed::Bad,
            },
            State::Number(digits) => self.digit(digits, c),
            _ if matches!(c, ' ' | '\t' | '\n' | '\r') => Fed::More,
            State::Value => self.begin(c),
            State::FirstItem if c == ']' => self.close(),
            State::FirstItem => self.begin(c),
            State::FirstKey if c == '}' => self.close(),
            State::FirstKey | State::Key if c == '"' => self.go(State::Text { is_key: true }),
            State::Colon if c == ':' => self.go(State::Value),
            State::Next => match (c, self.open.last()) {
                (',', Some(true)) => self.go(State::Key),
                (',', Some(false)) => self.go(State::Value),
                ('}', Some(true)) | (']', Some(false)) => self.close(),
                _ => Fed::Bad,
            },
            State::FirstKey | State::Key | State::Colon => Fed::Bad,
        }
    }

    fn go(&mut self, state: State) -> Fed {
        self.state = state;
        Fed::More
    }

    fn digit(&mut self, digits: Digits, c: char) -> Fed {
        if let Some(next) = digits.next(c) {
            return self.go(State::Number(next));
        }
        if !digits.is_complete() {
            return Fed::Bad;
        }
        match self.ended() {
            Fed::Last => Fed::After,
            _ => self.feed(c),
        }
    }

    fn begin(&mut self, c: char) -> Fed {
        match c {
            '{' | '[' => {
                if self.open.len() >= DEPTH {
                    return Fed::Bad;
                }
                self.open.push(c == '{');
                self.go(if c == '{' { State::FirstKey } else { State::FirstItem })
            }
            '"' => self.go(State::Text { is_key: false }),
            't' => self.go(State::Word { rest: "rue" }),
            'f' => self.go(State::Word { rest: "alse" }),
            'n' => self.go(State::Word { rest: "ull" }),
            '-' => self.go(State::Number(Digits::Sign)),
            '0' => self.go(State::Number(Digits::Zero)),
            '1'..='9' => self.go(State::Number(Digits::Whole)),
            _ => Fed::Bad,
        }
    }

    fn close(&mut self) -> Fed {
        self.open.pop();
        self.ended()
    }

    /// After a complete value: the whole one, or an item of a container.
    fn ended(&mut self) -> Fed {
        self.state = State::Next;
        if self.open.is_empty() { Fed::Last } else { Fed::More }
    }
}

/// Appends a character of a string in JSON as it is, or escaped if it is a control character.
fn escape_control(c: char, out: &mut String) {
    if c.is_ascii_control() { escape(c, out) } else { out.push(c) }
}

/// Appends a character of a JSON string.
pub fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if u32::from(c) < 0x20 => {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        }
        c => out.push(c),
    }
}

/// `text` as a JSON string with its quotes.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|c| escape(c, &mut out));
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of `text` that is a value, or None.
    fn value(text: &str) -> Option<&str> {
        let mut value = JsonValue::new();
        for (at, c) in text.char_indices() {
            match value.feed(c) {
                Fed::More => {}
                Fed::Last => return Some(&text[..at + c.len_utf8()]),
                Fed::After => return Some(&text[..at]),
                Fed::Bad => return None,
            }
        }
        None
    }

    #[test]
    fn values_end_where_they_end() {
        let whole = r#"{"a": [1, -2.5e+3, "x\"}\u00e9", {}, []], "b": null, "c": {"d": true}}"#;
        assert_eq!(value(&format!("{whole} tail")), Some(whole));
        for (text, expected) in [("12]", "12"), ("0,", "0"), ("[]]", "[]"), ("\"a\"b", "\"a\"")] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
        let bad = ["{a", "{\"a\" 1", "[1 2", "{]", "-x", "nul!", "[1,]", "{\"a\":1,}"];
        for text in bad {
            assert_eq!(value(&format!("{text} ")), None, "{text}");
        }
        assert_eq!(value(&"[".repeat(1000)), None);
    }

    /// Values, whole.
    const VALID: &[&str] = &[
        "0",
        "-0",
        "10",
        "1.5",
        "0.25",
        "1e5",
        "1E+5",
        "1e-5",
        "0e0",
        "2.50e10",
        "null",
        "true",
        "false",
        "\"\"",
        "\"\\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u0aF9x\"",
        "[ ]",
        "{ }",
        "[1]",
        "[ 1 , \"a\" ,[] ]",
        "{\"a\":1}",
        "{ \"a\" : { \"b\" : [ ] } , \"c\" : \"d\" }",
        "\t\r\n 1",
    ];

    /// What no value is, or begins with.
    const INVALID: &[&str] = &[
        "01",
        "-",
        "-a",
        "1.",
        "1.e5",
        "1e",
        "1e+",
        "+1",
        ".5",
        "nulL",
        "trux",
        "f",
        "a",
        "'a'",
        "[,",
        "[1,]",
        "[1 2]",
        "[1}",
        "[}",
        "{,",
        "{]",
        "{1:2}",
        "{\"a\"}",
        "{\"a\",",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\":1]",
        "{\"a\":1 \"b\"",
        "{\"a\"::",
        "{:",
        "]",
        "}",
        ",",
        ":",
    ];

    /// As the grammar on json.org has it.
    #[test]
    fn values_are_those_of_json() {
        for &text in VALID {
            assert_eq!(value(&format!("{text} ,")), Some(text), "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text}");
        }
        for &text in INVALID {
            // A number ends where it cannot go on.
            let followed = format!("{text} ");
            let found = value(&followed).filter(|found| found.len() == text.len());
            assert_eq!(found, None, "{text}");
        }
        let nested = |count: usize| "[".repeat(count) + &"]".repeat(count);
        assert_eq!(value(&nested(128)), Some(&*nested(128)));
        assert_eq!(value(&nested(129)), None);
        // The end is known with the last character, but that of a number only behind it.
        let fed = ['1', '[', '}'].map(|c| JsonValue::new().feed(c));
        assert_eq!(fed, [Fed::More, Fed::More, Fed::Bad]);
    }

    #[test]
    fn control_characters_in_strings_become_escapes() {
        let mut value = JsonValue::new();
        let mut out = String::new();
        let fed: Vec<Fed> =
            "{\r\"a\\n\t\u{1f}\u{7f} é\" :1}".chars().map(|c| value.write(c, &mut out)).collect();
        assert!(fed[..fed.len() - 1].iter().all(|fed| *fed == Fed::More), "{fed:?}");
        assert_eq!(fed.last(), Some(&Fed::Last));
        assert_eq!(out, "{\r\"a\\n\\t\\u001f\u{7f} é\" :1}");
        let mut number = JsonValue::new();
        let mut out = String::new();
        let fed = ['1', '2', ']'].map(|c| number.write(c, &mut out));
        assert_eq!((fed, out.as_str()), ([Fed::More, Fed::More, Fed::After], "12"));
        assert_eq!(quoted("\u{0} \u{1f}\u{20}\u{7f}\r\t\n"), "\"\\u0000 \\u001f \u{7f}\\r\\t\\n\"");
    }

    /// Strings with wrong escapes, and as they are written.
    #[test]
    fn backslashes_that_begin_no_escape_are_text() {
        let cases = [
            (r#""it\'s""#, r#""it's""#),
            (r#""\$5 a\_b \d+""#, r#""\\$5 a\\_b \\d+""#),
            (r#""\é\\\/\"""#, r#""\\é\\\/\"""#),
            (r#""\u""#, r#""\\u""#),
            (r#""C:\user\u12""#, r#""C:\\user\\u12""#),
            (r#""\u00e\u00e9\u\n""#, r#""\\u00e\u00e9\\u\n""#),
            ("\"\\\n\\\u{1}\"", r#""\\\n\\\u0001""#),
            (r#"{"\a": "\xe9"}"#, r#"{"\\a": "\\xe9"}"#),
        ];
        for (text, expected) in cases {
            let (mut value, mut out) = (JsonValue::new(), String::new());
            let fed: Vec<Fed> = text.chars().map(|c| value.write(c, &mut out)).collect();
            assert_eq!(fed.iter().position(|fed| *fed != Fed::More), Some(fed.len() - 1), "{text}");
            assert_eq!((fed.last(), out.as_str()), (Some(&Fed::Last), expected), "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(&out).is_ok(), "{out}");
        }
    }

    #[test]
    fn line_breaks_in_strings_become_escapes() {
        let mut value = JsonValue::new();
        let mut out = String::new();
        for c in "{\n\"a\": \"b\nc\"}".chars() {
            assert_ne!(value.write(c, &mut out), Fed::Bad);
        }
        assert_eq!(out, "{\n\"a\": \"b\\nc\"}");
        assert_eq!(quoted("a\"\\\u{1}"), "\"a\\\"\\\\\\u0001\"");
    }
}
