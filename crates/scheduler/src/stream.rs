//! Streaming: in prefill, the weights of layers that the host holds pass through the memory of a device.
//!
//! **The idea.** A prompt is bound by compute, of which a GPU has far more than the host. While it computes one layer, the
//! weights of the next are copied to its memory, in two slots by turns; so it computes a prompt through all layers although
//! it has room for some of them. What a copy costs is shared by all tokens that use it, so streaming is faster from a
//! number of tokens on that depends on the speed of the copy and of CPU and GPU. Decode is as without streaming.
//!
//! What is streamed is a stretch of a layer's nodes on the host, of which the device can run every one: the whole layer,
//! or its experts if only they are on the host.
//!
//! **Experts.** A long prompt routes tokens to nearly all experts of a layer, so all are copied while the device computes
//! the layer before. A short one uses few of them. It runs the layer in two stages, with a cut where the experts begin:
//! the first one tells which experts the router has selected, and only those are copied. The price is that the device
//! waits for that copy, and that hidden states cross once more ([`RoutedStreaming`]).

use std::collections::{BTreeMap, HashSet};

use bilayer_graph::slots::{self, Life};
use bilayer_graph::{CacheId, Graph, Rows, Stack, Value, WeightId};
use serde::Serialize;

use crate::bytes::sum;
use crate::{Budget, Bytes, PlannedSegment};

mod choose;

/// Slots for weights: one is filled while the weights in the other are used.
pub const STREAM_SLOTS: usize = 2;

/// Maximum number of micro-batches that use the same copy of a layer's weights.
pub const STREAM_BATCHES: usize = 8;

/// Tokens from which weights are streamed where that is asked for and not predicted, as in llama.cpp.
pub const STREAM_TOKENS: usize = 32;

/// Prefill with streamed weights, as part of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Streaming {
    /// Index of the device that weights are streamed to.
    pub device: usize,
    /// Tokens of a step or prompt from which weights are streamed.
    pub tokens_min: usize,
    /// Maximum number of tokens that use the same copy of the weights.
    pub tokens_max: usize,
    /// Bytes of weights copied for so many tokens or fewer.
    pub upload_bytes: u64,
    /// Bytes of the device's memory for slots, caches and activations.
    pub device_bytes: u64,
    /// Bytes of the host's memory for hidden states.
    pub host_bytes: u64,
    /// Predicted milliseconds per token of a prompt of [`crate::PROMPT_TOKENS`].
    pub prefill_ms_per_token: Option<f64>,
    /// Predicted milliseconds per token without streaming.
    pub without_ms_per_token: Option<f64>,
    /// Predicted milliseconds of prompts of `tokens`, with streaming and without.
    pub prompts: Vec<PromptTimes>,
    /// The segments of a streamed step, in order.
    #[serde(skip)]
    pub stages: Vec<StreamStage>,
    /// How steps of few tokens run that copy only the experts they use, if any do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routed: Option<RoutedStreaming>,
}

/// Streamed steps that copy only those experts that the router has selected.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoutedStreaming {
    /// Tokens of a pass up to which that is predicted to be faster than copying all experts.
    pub tokens_max: usize,
    /// Bytes of weights that a pass of so many tokens copies, expected for uniform routing.
    pub upload_bytes: u64,
    /// Predicted milliseconds of a pass of so many tokens.
    pub pass_ms: Option<f64>,
    /// The segments of such a step, in order: each mixture begins one.
    #[serde(skip)]
    pub stages: Vec<StreamStage>,
}

/// Predicted times of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PromptTimes {
    /// Its tokens.
    pub tokens: usize,
    /// Milliseconds with streaming.
    pub streamed_ms: f64,
    /// Milliseconds without.
    pub without_ms: f64,
}

/// A segment of a streamed step.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamStage {
    /// What it runs, and where.
    pub segment: PlannedSegment,
    /// The number of its layer among those that are streamed; `None` if the device holds its weights. All stages of a
    /// layer are in a slot together.
    pub unit: Option<usize>,
    /// The weights that are streamed for it, and completely.
    pub weights: Vec<WeightId>,
    /// Mixtures that are streamed for it, of which a step needs the selected experts.
    pub experts: Vec<StreamedExperts>,
    /// Caches whose pages are the host's.
    pub caches: Vec<CacheId>,
}

/// The matrices of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamedExperts {
    /// The router's result `[rows, 2 used]`, an input of the stage.
    pub route: Value,
    /// The matrices, in the order of the experts; a weight may contain several.
    pub stack: Stack,
}

impl StreamStage {
    /// The slot of its weights; `None` if the device holds them.
    pub fn slot(&self) -> Option<usize> {
        self.unit.map(|unit| unit % STREAM_SLOTS)
    }
}

/// Where hidden states of a streamed step are kept between segments.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamBuffers {
    /// The buffer of each value.
    pub of: BTreeMap<Value, usize>,
    /// The length of each buffer, elements.
    pub lens: Vec<usize>,
}

impl Streaming {
    /// The stages of a pass of so many tokens.
    pub fn stages_of(&self, tokens: usize) -> &[StreamStage] {
        let routed = self.routed.as_ref().filter(|routed| tokens <= routed.tokens_max);
        routed.map_or(&self.stages, |routed| &routed.stages)
    }

    /// The lists of stages that passes run.
    pub fn paths_mut(&mut self) -> impl Iterator<Item = &mut Vec<StreamStage>> {
        let routed = self.routed.as_mut().map(|routed| &mut routed.stages);
        [Some(&mut self.stages), routed].into_iter().flatten()
    }

    /// Buffers for the values that cross between the segments of a pass with these stages, of up to `tokens` tokens.
    pub fn buffers(
        graph: &Graph,
        stages: &[StreamStage],
        (tokens, outputs): (usize, usize),
    ) -> StreamBuffers {
        let inputs = stages.iter().flat_map(|stage| stage.segment.inputs.clone());
        let read: HashSet<Value> =
            inputs.flat_map(|value| [Some(value), graph.routed_by(value)]).flatten().collect();
        let mut lives: BTreeMap<Value, (usize, usize)> = BTreeMap::new();
        for (number, stage) in stages.iter().enumerate() {
            let crossing = stage.segment.inputs.iter().chain(&stage.segment.outputs);
            for &value in crossing.filter(|value| read.contains(value)) {
                lives.entry(value).or_insert((number, number)).1 = number;
            }
        }
        let life = |(&value, &(first, last)): (&Value, &(usize, usize))| {
            let rows = match graph.rows(value) {
                Rows::Tokens => tokens,
                Rows::Outputs => outputs,
            };
            Life { first, last, bytes: (rows * graph.width(value)) as u64, class: 0 }
        };
        let lives_of: Vec<Life> = lives.iter().map(life).collect();
        let (places, lens) = slots::assign(&lives_of);
        StreamBuffers {
            of: lives.into_keys().zip(places).collect(),
            lens: lens.into_iter().map(|len| len as usize).collect(),
        }
    }

    /// Bytes of the host's memory for the buffers of all passes.
    pub(crate) fn buffer_bytes(&self, graph: &Graph, outputs: usize) -> u64 {
        let rows = (self.tokens_max, outputs);
        let mut lens = Streaming::buffers(graph, &self.stages, rows).lens;
        if let Some(routed) = &self.routed {
            let rows = (routed.tokens_max, outputs);
            StreamBuffers::widen(&mut lens, &Streaming::buffers(graph, &routed.stages, rows).lens);
        }
        sum(lens.into_iter().map(|len| (len * size_of::<f32>()) as u64))
    }

    /// Lines for the plan of a machine on which its device has a label.
    pub(crate) fn text(&self, label: &str) -> String {
        let Streaming { tokens_min, tokens_max, .. } = *self;
        let (held, copied) = (Bytes(self.device_bytes), Bytes(self.upload_bytes));
        let mut text = format!(
            "prompts of {tokens_min} tokens or more run on {label}: {copied} of weights are streamed to it for every \
             {tokens_max} tokens, through {held} of its memory\n"
        );
        if let Some(RoutedStreaming { tokens_max, upload_bytes, .. }) = &self.routed {
            let copied = Bytes(*upload_bytes);
            text += &format!(
                "prompts of up to {tokens_max} tokens copy only the experts that they use: {copied} for so many\n"
            );
        }
        for &PromptTimes { tokens, streamed_ms, without_ms } in &self.prompts {
            let (with, without) = (streamed_ms / 1e3, without_ms / 1e3);
            text += &format!(
                "prefill of {tokens} tokens: {with:.2} s with streaming, {without:.2} s without\n"
            );
        }
        text
    }

    /// Whether a step of so many tokens is streamed.
    pub fn takes(&self, tokens: usize) -> bool {
        tokens >= self.tokens_min
    }
}

impl StreamBuffers {
    /// Makes buffers long enough for others, too: passes use the same.
    pub fn widen(lens: &mut Vec<usize>, others: &[usize]) {
        lens.resize(lens.len().max(others.len()), 0);
        lens.iter_mut().zip(others).for_each(|(len, other)| *len = (*len).max(*other));
    }
}

impl StreamStage {
    /// Bytes of weights that are expected to be copied for it in a pass of so many tokens.
    pub(crate) fn expected_bytes(&self, graph: &Graph, tokens: usize) -> f64 {
        let bytes = |id: &WeightId| graph.weight(*id).bytes() as f64;
        let whole: f64 = self.weights.iter().map(bytes).sum();
        whole + self.experts_bytes(graph) * self.share(graph, tokens)
    }

    /// Bytes of all its experts that are copied by the route.
    pub(crate) fn experts_bytes(&self, graph: &Graph) -> f64 {
        let ids = self.experts.iter().flat_map(|experts| experts.stack.iter());
        ids.map(|&id| graph.weight(id).bytes() as f64).sum()
    }

    /// The share of its experts that so many tokens are expected to use; 0 if it has none.
    pub(crate) fn share(&self, graph: &Graph, tokens: usize) -> f64 {
        let Some(StreamedExperts { route, stack }) = self.experts.first() else { return 0.0 };
        let count: usize = stack.iter().map(|&id| graph.weight(id).stacked).sum();
        bilayer_graph::share_of(graph.width(*route) / 2, count, tokens)
    }
}

/// Tokens of a micro-batch of a streamed step of `tokens`, and their number.
pub fn stream_batches(tokens: usize, budget: &Budget) -> (usize, usize) {
    let count = tokens.div_ceil(budget.tokens).max(1);
    (tokens.div_ceil(count), count)
}
