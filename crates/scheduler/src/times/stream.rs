//! Predicts prefill with streamed weights, and from which number of tokens on it is faster.

use std::collections::HashMap;

use bilayer_graph::Graph;

use super::{
    BATCH_TOKENS, Basis, Cost, MICRO_BATCHES, ModelPart, PROMPT_TOKENS, Predicted, SHORT_TOKENS,
    Times, parts, timed_tokens,
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
    /// The largest number of tokens for which copying only the experts that are used is faster; 0 if there is none.
    pub routed_max: usize,
    /// Milliseconds of a pass of so many tokens.
    pub routed_ms: Option<f64>,
}

/// What a stage costs.
struct StageCost {
    /// Its kernels in a micro-batch.
    compute: Cost,
    /// Submission, inputs and outputs of a micro-batch.
    crossing: Cost,
    /// Milliseconds per token to download what the estimated crossing does not count.
    token_ms: f64,
    /// Milliseconds to copy the weights that are copied completely, if it is the first stage of a layer those of the whole
    /// layer; `None` if the device holds them, or if they came with those of the stage before.
    upload_ms: Option<f64>,
    /// Milliseconds to copy all of its experts that are copied by the route.
    experts_ms: f64,
    /// The share of its experts that a token uses.
    used: f64,
    /// [`super::Upload::overlap`].
    overlap: f64,
}

impl Cost {
    /// Milliseconds of a step of so many rows, between those that are known; `None` if too little is known.
    pub(crate) fn step_ms(&self, rows: usize) -> Option<f64> {
        let prompt = (PROMPT_TOKENS as f64, self.prompt_ms? * PROMPT_TOKENS as f64);
        let known = known([Some(self.decode_ms), self.batch_ms, self.short_ms, self.prefill_ms]);
        Some(between(&known.chain([prompt]).collect::<Vec<_>>(), rows as f64))
    }
}

/// Tokens and milliseconds of those steps that are known, of one token and of [`BATCH_TOKENS`], and of [`SHORT_TOKENS`] and a
/// micro-batch by their milliseconds per token.
fn known([decode, batch, short, piece]: [Option<f64>; 4]) -> impl Iterator<Item = (f64, f64)> {
    let steps = [
        (1.0, decode),
        (BATCH_TOKENS as f64, batch.map(|ms| ms / BATCH_TOKENS as f64)),
        (SHORT_TOKENS as f64, short),
        (PROMPT_TOKENS as f64 / MICRO_BATCHES, piece),
    ];
    steps.into_iter().filter_map(|(tokens, ms)| Some((tokens, ms? * tokens)))
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

impl Predicted {
    /// Milliseconds of a prompt without streaming, between the steps that are known: of one token, of [`BATCH_TOKENS`], of
    /// [`SHORT_TOKENS`] and a micro-batch, which take `piece_ms` per token, and of [`PROMPT_TOKENS`], which take `token_ms` each;
    /// more than that in proportion. Measured times are of steps as large as the budget's.
    pub(crate) fn prompt_ms(
        &self,
        tokens: usize,
        token_ms: f64,
        [short_ms, piece_ms]: [Option<f64>; 2],
        budget: &Budget,
    ) -> f64 {
        let most = match self.basis {
            Basis::Measured => timed_tokens(budget.tokens),
            Basis::Estimated => PROMPT_TOKENS,
        } as f64;
        let smaller = known([Some(self.decode_ms), self.batch_ms, short_ms, piece_ms]);
        let smaller = smaller.filter(|(rows, _)| *rows < most);
        let known: Vec<(f64, f64)> = smaller.chain([(most, token_ms * most)]).collect();
        between(&known, tokens as f64)
    }
}

/// A figure between known ones, ascending; beyond the last one in proportion.
fn between(known: &[(f64, f64)], at: f64) -> f64 {
    let (last, figure) = known[known.len() - 1];
    if at >= last || known.len() == 1 {
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
        let stages = self.stage_costs(graph, streaming.device, &streaming.stages)?;
        let routed = match &streaming.routed {
            Some(routed) => Some(self.stage_costs(graph, streaming.device, &routed.stages)?),
            None => None,
        };
        let known = [
            (1.0, Some(without.decode_ms)),
            (BATCH_TOKENS as f64, without.batch_ms),
            (PROMPT_TOKENS as f64, Some(without.prefill_ms_per_token? * PROMPT_TOKENS as f64)),
        ];
        let known: Vec<(f64, f64)> =
            known.into_iter().filter_map(|(rows, ms)| Some((rows, ms?))).collect();
        let plain = |tokens: usize| between(&known, tokens as f64);
        let by_route = |tokens: usize| pass_ms(routed.as_ref()?, tokens, budget);
        let grid = || (GRID..=streaming.tokens_max).step_by(GRID);
        let is_shorter = |n: &usize| by_route(*n) < pass_ms(&stages, *n, budget);
        let routed_max = match routed {
            Some(_) => grid().take_while(is_shorter).last().unwrap_or(0),
            None => 0,
        };
        let streamed = |tokens: usize| {
            let (passes, each) = passes(streaming, tokens);
            let ms = match each <= routed_max {
                true => by_route(each)?,
                false => pass_ms(&stages, each, budget)?,
            };
            Some(passes as f64 * ms)
        };
        let crossover = grid().find(|&n| streamed(n).is_some_and(|ms| ms < plain(n)));
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
            routed_max,
            routed_ms: by_route(routed_max),
        })
    }

    /// Milliseconds of a prompt with streamed weights, and those of the kernels for each of its tokens; `None` if too little
    /// is known. Attention is counted as in a prompt of [`PROMPT_TOKENS`].
    pub(crate) fn streamed_ms(
        &self,
        graph: &Graph,
        streaming: &Streaming,
        budget: &Budget,
        tokens: usize,
    ) -> Option<(f64, f64)> {
        let (passes, each) = passes(streaming, tokens);
        let stages = self.stage_costs(graph, streaming.device, streaming.stages_of(each))?;
        let token_ms = stages.iter().map(|stage| stage.compute.prompt_ms).sum::<Option<f64>>()?;
        Some((passes as f64 * pass_ms(&stages, each, budget)?, token_ms))
    }

    /// What stages cost that are streamed to a device.
    fn stage_costs(
        &self,
        graph: &Graph,
        device: usize,
        stages: &[StreamStage],
    ) -> Option<Vec<StageCost>> {
        let upload = self.devices.get(device)?.upload?;
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
            let copied = |stage: &StreamStage| -> f64 {
                stage.weights.iter().map(|&id| graph.weight(id).bytes() as f64).sum()
            };
            let of_unit = stages.iter().filter(|other| other.unit == stage.unit);
            let is_first = std::ptr::eq(of_unit.clone().next()?, stage);
            let weights: f64 = of_unit.map(copied).sum();
            Some(StageCost {
                compute,
                crossing: device.segment,
                token_ms: match stage.unit {
                    Some(_) => ms((4 * (outputs + caches)) as f64),
                    None => 0.0,
                },
                upload_ms: stage.unit.filter(|_| is_first).map(|_| ms(weights)),
                experts_ms: ms(stage.experts_bytes(graph)),
                used: stage.share(graph, 1),
                overlap: upload.overlap,
            })
        };
        stages.iter().map(cost).collect()
    }
}

/// The number of passes of a prompt, each of which copies the weights once, and the tokens of each.
fn passes(streaming: &Streaming, tokens: usize) -> (usize, usize) {
    let passes = tokens.div_ceil(streaming.tokens_max).max(1);
    (passes, tokens.div_ceil(passes))
}

/// Milliseconds of all stages for tokens that share one copy of the weights.
fn pass_ms(stages: &[StageCost], tokens: usize, budget: &Budget) -> Option<f64> {
    let (rows, count) = stream_batches(tokens, budget);
    let mut uploads = stages.iter().filter_map(|stage| stage.upload_ms);
    let mut total = uploads.next().unwrap_or(0.0);
    for (number, stage) in stages.iter().enumerate() {
        let compute = count as f64 * stage.compute.step_ms(rows)?;
        let crossing = count as f64 * stage.crossing.step_ms(rows)?;
        // Meanwhile the next weights are copied, and experts that earlier micro-batches have selected: for the next
        // stage, but those of the last micro-batch, which are copied before the last but one ends there.
        let upload = stage.upload_ms.and_then(|_| uploads.next()).unwrap_or(0.0);
        let next = stages.get(number + 1).map_or(0.0, |next| next.experts_until(rows, count - 1));
        let own = stage.experts_until(rows, count) - stage.experts_until(rows, count - 1);
        let (beside, before) = if count > 1 { (next + own, 0.0) } else { (next, own) };
        let copies = upload + beside;
        let hidden = stage.overlap * compute.min(copies);
        total += before + compute + copies - hidden + crossing + tokens as f64 * stage.token_ms;
    }
    Some(total)
}

impl StageCost {
    /// Milliseconds to copy the experts that the first micro-batches are expected to use.
    fn experts_until(&self, rows: usize, micro_batches: usize) -> f64 {
        self.experts_ms * (1.0 - (1.0 - self.used).powf((rows * micro_batches) as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cost;
    use super::{StageCost, between, pass_ms};
    use crate::Budget;

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
        // A batch of eight, a micro-batch of 128 and a prompt of 512 tokens; a short prompt of 32.
        let cost = Cost { batch_ms: Some(15.0), prefill_ms: Some(0.25), ..cost };
        let steps = [(1, 1.0), (8, 15.0), (68, 23.5), (128, 32.0), (320, 144.0), (512, 256.0)];
        for (rows, ms) in steps {
            assert_eq!(cost.step_ms(rows), Some(ms), "{rows} rows");
        }
        let cost = Cost { short_ms: Some(0.75), ..cost };
        for (rows, ms) in [(8, 15.0), (20, 19.5), (32, 24.0), (80, 28.0), (128, 32.0)] {
            assert_eq!(cost.step_ms(rows), Some(ms), "{rows} rows");
        }
    }

    /// A stage that computes a row in a millisecond, and crosses in half of one.
    fn stage(upload_ms: Option<f64>, experts_ms: f64) -> StageCost {
        let step = |ms: f64| Cost {
            decode_ms: ms,
            batch_ms: Some(8.0 * ms),
            short_ms: Some(ms),
            prefill_ms: Some(ms),
            prompt_ms: Some(ms),
        };
        StageCost {
            compute: step(1.0),
            crossing: step(0.5),
            token_ms: 0.25,
            upload_ms,
            experts_ms,
            used: 0.5,
            overlap: 0.5,
        }
    }

    #[test]
    fn experts_are_copied_beside_the_micro_batches_that_do_not_use_them() {
        let of = |tokens: usize| {
            let stages = [stage(None, 0.0), stage(Some(3.0), 0.0), stage(None, 64.0)];
            let budget = Budget { tokens: 2, ..Budget::default() };
            pass_ms(&stages, tokens, &budget).expect("all is known")
        };
        // Two tokens use three quarters of the experts, four 15 of 16, six 63 of 64. One row and more compute, cross and
        // download 1.75 ms each.
        // One micro-batch: the first weights; 48 ms of experts before the last stage, beside nothing.
        assert_eq!(of(2), 3.0 + 3.0 * 2.0 * 1.75 + 48.0);
        // Two: 48 ms beside the stage before, whose four hide two of them; 12 beside the last stage, which hides two.
        assert_eq!(of(4), 3.0 + 3.0 * 4.0 * 1.75 + 48.0 - 2.0 + 12.0 - 2.0);
        // Three: 60 beside the stage before and 3 beside the last one, of which half of six and half of three are hidden.
        assert_eq!(of(6), 3.0 + 3.0 * 6.0 * 1.75 + 60.0 - 3.0 + 3.0 - 1.5);
    }

    #[test]
    fn weights_of_the_next_layer_are_copied_beside_the_layer_before() {
        let stages =
            [stage(None, 0.0), stage(Some(3.0), 0.0), stage(Some(5.0), 0.0), stage(Some(1.0), 0.0)];
        let ms =
            |tokens: usize| pass_ms(&stages, tokens, &Budget { tokens: 2, ..Budget::default() });
        // Of 5 ms beside four half of four are hidden, and of 1 ms half.
        assert_eq!(ms(4), Some(3.0 + 4.0 * 4.0 * 1.75 + 5.0 - 2.0 + 1.0 - 0.5));
        assert_eq!(ms(8), Some(3.0 + 4.0 * 8.0 * 1.75 + 5.0 - 2.5 + 1.0 - 0.5));
    }
}
