//! Predicts prefill with streamed weights, and from which number of tokens on it is faster.

use std::collections::HashMap;

use bilayer_graph::Graph;

use super::{
    BATCH_TOKENS, Basis, Cost, MICRO_BATCHES, ModelPart, PROMPT_TOKENS, Predicted, Times, parts,
};
use crate::Budget;
use crate::stream::{PromptTimes, StreamStage, Streaming, stream_batches};

/// Numbers of tokens that are tried in search of the crossover are multiples of this.
const GRID: usize = 8;

/// Prompts whose times are told besides those of [`PROMPT_TOKENS`].
const PROMPTS: [usize; 2] = [PROMPT_TOKENS, 2048];

/// Predicted times of prefill with streamed weights.
pub struct Forecast {
    /// The smallest number of tokens for which it is faster; `None` if there is none.
    pub crossover: Option<usize>,
    /// Of a prompt of [`PROMPT_TOKENS`].
    pub prefill_ms_per_token: f64,
    /// Without streaming.
    pub without_ms_per_token: f64,
    /// Of some prompts.
    pub prompts: Vec<PromptTimes>,
}

/// What a stage costs.
struct StageCost {
    /// Its kernels in a micro-batch.
    compute: Cost,
    /// Submission, inputs and outputs of a micro-batch.
    crossing: Cost,
    /// Milliseconds per token to download what the estimated crossing does not count.
    token_ms: f64,
    /// Milliseconds to copy its weights; `None` if the device holds them.
    upload_ms: Option<f64>,
    /// [`super::Upload::overlap`].
    overlap: f64,
}

impl Cost {
    /// Milliseconds of a step of so many rows, between those that are known; `None` if too little is known.
    pub(crate) fn step_ms(&self, rows: usize) -> Option<f64> {
        let piece = PROMPT_TOKENS as f64 / MICRO_BATCHES;
        let known = [
            (1.0, Some(self.decode_ms)),
            (BATCH_TOKENS as f64, self.batch_ms),
            (piece, self.prefill_ms.map(|ms| ms * piece)),
            (PROMPT_TOKENS as f64, Some(self.prompt_ms? * PROMPT_TOKENS as f64)),
        ];
        let known = known.into_iter().filter_map(|(rows, ms)| Some((rows, ms?)));
        Some(between(&known.collect::<Vec<_>>(), rows as f64))
    }
}

impl Predicted {
    /// Milliseconds of a step of one sequence of so many tokens, whole or not, up to [`BATCH_TOKENS`] or a few more.
    pub fn step_ms(&self, tokens: f64) -> f64 {
        let batch = self.batch_ms.map(|ms| (BATCH_TOKENS as f64, ms));
        match batch {
            Some(batch) => between(&[(1.0, self.decode_ms), batch], tokens),
            None => self.decode_ms * tokens,
        }
    }
}

/// A figure between known ones, ascending; beyond the last one in proportion.
fn between(known: &[(f64, f64)], at: f64) -> f64 {
    let (last, figure) = known[known.len() - 1];
    if at >= last {
        return figure * at / last;
    }
    let next = known.partition_point(|(place, _)| *place <= at).max(1);
    let ((from, low), (to, high)) = (known[next - 1], known[next]);
    low + (high - low) * (at - from) / (to - from)
}

impl Times {
    /// Predicts prefill with streamed weights beside that of the plan without; `None` if too little is known.
    pub(crate) fn stream(
        &self,
        graph: &Graph,
        without: &Predicted,
        streaming: &Streaming,
        budget: &Budget,
    ) -> Option<Forecast> {
        let stages = self.stage_costs(graph, streaming)?;
        let known = [
            (1.0, Some(without.decode_ms)),
            (BATCH_TOKENS as f64, without.batch_ms),
            (PROMPT_TOKENS as f64, Some(without.prefill_ms_per_token? * PROMPT_TOKENS as f64)),
        ];
        let known: Vec<(f64, f64)> =
            known.into_iter().filter_map(|(rows, ms)| Some((rows, ms?))).collect();
        let plain = |tokens: usize| between(&known, tokens as f64);
        let streamed = |tokens: usize| {
            let passes = tokens.div_ceil(streaming.tokens_max).max(1);
            Some(passes as f64 * pass_ms(&stages, tokens.div_ceil(passes), budget)?)
        };
        let mut tokens = (GRID..=streaming.tokens_max).step_by(GRID);
        let crossover = tokens.find(|&n| streamed(n).is_some_and(|ms| ms < plain(n)));
        let times = |tokens: usize| {
            let (streamed_ms, without_ms) = (streamed(tokens)?, plain(tokens));
            Some(PromptTimes { tokens, streamed_ms, without_ms })
        };
        let prompts: Vec<PromptTimes> = PROMPTS.into_iter().map(times).collect::<Option<_>>()?;
        let per_token = PROMPT_TOKENS as f64;
        Some(Forecast {
            crossover,
            prefill_ms_per_token: prompts[0].streamed_ms / per_token,
            without_ms_per_token: prompts[0].without_ms / per_token,
            prompts,
        })
    }

    fn stage_costs(&self, graph: &Graph, streaming: &Streaming) -> Option<Vec<StageCost>> {
        let upload = self.devices.get(streaming.device)?.upload?;
        let ms = |bytes: f64| bytes / (upload.gbps * 1e6);
        let parts = parts(graph);
        let bytes = |node: usize| graph.matrix_bytes(node, 1).max(1e-3);
        let mut wholes: HashMap<ModelPart, f64> = HashMap::new();
        for (node, part) in parts.iter().enumerate() {
            *wholes.entry(*part).or_default() += bytes(node);
        }
        let cost = |stage: &StreamStage| {
            let device = self.devices.get(stage.segment.device)?;
            let mut compute = Cost::ZERO;
            for node in stage.segment.nodes.clone() {
                let whole = match parts[node] {
                    ModelPart::Embedding => device.embedding,
                    ModelPart::Layer(layer) => *device.layers.get(layer as usize)?,
                    ModelPart::Output => device.output,
                };
                compute = compute.plus(whole.scaled(bytes(node) / wholes[&parts[node]]));
            }
            let width = |value: &bilayer_graph::Value| graph.width(*value);
            let outputs: usize = stage.segment.outputs.iter().map(width).sum();
            let caches: usize = stage.caches.iter().map(|&id| graph.cache(id).stored_width()).sum();
            // Measured times of a segment include the download of its outputs.
            let outputs = if self.basis == Basis::Estimated { outputs } else { 0 };
            let weights = stage.weights.iter().map(|&id| graph.weight(id).bytes() as f64);
            Some(StageCost {
                compute,
                crossing: device.segment,
                token_ms: match stage.slot {
                    Some(_) => ms((4 * (outputs + caches)) as f64),
                    None => 0.0,
                },
                upload_ms: stage.slot.map(|_| ms(weights.sum())),
                overlap: upload.overlap,
            })
        };
        streaming.stages.iter().map(cost).collect()
    }
}

/// Milliseconds of all stages for tokens that share one copy of the weights.
fn pass_ms(stages: &[StageCost], tokens: usize, budget: &Budget) -> Option<f64> {
    let (rows, count) = stream_batches(tokens, budget);
    let mut uploads = stages.iter().filter_map(|stage| stage.upload_ms);
    let mut total = uploads.next().unwrap_or(0.0);
    for stage in stages {
        let compute = count as f64 * stage.compute.step_ms(rows)?;
        let crossing = count as f64 * stage.crossing.step_ms(rows)?;
        // The next weights are copied meanwhile.
        let upload = stage.upload_ms.and_then(|_| uploads.next()).unwrap_or(0.0);
        let hidden = stage.overlap * compute.min(upload);
        total += compute + upload - hidden + crossing + tokens as f64 * stage.token_ms;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::super::Cost;
    use super::between;

    #[test]
    fn figures_are_interpolated_and_extended() {
        let known = [(1.0, 10.0), (8.0, 24.0), (512.0, 528.0)];
        for (at, expected) in [(1.0, 10.0), (4.5, 17.0), (8.0, 24.0), (260.0, 276.0)] {
            assert_eq!(between(&known, at), expected, "{at}");
        }
        assert_eq!(between(&known, 1024.0), 1056.0);
        assert_eq!(between(&known, 0.0), 8.0);
        let cost = Cost { decode_ms: 1.0, prompt_ms: Some(0.5), ..Cost::default() };
        assert_eq!(cost.step_ms(1024), Some(512.0));
        assert_eq!(Cost { prompt_ms: None, ..cost }.step_ms(9), None);
    }
}
