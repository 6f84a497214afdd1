//! How long the parts of a model take on each device, measured or estimated, and what follows for a plan.

use std::collections::{BTreeSet, HashMap};

use bilayer_graph::Graph;
use serde::{Deserialize, Serialize};

use crate::memory::weight_bytes;
use crate::{Machine, Placement, PlannedSegment};

/// Tokens of a prompt that prefill is judged by.
pub const PROMPT_TOKENS: usize = 512;

/// Tokens of an answer that decoding is judged by.
pub const ANSWER_TOKENS: usize = 128;

/// Tokens of the small batch that is timed between one token and a prompt.
pub const BATCH_TOKENS: usize = 8;

/// Where times come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// From runs of the model's own layers on these devices.
    Measured,
    /// From bandwidths and operations a second.
    Estimated,
}

/// What something takes on a device, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// In a step of one token.
    pub decode_ms: f64,
    /// In a step of [`BATCH_TOKENS`]; `None` where nobody knows.
    pub batch_ms: Option<f64>,
    /// In prefill, for each token; `None` where nobody knows.
    pub prefill_ms: Option<f64>,
}

/// The parts of a model on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceTimes {
    /// What comes before the layers.
    pub embedding: Cost,
    /// Each layer.
    pub layers: Vec<Cost>,
    /// What comes after the layers.
    pub output: Cost,
    /// What each segment costs besides its kernels: handing it over, what crosses, waiting for it.
    pub segment: Cost,
}

/// Times on every device of a machine, in its order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Where they come from.
    pub basis: Basis,
    /// Each device.
    pub devices: Vec<DeviceTimes>,
}

/// What a plan's steps should take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// A step of one token, milliseconds.
    pub decode_ms: f64,
    /// A step of [`BATCH_TOKENS`] sequences or tokens, milliseconds.
    pub batch_ms: Option<f64>,
    /// A prompt of [`PROMPT_TOKENS`], milliseconds a token.
    pub prefill_ms_per_token: Option<f64>,
    /// Where the figures come from.
    pub basis: Basis,
    /// How many times as fast decoding can become when two groups of sequences keep processor and adapter busy at once:
    /// (Tcpu + Tgpu) / max.
    pub overlap_bound: f64,
    /// Milliseconds of a step of one token on each device of the plan.
    pub devices_ms: Vec<f64>,
}

impl Cost {
    fn scaled(self, by: f64) -> Cost {
        Cost {
            decode_ms: self.decode_ms * by,
            batch_ms: self.batch_ms.map(|ms| ms * by),
            prefill_ms: self.prefill_ms.map(|ms| ms * by),
        }
    }

    fn plus(self, other: Cost) -> Cost {
        let both = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b);
        Cost {
            decode_ms: self.decode_ms + other.decode_ms,
            batch_ms: both(self.batch_ms, other.batch_ms),
            prefill_ms: both(self.prefill_ms, other.prefill_ms),
        }
    }

    /// No time at all.
    const ZERO: Cost = Cost { decode_ms: 0.0, batch_ms: Some(0.0), prefill_ms: Some(0.0) };
}

/// The part of the model that a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Embedding,
    Layer(u32),
    Output,
}

/// Each node's part.
fn parts(graph: &Graph) -> Vec<Part> {
    let first = graph.nodes.iter().position(|node| node.layer.is_some()).unwrap_or(0);
    let part = |(i, layer): (usize, Option<u32>)| match layer {
        Some(layer) => Part::Layer(layer),
        None if i < first => Part::Embedding,
        None => Part::Output,
    };
    graph.nodes.iter().map(|node| node.layer).enumerate().map(part).collect()
}

impl Times {
    /// Times by the machine's figures: every weight is read once for a token or a batch, of experts those that are
    /// used, and a prompt takes two operations for each weight that a token uses. `None` where a device's bandwidth is not known.
    pub fn estimated(graph: &Graph, machine: &Machine) -> Option<Times> {
        let parts = parts(graph);
        let mut devices = Vec::with_capacity(machine.devices.len());
        for facts in &machine.devices {
            let gbps = facts.read_gbps?;
            let of = |part: Part| {
                let nodes = (0..parts.len()).filter(|&node| parts[node] == part);
                let (mut one, mut batch, mut weights) = (0.0, 0.0, 0.0);
                for node in nodes {
                    let ids: BTreeSet<_> =
                        graph.nodes[node].op.matrices().iter().copied().collect();
                    let bytes = weight_bytes(graph, &ids, facts) as f64;
                    one += bytes * graph.share(node, 1);
                    batch += bytes * graph.share(node, BATCH_TOKENS);
                    let size = |id| graph.weight(id).rows as f64 * graph.weight(id).cols as f64;
                    weights += ids.into_iter().map(size).sum::<f64>() * graph.share(node, 1);
                }
                let read = |bytes: f64| bytes / (gbps * 1e6);
                let prefill_ms = facts.tops.map(|tops| 2.0 * weights / (tops * 1e9));
                Cost { decode_ms: read(one), batch_ms: Some(read(batch)), prefill_ms }
            };
            devices.push(DeviceTimes {
                embedding: Cost::ZERO,
                layers: (0..graph.layers()).map(|layer| of(Part::Layer(layer))).collect(),
                output: of(Part::Output),
                segment: Cost::ZERO,
            });
        }
        Some(Times { basis: Basis::Estimated, devices })
    }

    /// Whether these are times of such a graph on so many devices, all of them possible.
    pub fn fit(&self, layers: usize, devices: usize) -> bool {
        let good = |cost: &Cost| {
            let all = [Some(cost.decode_ms), cost.batch_ms, cost.prefill_ms];
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

    /// What steps take under a placement that was cut into `segments`. A part whose nodes lie on several devices is
    /// shared out by the weights they read. Prompts are run in `micro_batches`, so that devices work at the same time.
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
        let mut shares: HashMap<(Part, usize), f64> = HashMap::new();
        let mut wholes: HashMap<Part, f64> = HashMap::new();
        for (node, device) in placement.devices(graph).into_iter().enumerate() {
            // A part without weights is where its nodes are.
            let bytes = node_bytes[node].max(1e-3);
            *shares.entry((parts[node], device)).or_default() += bytes;
            *wholes.entry(parts[node]).or_default() += bytes;
        }
        let mut costs = vec![Cost::ZERO; count];
        for ((part, device), bytes) in shares {
            let times = &self.devices[device];
            let whole = match part {
                Part::Embedding => times.embedding,
                Part::Layer(layer) => *times.layers.get(layer as usize)?,
                Part::Output => times.output,
            };
            costs[device] = costs[device].plus(whole.scaled(bytes / wholes[&part]));
        }
        for segment in segments {
            let device = segment.device;
            costs[device] = costs[device].plus(self.devices[device].segment);
        }
        let total = costs.iter().fold(Cost::ZERO, |sum, cost| sum.plus(*cost));
        let devices_ms: Vec<f64> = costs.iter().map(|cost| cost.decode_ms).collect();
        let longest = devices_ms.iter().copied().fold(0.0, f64::max);
        Some(Predicted {
            decode_ms: total.decode_ms,
            batch_ms: total.batch_ms,
            prefill_ms_per_token: overlapped(&costs),
            basis: self.basis,
            overlap_bound: if longest > 0.0 { total.decode_ms / longest } else { 1.0 },
            devices_ms,
        })
    }
}

/// Micro-batches that a prompt of [`PROMPT_TOKENS`] is cut into where two devices share the work (the engine's rule).
const MICRO_BATCHES: f64 = 4.0;

/// Milliseconds a token of prefill: with `n` micro-batches the longest device works all the time but for the start and
/// the end, when it waits for the others' share of one.
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
