//! Reads calls whose name stands between markers, with arguments in JSON or in tags.

use std::collections::VecDeque;

use super::envelope::EnvelopeReader;
use super::families::{Body, Framed, Layout, Tags};
use super::json::{self, Fed, JsonValue};
use super::markers::{Expect, Found, Search};
use super::out::ArgumentType;
use super::scope::{Begin, Flow, NAME_BYTES, Scope};

/// Limit on a value that must be complete before it becomes JSON; a longer one is a string.
const VALUE_BYTES: usize = 1 << 20;

/// Opens text in which markup is no markup.
const CDATA: &str = "<![CDATA[";

#[derive(Debug)]
enum At {
    /// In a section, before a call.
    Between(Expect),
    /// After a call outside of a section, which the end of one may follow.
    Unwrapped(Expect),
    Name(Search, String),
    /// After a name, up to the end of its tag.
    Attributes {
        search: Search,
        text: String,
        until: &'static str,
    },
    /// Before the opening brace of JSON arguments.
    Brace,
    Json(JsonValue),
    /// After JSON arguments.
    End(Expect),
    /// Before an argument or the end of a call.
    Argument(Expect),
    Key(Search),
    KeyAttributes(Search, String),
    ValueOpen(Expect),
    Value(TaggedValue),
    /// The calls are JSON objects after all.
    Envelope(EnvelopeReader),
}

/// A tagged value being read.
#[derive(Debug)]
struct TaggedValue {
    search: Search,
    kind: ArgumentType,
    /// What ends it, with the line break that is no part of it and without.
    ends: Vec<String>,
    /// The text so far; that of strings is passed on.
    text: String,
    is_empty: bool,
}

/// What a marker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Call,
    Section,
}

/// See [`Framed`].
#[derive(Debug)]
pub struct FramedReader {
    framed: &'static Framed,
    in_section: bool,
    at: At,
    name: String,
    tool: usize,
    key: String,
    /// The markup of an argument up to its value, which is content if it turns out to be no argument.
    unread: String,
    has_arguments: bool,
    has_begun: bool,
    /// Text read beyond a marker, to be read again.
    again: VecDeque<char>,
}

impl FramedReader {
    /// A reader after the marker of a section or of a call.
    pub fn new(framed: &'static Framed, begin: Begin) -> Self {
        let in_section = begin == Begin::Section;
        let between = At::Between(Expect::default());
        let name = At::Name(Search::default(), String::new());
        Self {
            framed,
            in_section,
            at: if in_section { between } else { name },
            name: String::new(),
            tool: 0,
            key: String::new(),
            unread: String::new(),
            has_arguments: false,
            has_begun: false,
            again: VecDeque::new(),
        }
    }

    /// Feeds a character.
    pub fn push(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        self.again.push_back(c);
        while let Some(c) = self.again.pop_front() {
            let left = match self.step(c, scope) {
                Flow::More => continue,
                Flow::Call => return Flow::Call,
                Flow::Done if self.again.is_empty() => return Flow::Done,
                Flow::Skip => return Flow::Skip,
                Flow::Done => String::new(),
                Flow::Leave(text) => text,
            };
            return Flow::Leave(left + &self.again.drain(..).collect::<String>());
        }
        Flow::More
    }

    fn read_again(&mut self, text: &str) {
        text.chars().rev().for_each(|c| self.again.push_front(c));
    }

    fn step(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        match &mut self.at {
            At::Between(_) => self.between(c, scope),
            At::Unwrapped(expect) => {
                if expect.is_empty() && c.is_whitespace() {
                    return Flow::More;
                }
                match expect.push(c, self.framed.section_end) {
                    Found::Partly => Flow::More,
                    Found::Other(held) => Flow::Leave(held),
                    Found::Marker(_, rest) => {
                        self.read_again(&rest);
                        Flow::Done
                    }
                }
            }
            At::Name(..) => self.name(c, scope),
            At::Attributes { search, text, until } => {
                if search.push(c, &[*until], text).is_some() {
                    let is_plain = *until != ">" || text.trim().is_empty();
                    return if is_plain { self.named(scope) } else { Flow::Leave(String::new()) };
                }
                if text.len() > NAME_BYTES { Flow::leave(c) } else { Flow::More }
            }
            At::Brace if c.is_whitespace() => Flow::More,
            At::Brace if c == '{' => {
                if scope.begin(&self.name).is_none() {
                    return Flow::leave(c);
                }
                self.has_begun = true;
                self.at = At::Json(JsonValue::new());
                self.json(c, scope)
            }
            At::Brace => {
                self.at = At::End(Expect::default());
                self.end(c, scope)
            }
            At::Json(_) => self.json(c, scope),
            At::End(_) => self.end(c, scope),
            At::Envelope(reader) => reader.push(c, scope),
            _ => match &self.framed.body {
                Body::Tagged(tags) => self.tagged(tags, c, scope),
                Body::Json => Flow::leave(c),
            },
        }
    }

    fn between(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        let At::Between(expect) = &mut self.at else { return Flow::leave(c) };
        if expect.is_empty() && c.is_whitespace() {
            return Flow::More;
        }
        if expect.is_empty() && matches!(c, '{' | '[') {
            return self.envelope(self.framed.section_end, c, scope);
        }
        let mut markers = self.framed.section_end.to_vec();
        if !scope.is_full() {
            markers.push(self.framed.call);
        }
        match expect.push(c, &markers) {
            Found::Partly => return Flow::More,
            Found::Other(held) => return Flow::Leave(held),
            Found::Marker(at, rest) => {
                self.read_again(&rest);
                if at < self.framed.section_end.len() {
                    return Flow::Done;
                }
            }
        }
        self.at = At::Name(Search::default(), String::new());
        Flow::More
    }

    fn envelope(&mut self, close: &'static [&'static str], c: char, scope: &mut Scope<'_>) -> Flow {
        let mut reader = EnvelopeReader::new(close);
        let flow = reader.push(c, scope);
        self.at = At::Envelope(reader);
        flow
    }

    fn name(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        let framed = self.framed;
        let At::Name(search, name) = &mut self.at else { return Flow::leave(c) };
        if matches!(c, '{' | '[') && name.trim().is_empty() {
            let close = if self.in_section { framed.section_end } else { framed.call_end };
            return self.envelope(close, c, scope);
        }
        // White space before a name may look like what follows it.
        if name.is_empty() && c.is_whitespace() {
            return Flow::More;
        }
        let ends: Vec<&str> = framed.name_ends.iter().map(|(end, _)| *end).collect();
        let Some(found) = search.push(c, &ends, name) else {
            return if name.len() > NAME_BYTES { Flow::leave(c) } else { Flow::More };
        };
        self.name = self.plain_name();
        let (end, until) = framed.name_ends[found];
        if !until.is_empty() {
            self.at = At::Attributes { search: Search::default(), text: String::new(), until };
            return Flow::More;
        }
        let is_key = matches!(&framed.body, Body::Tagged(tags) if tags.key == end);
        if is_key || framed.call_end.contains(&end) {
            self.read_again(end);
        }
        self.named(scope)
    }

    /// The name without the prefix and number that some formats write with it.
    fn plain_name(&self) -> String {
        let At::Name(_, name) = &self.at else { return String::new() };
        let (name, prefix) = (name.trim(), self.framed.prefix);
        let marker = prefix.find('<').map(|at| &prefix[at..]);
        let behind = match marker {
            Some(marker) => name.split_once(marker).map(|(_, name)| name),
            None => name.strip_prefix(prefix),
        };
        let name = behind.unwrap_or(name);
        let number = name.rsplit_once(':');
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let plain = number.filter(|(_, number)| is_number(number)).map(|(name, _)| name);
        plain.unwrap_or(name).to_owned()
    }

    /// After the name and its tag.
    fn named(&mut self, scope: &mut Scope<'_>) -> Flow {
        if self.framed.content_name == Some(self.name.as_str()) {
            return Flow::Skip;
        }
        let Some(tool) = scope.tool(&self.name) else { return Flow::Leave(String::new()) };
        (self.tool, self.has_begun) = (tool, false);
        match &self.framed.body {
            Body::Json => self.at = At::Brace,
            Body::Tagged(_) => {
                if scope.begin(&self.name).is_none() {
                    return Flow::Leave(String::new());
                }
                scope.out.arguments("{");
                self.has_arguments = false;
                self.at = At::Argument(Expect::default());
            }
        }
        Flow::More
    }

    fn json(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        let At::Json(value) = &mut self.at else { return Flow::leave(c) };
        let mut text = String::new();
        let fed = value.write(c, &mut text);
        scope.out.arguments(&text);
        match fed {
            Fed::More => return Flow::More,
            Fed::Last => {}
            Fed::After | Fed::Bad => {
                scope.end();
                return Flow::leave(c);
            }
        }
        scope.end();
        self.at = At::End(Expect::default());
        if self.framed.call_end.is_empty() { Flow::Done } else { Flow::More }
    }

    /// After JSON arguments, or instead of them.
    fn end(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        let framed = self.framed;
        let At::End(expect) = &mut self.at else { return Flow::leave(c) };
        if expect.is_empty() && c.is_whitespace() {
            return Flow::More;
        }
        let markers = [framed.call_end, framed.section_end].concat();
        let (found, rest) = match expect.push(c, &markers) {
            Found::Partly => return Flow::More,
            Found::Other(held) => return Flow::Leave(held),
            Found::Marker(found, rest) => (found, rest),
        };
        self.read_again(&rest);
        // A call without arguments.
        if !self.has_begun {
            if scope.begin(&self.name).is_none() {
                return Flow::Leave(String::new());
            }
            scope.out.arguments("{}");
        }
        let is_call = found < framed.call_end.len();
        self.ended(if is_call { Ending::Call } else { Ending::Section }, scope)
    }

    /// After the marker that ends a call, or a section.
    fn ended(&mut self, what: Ending, scope: &mut Scope<'_>) -> Flow {
        scope.end();
        let is_unwrapped = what == Ending::Call && !self.in_section;
        if is_unwrapped && !self.framed.section_end.is_empty() && self.again.is_empty() {
            self.at = At::Unwrapped(Expect::default());
            return Flow::Call;
        }
        self.at = At::Between(Expect::default());
        if what == Ending::Section || is_unwrapped {
            // What was read beyond the marker is not of this call.
            return if self.again.is_empty() {
                Flow::Done
            } else {
                Flow::Leave(self.again.drain(..).collect())
            };
        }
        if self.again.is_empty() { Flow::Call } else { Flow::More }
    }

    fn tagged(&mut self, tags: &'static Tags, c: char, scope: &mut Scope<'_>) -> Flow {
        if !matches!(self.at, At::Argument(_) | At::Value(_)) {
            self.unread.push(c);
            if self.unread.len() > 4 * NAME_BYTES {
                return self.abandon("", scope);
            }
        }
        match &mut self.at {
            At::Argument(_) => return self.argument(tags, c, scope),
            At::Value(_) => return self.value(tags, c, scope),
            At::Key(search) => {
                if search.push(c, &[tags.key_end], &mut self.key).is_none() {
                    return Flow::More;
                }
                if tags.attributes_end.is_empty() {
                    return self.keyed(tags, "", scope);
                }
                self.at = At::KeyAttributes(Search::default(), String::new());
            }
            At::KeyAttributes(search, text) => {
                if search.push(c, &[tags.attributes_end], text).is_some() {
                    let attributes = std::mem::take(text);
                    let is_known = attributes.trim().is_empty() || attributes.contains('=');
                    return match is_known {
                        true => self.keyed(tags, &attributes, scope),
                        false => self.abandon("", scope),
                    };
                }
            }
            At::ValueOpen(expect) => {
                if expect.is_empty() && c.is_whitespace() {
                    return Flow::More;
                }
                match expect.push(c, &[tags.value]) {
                    Found::Partly => {}
                    Found::Marker(..) => self.begin_value(tags, "", scope),
                    Found::Other(_) => return self.abandon("", scope),
                }
            }
            _ => return Flow::leave(c),
        }
        Flow::More
    }

    /// Completes the call as far as it was read; the rest is content.
    fn abandon(&mut self, held: &str, scope: &mut Scope<'_>) -> Flow {
        scope.out.arguments("}");
        scope.end();
        Flow::Leave(std::mem::take(&mut self.unread) + held)
    }

    fn argument(&mut self, tags: &Tags, c: char, scope: &mut Scope<'_>) -> Flow {
        let framed = self.framed;
        let At::Argument(expect) = &mut self.at else { return Flow::leave(c) };
        if expect.is_empty() && c.is_whitespace() {
            return Flow::More;
        }
        let markers = [&[tags.key], framed.call_end, framed.section_end].concat();
        match expect.push(c, &markers) {
            Found::Partly => Flow::More,
            Found::Other(held) => self.abandon(&held, scope),
            Found::Marker(0, rest) => {
                self.unread = tags.key.to_owned();
                self.key.clear();
                self.at = At::Key(Search::default());
                self.read_again(&rest);
                Flow::More
            }
            Found::Marker(found, rest) => {
                self.read_again(&rest);
                scope.out.arguments("}");
                let is_call = found <= framed.call_end.len();
                self.ended(if is_call { Ending::Call } else { Ending::Section }, scope)
            }
        }
    }

    /// After the key.
    fn keyed(&mut self, tags: &Tags, attributes: &str, scope: &mut Scope<'_>) -> Flow {
        if tags.value.is_empty() {
            self.begin_value(tags, attributes, scope);
        } else {
            self.at = At::ValueOpen(Expect::default());
        }
        Flow::More
    }

    fn begin_value(&mut self, tags: &Tags, attributes: &str, scope: &mut Scope<'_>) {
        self.unread.clear();
        let key = self.key.trim();
        let kind = match attributes {
            text if text.contains("string=\"true\"") => ArgumentType::Text,
            text if text.contains("string=\"false\"") => ArgumentType::Json,
            text if text.contains("type=\"string\"") => ArgumentType::Text,
            text if text.contains("type=\"") => ArgumentType::Json,
            _ => ArgumentType::of(&scope.tools[self.tool], key),
        };
        let comma = if self.has_arguments { "," } else { "" };
        let quote = if kind == ArgumentType::Text { "\"" } else { "" };
        scope.out.arguments(&format!("{comma}{}:{quote}", json::quoted(key)));
        self.has_arguments = true;
        let end = tags.value_end;
        let ends = match tags.layout {
            Layout::Inline => vec![end.to_owned(), CDATA.to_owned()],
            Layout::Lines => vec![end.to_owned(), format!("\n{end}")],
            Layout::Mirrored => vec![format!("{end}{key}>")],
        };
        self.at = At::Value(TaggedValue {
            search: Search::default(),
            kind,
            ends,
            text: String::new(),
            is_empty: true,
        });
    }

    fn value(&mut self, tags: &Tags, c: char, scope: &mut Scope<'_>) -> Flow {
        let At::Value(value) = &mut self.at else { return Flow::leave(c) };
        if value.is_empty && c == '\n' && tags.layout == Layout::Lines {
            value.is_empty = false;
            return Flow::More;
        }
        let ends: Vec<&str> = value.ends.iter().map(String::as_str).collect();
        let before = value.text.len();
        let found = value.search.push(c, &ends, &mut value.text);
        if let Some(1) = found
            && tags.layout == Layout::Inline
        {
            let is_first = value.is_empty && value.text.is_empty();
            value.ends =
                if is_first { vec![format!("]]>{}", tags.value_end)] } else { value.ends.clone() };
            if !is_first {
                value.text.push_str(CDATA);
            }
            value.is_empty = false;
            value.pass_on(scope);
            return Flow::More;
        }
        value.is_empty &= before == value.text.len();
        value.pass_on(scope);
        if found.is_some() {
            value.finish(scope);
            self.at = At::Argument(Expect::default());
        }
        Flow::More
    }

    /// Whether a call is complete, and nothing but white space and its end followed.
    pub fn is_after_call(&self) -> bool {
        match &self.at {
            At::Between(expect) | At::Unwrapped(expect) => expect.is_empty(),
            At::End(expect) => self.has_begun && expect.is_empty(),
            At::Envelope(reader) => reader.is_after_call(),
            _ => false,
        }
    }

    /// Hands over the value being read, and returns what is no part of a call.
    pub fn finish(&mut self, scope: &mut Scope<'_>) -> String {
        match &mut self.at {
            At::Value(value) => {
                let held = value.search.take();
                value.text.push_str(&held);
                value.pass_on(scope);
                if value.kind != ArgumentType::Text {
                    value.finish(scope);
                }
                String::new()
            }
            At::Argument(expect) => expect.take(),
            At::Key(_) | At::KeyAttributes(..) | At::ValueOpen(_) => {
                std::mem::take(&mut self.unread)
            }
            _ => String::new(),
        }
    }
}

impl TaggedValue {
    /// Passes on the text of a string, and makes a string of a text that is too long to be anything else.
    fn pass_on(&mut self, scope: &mut Scope<'_>) {
        if self.text.len() > VALUE_BYTES && self.kind != ArgumentType::Text {
            self.kind = ArgumentType::Text;
            scope.out.arguments("\"");
        }
        if self.kind == ArgumentType::Text {
            let mut escaped = String::new();
            self.text.drain(..).for_each(|c| json::escape(c, &mut escaped));
            scope.out.arguments(&escaped);
        }
    }

    fn finish(&mut self, scope: &mut Scope<'_>) {
        match self.kind {
            ArgumentType::Text => scope.out.arguments("\""),
            kind => scope.out.arguments(&kind.json(&self.text)),
        }
    }
}
