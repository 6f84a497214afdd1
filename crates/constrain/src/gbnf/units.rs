//! Which parts of a grammar become terminals, and what remains for rules.
//!
//! llguidance's lexer takes the longest lexeme that any terminal allowed at a place matches. A text is lost by that if
//! a lexeme, with the character that should follow it, is also the beginning of a longer lexeme of a terminal. Here
//! terminals begin as the largest regular parts. As long as two of them are in conflict, the longer one is split;
//! terminals of single characters are never in conflict, so this ends.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use super::automaton::{Automaton, overlaps};
use super::chars::Chars;
use super::parse::{Node, NodeId, RuleId, Rules, TokenSet};
use super::regular::Regular;
use crate::Error;

/// Most pairs of states compared to find conflicts: about half a second. Conflicts not found by then remain; they cost
/// texts that the grammar allows, and never allow others.
const WORK_MAX: usize = 5_000_000;

/// Most visits of units to find what may follow each terminal.
const VISITS_MAX: usize = 3_000_000;

/// Most terminals of a grammar that is not regular.
const TERMINALS_MAX: usize = 4000;

/// Index of a terminal.
pub type TerminalId = usize;

/// A part of a rule after terminals were chosen.
#[derive(Clone, Debug)]
pub enum Unit {
    Terminal(TerminalId),
    Token(TokenSet),
    Rule(RuleId),
    Sequence(Vec<Unit>),
    Choice(Vec<Unit>),
    Repeat(Box<Unit>, u32, Option<u32>),
}

/// A grammar divided into rules over terminals.
pub struct Units {
    /// The body of each rule that is needed.
    pub rules: Vec<Option<Unit>>,
    /// The nodes in a row that each terminal is.
    pub terminals: Vec<Vec<NodeId>>,
}

/// What was split so far.
#[derive(Default)]
struct Splits {
    /// Nodes that are no terminals.
    nodes: HashSet<NodeId>,
    /// Parts of sequences, by index, that are not joined with the part before them.
    cuts: HashSet<(NodeId, usize)>,
    /// The single characters of literals that were split.
    letters: HashMap<NodeId, Vec<NodeId>>,
}

struct Builder<'a> {
    grammar: &'a mut Rules,
    regular: &'a mut Regular,
    splits: &'a mut Splits,
    terminals: Vec<Vec<NodeId>>,
    /// The sequence that a terminal of several nodes comes from, and the index of its last part.
    origins: Vec<Option<(NodeId, usize)>>,
    ids: HashMap<Vec<NodeId>, TerminalId>,
    needed: Vec<RuleId>,
}

impl Units {
    /// Chooses terminals.
    ///
    /// # Errors
    /// The grammar is too large.
    pub fn choose(grammar: &mut Rules, regular: &mut Regular) -> Result<Units, Error> {
        let mut splits = Splits::default();
        let mut budget = WORK_MAX;
        loop {
            let mut builder = Builder {
                grammar,
                regular,
                splits: &mut splits,
                terminals: Vec::new(),
                origins: Vec::new(),
                ids: HashMap::new(),
                needed: Vec::new(),
            };
            let rules = builder.rules()?;
            let (terminals, origins) = (builder.terminals, builder.origins);
            let units = Units { rules, terminals };
            // A regular grammar is one terminal, after which the text ends.
            if matches!(units.rules[grammar.root], Some(Unit::Terminal(_))) {
                return Ok(units);
            }
            let conflicts = units.conflicts(grammar, &mut budget)?;
            if conflicts.is_empty() {
                return Ok(units);
            }
            for terminal in conflicts {
                splits.split(grammar, &units.terminals[terminal], origins[terminal]);
            }
        }
    }

    /// Terminals to be split.
    fn conflicts(&self, grammar: &Rules, budget: &mut usize) -> Result<HashSet<TerminalId>, Error> {
        let automata: Vec<Option<Automaton>> =
            self.terminals.iter().map(|nodes| Automaton::new(grammar, nodes)).collect();
        let begins: Vec<Chars> = automata
            .iter()
            .map(|automaton| automaton.as_ref().map_or_else(Chars::all, Automaton::begins))
            .collect();
        let after = self.followers(&automata, &begins)?;
        let size = |automaton: &Automaton| automaton.chars.len() + automaton.edges;
        let built: usize = automata.iter().flatten().map(size).sum();
        *budget = budget.saturating_sub(built);
        let mut found = HashSet::new();
        for (long, automaton) in automata.iter().enumerate() {
            // A part without an automaton is too large to be split either: it stays as it is.
            let Some(automaton) = automaton else { continue };
            // A single character is never longer than another lexeme.
            if automaton.next.iter().all(Vec::is_empty) {
                continue;
            }
            let in_conflict = automata.iter().enumerate().any(|(short, other)| {
                let Some(other) = other else { return false };
                *budget = budget.saturating_sub(1);
                let may_overlap = *budget > 0 && begins[short].meets(&begins[long]);
                may_overlap && overlaps(other, automaton, &after[short], budget)
            });
            if in_conflict {
                found.insert(long);
            }
        }
        Ok(found)
    }

    /// The characters that may follow each terminal.
    fn followers(
        &self,
        automata: &[Option<Automaton>],
        begins: &[Chars],
    ) -> Result<Vec<Chars>, Error> {
        let mut flow = Flow {
            units: self,
            automata,
            begins,
            nullable: vec![false; self.rules.len()],
            first: vec![Chars::default(); self.rules.len()],
            after_rule: vec![Chars::default(); self.rules.len()],
            after: vec![Chars::default(); self.terminals.len()],
            visits: Cell::new(0),
        };
        flow.solve()?;
        Ok(flow.after)
    }
}

impl Splits {
    /// Splits a terminal: its last node from the others, or its only node into its parts. The last node often is what
    /// may be left out, such as white space.
    fn split(&mut self, grammar: &mut Rules, terminal: &[NodeId], origin: Option<(NodeId, usize)>) {
        match (terminal, origin) {
            ([node], _) => {
                self.nodes.insert(*node);
                if let Node::Literal(text) = grammar.nodes[*node].clone() {
                    let letter = |c| grammar.push(Node::Chars(Chars::one(c)));
                    self.letters.insert(*node, text.chars().map(letter).collect());
                }
            }
            (_, Some(last)) => {
                self.cuts.insert(last);
            }
            (_, None) => {}
        }
    }
}

impl Builder<'_> {
    fn rules(&mut self) -> Result<Vec<Option<Unit>>, Error> {
        let mut rules = vec![None; self.grammar.rules.len()];
        self.needed.push(self.grammar.root);
        while let Some(rule) = self.needed.pop() {
            if rules[rule].is_none() {
                let body = self.grammar.rules[rule].1;
                rules[rule] = Some(self.unit(body)?);
            }
        }
        Ok(rules)
    }

    /// The unit of a node. Nodes nest as deep as groups, which is bounded.
    fn unit(&mut self, node: NodeId) -> Result<Unit, Error> {
        if let Some(whole) = self.whole(node)? {
            return self.terminal(vec![whole], None);
        }
        match self.grammar.nodes[node].clone() {
            Node::Token(token) => Ok(Unit::Token(token)),
            Node::Rule(rule) => {
                self.needed.push(rule);
                Ok(Unit::Rule(rule))
            }
            Node::Sequence(parts) => self.row(node, &parts),
            Node::Choice(parts) => {
                let parts: Result<_, Error> = parts.iter().map(|&part| self.unit(part)).collect();
                Ok(Unit::Choice(parts?))
            }
            Node::Repeat(part, least, most) => {
                Ok(Unit::Repeat(Box::new(self.unit(part)?), least, most))
            }
            Node::Literal(_) => {
                let letters = self.splits.letters.get(&node).cloned().unwrap_or_default();
                let parts: Result<_, Error> =
                    letters.iter().map(|&letter| self.terminal(vec![letter], None)).collect();
                Ok(Unit::Sequence(parts?))
            }
            Node::Chars(_) => self.terminal(vec![node], None),
        }
    }

    /// A sequence, whose regular neighbours are joined into one terminal.
    fn row(&mut self, node: NodeId, parts: &[NodeId]) -> Result<Unit, Error> {
        let mut units = Vec::with_capacity(parts.len());
        let mut joined: Vec<NodeId> = Vec::new();
        for (index, &part) in parts.iter().enumerate() {
            let whole = self.whole(part)?;
            let ends = whole.is_none() || self.splits.cuts.contains(&(node, index));
            if ends && let Some(last) = index.checked_sub(1).filter(|_| !joined.is_empty()) {
                units.push(self.terminal(std::mem::take(&mut joined), Some((node, last)))?);
            }
            match whole {
                Some(whole) => joined.push(whole),
                None => units.push(self.unit(part)?),
            }
        }
        if !joined.is_empty() {
            units.push(self.terminal(joined, Some((node, parts.len() - 1)))?);
        }
        Ok(Unit::Sequence(units))
    }

    /// A node that is a terminal as a whole, with the body of a rule in place of its name.
    fn whole(&mut self, node: NodeId) -> Result<Option<NodeId>, Error> {
        let plain = self.resolved(node);
        let is_split = self.splits.nodes.contains(&plain);
        let is_whole = !is_split && self.regular.is_regular(self.grammar, plain)?;
        Ok(is_whole.then_some(plain))
    }

    /// The body of a regular rule in place of its name.
    fn resolved(&self, mut node: NodeId) -> NodeId {
        while let Node::Rule(rule) = self.grammar.nodes[node]
            && self.regular.rules[rule]
        {
            node = self.grammar.rules[rule].1;
        }
        node
    }

    fn terminal(
        &mut self,
        nodes: Vec<NodeId>,
        origin: Option<(NodeId, usize)>,
    ) -> Result<Unit, Error> {
        let next = self.terminals.len();
        if next > TERMINALS_MAX {
            return Err(super::refused("it is too large".to_owned()));
        }
        let id = *self.ids.entry(nodes.clone()).or_insert(next);
        if id == next {
            self.terminals.push(nodes);
            self.origins.push(origin);
        }
        Ok(Unit::Terminal(id))
    }
}

/// What may begin and follow, by repeating until nothing changes.
struct Flow<'a> {
    units: &'a Units,
    automata: &'a [Option<Automaton>],
    begins: &'a [Chars],
    /// Of each rule.
    nullable: Vec<bool>,
    first: Vec<Chars>,
    after_rule: Vec<Chars>,
    /// Of each terminal.
    after: Vec<Chars>,
    visits: Cell<usize>,
}

impl Flow<'_> {
    fn solve(&mut self) -> Result<(), Error> {
        let bodies: Vec<(RuleId, &Unit)> = (0..)
            .zip(&self.units.rules)
            .filter_map(|(rule, body)| Some((rule, body.as_ref()?)))
            .collect();
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for &(rule, body) in &bodies {
                self.check()?;
                let (first, nullable) = self.first(body);
                goes_on |= self.first[rule].add(&first) || nullable != self.nullable[rule];
                self.nullable[rule] = nullable;
            }
        }
        goes_on = true;
        while goes_on {
            goes_on = false;
            for &(rule, body) in &bodies {
                self.check()?;
                let after = self.after_rule[rule].clone();
                goes_on |= self.follow(body, &after);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        match self.visits.get() > VISITS_MAX {
            true => Err(super::refused("it is too large".to_owned())),
            false => Ok(()),
        }
    }

    /// The characters with which a unit begins, and whether it may be empty.
    fn first(&self, unit: &Unit) -> (Chars, bool) {
        self.visits.set(self.visits.get() + 1);
        match unit {
            Unit::Terminal(id) => {
                let is_nullable = self.automata[*id].as_ref().is_none_or(|a| a.is_nullable);
                (self.begins[*id].clone(), is_nullable)
            }
            // No character continues a text before it.
            Unit::Token(_) => (Chars::default(), false),
            Unit::Rule(rule) => (self.first[*rule].clone(), self.nullable[*rule]),
            Unit::Sequence(parts) => {
                let mut all = Chars::default();
                for part in parts {
                    let (first, nullable) = self.first(part);
                    all.add(&first);
                    if !nullable {
                        return (all, false);
                    }
                }
                (all, true)
            }
            Unit::Choice(parts) => {
                let (mut all, mut any) = (Chars::default(), false);
                for part in parts {
                    let (first, nullable) = self.first(part);
                    all.add(&first);
                    any |= nullable;
                }
                (all, any)
            }
            Unit::Repeat(_, _, Some(0)) => (Chars::default(), true),
            Unit::Repeat(part, least, _) => {
                let (first, nullable) = self.first(part);
                (first, nullable || *least == 0)
            }
        }
    }

    /// Notes what follows the terminals and rules in a unit that `after` follows; true if there was something new.
    fn follow(&mut self, unit: &Unit, after: &Chars) -> bool {
        match unit {
            Unit::Terminal(id) => self.after[*id].add(after),
            Unit::Token(_) => false,
            Unit::Rule(rule) => self.after_rule[*rule].add(after),
            Unit::Sequence(parts) => {
                let (mut after, mut is_new) = (after.clone(), false);
                for part in parts.iter().rev() {
                    is_new |= self.follow(part, &after);
                    let (mut first, nullable) = self.first(part);
                    if nullable {
                        first.add(&after);
                    }
                    after = first;
                }
                is_new
            }
            Unit::Choice(parts) => {
                let mut is_new = false;
                for part in parts {
                    is_new |= self.follow(part, after);
                }
                is_new
            }
            Unit::Repeat(part, _, most) => {
                let mut after = after.clone();
                if *most != Some(1) {
                    after.add(&self.first(part).0);
                }
                self.follow(part, &after)
            }
        }
    }
}
