//! Mixtures whose experts are in two parts, so that two devices compute a layer's experts at the same time.

use std::ops::Range;

use crate::{Stack, Value, WeightId};

/// The index in a route of an expert that the reader of the route does not have: its products are 0.
pub const NO_EXPERT: f32 = -1.0;

/// Experts of a split mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those in slots, on the device that has room for some.
    Resident,
    /// All others.
    Rest,
}

/// A mixture of which some experts, the residents, have ops of their own, for another device.
///
/// Both parts have the ops of the whole mixture. In place of the router's result each reads a value that no node
/// computes: the same weights, and the index of each expert in the part's stacks, or [`NO_EXPERT`] for an expert of the
/// other part. Products are 0 there, so `join`, the sum of both parts' results, has the bits of whichever part
/// computed them, and what follows is that of the whole mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitMixture {
    /// Its layer.
    pub layer: Option<u32>,
    /// The router's result, `[rows, 2 used]`.
    pub route: Value,
    /// What the residents' ops read in its place; a resident's index is its slot.
    pub resident_route: Value,
    /// What the other experts' ops read in its place.
    pub rest_route: Value,
    /// The residents' nodes.
    pub resident_nodes: Range<usize>,
    /// The other experts' nodes.
    pub rest_nodes: Range<usize>,
    /// The node that adds the results of both.
    pub join: usize,
    /// The residents' stacks, of matrices and of biases.
    pub stacks: Vec<ResidentStack>,
    /// The expert in each slot; distinct.
    pub residents: Vec<u32>,
    /// Expected uses of each expert by a token: they add up to the experts of a token.
    pub uses: Vec<f32>,
}

/// A stack with one matrix or bias per slot.
#[derive(Clone, Debug, PartialEq)]
pub struct ResidentStack {
    /// The weight with the slots ([`crate::Weight::is_resident`]).
    pub slots: WeightId,
    /// The stack of all experts.
    pub whole: Stack,
}

impl SplitMixture {
    /// The part that reads a route.
    pub fn reads(&self, route: Value) -> Option<Part> {
        match route {
            route if route == self.resident_route => Some(Part::Resident),
            route if route == self.rest_route => Some(Part::Rest),
            _ => None,
        }
    }

    /// The part that a node belongs to.
    pub fn part(&self, node: usize) -> Option<Part> {
        match node {
            node if self.resident_nodes.contains(&node) => Some(Part::Resident),
            node if self.rest_nodes.contains(&node) => Some(Part::Rest),
            _ => None,
        }
    }

    /// The expected share of a token's experts that are resident.
    pub fn hit_rate(&self) -> f64 {
        let all: f64 = self.uses.iter().map(|&uses| f64::from(uses)).sum();
        let hits = self.residents.iter().map(|&expert| f64::from(self.uses[expert as usize]));
        if all > 0.0 { hits.sum::<f64>() / all } else { 0.0 }
    }

    /// The expected number of a part's experts that some of `tokens` tokens use.
    pub(crate) fn used(&self, part: Part, tokens: usize) -> f64 {
        let used = |expert: usize| {
            let idle = 1.0 - f64::from(self.uses[expert]).min(1.0);
            1.0 - idle.powf(tokens as f64)
        };
        let residents: f64 = self.residents.iter().map(|&expert| used(expert as usize)).sum();
        match part {
            Part::Resident => residents,
            Part::Rest => ((0..self.uses.len()).map(used).sum::<f64>() - residents).max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, SplitMixture};
    use crate::Value;

    #[test]
    fn parts_share_the_experts_that_tokens_use() {
        let split = SplitMixture {
            layer: Some(0),
            route: Value(0),
            resident_route: Value(1),
            rest_route: Value(2),
            resident_nodes: 3..6,
            rest_nodes: 6..9,
            join: 9,
            stacks: Vec::new(),
            residents: vec![3, 0],
            uses: vec![0.5, 0.25, 0.25, 1.0],
        };
        assert_eq!(split.hit_rate(), 0.75);
        assert_eq!([Part::Resident, Part::Rest].map(|part| split.used(part, 1)), [1.5, 0.5]);
        assert_eq!(split.used(Part::Rest, 2), 2.0 * (1.0 - 0.75 * 0.75));
        assert_eq!(split.used(Part::Resident, 1000), 2.0);
        assert_eq!(
            [2, 3, 8, 9].map(|node| split.part(node)),
            [None, Some(Part::Resident), Some(Part::Rest), None]
        );
        assert_eq!((split.reads(Value(2)), split.reads(Value(0))), (Some(Part::Rest), None));
    }
}
