//! Speeds of a plan beyond its predictions: with a filled cache, and for prompts of any length.
//!
//! **The idea.** Predictions hold for a short context and a prompt of [`PROMPT_TOKENS`]. What grows with the context is
//! attention: in decode the keys and values that are read, in prefill its operations, which take the time per operation that
//! the predicted prompt takes. Both are added.

use bilayer_graph::{Graph, Node, Op, Window};

use crate::times::PROMPT_TOKENS;
use crate::{Budget, Machine, Plan};

/// How a plan's times grow with the context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth<'p> {
    graph: &'p Graph,
    machine: &'p Machine,
    budget: &'p Budget,
    plan: &'p Plan,
}

impl<'p> Growth<'p> {
    /// That of a plan of a graph on a machine.
    pub fn new(
        graph: &'p Graph,
        machine: &'p Machine,
        budget: &'p Budget,
        plan: &'p Plan,
    ) -> Growth<'p> {
        Growth { graph, machine, budget, plan }
    }

    /// Milliseconds of a token behind `tokens` others; `None` without a prediction. Reading keys and values takes no time on
    /// a device whose bandwidth is unknown.
    pub fn decode_ms(&self, tokens: usize) -> Option<f64> {
        let predicted = self.plan.predicted.as_ref()?;
        let devices = self.plan.placement.devices(self.graph);
        let (key, value) = (self.budget.key_type, self.budget.value_type);
        let read = |(number, node): (usize, &Node)| {
            let Op::Attend(attend) = &node.op else { return 0.0 };
            let Some(cache) = attend.cache else { return 0.0 };
            let gbps = self.machine.devices[devices[number]].read_gbps;
            let bytes = self.graph.cache(cache).token_bytes(key, value) as f64;
            gbps.map_or(0.0, |gbps| bytes * seen(attend.window, tokens as f64) / (gbps * 1e6))
        };
        let cache: f64 = self.graph.nodes.iter().enumerate().map(read).sum();
        Some(predicted.decode_ms + cache)
    }

    /// Milliseconds of a prompt of `tokens`; `None` without a prediction.
    pub fn prompt_ms(&self, tokens: usize) -> Option<f64> {
        let per_token = self.plan.predicted.as_ref()?.prefill_ms_per_token?;
        let (mut matrices, mut usual, mut attention) = (0.0, 0.0, 0.0);
        for (number, node) in self.graph.nodes.iter().enumerate() {
            let weights = node.op.matrices().iter().map(|&id| self.graph.weight(id));
            let weights: f64 = weights.map(|w| w.rows as f64 * w.cols as f64).sum();
            matrices += 2.0 * weights * self.graph.share(number, 1);
            if let Op::Attend(attend) = &node.op {
                // A token sees half of the prompt on average.
                let ops = 2.0 * (attend.heads * (attend.head_dim + attend.value_dim())) as f64;
                usual += ops * seen(attend.window, PROMPT_TOKENS as f64 / 2.0);
                attention += ops * seen(attend.window, tokens as f64 / 2.0);
            }
        }
        Some(per_token * tokens as f64 * (matrices + attention) / (matrices + usual))
    }
}

/// Of so many earlier tokens, how many a token attends to.
fn seen(window: Option<Window>, tokens: f64) -> f64 {
    match window {
        None => tokens,
        Some(Window::Last(most)) => tokens.min(f64::from(most)),
        // The place in a chunk is half of it on average.
        Some(Window::Chunk(most)) => tokens.min(f64::from(most) / 2.0),
    }
}
