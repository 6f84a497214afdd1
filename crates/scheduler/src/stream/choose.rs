//! Chooses what is streamed in a plan, to which device, and from how many tokens on.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bilayer_graph::{CacheId, CacheInfo, Experts, Graph, Op, Part, WeightId};

use super::{
    RoutedStreaming, STREAM_BATCHES, STREAM_SLOTS, STREAM_TOKENS, StreamStage, StreamedExperts,
    Streaming,
};
use crate::bytes::sum;
use crate::cut::cut_apart;
use crate::machine::HOST;
use crate::memory::{weight_bytes, working_bytes};
use crate::plan::lacks;
use crate::request::Work;
use crate::{DevicePlan, Error, Excess, OpOffload, PROMPT_TOKENS, Plan, PlannedSegment};

/// Limit of the search for tokens that use half of the experts.
const FEW_TOKENS_MAX: usize = 1024;

/// A node's device in a streamed step, and by what steps are cut besides: a figure of streamed stretches, and the parts of
/// split mixtures.
type StreamPlace = (usize, (Option<u32>, Option<(usize, Part)>));

/// How much of a mixture is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mixtures {
    Whole,
    Routed,
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
    let room = |device: &DevicePlan, bytes: u64| {
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
        && streaming.takes(PROMPT_TOKENS)
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
