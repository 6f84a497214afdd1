//! The parser of GBNF: text to an arena of nodes, without recursion.

use std::collections::HashMap;

use super::chars::Chars;
use crate::tokens::STAND_INS_MAX;
use crate::{Error, Limits, Tokens};

/// Largest count in a repetition, as in llama.cpp.
const REPEATS_MAX: u32 = 2000;

/// Most repetitions that follow one part, as two in `"a"?*`.
const OPERATORS_MAX: usize = 3;

/// Most nodes of a grammar.
const NODES_MAX: usize = 100_000;

/// Index of a node.
pub type NodeId = usize;

/// Index of a rule.
pub type RuleId = usize;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// One character of a set.
    Chars(Chars),
    /// These characters, at least one.
    Literal(String),
    Token(TokenSet),
    /// What a rule describes.
    Rule(RuleId),
    /// All of them in order; empty for the empty text.
    Sequence(Vec<NodeId>),
    /// One of them.
    Choice(Vec<NodeId>),
    /// So many of it: at least, and at most if there is a limit.
    Repeat(NodeId, u32, Option<u32>),
}

/// One of the tokens that a grammar names, by its index among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenSet {
    /// This token.
    Only(usize),
    /// Any other token, except those that end the text.
    AllBut(usize),
}

/// A parsed grammar.
#[derive(Debug, Default)]
pub struct Rules {
    pub nodes: Vec<Node>,
    /// Of each rule: its name, and its body.
    pub rules: Vec<(String, NodeId)>,
    /// The rule `root`.
    pub root: RuleId,
    /// The tokens that it names.
    pub tokens: Vec<u32>,
}

impl Rules {
    /// Adds a node.
    pub fn push(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }
}

/// Parses a grammar.
///
/// # Errors
/// [`Error::Syntax`] with line and column; a rule is missing.
pub fn parse(source: &str, tokens: &Tokens, limits: &Limits) -> Result<Rules, Error> {
    let parser = Parser {
        source,
        tokens,
        at: 0,
        depth_max: limits.depth,
        rules: Rules::default(),
        bodies: Vec::new(),
        ids: HashMap::new(),
    };
    parser.run()
}

struct Parser<'a> {
    source: &'a str,
    /// The vocabulary, for tokens that the grammar names.
    tokens: &'a Tokens,
    /// Byte offset of the next character.
    at: usize,
    depth_max: usize,
    rules: Rules,
    /// Of each rule: its body once it was defined, and where it was first named.
    bodies: Vec<(Option<NodeId>, usize)>,
    ids: HashMap<&'a str, RuleId>,
}

/// A group that is not closed yet: its finished alternatives, and the parts of the one in progress.
#[derive(Default)]
struct Open {
    alternatives: Vec<NodeId>,
    parts: Vec<NodeId>,
    /// Number of repetitions of the last part.
    operators: usize,
    /// Where it begins.
    start: usize,
}

impl<'a> Parser<'a> {
    fn run(mut self) -> Result<Rules, Error> {
        self.skip_lines();
        while self.peek().is_some() {
            self.rule()?;
            self.skip_lines();
        }
        let Some(&root) = self.ids.get("root").filter(|&&id| self.bodies[id].0.is_some()) else {
            let reason = "it has no rule `root`".to_owned();
            return Err(Error::Grammar { what: super::WHAT, reason });
        };
        self.rules.root = root;
        let mut names = vec![""; self.bodies.len()];
        self.ids.iter().for_each(|(name, &id)| names[id] = name);
        for (id, (body, first)) in self.bodies.iter().enumerate() {
            let name = names[id];
            let Some(body) = *body else {
                return Err(self.error_at(*first, format!("the rule `{name}` is not defined")));
            };
            self.rules.rules.push((name.to_owned(), body));
        }
        Ok(self.rules)
    }

    /// `name ::= alternatives`, to the end of the line.
    fn rule(&mut self) -> Result<(), Error> {
        let start = self.at;
        let name = self.name();
        if name.is_empty() {
            return Err(self.error("expected the name of a rule".to_owned()));
        }
        let id = self.rule_id(name, start);
        self.skip_blanks();
        if !self.take("::=") {
            return Err(self.error(format!("expected `::=` after `{name}`")));
        }
        self.skip_lines();
        let body = self.alternatives()?;
        self.bodies[id].0 = Some(body);
        match self.peek() {
            None | Some('\n') => Ok(()),
            Some(found) => {
                Err(self.error(format!("expected the end of the rule, found {found:?}")))
            }
        }
    }

    /// Alternatives up to the end of the line, outside groups.
    fn alternatives(&mut self) -> Result<NodeId, Error> {
        let mut open = vec![Open { start: self.at, ..Open::default() }];
        loop {
            if open.len() > 1 {
                self.skip_lines()
            } else {
                self.skip_blanks()
            }
            if self.rules.nodes.len() > NODES_MAX {
                return Err(self.error(format!("the grammar has more than {NODES_MAX} parts")));
            }
            let at = self.at;
            let Some(next) = self.peek().filter(|&c| c != '\n') else { break };
            let Some(group) = open.last_mut() else { break };
            match next {
                '|' => {
                    self.at += 1;
                    let parts = std::mem::take(&mut group.parts);
                    group.alternatives.push(sequence(&mut self.rules, parts));
                    self.skip_lines();
                }
                '(' => {
                    if open.len() > self.depth_max {
                        let most = self.depth_max;
                        return Err(self.error(format!("groups nest more than {most} deep")));
                    }
                    self.at += 1;
                    open.push(Open { start: at, ..Open::default() });
                }
                ')' if open.len() > 1 => {
                    self.at += 1;
                    if let (Some(closed), Some(group)) = (open.pop(), open.last_mut()) {
                        group.parts.push(close(&mut self.rules, closed));
                        group.operators = 0;
                    }
                }
                '*' | '+' | '?' | '{' => {
                    let (least, most) = self.counts()?;
                    let Some(group) = open.last_mut() else { break };
                    let Some(part) = group.parts.pop() else {
                        return Err(self.error_at(at, "nothing to repeat".to_owned()));
                    };
                    group.operators += 1;
                    if group.operators > OPERATORS_MAX {
                        let reason = format!("more than {OPERATORS_MAX} repetitions of one part");
                        return Err(self.error_at(at, reason));
                    }
                    group.parts.push(self.rules.push(Node::Repeat(part, least, most)));
                }
                _ => {
                    let part = self.part(next)?;
                    if let Some(group) = open.last_mut() {
                        group.parts.push(part);
                        group.operators = 0;
                    }
                }
            }
        }
        match (open.pop(), open.is_empty()) {
            (Some(body), true) => Ok(close(&mut self.rules, body)),
            (Some(group), false) => Err(self.error_at(group.start, "unclosed group".to_owned())),
            (None, _) => Err(self.error("expected a rule".to_owned())),
        }
    }

    /// A literal, a set of characters, any character, a token, or the name of a rule.
    fn part(&mut self, next: char) -> Result<NodeId, Error> {
        let node = match next {
            '"' => self.literal()?,
            '[' => self.class()?,
            '.' => {
                self.at += 1;
                Node::Chars(Chars::all())
            }
            '<' | '!' => self.token()?,
            _ => {
                let start = self.at;
                let name = self.name();
                if name.is_empty() {
                    return Err(self.error(format!("unexpected {next:?}")));
                }
                Node::Rule(self.rule_id(name, start))
            }
        };
        Ok(self.rules.push(node))
    }

    /// A token by its spelling or its id, as in `<think>` and `<[1234]>`; any other token with `!` before it, except those
    /// that end the text.
    fn token(&mut self) -> Result<Node, Error> {
        let start = self.at;
        let is_negated = self.take("!");
        let len = self.rest().split('\n').next().and_then(|line| line.find('>'));
        let Some(len) = len.filter(|_| self.rest().starts_with('<')) else {
            let reason = "expected a token such as <name> or <[id]>".to_owned();
            return Err(self.error_at(start, reason));
        };
        let spelling = &self.rest()[..=len];
        let number = spelling.strip_prefix("<[").and_then(|rest| rest.strip_suffix("]>"));
        let id = match number {
            Some(number) => {
                let id = number.parse().ok().filter(|&id: &u32| (id as usize) < self.tokens.len());
                id.ok_or_else(|| format!("the vocabulary has no token {number}"))
            }
            None => {
                let id = self.tokens.token_of(spelling);
                id.ok_or_else(|| format!("{spelling} is not one token of the vocabulary"))
            }
        };
        let id = id.map_err(|reason| self.error_at(start, reason))?;
        self.at += spelling.len();
        let named = &mut self.rules.tokens;
        let at = named.iter().position(|&known| known == id).unwrap_or(named.len());
        if at == named.len() {
            if at == STAND_INS_MAX {
                let reason = format!("the grammar names more than {STAND_INS_MAX} tokens");
                return Err(self.error_at(start, reason));
            }
            named.push(id);
        }
        Ok(Node::Token(if is_negated { TokenSet::AllBut(at) } else { TokenSet::Only(at) }))
    }

    fn literal(&mut self) -> Result<Node, Error> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => {
                    return Err(self.error_at(start, "unclosed literal".to_owned()));
                }
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.at += 1;
        Ok(if text.is_empty() { Node::Sequence(Vec::new()) } else { Node::Literal(text) })
    }

    fn class(&mut self) -> Result<Node, Error> {
        let start = self.at;
        self.at += 1;
        let is_negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => {
                    let reason = "unclosed set of characters".to_owned();
                    return Err(self.error_at(start, reason));
                }
                Some(']') => break,
                Some(_) => {}
            }
            let at = self.at;
            let first = self.character()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = if is_range {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            if first > last {
                return Err(self.error_at(at, format!("the range {first:?}-{last:?} is empty")));
            }
            ranges.push((first, last));
        }
        self.at += 1;
        let chars = Chars::new(ranges);
        let chars = if is_negated { chars.negated() } else { chars };
        match chars.is_empty() {
            true => Err(self.error_at(start, "the set allows no character".to_owned())),
            false => Ok(Node::Chars(chars)),
        }
    }

    /// A character of a literal or a set, which may be escaped.
    fn character(&mut self) -> Result<char, Error> {
        let at = self.at;
        let Some(next) = self.peek().filter(|&c| c != '\n') else {
            return Err(self.error("expected a character".to_owned()));
        };
        self.at += next.len_utf8();
        if next != '\\' {
            return Ok(next);
        }
        let Some(escaped) = self.peek() else {
            return Err(self.error_at(at, "unfinished escape".to_owned()));
        };
        self.at += escaped.len_utf8();
        let digits = match escaped {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => return Ok(escaped),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err(self.error_at(at, format!("unknown escape \\{escaped}"))),
        };
        let code = self.rest().get(..digits).filter(|c| c.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(code) = code else {
            let reason = format!("expected {digits} hexadecimal digits after \\{escaped}");
            return Err(self.error_at(at, reason));
        };
        self.at += digits;
        let found = u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
        found.ok_or_else(|| self.error_at(at, format!("\\{escaped}{code} is no character")))
    }

    /// The counts of `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`.
    fn counts(&mut self) -> Result<(u32, Option<u32>), Error> {
        let at = self.at;
        let operator = self.peek();
        self.at += 1;
        match operator {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            _ => {}
        }
        self.skip_blanks();
        let least = self.number()?;
        self.skip_blanks();
        let most = if self.take(",") {
            self.skip_blanks();
            if self.peek() == Some('}') { None } else { Some(self.number()?) }
        } else {
            Some(least)
        };
        self.skip_blanks();
        if !self.take("}") {
            return Err(self.error("expected `}`".to_owned()));
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.error_at(at, "at most is less than at least".to_owned()));
        }
        Ok((least, most))
    }

    fn number(&mut self) -> Result<u32, Error> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        let number = self.rest()[..digits].parse().unwrap_or(u32::MAX);
        if digits == 0 {
            return Err(self.error("expected a number".to_owned()));
        }
        if number > REPEATS_MAX {
            return Err(self.error(format!("a repetition has at most {REPEATS_MAX}")));
        }
        self.at += digits;
        Ok(number)
    }

    fn rule_id(&mut self, name: &'a str, at: usize) -> RuleId {
        let next = self.bodies.len();
        let id = *self.ids.entry(name).or_insert(next);
        if id == next {
            self.bodies.push((None, at));
        }
        id
    }

    fn name(&mut self) -> &'a str {
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'-' || *b == b'_';
        let len = self.rest().bytes().take_while(is_name).count();
        let name = &self.rest()[..len];
        self.at += len;
        name
    }

    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// The next character; a carriage return before a line feed counts as the latter.
    fn peek(&self) -> Option<char> {
        let rest = self.rest();
        if rest.starts_with("\r\n") { Some('\n') } else { rest.chars().next() }
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    /// Skips blanks and a comment.
    fn skip_blanks(&mut self) {
        self.skip(&[' ', '\t']);
    }

    /// Skips blanks, comments and ends of lines.
    fn skip_lines(&mut self) {
        self.skip(&[' ', '\t', '\r', '\n']);
    }

    fn skip(&mut self, blanks: &[char]) {
        loop {
            let rest = self.rest();
            let mut skipped = rest.len() - rest.trim_start_matches(blanks).len();
            if rest[skipped..].starts_with('#') {
                skipped += rest[skipped..].find('\n').unwrap_or(rest.len() - skipped);
            }
            if skipped == 0 {
                return;
            }
            self.at += skipped;
        }
    }

    fn error(&self, reason: String) -> Error {
        self.error_at(self.at, reason)
    }

    fn error_at(&self, at: usize, reason: String) -> Error {
        let before = &self.source[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Error::Syntax { what: super::WHAT, line, column, reason }
    }
}

/// The node of a finished group.
fn close(rules: &mut Rules, group: Open) -> NodeId {
    let last = sequence(rules, group.parts);
    if group.alternatives.is_empty() {
        return last;
    }
    let mut alternatives = group.alternatives;
    alternatives.push(last);
    rules.push(Node::Choice(alternatives))
}

fn sequence(rules: &mut Rules, mut parts: Vec<NodeId>) -> NodeId {
    match (parts.len(), parts.pop()) {
        (1, Some(part)) => part,
        (_, last) => {
            parts.extend(last);
            rules.push(Node::Sequence(parts))
        }
    }
}
