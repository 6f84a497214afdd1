//! Times of a model's parts on each device, measured or estimated, and what is predicted of a plan.

use std::fmt;

use bilayer_graph::Graph;
use serde::{Deserialize, Serialize};

mod estimate;
mod groups;
mod predict;
mod stream;

pub use groups::{Demand, Groups};
pub use predict::overlaps;

/// Prompt length for judging prefill.
pub const PROMPT_TOKENS: usize = 512;

/// Answer length for judging decode.
pub const ANSWER_TOKENS: usize = 128;

/// Size of the small batch, between one token and a prompt.
pub const BATCH_TOKENS: usize = 8;

/// Length of a short prompt, between the small batch and a micro-batch: of many experts it uses most, as a longer one does, so
/// that its time is not between theirs in proportion.
pub const SHORT_TOKENS: usize = 32;

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
    /// In prefill of [`SHORT_TOKENS`] in one step, per token; `None` if unknown.
    #[serde(default)]
    pub short_ms: Option<f64>,
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
        self.with(self, |ms, _| ms * by)
    }

    fn plus(self, other: Cost) -> Cost {
        self.with(other, |a, b| a + b)
    }

    /// Each figure's difference to that of another.
    fn less(self, other: Cost) -> Cost {
        self.with(other, |a, b| a - b)
    }

    /// The larger of each figure and that of another.
    fn longer(self, other: Cost) -> Cost {
        self.with(other, f64::max)
    }

    /// What `of` makes of each figure and that of another; `None` where one is unknown.
    fn with(self, other: Cost, of: impl Fn(f64, f64) -> f64) -> Cost {
        let both = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| of(a, b));
        Cost {
            decode_ms: of(self.decode_ms, other.decode_ms),
            batch_ms: both(self.batch_ms, other.batch_ms),
            short_ms: both(self.short_ms, other.short_ms),
            prefill_ms: both(self.prefill_ms, other.prefill_ms),
            prompt_ms: both(self.prompt_ms, other.prompt_ms),
        }
    }

    /// Zero time.
    const ZERO: Cost = Cost {
        decode_ms: 0.0,
        batch_ms: Some(0.0),
        short_ms: Some(0.0),
        prefill_ms: Some(0.0),
        prompt_ms: Some(0.0),
    };
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
            short_ms: optional(known.short_ms, from.short_ms, to.short_ms),
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
            let optional = [cost.batch_ms, cost.short_ms, cost.prefill_ms, cost.prompt_ms];
            let all = optional.into_iter().chain([Some(cost.decode_ms)]);
            all.flatten().all(|ms| ms.is_finite() && ms >= 0.0)
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
}

/// Number of micro-batches of a prompt of [`PROMPT_TOKENS`] if devices share the work (the engine's rule).
const MICRO_BATCHES: f64 = 4.0;

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

impl fmt::Display for Predicted {
    /// One line per figure, with its basis.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let basis = match self.basis {
            Basis::Measured => "measured",
            Basis::Estimated => "estimated",
        };
        let per_second = 1e3 / self.decode_ms.max(f64::MIN_POSITIVE);
        writeln!(f, "decode   {:.2} ms a token, {per_second:.1} tok/s ({basis})", self.decode_ms)?;
        if let Some(ms) = self.prefill_ms_per_token {
            let per_second = 1e3 / ms.max(f64::MIN_POSITIVE);
            writeln!(f, "prefill  {ms:.3} ms a token, {per_second:.0} tok/s ({basis})")?;
        }
        let Groups { bound, sequences_min } = self.groups;
        if bound <= 1.0 {
            return Ok(());
        }
        write!(f, "overlap  up to {bound:.2} times as fast with two groups of sequences in turn")?;
        match sequences_min {
            Some(from) => writeln!(f, ", from {from} sequences on ({basis})"),
            None => writeln!(f, "; one batch is as fast ({basis})"),
        }
    }
}
