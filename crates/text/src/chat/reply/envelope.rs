//! Reads calls that are JSON objects with name and arguments.

use super::json::{Fed, JsonValue};
use super::markers::{Expect, Found};
use super::scope::{Flow, NAME_BYTES, Scope};

/// Limit on arguments written before the name.
const EARLY_BYTES: usize = 64 << 10;

#[derive(Debug)]
enum At {
    /// Before an object.
    Lead,
    /// Before a key or the end of an object.
    Key,
    KeyText(String),
    Colon(String),
    Value(Entry),
    Name(String),
    Arguments(JsonValue),
    /// Arguments that are a string of JSON.
    Quoted(JsonValue, String),
    Skip(JsonValue),
    /// After an entry.
    Next,
    /// After an object or the list.
    After(Expect),
}

/// The meaning of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Name,
    /// A name, or an object with the entries of the call.
    Function,
    Arguments,
    Skipped,
}

impl Entry {
    fn of(key: &str) -> Option<Self> {
        Some(match key {
            "name" | "tool_name" => Self::Name,
            "function" => Self::Function,
            "arguments" | "parameters" => Self::Arguments,
            "id" | "type" | "tool_call_id" | "call_id" | "index" => Self::Skipped,
            _ => return None,
        })
    }
}

/// Reads `{"name": …, "arguments": …}`, lists of them, and sequences.
#[derive(Debug)]
pub struct EnvelopeReader {
    /// Markers after the last call; the calls end by themselves if there are none.
    close: &'static [&'static str],
    at: At,
    in_list: bool,
    list_ended: bool,
    /// Whether the entries are in an object within the object.
    nested: bool,
    name: Option<String>,
    begun: bool,
    /// Arguments before the name.
    early: Option<String>,
}

impl EnvelopeReader {
    /// A reader after the opening marker.
    pub fn new(close: &'static [&'static str]) -> Self {
        Self {
            close,
            at: At::Lead,
            in_list: false,
            list_ended: false,
            nested: false,
            name: None,
            begun: false,
            early: None,
        }
    }

    /// Feeds a character.
    pub fn push(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        let is_space = c.is_whitespace();
        let next = match &mut self.at {
            At::Lead | At::Key | At::Colon(_) | At::Value(_) | At::Next if is_space => {
                return Flow::More;
            }
            At::Lead => return self.lead(c, scope),
            At::Key if c == '"' => At::KeyText(String::new()),
            At::Key if c == '}' => return self.close_object(c, scope),
            At::KeyText(key) if c == '"' => At::Colon(std::mem::take(key)),
            At::KeyText(key) if c != '\\' && key.len() < NAME_BYTES => {
                key.push(c);
                return Flow::More;
            }
            At::Colon(key) if c == ':' => match Entry::of(key) {
                Some(entry) => At::Value(entry),
                // The key is the function's name.
                None if self.name.is_none() && scope.tool(key).is_some() => {
                    self.name = Some(std::mem::take(key));
                    At::Value(Entry::Arguments)
                }
                None => return Flow::leave(c),
            },
            At::Value(entry) => {
                let entry = *entry;
                return self.value(entry, c, scope);
            }
            At::Name(name) if c == '"' => {
                let name = std::mem::take(name);
                if scope.tool(&name).is_none() {
                    return Flow::leave(c);
                }
                self.name = Some(name);
                At::Next
            }
            At::Name(name) if c != '\\' && name.len() < NAME_BYTES => {
                name.push(c);
                return Flow::More;
            }
            At::Arguments(_) => return self.arguments(c, scope),
            At::Quoted(value, text) => match value.write(c, text) {
                Fed::More if text.len() < EARLY_BYTES => return Flow::More,
                Fed::Last => {
                    let text = std::mem::take(text);
                    return self.quoted(&text, c, scope);
                }
                _ => return Flow::leave(c),
            },
            At::Skip(value) => match value.feed(c) {
                Fed::More => return Flow::More,
                Fed::Last => At::Next,
                Fed::After => {
                    self.at = At::Next;
                    return self.push(c, scope);
                }
                Fed::Bad => return Flow::leave(c),
            },
            At::Next => match c {
                ',' => At::Key,
                '}' => return self.close_object(c, scope),
                _ => return Flow::leave(c),
            },
            At::After(_) => return self.after(c, scope),
            At::Key | At::KeyText(_) | At::Colon(_) | At::Name(_) => return Flow::leave(c),
        };
        self.at = next;
        Flow::More
    }

    /// Before an object.
    fn lead(&mut self, c: char, scope: &Scope<'_>) -> Flow {
        match c {
            '[' if !self.in_list && !self.list_ended => self.in_list = true,
            ']' if self.in_list => {
                self.list_ended = true;
                return self.after_object();
            }
            '{' if !scope.is_full() => {
                (self.name, self.early, self.begun, self.nested) = (None, None, false, false);
                self.at = At::Key;
            }
            _ => return Flow::leave(c),
        }
        Flow::More
    }

    fn value(&mut self, entry: Entry, c: char, scope: &mut Scope<'_>) -> Flow {
        match (entry, c) {
            (Entry::Name | Entry::Function, '"') if self.name.is_none() => {
                self.at = At::Name(String::new());
            }
            (Entry::Function, '{') if !self.nested => {
                self.nested = true;
                self.at = At::Key;
            }
            (Entry::Arguments, '{') if !self.begun && self.early.is_none() => {
                self.at = At::Arguments(JsonValue::new());
                if !self.begin(scope) {
                    self.early = Some(String::new());
                }
                return self.arguments(c, scope);
            }
            (Entry::Arguments, '"') if !self.begun && self.early.is_none() => {
                let (mut value, mut text) = (JsonValue::new(), String::new());
                value.write(c, &mut text);
                self.at = At::Quoted(value, text);
            }
            // No arguments, written as null.
            (Entry::Arguments, 'n') | (Entry::Skipped, _) => {
                self.at = At::Skip(JsonValue::new());
                return self.push(c, scope);
            }
            _ => return Flow::leave(c),
        }
        Flow::More
    }

    /// Begins the call if its name is known.
    fn begin(&mut self, scope: &mut Scope<'_>) -> bool {
        let name = self.name.as_deref();
        self.begun = name.is_some_and(|name| scope.begin(name).is_some());
        self.begun
    }

    fn arguments(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        let At::Arguments(value) = &mut self.at else { return Flow::leave(c) };
        let mut text = String::new();
        let fed = value.write(c, &mut text);
        match &mut self.early {
            Some(early) if early.len() < EARLY_BYTES => early.push_str(&text),
            Some(_) => return Flow::leave(c),
            None => scope.out.arguments(&text),
        }
        match fed {
            Fed::More => Flow::More,
            Fed::Last => {
                self.at = At::Next;
                Flow::More
            }
            Fed::After | Fed::Bad => {
                scope.end();
                Flow::leave(c)
            }
        }
    }

    /// Arguments that were a JSON string.
    fn quoted(&mut self, text: &str, c: char, scope: &mut Scope<'_>) -> Flow {
        let inner: Option<String> = serde_json::from_str(text).ok();
        let object = inner.and_then(|inner| {
            let object = inner.trim().to_owned();
            let value: serde_json::Value = serde_json::from_str(&object).ok()?;
            value.is_object().then_some(object)
        });
        let Some(object) = object else { return Flow::leave(c) };
        if self.begin(scope) {
            scope.out.arguments(&object);
        } else {
            self.early = Some(object);
        }
        self.at = At::Next;
        Flow::More
    }

    /// At the brace that ends an object.
    fn close_object(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        if self.nested {
            self.nested = false;
            self.at = At::Next;
            return Flow::More;
        }
        if !self.begun {
            if !self.begin(scope) {
                return Flow::leave(c);
            }
            scope.out.arguments(self.early.as_deref().unwrap_or("{}"));
        }
        scope.end();
        self.after_object()
    }

    fn after_object(&mut self) -> Flow {
        self.at = At::After(Expect::default());
        if self.list_ended && self.close.is_empty() { Flow::Done } else { Flow::More }
    }

    /// Whether a call is complete, and nothing but white space or the end of the list followed.
    pub fn is_after_call(&self) -> bool {
        matches!(&self.at, At::After(expect) if expect.is_empty())
    }

    fn after(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        let At::After(expect) = &mut self.at else { return Flow::leave(c) };
        if expect.is_empty() {
            match c {
                _ if c.is_whitespace() => return Flow::More,
                ']' if self.in_list && !self.list_ended => {
                    self.list_ended = true;
                    return self.after_object();
                }
                ',' | ';' if !self.list_ended => {
                    self.at = At::Lead;
                    return Flow::More;
                }
                '{' if !self.list_ended && !self.in_list => return self.lead(c, scope),
                _ => {}
            }
        }
        match expect.push(c, self.close) {
            Found::Partly => Flow::More,
            Found::Marker(..) => Flow::Done,
            Found::Other(held) => Flow::Leave(held),
        }
    }
}
