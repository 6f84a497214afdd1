//! Position automata of regular parts: one state per character that a text may have (Glushkov 1961).
//!
//! Counted repetitions count as unbounded ones here. That allows more texts, so a conflict may be found where there is
//! none, but never missed.

use std::collections::HashSet;

use super::chars::Chars;
use super::parse::{Node, NodeId, Rules};

/// Most states; a larger part has no automaton.
const STATES_MAX: usize = 3000;

/// Most transitions.
const EDGES_MAX: usize = 60_000;

/// An automaton without an initial state: a text begins with one of `first`.
#[derive(Debug, Default)]
pub struct Automaton {
    /// The characters of each state.
    pub chars: Vec<Chars>,
    /// The states that may begin a text.
    pub first: Vec<usize>,
    /// The states that may follow each.
    pub next: Vec<Vec<usize>>,
    /// Whether a text may end after each.
    pub ends: Vec<bool>,
    /// Whether the empty text is one.
    pub is_nullable: bool,
    /// Number of transitions.
    pub edges: usize,
}

/// A part of the automaton: its first and last states.
#[derive(Default)]
struct Piece {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

impl Automaton {
    /// The automaton of nodes in a row, which are regular. `None` if it would be too large.
    pub fn new(grammar: &Rules, nodes: &[NodeId]) -> Option<Automaton> {
        let mut automaton = Automaton::default();
        let piece = automaton.sequence(grammar, nodes)?;
        automaton.ends = vec![false; automaton.chars.len()];
        piece.last.iter().for_each(|&state| automaton.ends[state] = true);
        automaton.first = piece.first;
        automaton.is_nullable = piece.is_nullable;
        Some(automaton)
    }

    /// The characters with which a text begins.
    pub fn begins(&self) -> Chars {
        let mut begins = Chars::default();
        self.first.iter().for_each(|&state| {
            begins.add(&self.chars[state]);
        });
        begins
    }

    fn state(&mut self, chars: Chars) -> Option<Piece> {
        let state = self.chars.len();
        self.chars.push(chars);
        self.next.push(Vec::new());
        (state < STATES_MAX).then(|| Piece {
            first: vec![state],
            last: vec![state],
            is_nullable: false,
        })
    }

    /// Lets each of `from` be followed by each of `to`.
    fn link(&mut self, from: &[usize], to: &[usize]) -> Option<()> {
        self.edges += from.len() * to.len();
        if self.edges > EDGES_MAX {
            return None;
        }
        from.iter().for_each(|&state| self.next[state].extend(to));
        Some(())
    }

    fn piece(&mut self, grammar: &Rules, node: NodeId) -> Option<Piece> {
        match &grammar.nodes[node] {
            Node::Chars(chars) => self.state(chars.clone()),
            Node::Literal(text) => {
                let mut whole = Piece { is_nullable: true, ..Piece::default() };
                for character in text.chars() {
                    let piece = self.state(Chars::one(character))?;
                    whole = self.join(whole, piece)?;
                }
                Some(whole)
            }
            // Never in a terminal.
            Node::Token(_) => None,
            Node::Rule(rule) => self.piece(grammar, grammar.rules[*rule].1),
            Node::Sequence(parts) => self.sequence(grammar, parts),
            Node::Choice(parts) => {
                let mut whole = Piece::default();
                for &part in parts {
                    let piece = self.piece(grammar, part)?;
                    whole.first.extend(piece.first);
                    whole.last.extend(piece.last);
                    whole.is_nullable |= piece.is_nullable;
                }
                Some(whole)
            }
            Node::Repeat(_, _, Some(0)) => Some(Piece { is_nullable: true, ..Piece::default() }),
            Node::Repeat(part, least, most) => {
                let mut piece = self.piece(grammar, *part)?;
                if *most != Some(1) {
                    self.link(&piece.last.clone(), &piece.first.clone())?;
                }
                piece.is_nullable |= *least == 0;
                Some(piece)
            }
        }
    }

    fn sequence(&mut self, grammar: &Rules, parts: &[NodeId]) -> Option<Piece> {
        let mut whole = Piece { is_nullable: true, ..Piece::default() };
        for &part in parts {
            let piece = self.piece(grammar, part)?;
            whole = self.join(whole, piece)?;
        }
        Some(whole)
    }

    fn join(&mut self, mut before: Piece, after: Piece) -> Option<Piece> {
        self.link(&before.last, &after.first)?;
        if before.is_nullable {
            before.first.extend(&after.first);
        }
        let mut last = after.last;
        if after.is_nullable {
            last.append(&mut before.last);
        }
        let is_nullable = before.is_nullable && after.is_nullable;
        Some(Piece { first: before.first, last, is_nullable })
    }
}

/// Whether a text of `short`, followed by one of `after`, is also the beginning of a longer text of `long`. Subtracts
/// the work from `budget`; assumes that it is not once the budget is used up.
pub fn overlaps(short: &Automaton, long: &Automaton, after: &Chars, budget: &mut usize) -> bool {
    let mut seen = HashSet::new();
    let mut open = Vec::new();
    let meets = |a: usize, b: usize| short.chars[a].meets(&long.chars[b]);
    let mut visit = |from: &[usize], to: &[usize], open: &mut Vec<(usize, usize)>| {
        for &a in from {
            for &b in to {
                if meets(a, b) && seen.insert((a, b)) {
                    open.push((a, b));
                }
            }
        }
        *budget = budget.saturating_sub(from.len() * to.len() + 1);
        *budget > 0
    };
    if !visit(&short.first, &long.first, &mut open) {
        return false;
    }
    while let Some((a, b)) = open.pop() {
        if short.ends[a] && long.next[b].iter().any(|&next| long.chars[next].meets(after)) {
            return true;
        }
        if !visit(&short.next[a], &long.next[b], &mut open) {
            return false;
        }
    }
    false
}
