//! A grammar of rules over terminals, written as Lark.
//!
//! Each part that has parts is a definition of its own, so nothing nests.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::parse::{Node, NodeId, Rules, TokenSet};
use super::units::{Unit, Units};
use crate::{Error, Tokens};

/// Most definitions.
const DEFINITIONS_MAX: usize = 10_000;

/// Most characters of all terminals together, with the rules in them written out: llguidance does that.
const SIZE_MAX: usize = 300_000;

struct Writer<'a> {
    grammar: &'a Rules,
    /// The vocabulary.
    tokens: &'a Tokens,
    /// What stands for all tokens but one.
    all_but: BTreeSet<usize>,
    text: String,
    definitions: usize,
    /// Whether the terminal of each node was written.
    written: Vec<bool>,
    /// Nodes whose terminals are still to be written.
    open: Vec<NodeId>,
}

/// The Lark grammar.
///
/// # Errors
/// The grammar is too large.
pub fn lark(grammar: &Rules, units: &Units, tokens: &Tokens) -> Result<String, Error> {
    let mut writer = Writer {
        grammar,
        tokens,
        all_but: BTreeSet::new(),
        text: String::new(),
        definitions: 0,
        written: vec![false; grammar.nodes.len()],
        open: Vec::new(),
    };
    let mut sizes = vec![None; grammar.nodes.len()];
    let total = units
        .terminals
        .iter()
        .flatten()
        .fold(0, |total: usize, &node| total.saturating_add(size(grammar, node, &mut sizes)));
    if total > SIZE_MAX {
        return Err(super::refused("with its rules written out, it is too large".to_owned()));
    }
    writer.define("start", &format!("r{}", grammar.root));
    for (rule, unit) in units.rules.iter().enumerate() {
        if let Some(unit) = unit {
            let body = writer.body(unit);
            writer.define(&format!("r{rule}"), &body);
        }
    }
    writer.sets_of_tokens();
    for (id, nodes) in units.terminals.iter().enumerate() {
        let body = writer.row(nodes);
        writer.define(&format!("T{id}"), &body);
    }
    while let Some(node) = writer.open.pop() {
        if !std::mem::replace(&mut writer.written[node], true) {
            let body = writer.terminal(node);
            writer.define(&format!("N{node}"), &body);
        }
        if writer.definitions > DEFINITIONS_MAX {
            return Err(super::refused("it is too large".to_owned()));
        }
    }
    Ok(writer.text)
}

/// The number of characters of a node's terminal.
fn size(grammar: &Rules, node: NodeId, known: &mut [Option<usize>]) -> usize {
    if let Some(size) = known[node] {
        return size;
    }
    let mut sum = |parts: &[NodeId]| {
        parts.iter().fold(1usize, |sum, &part| sum.saturating_add(size(grammar, part, known)))
    };
    let size = match &grammar.nodes[node] {
        Node::Chars(_) | Node::Token(_) => 1,
        Node::Literal(text) => text.len(),
        Node::Rule(rule) => sum(&[grammar.rules[*rule].1]),
        Node::Sequence(parts) | Node::Choice(parts) => sum(parts),
        Node::Repeat(part, ..) => sum(&[*part]),
    };
    known[node] = Some(size);
    size
}

impl Writer<'_> {
    fn define(&mut self, name: &str, body: &str) {
        self.definitions += 1;
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{name}: {body}");
    }

    /// The right side of a rule.
    fn body(&mut self, unit: &Unit) -> String {
        match unit {
            Unit::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
            Unit::Sequence(parts) => self.join(parts, " "),
            Unit::Choice(parts) => self.join(parts, " | "),
            Unit::Repeat(part, least, most) => match *most {
                Some(0) => "\"\"".to_owned(),
                most => self.name(part) + &counts(*least, most),
            },
            unit => self.name(unit),
        }
    }

    fn join(&mut self, parts: &[Unit], between: &str) -> String {
        let parts: Vec<String> = parts.iter().map(|part| self.name(part)).collect();
        parts.join(between)
    }

    /// The name of a part of a rule, which is defined if it has parts.
    fn name(&mut self, unit: &Unit) -> String {
        match unit {
            Unit::Terminal(id) => format!("T{id}"),
            Unit::Rule(rule) => format!("r{rule}"),
            Unit::Token(TokenSet::Only(at)) => self.stand_in(*at),
            Unit::Token(TokenSet::AllBut(at)) => {
                self.all_but.insert(*at);
                format!("o{at}")
            }
            unit => {
                let body = self.body(unit);
                let name = format!("x{}", self.definitions);
                self.define(&name, &body);
                name
            }
        }
    }

    /// What stands for a token that the grammar names; after these, what stands for all others.
    fn stand_in(&self, at: usize) -> String {
        format!("<[{}]>", self.tokens.len() + at)
    }

    /// Defines the sets of all tokens but one, each token on its own: llguidance reads a token as one of its sets only.
    fn sets_of_tokens(&mut self) {
        let (named, ends) = (&self.grammar.tokens, &self.tokens.shared.ends);
        for without in std::mem::take(&mut self.all_but) {
            let is_in = |at: &usize| {
                *at != without && named.get(*at).is_none_or(|token| !ends.contains(token))
            };
            let all: Vec<String> =
                (0..=named.len()).filter(is_in).map(|at| self.stand_in(at)).collect();
            self.define(&format!("o{without}"), &all.join(" | "));
        }
    }

    /// The right side of the terminal of a node.
    fn terminal(&mut self, node: NodeId) -> String {
        let grammar = self.grammar;
        match &grammar.nodes[node] {
            Node::Sequence(parts) => self.row(parts),
            Node::Choice(parts) => {
                let parts: Vec<String> = parts.iter().map(|&part| self.piece(part)).collect();
                parts.join(" | ")
            }
            Node::Repeat(_, _, Some(0)) => "\"\"".to_owned(),
            Node::Repeat(part, least, most) => self.piece(*part) + &counts(*least, *most),
            Node::Chars(_) | Node::Literal(_) | Node::Token(_) | Node::Rule(_) => self.piece(node),
        }
    }

    fn row(&mut self, nodes: &[NodeId]) -> String {
        match nodes {
            [] => "\"\"".to_owned(),
            [node] => self.piece(*node),
            nodes => {
                let parts: Vec<String> = nodes.iter().map(|&node| self.piece(node)).collect();
                parts.join(" ")
            }
        }
    }

    /// A node inside a terminal: itself, or the name of its own terminal, if it has parts.
    fn piece(&mut self, node: NodeId) -> String {
        let grammar = self.grammar;
        match &grammar.nodes[node] {
            Node::Chars(chars) => format!("/{}/", chars.to_regex()),
            Node::Literal(text) => quoted(text),
            Node::Token(TokenSet::Only(at) | TokenSet::AllBut(at)) => self.stand_in(*at),
            Node::Rule(rule) => self.piece(grammar.rules[*rule].1),
            Node::Sequence(_) | Node::Choice(_) | Node::Repeat(..) => {
                self.open.push(node);
                format!("N{node}")
            }
        }
    }
}

fn counts(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// A literal in Lark's syntax, which is that of JSON.
fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\0'..='\u{1f}' | '\u{7f}' => {
                // Writing to a string does not fail.
                let _ = write!(quoted, "\\u{:04x}", character as u32);
            }
            _ => quoted.push(character),
        }
    }
    quoted + "\""
}
