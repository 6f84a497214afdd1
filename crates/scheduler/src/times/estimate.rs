//! Estimates the times of a model's parts on a device from its bandwidth, its compute and its link.

use std::collections::HashMap;

use bilayer_graph::{Facts, Graph, Limits, Segment, Window};

use super::{
    BATCH_TOKENS, Basis, Cost, DeviceTimes, MICRO_BATCHES, ModelPart, PROMPT_TOKENS, SHORT_TOKENS,
    Times, Upload, parts,
};
use crate::Machine;
use crate::kernels::{AttentionWork, KernelWork, Speed, StepRows, kernels};

/// Bytes of an element of an activation, f32.
const ELEMENT_BYTES: f64 = size_of::<f32>() as f64;

impl Times {
    /// Estimates times by [what kernels read and compute](crate::KernelWork). Submits and transfers add what the devices' links
    /// say. Keys and values of earlier tokens are not counted in decode, and in a prompt only operations with them. `None` if
    /// a device's bandwidth is unknown.
    pub fn estimated(graph: &Graph, machine: &Machine) -> Option<Times> {
        let devices = machine.devices.iter().map(|facts| device(graph, facts));
        Some(Times { basis: Basis::Estimated, devices: devices.collect::<Option<_>>()? })
    }
}

/// Times of the parts on a device; `None` if its bandwidth is unknown.
fn device(graph: &Graph, facts: &Facts) -> Option<DeviceTimes> {
    facts.read_gbps?;
    let (speed, link) = (Speed::of(facts), facts.link);
    let kernels = by_part(graph, facts);
    let of = |part: ModelPart| {
        let kernels = kernels.get(&part).map_or(&[][..], Vec::as_slice);
        let ms = |tokens: usize, outputs: usize, seen: &dyn Fn(&AttentionWork) -> f64| {
            let attention = |work: &AttentionWork| (0.0, tokens as f64 * seen(work));
            let rows = StepRows { tokens, outputs };
            1e3 * kernels.iter().map(|kernel| kernel.seconds(rows, speed, &attention)).sum::<f64>()
        };
        let step = |tokens: usize| ms(tokens, tokens, &|_| 0.0);
        // One row of a prompt is asked for, that of its last micro-batch.
        let prefill = |tokens: usize| {
            facts.tops?;
            let [others, last] = [0, 1].map(|outputs| ms(tokens, outputs, &prompt_ops));
            Some(others / tokens as f64 + (last - others) / PROMPT_TOKENS as f64)
        };
        Cost {
            decode_ms: step(1),
            batch_ms: Some(step(BATCH_TOKENS)),
            short_ms: prefill(SHORT_TOKENS),
            prefill_ms: prefill(micro_batch()),
            prompt_ms: prefill(PROMPT_TOKENS),
        }
    };
    let hidden = graph.nodes.first().map_or(0, |node| graph.width(node.op.out()));
    // Results cross to the next device, or are the logits.
    let crossing =
        |width: usize, rows: f64| 1e3 * link.upload_seconds(ELEMENT_BYTES * width as f64 * rows);
    let fixed = (link.submit_us + link.wait_us) / 1e3;
    let logits_ms = 1e3 * link.download_seconds(ELEMENT_BYTES * graph.width(graph.logits) as f64);
    let of_prompt = Some(logits_ms / PROMPT_TOKENS as f64);
    let logits = Cost {
        decode_ms: logits_ms,
        batch_ms: Some(logits_ms * BATCH_TOKENS as f64),
        short_ms: of_prompt,
        prefill_ms: of_prompt,
        prompt_ms: of_prompt,
    };
    let segment = |tokens: usize| Some(fixed / tokens as f64 + crossing(hidden, 1.0));
    Some(DeviceTimes {
        embedding: Cost::ZERO,
        layers: (0..graph.layers()).map(|layer| of(ModelPart::Layer(layer))).collect(),
        output: of(ModelPart::Output).plus(logits),
        segment: Cost {
            decode_ms: fixed + crossing(hidden, 1.0),
            batch_ms: Some(fixed + crossing(hidden, BATCH_TOKENS as f64)),
            short_ms: segment(SHORT_TOKENS),
            prefill_ms: segment(micro_batch()),
            prompt_ms: segment(PROMPT_TOKENS),
        },
        upload: link.upload_gbps.map(|gbps| Upload { gbps, overlap: 1.0 }),
    })
}

/// Tokens of a micro-batch of a prompt of [`PROMPT_TOKENS`].
fn micro_batch() -> usize {
    PROMPT_TOKENS / MICRO_BATCHES as usize
}

/// The kernels of each part.
fn by_part(graph: &Graph, facts: &Facts) -> HashMap<ModelPart, Vec<KernelWork>> {
    let whole = Segment {
        graph,
        nodes: 0..graph.nodes.len(),
        inputs: Vec::new(),
        outputs: vec![graph.logits],
    };
    let parts = parts(graph);
    let mut all: HashMap<ModelPart, Vec<KernelWork>> = HashMap::new();
    for kernel in kernels(&whole, facts, &Limits::new(PROMPT_TOKENS, 1)) {
        all.entry(parts[kernel.nodes[0] as usize]).or_default().push(kernel);
    }
    all
}

/// Operations of attention for a token of a prompt, which sees half of it on average.
fn prompt_ops(work: &AttentionWork) -> f64 {
    let window = match work.op.window {
        None => u32::MAX,
        Some(Window::Last(tokens)) => tokens,
        Some(Window::Chunk(tokens)) => tokens / 2,
    };
    work.seen_ops() * f64::from(window.min(PROMPT_TOKENS as u32 / 2))
}
