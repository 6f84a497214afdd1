//! Times of a model's parts on each device, measured or estimated, and the predictions of a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bilayer_graph::{Graph, Op, SplitMixture};
use serde::{Deserialize, Serialize};

use crate::experts::part_bytes;
use crate::{Machine, Placement, PlannedSegment};

mod estimate;
mod groups;
mod stream;

pub use groups::{Demand, Groups};

/// Prompt length for judging prefill.
pub const PROMPT_TOKENS: usize = 512;

/// Answer length for judging decode.
pub const ANSWER_TOKENS: usize = 128;

/// Size of the small batch, between one token and a prompt.
pub const BATCH_TOKENS: usize = 8;

/// Tokens of the largest step that is measured for sessions whose steps have up to `step_tokens`: a power of two of at most
/// [`PROMPT_TOKENS`], so that few sizes are measured.
pub fn timed_tokens(step_tokens: usize) -> usize {
    1 << step_tokens.clamp(1, PROMPT_TOKENS).ilog2()
}

/// The basis of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Measured on the model's own layers on these devices.
    Measured,
    /// Estimated from bandwidth and operations per second.
    Estimated,
}

/// The time of a part on a device, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// In a step of one token.
    pub decode_ms: f64,
    /// In a step of [`BATCH_TOKENS`]; `None` if unknown.
    pub batch_ms: Option<f64>,
    /// In prefill by micro-batches, as devices that share a prompt run it, per token; `None` if unknown.
    pub prefill_ms: Option<f64>,
    /// In prefill of [`PROMPT_TOKENS`] in one step, as a device alone runs it, per token; `None` if unknown.
    pub prompt_ms: Option<f64>,
}

/// The times of a model's parts on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceTimes {
    /// The embedding.
    pub embedding: Cost,
    /// Each layer.
    pub layers: Vec<Cost>,
    /// The output head.
    pub output: Cost,
    /// The overhead of each segment besides its kernels: submission, transfers, waiting.
    pub segment: Cost,
    /// How weights are copied to the device for streaming; `None` if unknown.
    #[serde(default)]
    pub upload: Option<Upload>,
}

/// How weights are copied to a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Upload {
    /// Speed, 10^9 bytes of the file per second.
    pub gbps: f64,
    /// How much of the shorter of copy and kernels passes beside the longer one: 1 if both run at their own speed, 0 if
    /// one waits for the other.
    pub overlap: f64,
}

/// Times on every device of a machine, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Their basis.
    pub basis: Basis,
    /// Each device.
    pub devices: Vec<DeviceTimes>,
}

/// The predicted times of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// A step of one token, milliseconds.
    pub decode_ms: f64,
    /// A step of [`BATCH_TOKENS`] sequences or tokens, milliseconds.
    pub batch_ms: Option<f64>,
    /// A prompt of [`PROMPT_TOKENS`], milliseconds per token.
    pub prefill_ms_per_token: Option<f64>,
    /// The basis of the figures.
    pub basis: Basis,
    /// What two groups of sequences gain that follow each other through the devices.
    pub groups: Groups,
    /// Milliseconds of a step of one token, per device of the plan.
    pub devices_ms: Vec<f64>,
    /// The costs of all parts on each device.
    #[serde(skip)]
    pub(crate) costs: Vec<Cost>,
}

impl Cost {
    fn scaled(self, by: f64) -> Cost {
        Cost {
            decode_ms: self.decode_ms * by,
            batch_ms: self.batch_ms.map(|ms| ms * by),
            prefill_ms: self.prefill_ms.map(|ms| ms * by),
            prompt_ms: self.prompt_ms.map(|ms| ms * by),
        }
    }

    fn plus(self, other: Cost) -> Cost {
        let both = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b);
        Cost {
            decode_ms: self.decode_ms + other.decode_ms,
            batch_ms: both(self.batch_ms, other.batch_ms),
            prefill_ms: both(self.prefill_ms, other.prefill_ms),
            prompt_ms: both(self.prompt_ms, other.prompt_ms),
        }
    }

    /// Each figure's difference to that of another.
    fn less(self, other: Cost) -> Cost {
        let both = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a - b);
        Cost {
            decode_ms: self.decode_ms - other.decode_ms,
            batch_ms: both(self.batch_ms, other.batch_ms),
            prefill_ms: both(self.prefill_ms, other.prefill_ms),
            prompt_ms: both(self.prompt_ms, other.prompt_ms),
        }
    }

    /// The larger of each figure and that of another.
    fn longer(self, other: Cost) -> Cost {
        let both = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.max(b));
        Cost {
            decode_ms: self.decode_ms.max(other.decode_ms),
            batch_ms: both(self.batch_ms, other.batch_ms),
            prefill_ms: both(self.prefill_ms, other.prefill_ms),
            prompt_ms: both(self.prompt_ms, other.prompt_ms),
        }
    }

    /// Zero time.
    const ZERO: Cost =
        Cost { decode_ms: 0.0, batch_ms: Some(0.0), prefill_ms: Some(0.0), prompt_ms: Some(0.0) };
}

/// The part of the model that contains a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum ModelPart {
    Embedding,
    Layer(u32),
    Output,
}

/// The part of each node.
fn parts(graph: &Graph) -> Vec<ModelPart> {
    let first = graph.nodes.iter().position(|node| node.layer.is_some()).unwrap_or(0);
    let part = |(i, layer): (usize, Option<u32>)| match layer {
        Some(layer) => ModelPart::Layer(layer),
        None if i < first => ModelPart::Embedding,
        None => ModelPart::Output,
    };
    graph.nodes.iter().map(|node| node.layer).enumerate().map(part).collect()
}

impl Times {
    /// Estimates times by the longer of reading and computing: every weight is read once per step, experts only if
    /// used, and takes two operations per row. Kernels, submits and transfers add what the devices' links say. `None` if
    /// a device's bandwidth is unknown.
    pub fn estimated(graph: &Graph, machine: &Machine) -> Option<Times> {
        let devices = machine.devices.iter().map(|facts| estimate::device(graph, facts));
        Some(Times { basis: Basis::Estimated, devices: devices.collect::<Option<_>>()? })
    }

    /// These times for a model of other types: those that `from` estimates for the types of this one, and `to` for the others,
    /// tell by which factor each part's time changes.
    #[must_use]
    pub fn scaled(&self, from: &Times, to: &Times) -> Times {
        let factor = |to: f64, from: f64| if from > 0.0 { to / from } else { 1.0 };
        let optional = |known: Option<f64>, from: Option<f64>, to: Option<f64>| match (from, to) {
            (Some(from), Some(to)) => known.map(|ms| ms * factor(to, from)),
            _ => known,
        };
        let cost = |(known, from, to): (&Cost, &Cost, &Cost)| Cost {
            decode_ms: known.decode_ms * factor(to.decode_ms, from.decode_ms),
            batch_ms: optional(known.batch_ms, from.batch_ms, to.batch_ms),
            prefill_ms: optional(known.prefill_ms, from.prefill_ms, to.prefill_ms),
            prompt_ms: optional(known.prompt_ms, from.prompt_ms, to.prompt_ms),
        };
        let device = |((known, from), to): ((&DeviceTimes, &DeviceTimes), &DeviceTimes)| {
            let layers = known.layers.iter().zip(&from.layers).zip(&to.layers);
            DeviceTimes {
                layers: layers.map(|((known, from), to)| cost((known, from, to))).collect(),
                output: cost((&known.output, &from.output, &to.output)),
                ..known.clone()
            }
        };
        let devices = self.devices.iter().zip(&from.devices).zip(&to.devices).map(device);
        Times { basis: Basis::Estimated, devices: devices.collect() }
    }

    /// Whether these times match the number of layers and devices, and are all valid.
    pub fn fit(&self, layers: usize, devices: usize) -> bool {
        let good = |cost: &Cost| {
            let all = [Some(cost.decode_ms), cost.batch_ms, cost.prefill_ms, cost.prompt_ms];
            all.into_iter().flatten().all(|ms| ms.is_finite() && ms >= 0.0)
        };
        self.devices.len() == devices
            && self.devices.iter().all(|device| {
                let ends = [&device.embedding, &device.output, &device.segment];
                device.layers.len() == layers
                    && device.layers.iter().chain(ends).all(good)
                    && device.layers.iter().all(|layer| layer.decode_ms > 0.0)
            })
    }

    /// The time of a layer on a device.
    pub fn layer(&self, device: usize, layer: u32) -> Option<Cost> {
        self.devices.get(device)?.layers.get(layer as usize).copied()
    }

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

/// Number of micro-batches of a prompt of [`PROMPT_TOKENS`] if devices share the work (the engine's rule).
const MICRO_BATCHES: f64 = 4.0;

/// Milliseconds per token of prefill: with `n` micro-batches the slowest device is always busy, except at the start
/// and the end, when it waits for the others' share of one.
fn overlapped(costs: &[Cost]) -> Option<f64> {
    let each: Vec<f64> = costs.iter().map(|cost| cost.prefill_ms).collect::<Option<_>>()?;
    let (sum, longest) = (each.iter().sum::<f64>(), each.iter().copied().fold(0.0, f64::max));
    Some(longest + (sum - longest) / MICRO_BATCHES)
}

impl Cost {
    /// Milliseconds of a question of [`PROMPT_TOKENS`] with an answer of [`ANSWER_TOKENS`].
    pub(crate) fn answer_ms(&self) -> f64 {
        let prompt = self.prefill_ms.unwrap_or(0.0) * PROMPT_TOKENS as f64;
        prompt + self.decode_ms * ANSWER_TOKENS as f64
    }
}

impl Predicted {
    /// Milliseconds of a question of [`PROMPT_TOKENS`] with an answer of [`ANSWER_TOKENS`]: what `auto` minimises.
    pub fn answer_ms(&self) -> f64 {
        let prompt = self.prefill_ms_per_token.unwrap_or(0.0) * PROMPT_TOKENS as f64;
        prompt + self.decode_ms * ANSWER_TOKENS as f64
    }
}
