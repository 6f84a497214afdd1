//! Estimates the times of a model's parts on a device from its bandwidth, its compute and its link.

use std::collections::{BTreeSet, HashMap};

use bilayer_graph::fuse;
use bilayer_graph::{Facts, Graph, Op, Rows, Segment, Window};

use super::{
    BATCH_TOKENS, Basis, Cost, DeviceTimes, MICRO_BATCHES, ModelPart, PROMPT_TOKENS, Times, Upload,
    parts,
};
use crate::Machine;
use crate::memory::weight_bytes;

/// Bytes of an element of an activation, f32.
const ELEMENT_BYTES: f64 = size_of::<f32>() as f64;

/// What a part reads and computes.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// Bytes of weights read in a step of one token, of [`BATCH_TOKENS`], of a micro-batch of a prompt, and of a prompt.
    bytes: [f64; 4],
    /// Operations per row of a step, and per token of a prompt; attention is counted only there.
    row_ops: f64,
    prompt_ops: f64,
    /// Bytes of weights that only compute the rows asked for: once for a prompt.
    output_bytes: f64,
    kernels: f64,
}

impl Times {
    /// Estimates times by the longer of reading and computing: every weight is read once per step, experts only if
    /// used, and takes two operations per row. Kernels, submits and transfers add what the devices' links say. `None` if
    /// a device's bandwidth is unknown.
    pub fn estimated(graph: &Graph, machine: &Machine) -> Option<Times> {
        let devices = machine.devices.iter().map(|facts| device(graph, facts));
        Some(Times { basis: Basis::Estimated, devices: devices.collect::<Option<_>>()? })
    }
}

/// Times of the parts on a device; `None` if its bandwidth is unknown.
fn device(graph: &Graph, facts: &Facts) -> Option<DeviceTimes> {
    let (gbps, link) = (facts.read_gbps?, facts.link);
    let work = work(graph, facts);
    let of = |part: ModelPart| {
        let work = work.get(&part).copied().unwrap_or_default();
        let read = |bytes: f64| bytes / (gbps * 1e6);
        let computed = |ops: f64| facts.tops.map(|tops| ops / (tops * 1e9));
        let kernels = work.kernels * link.kernel_us / 1e3;
        let [one, batch, piece, prompt] = work.bytes;
        let batch_ops = work.row_ops * BATCH_TOKENS as f64;
        let prefill = |tokens: f64, bytes: f64| {
            let ms = computed(work.prompt_ops * tokens)?.max(read(bytes)) + kernels;
            Some(ms / tokens + read(work.output_bytes) / PROMPT_TOKENS as f64)
        };
        Cost {
            decode_ms: read(one).max(computed(work.row_ops).unwrap_or(0.0)) + kernels,
            batch_ms: Some(read(batch).max(computed(batch_ops).unwrap_or(0.0)) + kernels),
            prefill_ms: prefill(micro_batch(), piece),
            prompt_ms: prefill(PROMPT_TOKENS as f64, prompt),
        }
    };
    let hidden = graph.nodes.first().map_or(0, |node| graph.width(node.op.out()));
    // Results cross to the next device, or are the logits.
    let crossing =
        |width: usize, rows: f64| 1e3 * link.upload_seconds(ELEMENT_BYTES * width as f64 * rows);
    let fixed = (link.submit_us + link.wait_us) / 1e3;
    let logits = ELEMENT_BYTES * graph.width(graph.logits) as f64;
    let logits = Cost {
        decode_ms: 1e3 * link.download_seconds(logits),
        batch_ms: Some(1e3 * link.download_seconds(logits * BATCH_TOKENS as f64)),
        prefill_ms: Some(1e3 * link.download_seconds(logits) / PROMPT_TOKENS as f64),
        prompt_ms: Some(1e3 * link.download_seconds(logits) / PROMPT_TOKENS as f64),
    };
    Some(DeviceTimes {
        embedding: Cost::ZERO,
        layers: (0..graph.layers()).map(|layer| of(ModelPart::Layer(layer))).collect(),
        output: of(ModelPart::Output).plus(logits),
        segment: Cost {
            decode_ms: fixed + crossing(hidden, 1.0),
            batch_ms: Some(fixed + crossing(hidden, BATCH_TOKENS as f64)),
            prefill_ms: Some(fixed / micro_batch() + crossing(hidden, 1.0)),
            prompt_ms: Some(fixed / PROMPT_TOKENS as f64 + crossing(hidden, 1.0)),
        },
        upload: link.upload_gbps.map(|gbps| Upload { gbps, overlap: 1.0 }),
    })
}

/// Tokens of a micro-batch of a prompt of [`PROMPT_TOKENS`].
fn micro_batch() -> f64 {
    PROMPT_TOKENS as f64 / MICRO_BATCHES
}

/// The work of each part.
fn work(graph: &Graph, facts: &Facts) -> HashMap<ModelPart, Work> {
    let parts = parts(graph);
    let mut all: HashMap<ModelPart, Work> = HashMap::new();
    for (number, node) in graph.nodes.iter().enumerate() {
        let work = all.entry(parts[number]).or_default();
        let ids: BTreeSet<_> = node.op.matrices().iter().copied().collect();
        let bytes = weight_bytes(graph, &ids, facts) as f64;
        let weights = ids.iter().map(|&id| graph.weight(id));
        let weights: f64 = weights.map(|weight| weight.rows as f64 * weight.cols as f64).sum();
        let ops = 2.0 * weights * graph.share(number, 1);
        work.bytes[0] += bytes * graph.share(number, 1);
        work.bytes[1] += bytes * graph.share(number, BATCH_TOKENS);
        work.row_ops += ops;
        match graph.rows(node.op.out()) {
            Rows::Tokens => {
                work.bytes[2] += bytes * graph.share(number, micro_batch() as usize);
                work.bytes[3] += bytes * graph.share(number, PROMPT_TOKENS);
                work.prompt_ops += ops;
            }
            Rows::Outputs => work.output_bytes += bytes * graph.share(number, 1),
        }
        if let Op::Attend(attend) = &node.op {
            // A token of a prompt sees half of it on average, and each element takes two operations, with keys and with
            // values.
            let window = match attend.window {
                None => u32::MAX,
                Some(Window::Last(tokens)) => tokens,
                Some(Window::Chunk(tokens)) => tokens / 2,
            };
            let seen = window.min(PROMPT_TOKENS as u32 / 2);
            let dims = attend.heads * (attend.head_dim + attend.value_dim());
            work.prompt_ops += 2.0 * dims as f64 * f64::from(seen);
        }
    }
    let whole = Segment {
        graph,
        nodes: 0..graph.nodes.len(),
        inputs: Vec::new(),
        outputs: vec![graph.logits],
    };
    for item in fuse::joined(&whole) {
        all.entry(parts[item.nodes[0]]).or_default().kernels += 1.0;
    }
    all
}
