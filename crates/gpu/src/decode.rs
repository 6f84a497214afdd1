//! Whether products of few columns emit the next product's input: if they are right, and a token is faster so. What was
//! measured is kept with the machine.

use std::time::{Duration, Instant};

use bilayer_graph::{
    Activation, Backend, Catalog, Entry, Error as GraphError, Exactness, Graph, Holding, Limits,
    Recorder, Segment, SegmentId, SharedBytes, Span, Step, Value, Weight,
};
use bilayer_quant::Type;

use crate::backend::{Gpu, Opened};
use crate::pipeline_cache::{Keep, name_of};

/// Changes whenever the kernels that are compared do.
const FORM: u32 = 1;

/// The model: feed-forward layers with distinct weights, so that caches do not hold them (165 MB), whose matrices are large enough
/// for inputs that are quantized.
const LAYERS: u32 = 5;
const WIDTH: usize = 2048;
const HIDDEN: usize = 8192;
const OUTPUTS: usize = 64;
const TOKENS: usize = 4;
const TYPE: Type = Type::Q4_K;

/// Rounds in which both forms are timed in turn, and tokens of a round.
const ROUNDS: usize = 7;
const ROUND_TOKENS: u32 = 16;

/// The root mean square by which results of both forms may differ, as a part of theirs: both round activations to eight bits.
const BOUND: f64 = 0.02;

/// Whether products should emit: measured, unless the keeper has it under the identity. Without memory for the measurement they
/// should.
///
/// # Errors
/// The device was lost.
pub fn choose(opened: &Opened, kept: Option<(&dyn Keep, &str)>) -> Result<bool, GraphError> {
    let name = |identity: &str| name_of("decode", FORM, identity);
    let found = kept.and_then(|(keeper, identity)| keeper.load(&name(identity)));
    match found.as_deref() {
        Some(b"emits") => return Ok(true),
        Some(b"plain") => return Ok(false),
        _ => {}
    }
    let emits = match measure(opened) {
        Ok((plain, emitting)) => emitting.is_some_and(|emitting| emitting < plain),
        Err(GraphError::OutOfMemory { .. }) => return Ok(true),
        Err(_) => {
            opened.device().check()?;
            false
        }
    };
    if let Some((keeper, identity)) = kept {
        keeper.store(&name(identity), if emits { b"emits" } else { b"plain" });
    }
    Ok(emits)
}

/// The least time of a token without and with products that emit; `None` of the latter where the results differ, or the driver
/// rejects them.
///
/// # Errors
/// Out of memory, or the device was lost.
pub fn measure(opened: &Opened) -> Result<(Duration, Option<Duration>), GraphError> {
    let is_hardware = opened.device().is_hardware();
    let graph = Model.graph(if is_hardware { LAYERS } else { 1 });
    let mut plain = Form::new(&opened.clone().without_emitting(), &graph)?;
    let mut emitting = Form::new(opened, &graph)?;
    // Not where the driver rejected them.
    let is_right =
        emitting.gpu.emits() && relative(&plain.token(&graph)?, &emitting.token(&graph)?) < BOUND;
    let (rounds, tokens) = if is_hardware { (ROUNDS, ROUND_TOKENS) } else { (1, 1) };
    let mut least = [Duration::MAX; 2];
    for _ in 0..rounds {
        for (form, least) in [&mut plain, &mut emitting].into_iter().zip(&mut least) {
            let began = Instant::now();
            for _ in 0..tokens {
                form.token(&graph)?;
            }
            *least = (*least).min(began.elapsed() / tokens);
        }
    }
    opened.device().check()?;
    Ok((least[0], is_right.then_some(least[1])))
}

/// The difference of results, as a part of the first; NaN if one is none.
fn relative(first: &[f32], second: &[f32]) -> f64 {
    let sum = |of: &dyn Fn(f32, f32) -> f32| -> f64 {
        first.iter().zip(second).map(|(&a, &b)| f64::from(of(a, b)).powi(2)).sum()
    };
    (sum(&|a, b| a - b) / sum(&|a, _| a)).sqrt()
}

/// Tensors of any name.
struct Model;

impl Catalog for Model {
    fn find(&self, _: &str) -> Option<Entry> {
        None
    }

    fn find_as(&self, name: &str, expected: &[u64]) -> Option<Entry> {
        let ty = if name == "table" || expected.len() == 1 { Type::F32 } else { TYPE };
        Some(Entry { ty, shape: expected.to_vec() })
    }
}

impl Model {
    fn graph(&self, layers: u32) -> Graph {
        let (mut r, known) = (Recorder::new(self), "every tensor is found");
        let table = r.matrix("table", TOKENS, WIDTH).expect(known);
        let mut x = r.embed("embed", table);
        for layer in 0..layers {
            r.layer(Some(layer));
            let gain = r.vector("gain", WIDTH).expect(known);
            let product = |r: &mut Recorder<'_>, name: &'static str, of: Value, rows, cols| {
                let weight = r.matrix(&format!("{layer}.{name}"), rows, cols).expect(known);
                r.matmul(name, of, weight, None)
            };
            let normed = r.rms_norm("norm", x, Some(gain), 1e-6);
            let mixed = product(&mut r, "mixed", normed, WIDTH, WIDTH);
            let mixed = r.gate("activated", mixed, None, Activation::Silu);
            let out = product(&mut r, "out", mixed, WIDTH, WIDTH);
            x = r.add("residual", x, out);
            let normed = r.rms_norm("norm", x, Some(gain), 1e-6);
            let gate = product(&mut r, "gate", normed, HIDDEN, WIDTH);
            let up = product(&mut r, "up", normed, HIDDEN, WIDTH);
            let gated = r.gate("gated", gate, Some(up), Activation::Silu);
            let down = product(&mut r, "down", gated, WIDTH, HIDDEN);
            x = r.add("residual", x, down);
        }
        r.layer(None);
        let head = r.matrix("head", OUTPUTS, WIDTH).expect(known);
        let logits = r.matmul("logits", x, head, None);
        r.finish(logits)
    }

    /// Numbers that do not repeat with the layout's strides.
    fn bytes(weight: &Weight) -> SharedBytes {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as u8
        };
        let count = weight.rows * weight.cols;
        if weight.ty == Type::F32 {
            let floats = (0..count).flat_map(|_| (f32::from(next()) / 128.0 - 0.99).to_le_bytes());
            return floats.collect::<Vec<u8>>().into();
        }
        let blocks = count / TYPE.block_weights;
        let mut bytes: Vec<u8> = (0..blocks * TYPE.block_bytes).map(|_| next()).collect();
        // Scale and minimum of a block: weights of both signs.
        for block in bytes.chunks_exact_mut(TYPE.block_bytes) {
            block[..4].copy_from_slice(&[0x00, 0x08, 0x00, 0x14]);
        }
        bytes.into()
    }
}

/// The model on a backend with one form of products.
struct Form {
    gpu: Gpu,
    segment: SegmentId,
}

impl Form {
    fn new(opened: &Opened, graph: &Graph) -> Result<Form, GraphError> {
        let mut gpu = opened.backend();
        let weights: Vec<&Weight> = graph.weights.iter().collect();
        gpu.reserve(&Holding { weights: &weights, ..Holding::default() })?;
        let mut made: Vec<([usize; 2], Type, SharedBytes)> = Vec::new();
        for weight in weights {
            let shape = [weight.rows, weight.cols];
            let known = made.iter().find(|(of, ty, _)| *of == shape && *ty == weight.ty);
            let bytes = known.map_or_else(|| Model::bytes(weight), |(.., bytes)| bytes.clone());
            made.push((shape, weight.ty, bytes.clone()));
            gpu.load(weight, bytes)?;
        }
        let (nodes, outputs) = (0..graph.nodes.len(), vec![graph.logits]);
        let segment = Segment { graph, nodes, inputs: Vec::new(), outputs };
        // Kernels of all numbers of columns, so that those which the driver rejects are known.
        let segment = gpu.compile(&segment, Limits::new(2, 1))?;
        Ok(Form { gpu, segment })
    }

    /// Computes a token.
    fn token(&mut self, graph: &Graph) -> Result<Vec<f32>, GraphError> {
        let span = Span { first_row: 0, rows: 1, first_position: 0, first_page: 0 };
        let step = Step {
            tokens: &[1],
            spans: &[span],
            pages: &[0],
            outputs: &[0],
            states: &[],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        self.gpu.submit(self.segment, &step)?;
        let mut logits = vec![0.0; OUTPUTS];
        self.gpu.read(graph.logits, &mut logits)?;
        Ok(logits)
    }
}
