//! Speeds of a plan beyond its predictions: with a filled cache, and for prompts of any length.
//!
//! **The idea.** Predictions hold for a short context and a prompt of [`PROMPT_TOKENS`]. What grows with the context is
//! attention: in decode the keys and values that are read, in prefill its operations, which take the time per operation that
//! the predicted prompt takes. Both are added. A shorter prompt is interpolated between the steps whose times are known, and
//! one that is streamed is predicted by its passes, each of which copies the weights once.

use bilayer_graph::{Graph, Node, Op, Window};

use crate::times::{PROMPT_TOKENS, overlaps};
use crate::{Budget, Cost, Machine, Plan, Predicted};

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

    /// Milliseconds of a prompt of `tokens`, at least those of one token; `None` without a prediction.
    pub fn prompt_ms(&self, tokens: usize) -> Option<f64> {
        let predicted = self.plan.predicted.as_ref()?;
        let (ms, token_ms) = match self.streamed_ms(tokens) {
            Some(streamed) => streamed,
            None => {
                let token_ms = self.plain_token_ms(predicted)?;
                let pieces_ms = self.pieces_ms(predicted);
                (predicted.prompt_ms(tokens, token_ms, pieces_ms, self.budget), token_ms)
            }
        };
        let attention_ms = tokens as f64 * token_ms * self.attention(tokens);
        Some((ms + attention_ms).max(predicted.decode_ms))
    }

    /// Milliseconds of a prompt whose weights are streamed, without the attention of a longer one than [`PROMPT_TOKENS`],
    /// and those in which a token is computed; `None` if it is not streamed, or too little is known.
    fn streamed_ms(&self, tokens: usize) -> Option<(f64, f64)> {
        let streaming = self.plan.streaming.as_ref().filter(|streaming| streaming.takes(tokens))?;
        let times = self.machine.times.as_ref()?;
        times.streamed_ms(self.graph, streaming, self.budget, tokens)
    }

    /// Milliseconds per token of a prompt of [`PROMPT_TOKENS`] without streaming.
    fn plain_token_ms(&self, predicted: &Predicted) -> Option<f64> {
        let streaming = self.plan.streaming.as_ref();
        let without = streaming.and_then(|streaming| streaming.without_ms_per_token);
        without.or(predicted.prefill_ms_per_token)
    }

    /// Milliseconds per token of a short prompt and of a micro-batch; `None` if unknown, or if devices share it.
    fn pieces_ms(&self, predicted: &Predicted) -> [Option<f64>; 2] {
        let sum = |of: fn(&Cost) -> Option<f64>| predicted.costs.iter().map(of).sum();
        match overlaps(self.graph, &self.plan.segments) {
            true => [None; 2],
            false if !self.graph.splits.is_empty() => [None, predicted.prefill_ms_per_token],
            false => [sum(|cost| cost.short_ms), sum(|cost| cost.prefill_ms)],
        }
    }

    /// What the attention of a prompt adds to its operations, as a share of those of one of [`PROMPT_TOKENS`]; 0 for a
    /// shorter one.
    fn attention(&self, tokens: usize) -> f64 {
        let (mut usual, mut more) = (0.0, 0.0);
        for (number, node) in self.graph.nodes.iter().enumerate() {
            let weights = node.op.matrices().iter().map(|&id| self.graph.weight(id));
            let weights: f64 = weights.map(|w| w.rows as f64 * w.cols as f64).sum();
            usual += 2.0 * weights * self.graph.share(number, 1);
            if let Op::Attend(attend) = &node.op {
                // A token sees half of the prompt on average.
                let ops = 2.0 * (attend.heads * (attend.head_dim + attend.value_dim())) as f64;
                let seen = |tokens: usize| seen(attend.window, tokens as f64 / 2.0);
                usual += ops * seen(PROMPT_TOKENS);
                more += ops * (seen(tokens) - seen(PROMPT_TOKENS)).max(0.0);
            }
        }
        more / usual
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
