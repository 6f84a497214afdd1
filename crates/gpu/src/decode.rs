//! How products of few columns are computed: whether they emit the next product's input, and which of them read theirs
//! quantized, if results are right and a token is faster so. What was measured is kept with the machine.

use std::time::{Duration, Instant};

use bilayer_graph::{
    Activation, Backend, Catalog, Entry, Error as GraphError, Exactness, Graph, Holding, Limits,
    Recorder, Segment, SegmentId, SharedBytes, Span, Step, Value, Weight,
};
use bilayer_quant::Type;

use crate::backend::{Gpu, Opened};
use crate::caps::Few;
use crate::pipeline_cache::{Keep, name_of};

/// Changes whenever the kernels that are compared do.
const FORM: u32 = 2;

/// The model: feed-forward layers with distinct weights, so that caches do not hold them (165 MB), whose matrices are large enough
/// for inputs that are presumed to be quantized, or small enough for others.
const LAYERS: u32 = 5;
const WIDTH: usize = 2048;
const HIDDEN: usize = 8192;
const OUTPUTS: usize = 64;
const TOKENS: usize = 4;
const TYPE: Type = Type::Q4_K;

/// Bytes of weights from which a row's input is quantized: as is presumed, always, and never.
const QUANTIZED: [u64; 3] = [Few::PRESUMED.quantized_bytes, 0, u64::MAX];

/// The part of the time in which a token has to be computed with other inputs for these to be chosen.
const GAIN: f64 = 0.98;

/// Rounds in which both forms are timed in turn, and tokens of a round.
const ROUNDS: usize = 7;
const ROUND_TOKENS: u32 = 16;

/// The root mean square by which results of both forms may differ, as a part of theirs: both round activations to eight bits.
const BOUND: f64 = 0.02;

/// How products should be computed: measured, unless the keeper has it under the identity. Without memory for the measurement,
/// as is presumed.
///
/// # Errors
/// The device was lost.
pub fn choose(opened: &Opened, kept: Option<(&dyn Keep, &str)>) -> Result<Few, GraphError> {
    let name = |identity: &str| name_of("decode", FORM, identity);
    let found = kept.and_then(|(keeper, identity)| keeper.load(&name(identity)));
    if let Some(choice) = found.and_then(|text| read(&text)) {
        return Ok(choice);
    }
    let choice = match measure(opened) {
        Ok(choice) => choice,
        Err(GraphError::OutOfMemory { .. }) => return Ok(Few::PRESUMED),
        Err(_) => {
            opened.device().check()?;
            Few { emits: false, ..Few::PRESUMED }
        }
    };
    if let Some((keeper, identity)) = kept {
        keeper.store(&name(identity), written(choice).as_bytes());
    }
    Ok(choice)
}

/// The fastest choice: first by whether products emit, then by what they read.
fn measure(opened: &Opened) -> Result<Few, GraphError> {
    let caps = opened.device().caps();
    let mut best = Few { emits: false, ..Few::PRESUMED };
    if caps.few.emits {
        let emitting = Few { emits: true, ..best };
        let (plain, took) = compare(opened, [best, emitting])?;
        if took.is_some_and(|took| took < plain) {
            best = emitting;
        }
    }
    if caps.dot4 {
        for quantized_bytes in QUANTIZED {
            let other = Few { quantized_bytes, ..best };
            if other == best {
                continue;
            }
            let (before, took) = compare(opened, [best, other])?;
            if took.is_some_and(|took| took < before.mul_f64(GAIN)) {
                best = other;
            }
        }
    }
    Ok(best)
}

/// The least times of a token with both choices; `None` of the second where its results differ from the first's, or the driver
/// rejects its kernels.
///
/// # Errors
/// Out of memory, or the device was lost.
pub fn compare(
    opened: &Opened,
    choices: [Few; 2],
) -> Result<(Duration, Option<Duration>), GraphError> {
    let is_hardware = opened.device().is_hardware();
    let graph = Model.graph(if is_hardware { LAYERS } else { 1 });
    let [first, second] = choices.map(|choice| Form::new(&opened.clone().with(choice), &graph));
    let (mut first, mut second) = (first?, second?);
    // Not where the driver rejected them.
    let is_right = second.gpu.emits() == choices[1].emits
        && relative(&first.token(&graph)?, &second.token(&graph)?) < BOUND;
    let (rounds, tokens) = if is_hardware { (ROUNDS, ROUND_TOKENS) } else { (1, 1) };
    let mut least = [Duration::MAX; 2];
    for _ in 0..rounds {
        for (form, least) in [&mut first, &mut second].into_iter().zip(&mut least) {
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

/// A line of a choice.
fn written(Few { emits, quantized_bytes }: Few) -> String {
    format!("{} {quantized_bytes}", if emits { "emits" } else { "plain" })
}

/// What [`written`] made of one that can be chosen.
fn read(text: &[u8]) -> Option<Few> {
    let all = QUANTIZED
        .into_iter()
        .flat_map(|quantized_bytes| [true, false].map(|emits| Few { emits, quantized_bytes }));
    all.into_iter().find(|choice| written(*choice).as_bytes() == text)
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
