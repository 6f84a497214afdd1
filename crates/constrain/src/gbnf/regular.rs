//! Which rules are regular, so that they can become terminals; rules that never end are refused.

use super::parse::{Node, NodeId, RuleId, Rules};
use crate::Error;

/// Most visits of nodes: some tenths of a second.
const VISITS_MAX: usize = 20_000_000;

/// What is known of each rule.
pub struct Regular {
    /// Whether each rule describes a regular language.
    pub rules: Vec<bool>,
    visits: usize,
}

/// A rule that refers to itself only at its end, or only at its beginning: what it repeats before or after its base.
struct Linear {
    repeated: Option<NodeId>,
    base: Option<NodeId>,
}

/// The end of a rule at which it may refer to itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Right,
    Left,
}

impl Regular {
    /// Finds the regular rules. Rules such as `ws ::= [ \t] ws | ""` are rewritten as repetitions.
    ///
    /// # Errors
    /// A rule describes no text of finite length; the grammar is too large.
    pub fn find(grammar: &mut Rules) -> Result<Regular, Error> {
        let count = grammar.rules.len();
        let mut found = Regular { rules: vec![false; count], visits: 0 };
        found.check_ends(grammar)?;
        for rule in 0..count {
            found.rewrite(grammar, rule)?;
        }
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for rule in 0..count {
                if !found.rules[rule] && found.is_regular(grammar, grammar.rules[rule].1)? {
                    found.rules[rule] = true;
                    goes_on = true;
                }
            }
        }
        Ok(found)
    }

    /// Whether a node refers to regular rules only.
    ///
    /// # Errors
    /// The grammar is too large.
    pub fn is_regular(&mut self, grammar: &Rules, node: NodeId) -> Result<bool, Error> {
        let rules = std::mem::take(&mut self.rules);
        let is_regular = |node: &Node| match node {
            Node::Rule(rule) => rules[*rule],
            node => !matches!(node, Node::Token(_)),
        };
        let all = self.all(grammar, node, &is_regular);
        self.rules = rules;
        all
    }

    /// Whether a node does not refer to a rule.
    fn is_without(&mut self, grammar: &Rules, node: NodeId, rule: RuleId) -> Result<bool, Error> {
        self.all(grammar, node, &|node| !matches!(node, Node::Rule(named) if *named == rule))
    }

    /// Whether all rules that a node refers to, and all its tokens, are `good`.
    fn all(
        &mut self,
        grammar: &Rules,
        node: NodeId,
        good: &dyn Fn(&Node) -> bool,
    ) -> Result<bool, Error> {
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            self.visit()?;
            match &grammar.nodes[node] {
                Node::Chars(_) | Node::Literal(_) => {}
                named @ (Node::Rule(_) | Node::Token(_)) if good(named) => {}
                Node::Rule(_) | Node::Token(_) => return Ok(false),
                Node::Sequence(parts) | Node::Choice(parts) => open.extend(parts),
                Node::Repeat(part, ..) => open.push(*part),
            }
        }
        Ok(true)
    }

    fn visit(&mut self) -> Result<(), Error> {
        self.visits += 1;
        match self.visits > VISITS_MAX {
            true => Err(super::refused("it is too large".to_owned())),
            false => Ok(()),
        }
    }

    /// Refuses rules without a text of finite length, such as `a ::= "x" a`.
    fn check_ends(&mut self, grammar: &Rules) -> Result<(), Error> {
        let mut ends = vec![false; grammar.rules.len()];
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for rule in 0..ends.len() {
                if !ends[rule] && self.ends(grammar, grammar.rules[rule].1, &ends)? {
                    ends[rule] = true;
                    goes_on = true;
                }
            }
        }
        match ends.iter().position(|ends| !ends) {
            Some(rule) => {
                let name = &grammar.rules[rule].0;
                Err(super::refused(format!("the rule `{name}` refers to itself without an end")))
            }
            None => Ok(()),
        }
    }

    /// Whether a node describes a text of finite length. Nodes nest as deep as groups, which is bounded.
    fn ends(&mut self, grammar: &Rules, node: NodeId, known: &[bool]) -> Result<bool, Error> {
        self.visit()?;
        match &grammar.nodes[node] {
            Node::Chars(_) | Node::Literal(_) | Node::Token(_) => Ok(true),
            Node::Rule(rule) => Ok(known[*rule]),
            Node::Repeat(_, 0, _) => Ok(true),
            Node::Repeat(part, ..) => self.ends(grammar, *part, known),
            Node::Sequence(parts) => {
                for &part in parts {
                    if !self.ends(grammar, part, known)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Node::Choice(parts) => {
                for &part in parts {
                    if self.ends(grammar, part, known)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// Replaces the body of a rule that refers to itself at one end only by a repetition.
    fn rewrite(&mut self, grammar: &mut Rules, rule: RuleId) -> Result<(), Error> {
        let body = grammar.rules[rule].1;
        if self.is_without(grammar, body, rule)? {
            return Ok(());
        }
        for side in [Side::Right, Side::Left] {
            let linear = self.linear(grammar, body, rule, side)?;
            let Some(Linear { repeated: Some(repeated), base: Some(base) }) = linear else {
                continue;
            };
            let repeated = grammar.push(Node::Repeat(repeated, 0, None));
            let parts =
                if side == Side::Right { vec![repeated, base] } else { vec![base, repeated] };
            grammar.rules[rule].1 = grammar.push(Node::Sequence(parts));
            return Ok(());
        }
        Ok(())
    }

    /// Splits a node into what stands beside the rule's own name and what stands alone; `None` if the rule is named
    /// anywhere but at that side.
    fn linear(
        &mut self,
        grammar: &mut Rules,
        node: NodeId,
        rule: RuleId,
        side: Side,
    ) -> Result<Option<Linear>, Error> {
        if self.is_without(grammar, node, rule)? {
            return Ok(Some(Linear { repeated: None, base: Some(node) }));
        }
        match grammar.nodes[node].clone() {
            Node::Rule(_) => {
                let empty = grammar.push(Node::Sequence(Vec::new()));
                Ok(Some(Linear { repeated: Some(empty), base: None }))
            }
            Node::Repeat(part, 0, Some(1)) => {
                let Some(inner) = self.linear(grammar, part, rule, side)? else { return Ok(None) };
                let empty = grammar.push(Node::Sequence(Vec::new()));
                let bases = inner.base.into_iter().chain([empty]).collect();
                let base = Some(grammar.push(Node::Choice(bases)));
                Ok(Some(Linear { base, ..inner }))
            }
            Node::Choice(parts) => {
                let (mut repeated, mut bases) = (Vec::new(), Vec::new());
                for part in parts {
                    let Some(inner) = self.linear(grammar, part, rule, side)? else {
                        return Ok(None);
                    };
                    repeated.extend(inner.repeated);
                    bases.extend(inner.base);
                }
                let mut choice = |parts: Vec<NodeId>| {
                    (!parts.is_empty()).then(|| grammar.push(Node::Choice(parts)))
                };
                Ok(Some(Linear { repeated: choice(repeated), base: choice(bases) }))
            }
            Node::Sequence(mut parts) => {
                let end = match side {
                    Side::Right => parts.pop(),
                    Side::Left => (!parts.is_empty()).then(|| parts.remove(0)),
                };
                for &part in &parts {
                    if !self.is_without(grammar, part, rule)? {
                        return Ok(None);
                    }
                }
                let Some(end) = end else { return Ok(None) };
                let Some(inner) = self.linear(grammar, end, rule, side)? else { return Ok(None) };
                let mut beside = |end: NodeId| {
                    let mut parts = parts.clone();
                    parts.insert(if side == Side::Right { parts.len() } else { 0 }, end);
                    grammar.push(Node::Sequence(parts))
                };
                let repeated = inner.repeated.map(&mut beside);
                Ok(Some(Linear { repeated, base: inner.base.map(&mut beside) }))
            }
            _ => Ok(None),
        }
    }
}
