//! Predicts the step times of a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bilayer_graph::{Graph, Op, SplitMixture};

use super::{
    BATCH_TOKENS, Cost, Groups, MICRO_BATCHES, ModelPart, PROMPT_TOKENS, Predicted, Times, parts,
};
use crate::{Machine, Placement, PlannedSegment};

impl Times {
    /// Predicts step times of a placement cut into `segments`. The time of a part with nodes on several devices is
    /// divided by the weights they read. Devices that can work at the same time share a prompt by micro-batches.
    pub(crate) fn predict(
        &self,
        graph: &Graph,
        machine: &Machine,
        placement: &Placement,
        segments: &[PlannedSegment],
    ) -> Option<Predicted> {
        let count = machine.devices.len();
        if self.devices.len() != count {
            return None;
        }
        let parts = parts(graph);
        let node_bytes: Vec<f64> =
            (0..graph.nodes.len()).map(|node| graph.matrix_bytes(node, 1)).collect();
        // Sums of floats depend on the order.
        let mut shares: BTreeMap<(ModelPart, usize), f64> = BTreeMap::new();
        let mut wholes: BTreeMap<ModelPart, f64> = BTreeMap::new();
        for (node, device) in placement.devices(graph).into_iter().enumerate() {
            // A part without weights belongs to its nodes' device.
            let bytes = node_bytes[node].max(1e-3);
            *shares.entry((parts[node], device)).or_default() += bytes;
            *wholes.entry(parts[node]).or_default() += bytes;
        }
        let mut costs = vec![Cost::ZERO; count];
        for ((part, device), bytes) in shares {
            let times = &self.devices[device];
            let whole = match part {
                ModelPart::Embedding => times.embedding,
                ModelPart::Layer(layer) => *times.layers.get(layer as usize)?,
                ModelPart::Output => times.output,
            };
            costs[device] = costs[device].plus(whole.scaled(bytes / wholes[&part]));
        }
        for segment in segments {
            let device = segment.device;
            costs[device] = costs[device].plus(self.devices[device].segment);
        }
        let total = costs.iter().fold(Cost::ZERO, |sum, cost| sum.plus(*cost));
        let total = total.less(self.beside(graph, machine, placement, &wholes)?);
        let total = total.plus(results(graph, machine, placement));
        let devices_ms: Vec<f64> = costs.iter().map(|cost| cost.decode_ms).collect();
        let mut predicted = Predicted {
            decode_ms: total.decode_ms,
            batch_ms: total.batch_ms,
            prefill_ms_per_token: match overlaps(graph, segments) {
                true => overlapped(&costs),
                // Micro-batches of split mixtures are small, but not run beside each other.
                false if !graph.splits.is_empty() => total.prefill_ms,
                false => total.prompt_ms,
            },
            basis: self.basis,
            groups: Groups { bound: 1.0, sequences_min: None },
            devices_ms,
            costs,
        };
        if overlaps(graph, segments) {
            predicted.groups = predicted.two_groups();
        }
        Some(predicted)
    }
}

impl Times {
    /// What the parts of split mixtures change: of each mixture only the longer one counts, since both run at once; and a
    /// prompt reads more of them than of their share in decode.
    fn beside(
        &self,
        graph: &Graph,
        machine: &Machine,
        placement: &Placement,
        wholes: &BTreeMap<ModelPart, f64>,
    ) -> Option<Cost> {
        let devices = placement.devices(graph);
        let mut saved = Cost::ZERO;
        for split in &graph.splits {
            let parts = [&split.resident_nodes, &split.rest_nodes];
            let Some(layer) = split.layer else { continue };
            if devices[parts[0].start] == devices[parts[1].start] {
                continue;
            }
            let whole = wholes.get(&ModelPart::Layer(layer)).copied()?;
            let cost = |nodes: &Range<usize>| {
                let device = devices[nodes.start];
                let by_bytes = part_bytes(graph, nodes, 1) / whole;
                let scaled = self.layer(device, layer)?.scaled(by_bytes);
                let rows = PROMPT_TOKENS as f64 / MICRO_BATCHES;
                let read = machine.devices[device].read_gbps.map_or(0.0, |gbps| {
                    part_bytes(graph, nodes, rows as usize) / (gbps * 1e6) / rows
                });
                let longer = scaled.prefill_ms.map(|ms| ms.max(read));
                Some((scaled, Cost { prefill_ms: longer, ..scaled }))
            };
            let [here, there] = [cost(parts[0])?, cost(parts[1])?];
            let both = here.0.plus(there.0);
            saved = saved.plus(both.less(here.1.longer(there.1)));
        }
        Some(saved)
    }
}

/// Times that a token's results cross memory where the parts are joined: each part's is read, and the sum written and read.
const JOIN_CROSSINGS: f64 = 4.0;

/// The time in which residents' results come to the host, those of all of a token's experts, and are joined there.
fn results(graph: &Graph, machine: &Machine, placement: &Placement) -> Cost {
    let devices = placement.devices(graph);
    let token_ms = |split: &SplitMixture| {
        let last = &graph.nodes[split.resident_nodes.end - 1];
        let bytes = (size_of::<f32>() * graph.width(last.op.out())) as f64;
        let [from, to] = [split.resident_nodes.start, split.join].map(|node| devices[node]);
        let [from, to] = [from, to].map(|device| &machine.devices[device]);
        let joined = to.read_gbps.map_or(0.0, |gbps| JOIN_CROSSINGS * bytes / (gbps * 1e6));
        1e3 * from.link.download_seconds(bytes) + joined
    };
    let ms: f64 = graph.splits.iter().map(token_ms).sum();
    Cost {
        decode_ms: ms,
        batch_ms: Some(ms * BATCH_TOKENS as f64),
        short_ms: Some(ms),
        prefill_ms: Some(ms),
        prompt_ms: Some(ms),
    }
}

/// Whether two devices of a plan can work at the same time: both multiply matrices (an embedding lookup takes no time),
/// and no device has a value as the input of two segments, since writing it for one micro-batch would change what the
/// other segment still reads.
pub fn overlaps(graph: &Graph, segments: &[PlannedSegment]) -> bool {
    // The parts of split mixtures run beside each other within a micro-batch.
    if !graph.splits.is_empty() {
        return false;
    }
    let multiplies = |nodes: &Range<usize>| {
        graph.nodes[nodes.clone()].iter().any(|node| matches!(node.op, Op::MatMul { .. }))
    };
    let busy = segments.iter().filter(|segment| multiplies(&segment.nodes));
    let devices: BTreeSet<usize> = busy.map(|segment| segment.device).collect();
    let mut inputs = BTreeSet::new();
    let once = segments
        .iter()
        .flat_map(|segment| segment.inputs.iter().map(|&value| (segment.device, value)))
        .all(|input| inputs.insert(input));
    devices.len() > 1 && once
}

/// Milliseconds per token of prefill: with `n` micro-batches the slowest device is always busy, except at the start
/// and the end, when it waits for the others' share of one.
fn overlapped(costs: &[Cost]) -> Option<f64> {
    let each: Vec<f64> = costs.iter().map(|cost| cost.prefill_ms).collect::<Option<_>>()?;
    let (sum, longest) = (each.iter().sum::<f64>(), each.iter().copied().fold(0.0, f64::max));
    Some(longest + (sum - longest) / MICRO_BATCHES)
}

/// Bytes that a part of a split mixture reads in a step of so many tokens.
fn part_bytes(graph: &Graph, nodes: &Range<usize>, tokens: usize) -> f64 {
    nodes.clone().map(|node| graph.matrix_bytes(node, tokens)).sum()
}
