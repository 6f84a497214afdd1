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

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bilayer_graph::slots::{self, Life};
use bilayer_graph::{CacheId, CacheInfo, Experts, Graph, Op, Part, Rows, Stack, Value, WeightId};
use serde::Serialize;

use crate::cut::cut_apart;
use crate::memory::{sum, weight_bytes, working_bytes};
use crate::offload::{HOST, Work, lacks};
use crate::{Budget, Bytes, Error, Excess, Plan, PlannedSegment};

/// Slots for weights: one is filled while the weights in the other are used.
pub const STREAM_SLOTS: usize = 2;

/// Maximum number of micro-batches that use the same copy of a layer's weights.
pub const STREAM_BATCHES: usize = 8;

/// Tokens from which weights are streamed where that is asked for and not predicted, as in llama.cpp.
pub const STREAM_TOKENS: usize = 32;

/// Limit of the search for tokens that use half of the experts.
const FEW_TOKENS_MAX: usize = 1024;

/// When weights that the host holds are streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpOffload {
    /// In steps of so many tokens that it is predicted to be faster.
    #[default]
    Auto,
    /// Never.
    Never,
    /// In steps of at least so many tokens.
    From(usize),
}

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

/// A node's device in a streamed step, and by what steps are cut besides: a figure of streamed stretches, and the parts of
/// split mixtures.
type StreamPlace = (usize, (Option<u32>, Option<(usize, Part)>));

/// How much of a mixture is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mixtures {
    Whole,
    Routed,
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

impl Work<'_> {
    /// The plan with streaming, where that is asked for, or fits and is predicted to be faster.
    pub(crate) fn streamed(&self, plan: Plan) -> Result<Plan, Error> {
        let Work { graph, machine, request, .. } = *self;
        let offloads = plan.devices[HOST + 1..].iter().any(|device| device.used_bytes > 0);
        let has_states = graph.nodes.iter().any(|node| node.op.state().is_some());
        let alone = has_states || graph.takes_whole_sequences();
        if request.op_offload == OpOffload::Never || !offloads || alone {
            return Ok(plan);
        }
        let (mut best, mut excess): (Option<Plan>, Option<Excess>) = (None, None);
        for (device, facts) in machine.devices.iter().enumerate().skip(HOST + 1) {
            if !(facts.is_async && facts.copies_weights) {
                continue;
            }
            match self.streamed_to(device, &plan) {
                Some(Ok(found)) => {
                    let ms = |plan: &Plan| plan.streaming.as_ref()?.prefill_ms_per_token;
                    let is_better = |best: &Plan| ms(&found) < ms(best);
                    if best.as_ref().is_none_or(is_better) {
                        best = Some(found);
                    }
                }
                Some(Err(what)) => excess = Some(what),
                None => {}
            }
        }
        match (best, excess, request.op_offload) {
            (Some(best), ..) => Ok(best),
            (None, Some(what), OpOffload::From(_)) => {
                Err(Error::DoesNotFit { what, largest: None })
            }
            _ => Ok(plan),
        }
    }

    /// The plan with streaming to a device. `None` if nothing can be streamed, or that is never faster.
    fn streamed_to(&self, device: usize, plan: &Plan) -> Option<Result<Plan, Excess>> {
        let Work { graph, machine, budget, request } = *self;
        let stages = self.stages(device, plan, Mixtures::Whole)?;
        let facts = &machine.devices[device];
        let bytes = |stage: &StreamStage| {
            weight_bytes(graph, &stage.weights.iter().copied().collect(), facts)
        };
        let by_route = graph
            .has_experts()
            .then(|| self.stages(device, plan, Mixtures::Routed))
            .flatten()
            .filter(|stages| stages.iter().any(|stage| !stage.experts.is_empty()));
        let mut streaming = Streaming {
            device,
            tokens_min: STREAM_TOKENS,
            tokens_max: (STREAM_BATCHES * budget.tokens).min(budget.context.max(budget.tokens)),
            upload_bytes: sum(stages.iter().map(bytes)),
            device_bytes: 0,
            host_bytes: 0,
            prefill_ms_per_token: None,
            without_ms_per_token: None,
            prompts: Vec::new(),
            stages,
            routed: by_route.map(|stages| RoutedStreaming {
                tokens_max: few_tokens(graph, &stages),
                upload_bytes: 0,
                pass_ms: None,
                stages,
            }),
        };
        streaming.device_bytes = self.stream_bytes(&streaming, plan);
        let forecast = machine
            .times
            .as_ref()
            .and_then(|times| times.stream(graph, plan.predicted.as_ref()?, &streaming, budget));
        streaming.tokens_min = match (request.op_offload, &forecast) {
            (OpOffload::Auto, forecast) => forecast.as_ref()?.crossover?,
            (OpOffload::From(tokens), _) => tokens.max(1),
            (OpOffload::Never, _) => return None,
        };
        if let Some(routed) = &mut streaming.routed {
            if let Some(forecast) = &forecast {
                (routed.tokens_max, routed.pass_ms) = (forecast.routed_max, forecast.routed_ms);
            }
            let bytes = |stage: &StreamStage| stage.expected_bytes(graph, routed.tokens_max);
            routed.upload_bytes = routed.stages.iter().map(bytes).sum::<f64>() as u64;
        }
        streaming.routed.take_if(|routed| routed.tokens_max < streaming.tokens_min);
        streaming.host_bytes = streaming.buffer_bytes(graph, budget.outputs);
        if let Some(forecast) = forecast {
            streaming.prefill_ms_per_token = Some(forecast.prefill_ms_per_token);
            streaming.without_ms_per_token = Some(forecast.without_ms_per_token);
            streaming.prompts = forecast.prompts;
        }
        Some(adopted(plan.clone(), streaming))
    }

    /// The segments of a step that is streamed to a device; `None` if nothing can be.
    fn stages(&self, device: usize, plan: &Plan, mixtures: Mixtures) -> Option<Vec<StreamStage>> {
        let graph = self.graph;
        let places = self.places(device, plan, mixtures);
        let segments = cut_apart(graph, &places);
        // Weights that several segments read, and vectors, stay on the device.
        let mut readers: BTreeMap<WeightId, usize> = BTreeMap::new();
        for segment in &segments {
            let nodes = graph.nodes[segment.nodes.clone()].iter();
            let ids: HashSet<WeightId> = nodes.flat_map(|node| node.op.weights()).collect();
            ids.into_iter().for_each(|id| *readers.entry(id).or_default() += 1);
        }
        let is_streamed = |id: &WeightId| !graph.weight(*id).is_vector() && readers[id] == 1;
        let (mut units, mut last) = (0, None);
        let stage = |segment: PlannedSegment| {
            let nodes = || graph.nodes[segment.nodes.clone()].iter();
            let mut stage = StreamStage {
                unit: None,
                weights: Vec::new(),
                experts: Vec::new(),
                caches: Vec::new(),
                segment: segment.clone(),
            };
            if let Some(half) = places[segment.nodes.start].1.0 {
                if mixtures == Mixtures::Routed {
                    let routed = nodes().filter_map(|node| match &node.op {
                        Op::Experts(op) if graph.is_sparse(node) => Some(op),
                        _ => None,
                    });
                    let known = routed.filter(|op| segment.inputs.contains(&op.route));
                    let known = known.filter(|op| op.stack.iter().all(is_streamed));
                    let stack = |op: &Experts| {
                        // The part of a split mixture with the host has all experts of a streamed step.
                        let route = graph.routed_by(op.route).unwrap_or(op.route);
                        StreamedExperts { route, stack: op.stack.clone() }
                    };
                    stage.experts = known.map(stack).collect();
                }
                let apart: HashSet<WeightId> =
                    stage.experts.iter().flat_map(|of| of.stack.iter().copied()).collect();
                let ids: BTreeSet<WeightId> =
                    nodes().flat_map(|node| node.op.weights()).filter(is_streamed).collect();
                stage.weights = ids.into_iter().filter(|id| !apart.contains(id)).collect();
                stage.caches = nodes().filter_map(|node| cache(&node.op)).collect();
                units += usize::from(last.replace(half / 2).is_some_and(|last| last != half / 2));
                stage.unit = Some(units);
            }
            stage
        };
        let stages: Vec<StreamStage> = segments.into_iter().map(stage).collect();
        let copies = |stage: &StreamStage| !(stage.weights.is_empty() && stage.experts.is_empty());
        stages.iter().any(copies).then_some(stages)
    }

    /// Where each node of a step runs that is streamed to a device. The first figure tells stretches that are streamed
    /// apart, and their halves: twice the first node, and 1 more from the first mixture on if that is routed.
    fn places(&self, device: usize, plan: &Plan, mixtures: Mixtures) -> Vec<StreamPlace> {
        let Work { graph, machine, .. } = *self;
        let facts = &machine.devices[device];
        let devices = plan.placement.devices(graph).into_iter().enumerate();
        let mut places: Vec<StreamPlace> =
            devices.map(|(node, place)| (place, (None, graph.part_of(node)))).collect();
        let mut start = 0;
        while start < places.len() {
            let alike = |node: &usize| {
                places[*node].0 == HOST && graph.nodes[*node].layer == graph.nodes[start].layer
            };
            let end = start + (start..places.len()).take_while(alike).count();
            let nodes = start..end;
            let multiplies = |node: usize| !graph.nodes[node].op.matrices().is_empty();
            if graph.nodes[start].layer.is_some()
                && nodes.clone().any(multiplies)
                && nodes.clone().all(|node| lacks(graph, node, facts).is_none())
            {
                let is_mixture = |node: &usize| graph.is_sparse(&graph.nodes[*node]);
                let cut = nodes.clone().find(is_mixture).filter(|_| mixtures == Mixtures::Routed);
                let cut = cut.unwrap_or(end);
                places[start..cut].fill((device, (Some(2 * start as u32), None)));
                places[cut..end].fill((device, (Some(2 * start as u32 + 1), None)));
            }
            start = end.max(start + 1);
        }
        places
    }

    /// Bytes of the device's memory that streaming takes.
    fn stream_bytes(&self, streaming: &Streaming, plan: &Plan) -> u64 {
        let Work { graph, machine, budget, .. } = *self;
        let facts = &machine.devices[streaming.device];
        let units = || streaming.stages.iter().filter(|stage| stage.unit.is_some());
        let of_slot = |slot: usize, bytes: &dyn Fn(&StreamStage) -> u64| {
            units().filter(|unit| unit.slot() == Some(slot)).map(bytes).max().unwrap_or(0)
        };
        let weights = |stage: &StreamStage| {
            weight_bytes(graph, &stage.weights.iter().copied().collect(), facts)
        };
        // Caches of one shape share memory.
        let infos = || units().flat_map(|unit| &unit.caches).map(|&id| graph.cache(id));
        let shapes: BTreeSet<_> = infos().map(CacheInfo::shape).collect();
        let of_shape = |stage: &StreamStage, shape| {
            let infos = stage.caches.iter().map(|&id| graph.cache(id));
            let alike = infos.filter(|cache| cache.shape() == shape);
            sum(alike.map(|cache| budget.kv_bytes(cache)))
        };
        let slots = (0..STREAM_SLOTS).map(|slot| {
            let caches = shapes.iter().map(|&shape| of_slot(slot, &|unit| of_shape(unit, shape)));
            sum(caches.chain([of_slot(slot, &weights)]))
        });
        let routed = streaming.routed.iter().flat_map(|routed| &routed.stages);
        let all = units().chain(routed.filter(|stage| stage.unit.is_some()));
        let working = all.map(|unit| working_bytes(graph, &unit.segment, budget, facts)).max();
        let held = |segments: &mut dyn Iterator<Item = &PlannedSegment>| {
            let nodes = segments.flat_map(|segment| graph.nodes[segment.nodes.clone()].iter());
            nodes.flat_map(|node| node.op.weights()).collect::<BTreeSet<WeightId>>()
        };
        let device = streaming.device;
        let known = held(&mut plan.segments.iter().filter(|segment| segment.device == device));
        let streamed: HashSet<WeightId> = units().flat_map(|unit| unit.weights.clone()).collect();
        let mut resident = held(&mut units().map(|unit| &unit.segment));
        resident.retain(|id| !known.contains(id) && !streamed.contains(id));
        sum(slots.chain([working.unwrap_or(0), weight_bytes(graph, &resident, facts)]))
    }
}

impl Streaming {
    /// Bytes of the host's memory for the buffers of all passes.
    fn buffer_bytes(&self, graph: &Graph, outputs: usize) -> u64 {
        let rows = (self.tokens_max, outputs);
        let mut lens = Streaming::buffers(graph, &self.stages, rows).lens;
        if let Some(routed) = &self.routed {
            let rows = (routed.tokens_max, outputs);
            StreamBuffers::widen(&mut lens, &Streaming::buffers(graph, &routed.stages, rows).lens);
        }
        sum(lens.into_iter().map(|len| (len * size_of::<f32>()) as u64))
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

/// Tokens up to which mixtures are copied by the route where times are not known: those that use half of their experts.
fn few_tokens(graph: &Graph, stages: &[StreamStage]) -> usize {
    let most = |stage: &StreamStage| {
        let few = |tokens: &usize| stage.share(graph, *tokens) <= 0.5;
        (1..=FEW_TOKENS_MAX).take_while(few).last().unwrap_or(0)
    };
    let routed = stages.iter().filter(|stage| !stage.experts.is_empty());
    routed.map(most).max().unwrap_or(0)
}

/// The plan with streaming added, if it fits.
fn adopted(mut plan: Plan, streaming: Streaming) -> Result<Plan, Excess> {
    let room = |device: &crate::DevicePlan, bytes: u64| {
        let used_bytes = device.used_bytes.saturating_add(bytes);
        if used_bytes <= device.budget_bytes {
            return Ok(());
        }
        Err(Excess {
            device: device.label.clone(),
            budget_bytes: device.budget_bytes,
            used_bytes,
            weight_bytes: device.weight_bytes.saturating_add(device.expert_bytes),
            kv_bytes: device.kv_bytes,
            state_bytes: device.state_bytes,
            activation_bytes: sum([device.activation_bytes, device.staging_bytes, bytes]),
        })
    };
    room(&plan.devices[streaming.device], streaming.device_bytes)?;
    for (device, bytes) in
        [(streaming.device, streaming.device_bytes), (HOST, streaming.host_bytes)]
    {
        let device = &mut plan.devices[device];
        device.stream_bytes = bytes;
        device.used_bytes = device.used_bytes.saturating_add(bytes);
    }
    if let Some(predicted) = &mut plan.predicted
        && streaming.takes(crate::PROMPT_TOKENS)
        && streaming.prefill_ms_per_token.is_some()
    {
        predicted.prefill_ms_per_token = streaming.prefill_ms_per_token;
    }
    plan.streaming = Some(streaming);
    Ok(plan)
}

/// The cache of an op.
fn cache(op: &Op) -> Option<CacheId> {
    match op {
        Op::Attend(attend) => attend.cache,
        _ => None,
    }
}

/// Tokens of a micro-batch of a streamed step of `tokens`, and their number.
pub fn stream_batches(tokens: usize, budget: &Budget) -> (usize, usize) {
    let count = tokens.div_ceil(budget.tokens).max(1);
    (tokens.div_ceil(count), count)
}
