//! Reads calls written as in a programming language: `name(key='value')` and `name{key:value}`.

use std::collections::VecDeque;

use super::families::{Literal, Style};
use super::json::{self, Fed};
use super::markers::{Expect, Found, Search};
use super::scope::{Begin, Flow, NAME_BYTES, Scope};

/// Limit on nesting.
const DEPTH: usize = 128;

/// Limit on a word or number in bytes; quoted texts have none.
const ATOM_BYTES: usize = 4096;

#[derive(Debug)]
enum At {
    /// Before a call or a list.
    Lead,
    Name(String),
    Arguments(LiteralValue),
    /// After a call or the list.
    After(Expect),
}

/// See [`Literal`].
#[derive(Debug)]
pub struct LiteralReader {
    literal: &'static Literal,
    /// Markers after the last call; none if none came before the first.
    close: &'static [&'static str],
    at: At,
    in_list: bool,
    list_ended: bool,
    /// Open parentheses of calls to `print` around the call.
    prints: usize,
}

impl LiteralReader {
    /// A reader after the opening marker, if there is one.
    pub fn new(literal: &'static Literal, begin: Begin) -> Self {
        Self {
            literal,
            close: if begin == Begin::Bare { &[] } else { literal.close },
            at: At::Lead,
            in_list: false,
            list_ended: false,
            prints: 0,
        }
    }

    fn is_python(&self) -> bool {
        self.literal.style == Style::Python
    }

    /// Feeds a character.
    pub fn push(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        let is_python = self.is_python();
        match &mut self.at {
            At::Lead if c.is_whitespace() => Flow::More,
            At::Lead if c == '[' && is_python && !self.in_list && !self.list_ended => {
                self.in_list = true;
                Flow::More
            }
            At::Lead if c == ']' && self.in_list => self.close_list(),
            At::Lead if c.is_alphanumeric() || c == '_' => {
                self.at = At::Name(c.into());
                Flow::More
            }
            At::Lead => Flow::leave(c),
            At::Name(_) => self.name(c, scope),
            At::Arguments(value) => {
                let mut text = String::new();
                let fed = value.push(c, &mut text);
                scope.out.arguments(&text);
                match fed {
                    Fed::More => Flow::More,
                    Fed::Last => {
                        scope.end();
                        self.at = At::After(Expect::default());
                        Flow::More
                    }
                    Fed::After | Fed::Bad => {
                        let rest = value.left();
                        scope.end();
                        Flow::Leave(rest)
                    }
                }
            }
            At::After(_) => self.after(c),
        }
    }

    fn name(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        let opener = if self.is_python() { '(' } else { '{' };
        let At::Name(text) = &mut self.at else { return Flow::leave(c) };
        if c != opener {
            let belongs = c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
            if !belongs || text.len() >= NAME_BYTES {
                return Flow::leave(c);
            }
            text.push(c);
            return Flow::More;
        }
        let name = text.strip_prefix(self.literal.prefix).unwrap_or(text);
        // Names as Gemma and Llama write them for tools that are built in.
        let name = name.strip_prefix("default_api.").unwrap_or(name);
        let name = name.strip_suffix(".call").unwrap_or(name);
        if opener == '(' && name == "print" && scope.tool(name).is_none() {
            self.prints += 1;
            self.at = At::Lead;
            return Flow::More;
        }
        if scope.begin(name).is_none() {
            return Flow::leave(c);
        }
        scope.out.arguments("{");
        self.at = At::Arguments(LiteralValue::new(self.literal.style));
        Flow::More
    }

    fn close_list(&mut self) -> Flow {
        self.list_ended = true;
        self.at = At::After(Expect::default());
        if self.close.is_empty() { Flow::Done } else { Flow::More }
    }

    fn after(&mut self, c: char) -> Flow {
        let At::After(expect) = &mut self.at else { return Flow::leave(c) };
        if expect.is_empty() {
            match c {
                _ if c.is_whitespace() => return Flow::More,
                ')' if self.prints > 0 => {
                    self.prints -= 1;
                    return Flow::More;
                }
                ']' if self.in_list && !self.list_ended => return self.close_list(),
                ',' | ';' if !self.list_ended => {
                    self.at = At::Lead;
                    return Flow::More;
                }
                _ if c.is_alphanumeric() && !self.in_list && !self.close.is_empty() => {
                    self.at = At::Name(c.into());
                    return Flow::More;
                }
                _ => {}
            }
        }
        match expect.push(c, self.close) {
            Found::Partly => Flow::More,
            Found::Marker(..) => Flow::Done,
            Found::Other(held) => Flow::Leave(held),
        }
    }

    /// Whether a call is complete, and nothing but white space or closing brackets followed.
    pub fn is_after_call(&self) -> bool {
        matches!(&self.at, At::After(expect) if expect.is_empty())
    }

    /// Hands over what an open call still holds back, and returns what is no part of it.
    pub fn finish(&mut self, scope: &mut Scope<'_>) -> String {
        if let At::Arguments(value) = &mut self.at {
            let mut text = String::new();
            value.finish(&mut text);
            scope.out.arguments(&text);
        }
        String::new()
    }
}

/// What comes next in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Key,
    Colon,
    Value,
    Comma,
}

#[derive(Debug)]
struct Level {
    close: char,
    is_map: bool,
    is_first: bool,
    slot: Slot,
}

/// What is being read inside a container.
#[derive(Debug)]
enum Token {
    None,
    /// A word or number.
    Atom(String),
    /// What may become a quote of several characters.
    Quote(Expect),
    /// Text up to a quote of several characters.
    Marked(Search),
    /// Text up to this character.
    Text(char),
    Escape(char),
    /// An escape with digits, in text up to a quote.
    Digits {
        quote: char,
        /// The escape as read, from the backslash on.
        text: String,
        radix: u32,
        /// How many digits may follow; those of an octal number may be fewer.
        left: usize,
    },
}

/// Follows the arguments of a call and writes them as JSON.
#[derive(Debug)]
struct LiteralValue {
    style: Style,
    stack: Vec<Level>,
    token: Token,
    again: VecDeque<char>,
    /// The first half of a surrogate pair.
    surrogate: Option<u32>,
    /// What was read when an error occurred.
    left: String,
}

impl LiteralValue {
    /// After the opening bracket.
    fn new(style: Style) -> Self {
        let close = if style == Style::Python { ')' } else { '}' };
        let level = Level { close, is_map: true, is_first: true, slot: Slot::Key };
        Self {
            style,
            stack: vec![level],
            token: Token::None,
            again: VecDeque::new(),
            surrogate: None,
            left: String::new(),
        }
    }

    /// The text that was read and not written, after an error.
    fn left(&mut self) -> String {
        std::mem::take(&mut self.left)
    }

    fn push(&mut self, c: char, out: &mut String) -> Fed {
        self.again.push_back(c);
        while let Some(c) = self.again.pop_front() {
            match self.step(c, out) {
                Fed::More => {}
                Fed::Last if self.again.is_empty() => return Fed::Last,
                Fed::Last | Fed::After | Fed::Bad => {
                    self.left.extend(self.again.drain(..));
                    return Fed::Bad;
                }
            }
        }
        Fed::More
    }

    /// The quote of several characters; Python calls have none.
    fn quote(&self) -> &'static str {
        match self.style {
            Style::Python => "",
            Style::Braces(quote) => quote,
        }
    }

    fn step(&mut self, c: char, out: &mut String) -> Fed {
        let marker = self.quote();
        match &mut self.token {
            Token::None => self.plain(c, out),
            Token::Atom(_) => self.atom(c, out),
            Token::Quote(expect) => {
                match expect.push(c, &[marker]) {
                    Found::Partly => {}
                    Found::Marker(..) => {
                        self.begin_item(out);
                        out.push('"');
                        self.token = Token::Marked(Search::default());
                    }
                    Found::Other(held) => return self.fail(&held),
                }
                Fed::More
            }
            Token::Marked(search) => {
                let mut text = String::new();
                let found = search.push(c, &[marker], &mut text);
                text.chars().for_each(|c| json::escape(c, out));
                if found.is_some() { self.end_text(out) } else { Fed::More }
            }
            Token::Text(quote) => {
                let quote = *quote;
                match c {
                    '\\' => self.token = Token::Escape(quote),
                    _ if c == quote => return self.end_text(out),
                    _ => self.write(c, out),
                }
                Fed::More
            }
            Token::Escape(quote) => {
                let quote = *quote;
                self.escaped(c, quote, out);
                Fed::More
            }
            Token::Digits { .. } => self.digit(c, out),
        }
    }

    /// Reads the character after a backslash. An unknown escape is text, as in Python.
    fn escaped(&mut self, c: char, quote: char, out: &mut String) {
        let digits = match c {
            'x' => Some((16, 2)),
            'u' => Some((16, 4)),
            'U' => Some((16, 8)),
            '0'..='7' => Some((8, 2)),
            _ => None,
        };
        if let Some((radix, left)) = digits {
            self.token = Token::Digits { quote, text: format!("\\{c}"), radix, left };
            return;
        }
        self.token = Token::Text(quote);
        match c {
            'a' => self.write('\u{7}', out),
            'b' => self.write('\u{8}', out),
            'f' => self.write('\u{c}', out),
            'n' => self.write('\n', out),
            'r' => self.write('\r', out),
            't' => self.write('\t', out),
            'v' => self.write('\u{b}', out),
            '\\' | '\'' | '"' | '/' => self.write(c, out),
            '\n' => {}
            _ => {
                self.write('\\', out);
                self.write(c, out);
            }
        }
    }

    /// Reads a character after the beginning of an escape with digits. Without all its digits it is text.
    fn digit(&mut self, c: char, out: &mut String) -> Fed {
        let Token::Digits { quote, text, radix, left } = &mut self.token else { return Fed::Bad };
        let (quote, radix, is_digit) = (*quote, *radix, c.is_digit(*radix));
        if is_digit {
            text.push(c);
            *left -= 1;
            if *left > 0 {
                return Fed::More;
            }
        }
        let text = std::mem::take(text);
        self.token = Token::Text(quote);
        let digits = text.trim_start_matches(['\\', 'x', 'u', 'U']);
        let code = u32::from_str_radix(digits, radix).ok().filter(|_| is_digit || radix == 8);
        if !code.is_some_and(|code| self.write_code(code, out)) {
            text.chars().for_each(|c| self.write(c, out));
        }
        if is_digit { Fed::More } else { self.step(c, out) }
    }

    /// Writes a character of a text.
    fn write(&mut self, c: char, out: &mut String) {
        self.end_surrogate(out);
        json::escape(c, out);
    }

    /// Writes the character with this code, where surrogates are pairs. Returns whether there is one.
    fn write_code(&mut self, code: u32, out: &mut String) -> bool {
        match (self.surrogate.take(), code) {
            (Some(high), 0xDC00..=0xDFFF) => {
                let code = 0x1_0000 + ((high - 0xD800) << 10) + (code - 0xDC00);
                json::escape(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), out);
            }
            (alone, 0xD800..=0xDFFF) => {
                self.surrogate = alone;
                self.end_surrogate(out);
                self.surrogate = Some(code);
                if code >= 0xDC00 {
                    self.end_surrogate(out);
                }
            }
            (alone, _) => {
                self.surrogate = alone;
                let Some(c) = char::from_u32(code) else { return false };
                self.write(c, out);
            }
        }
        true
    }

    /// Writes half of a surrogate pair that the other half does not follow.
    fn end_surrogate(&mut self, out: &mut String) {
        if self.surrogate.take().is_some() {
            json::escape(char::REPLACEMENT_CHARACTER, out);
        }
    }

    fn fail(&mut self, text: &str) -> Fed {
        self.left = text.to_owned();
        Fed::Bad
    }

    fn plain(&mut self, c: char, out: &mut String) -> Fed {
        let quote = self.quote();
        let Some(level) = self.stack.last_mut() else {
            return self.fail(c.encode_utf8(&mut [0; 4]));
        };
        let slot = level.slot;
        match c {
            _ if c.is_whitespace() => {}
            _ if c == level.close
                && slot != Slot::Colon
                && (slot != Slot::Value || !level.is_map) =>
            {
                let is_map = level.is_map;
                self.stack.pop();
                out.push(if is_map { '}' } else { ']' });
                return self.ended();
            }
            ',' if slot == Slot::Comma => {
                level.slot = if level.is_map { Slot::Key } else { Slot::Value };
            }
            ':' | '=' if slot == Slot::Colon => {
                level.slot = Slot::Value;
                out.push(':');
            }
            _ if slot == Slot::Colon || slot == Slot::Comma => {
                return self.fail(c.encode_utf8(&mut [0; 4]));
            }
            '[' | '{' | '(' if slot == Slot::Value => {
                if self.stack.len() >= DEPTH {
                    return self.fail(c.encode_utf8(&mut [0; 4]));
                }
                self.begin_item(out);
                let (is_map, close) = match c {
                    '{' => (true, '}'),
                    '[' => (false, ']'),
                    _ => (false, ')'),
                };
                out.push(if is_map { '{' } else { '[' });
                let slot = if is_map { Slot::Key } else { Slot::Value };
                self.stack.push(Level { close, is_map, is_first: true, slot });
            }
            _ if quote.starts_with(c) => {
                let mut expect = Expect::default();
                expect.push(c, &[quote]);
                self.token = Token::Quote(expect);
            }
            '"' | '\'' => {
                self.begin_item(out);
                out.push('"');
                self.token = Token::Text(c);
            }
            ']' | ')' | '}' | '[' | '{' | '(' | ',' | ':' | '=' | '<' => {
                return self.fail(c.encode_utf8(&mut [0; 4]));
            }
            _ => self.token = Token::Atom(c.into()),
        }
        Fed::More
    }

    /// Writes the comma before an item that is not the first.
    fn begin_item(&mut self, out: &mut String) {
        let Some(level) = self.stack.last_mut() else { return };
        if level.slot == Slot::Key || !level.is_map {
            if !level.is_first {
                out.push(',');
            }
            level.is_first = false;
        }
    }

    fn end_text(&mut self, out: &mut String) -> Fed {
        self.end_surrogate(out);
        out.push('"');
        self.ended()
    }

    /// After a complete key, value or container.
    fn ended(&mut self) -> Fed {
        self.token = Token::None;
        let Some(level) = self.stack.last_mut() else { return Fed::Last };
        level.slot = if level.slot == Slot::Key { Slot::Colon } else { Slot::Comma };
        Fed::More
    }

    fn atom(&mut self, c: char, out: &mut String) -> Fed {
        let is_key = self.stack.last().is_some_and(|level| level.slot == Slot::Key);
        let Token::Atom(atom) = &mut self.token else { return Fed::Bad };
        let ends = match c {
            ',' | '}' | ']' | ')' => true,
            ':' | '=' => is_key,
            _ => false,
        };
        if !ends {
            if atom.len() >= ATOM_BYTES {
                let text = std::mem::take(atom) + c.encode_utf8(&mut [0; 4]);
                return self.fail(&text);
            }
            atom.push(c);
            return Fed::More;
        }
        self.write_atom(out);
        self.ended();
        self.again.push_front(c);
        Fed::More
    }

    fn write_atom(&mut self, out: &mut String) {
        let is_key = self.stack.last().is_some_and(|level| level.slot == Slot::Key);
        let Token::Atom(atom) = std::mem::replace(&mut self.token, Token::None) else { return };
        self.begin_item(out);
        match atom.trim() {
            key if is_key => out.push_str(&json::quoted(key)),
            "True" | "true" => out.push_str("true"),
            "False" | "false" => out.push_str("false"),
            "None" | "null" => out.push_str("null"),
            number if serde_json::from_str::<serde_json::Number>(number).is_ok() => {
                out.push_str(number);
            }
            text => out.push_str(&json::quoted(text)),
        }
    }

    /// Writes what is held back.
    fn finish(&mut self, out: &mut String) {
        match &mut self.token {
            Token::Atom(_) => self.write_atom(out),
            Token::Marked(search) => {
                let held = search.take();
                held.chars().for_each(|c| json::escape(c, out));
            }
            _ => {}
        }
    }
}
