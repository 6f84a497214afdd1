//! CPU and GPU kernels compute what the reference computes: op x type x shape x instruction level.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use bilayer_cpu::dot::dot;
use bilayer_cpu::level::Level;
use bilayer_cpu::numa::Numa;
use bilayer_cpu::{Cpu, Options};
use bilayer_gpu::Opened;
use bilayer_gpu::caps::Input;
use bilayer_gpu::kernels::weights::Numbers;
use bilayer_graph::reference::Reference;
use bilayer_graph::{
    Activation, Attend, Backend, Buckets, Catalog, Columns, DistanceBias, Entry, Error, Exactness,
    Experts, Graph, Groups, Holding, Limits, NO_EXPERT, OpKind, PAGE_TOKENS, PageCopy, Pairs,
    Precision, Recorder, Rope, Route, Scan, Score, Segment, SegmentId, SharedBytes, Span, StateId,
    StateSpan, Step, Temperature, Update, Value, Values, Weight, WeightId, Window,
};
use bilayer_quant::Type;
use bilayer_quant::cache::TYPES;

mod support {
    pub mod gpu;
}

use support::gpu::required::{has_time, skip_matrices};

/// Root of the mean squared difference over the root mean square of the reference.
///
/// All in f32: only the order of sums differs.
const FLOAT_BOUND: f64 = 2e-5;
/// Bound on [`error`] of attention over 4 and 5 bits: some codes differ by one where the quotient is near a half.
const CODES_BOUND: f64 = 2e-3;
/// Activations rounded to 8 bits: with a scale every 256, a step of about 3 sigma / 127 makes 0.8 %.
const INT8_BOUND: f64 = 0.012;
/// Activations within 1/256 of themselves, most of them nearer (1.2e-3 expected of bf16, 4e-3 of 8 bits).
const FINE_BOUND: f64 = 2.5e-3;
/// Weights and activations rounded to halves: each is within 2^-11 of itself, 2.8e-4 in the root mean square.
const HALF_BOUND: f64 = 6e-4;
/// A whole small model: the rounding errors of two layers add up.
const MODEL_BOUND: f64 = 0.04;

/// A GPU may fuse a multiplication and an addition, and so round once instead of twice.
const GPU_BOUND: f64 = 2e-6;

/// Rows of every embedding table.
const VOCAB: usize = 97;

// ---- A model of random weights ------------------------------------------------------------------

/// A catalog with any tensor asked for, of the type in its list.
#[derive(Default)]
struct Tensors(HashMap<String, Entry>);

impl Catalog for Tensors {
    fn find(&self, name: &str) -> Option<Entry> {
        self.0.get(name).cloned()
    }
}

impl Tensors {
    fn with(mut self, name: &str, ty: Type, shape: &[usize]) -> Tensors {
        let shape = shape.iter().map(|&d| d as u64).collect();
        self.0.insert(name.to_owned(), Entry { ty, shape });
        self
    }
}

/// Pseudo-random numbers (Steele, Lea and Flood 2014: SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// About normal with variance 1: a sum of twelve uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
    }
}

/// A table of routes: weights, and experts of which most slots have none.
const ROUTES: &str = "table of routes";
/// Experts in a route of [`ROUTES`].
const RESIDENTS: usize = 3;

/// Rows of a random matrix that differ.
const DISTINCT_ROWS: usize = 61;

/// Random weights of a graph. Many tests, and each backend in them, have the same ones, which are made once: quantizing
/// is slow.
fn weights(graph: &Graph) -> HashMap<WeightId, SharedBytes> {
    type Made = HashMap<(String, Type, [usize; 3]), SharedBytes>;
    static MADE: LazyLock<Mutex<Made>> = LazyLock::new(Mutex::default);
    let bytes = graph.weights.iter().map(|weight| {
        let key = (weight.name.clone(), weight.ty, [weight.rows, weight.cols, weight.stacked]);
        let found = MADE.lock().unwrap().get(&key).cloned();
        let bytes = found.unwrap_or_else(|| {
            let made = random_weight(weight);
            MADE.lock().unwrap().entry(key).or_insert(made).clone()
        });
        (weight.id, bytes)
    });
    bytes.collect()
}

fn random_weight(weight: &Weight) -> SharedBytes {
    let seed = weight.name.bytes().fold(7, |h: u64, b| h.wrapping_mul(31).wrapping_add(b.into()));
    let mut random = Random(seed);
    let spread = if weight.is_vector() { 0.3 } else { 1.0 / (weight.cols as f32).sqrt() };
    let centre = if weight.is_vector() { 1.0 } else { 0.0 };
    let spread = if weight.name.starts_with("table") { 1.0 } else { spread };
    // A state decays.
    let centre = if weight.name == "decay" { -1.0 } else { centre };
    // Beyond so many, rows are repeated in no order.
    let distinct = weight.rows.min(DISTINCT_ROWS);
    let mut values: Vec<f32> =
        (0..distinct * weight.cols).map(|_| centre + spread * random.normal()).collect();
    if weight.name == ROUTES {
        for row in values.chunks_exact_mut(weight.cols) {
            let (_, experts) = row.split_at_mut(weight.cols / 2);
            experts.fill(NO_EXPERT);
            for expert in 0..RESIDENTS {
                experts[random.below(experts.len())] = expert as f32;
            }
        }
    }
    let row_bytes = weight.bytes() / weight.rows;
    let mut bytes = vec![0; distinct * row_bytes];
    weight.ty.quantize(&values, None, &mut bytes).unwrap();
    for _ in distinct..weight.rows {
        let from = random.below(distinct) * row_bytes;
        bytes.extend_from_within(from..from + row_bytes);
    }
    SharedBytes::from(bytes)
}

// ---- Steps --------------------------------------------------------------------------------------

/// A step that owns its data.
#[derive(Clone, Default)]
struct Owned {
    tokens: Vec<u32>,
    spans: Vec<Span>,
    pages: Vec<u32>,
    outputs: Vec<u32>,
    states: Vec<StateSpan>,
    copies: Vec<PageCopy>,
    /// Largest elements that are searched for; all that the op has room for if `None`.
    top_k: Option<usize>,
}

impl Owned {
    fn step(&self) -> Step<'_> {
        Step {
            tokens: &self.tokens,
            spans: &self.spans,
            pages: &self.pages,
            outputs: &self.outputs,
            states: &self.states,
            copies: &self.copies,
            top_k: self.top_k.unwrap_or(usize::MAX),
            exactness: Exactness::Fastest,
        }
    }

    /// A step of sequences `(rows, first position, page table)`; the last row of each is an output.
    fn of(seed: u64, runs: &[(u32, u32, &[u32])]) -> Owned {
        let mut random = Random(seed);
        let mut owned = Owned::default();
        for &(rows, first_position, pages) in runs {
            let first_row = owned.tokens.len() as u32;
            let first_page = owned.pages.len() as u32;
            owned.tokens.extend((0..rows).map(|_| random.below(VOCAB) as u32));
            owned.spans.push(Span { first_row, rows, first_position, first_page });
            // The sequence's first page gives its state a slot.
            let from = (first_position > 0).then_some(pages[0]);
            owned.states.push(StateSpan { first_row, rows, from, to: pages[0] });
            owned.pages.extend(pages);
            owned.outputs.push(first_row + rows - 1);
        }
        owned
    }

    /// One sequence from its start.
    fn tokens(count: usize) -> Owned {
        let pages: Vec<u32> = (0..count.div_ceil(PAGE_TOKENS) as u32).rev().collect();
        Owned::of(count as u64, &[(count as u32, 0, &pages)])
    }
}

fn limits() -> Limits {
    Limits { outputs: 8, sequences: 8, page_entries: 400, states: 128, ..Limits::new(80, 128) }
}

// ---- Running ------------------------------------------------------------------------------------

fn cpu(level: Level, threads: usize) -> Cpu {
    Cpu::new(Options { threads: Some(threads), level: Some(level), ..Default::default() }).unwrap()
}

fn whole(graph: &Graph) -> Segment<'_> {
    Segment { graph, nodes: 0..graph.nodes.len(), inputs: Vec::new(), outputs: vec![graph.logits] }
}

/// Weights are reserved before they are loaded, as sessions do, so that neighbours are multiplied together.
fn prepare(backend: &mut dyn Backend, graph: &Graph, limits: Limits) -> SegmentId {
    let used: Vec<&Weight> =
        graph.nodes.iter().flat_map(|node| node.op.weights()).map(|id| graph.weight(id)).collect();
    backend.reserve(&Holding { weights: &used, ..Holding::default() }).unwrap();
    for (id, bytes) in weights(graph) {
        backend.load(graph.weight(id), bytes).unwrap();
    }
    backend.compile(&whole(graph), limits).unwrap()
}

fn run(backend: &mut dyn Backend, segment: SegmentId, graph: &Graph, step: &Owned) -> Vec<f32> {
    let rows = match graph.rows(graph.logits) {
        bilayer_graph::Rows::Tokens => step.tokens.len(),
        bilayer_graph::Rows::Outputs => step.outputs.len(),
    };
    let mut out = vec![f32::NAN; rows * graph.width(graph.logits)];
    backend.submit(segment, &step.step()).unwrap();
    backend.read(graph.logits, &mut out).unwrap();
    out
}

/// The results of all steps on one backend, one after another.
fn run_all(backend: &mut dyn Backend, graph: &Graph, limits: Limits, steps: &[Owned]) -> Vec<f32> {
    let segment = prepare(backend, graph, limits);
    steps.iter().flat_map(|step| run(backend, segment, graph, step)).collect()
}

fn error(expected: &[f32], found: &[f32]) -> f64 {
    assert_eq!(expected.len(), found.len());
    let square = |x: f32| f64::from(x).powi(2);
    let difference: f64 = expected.iter().zip(found).map(|(a, b)| square(a - b)).sum();
    let size: f64 = expected.iter().map(|&a| square(a)).sum();
    if difference.is_nan() { f64::INFINITY } else { (difference / size).sqrt() }
}

/// Fails with a line for each level, and for the GPU, whose error exceeds the bound.
fn compare(name: &str, graph: &Graph, limits: Limits, steps: &[Owned], bound: f64) {
    compare_on(1, name, graph, limits, steps, bound);
}

/// As [`compare`], without a GPU, whose kernels take long to compile.
fn compare_on_cpu(name: &str, graph: &Graph, limits: Limits, steps: &[Owned], bound: f64) {
    compare_on(0, name, graph, limits, steps, bound);
}

/// As [`compare`], with every variant of the GPU's kernels. Compiling a kernel takes a software driver up to a second, so
/// this is for the cases in which variants differ most.
fn compare_variants(name: &str, graph: &Graph, limits: Limits, steps: &[Owned], bound: f64) {
    compare_on(usize::MAX, name, graph, limits, steps, bound);
}

fn compare_on(
    variants: usize,
    name: &str,
    graph: &Graph,
    limits: Limits,
    steps: &[Owned],
    bound: f64,
) {
    let expected = run_all(&mut Reference::new(), graph, limits, steps);
    let mut failures = Vec::new();
    for level in Level::available() {
        let found = run_all(&mut cpu(level, 2), graph, limits, steps);
        let error = error(&expected, &found);
        if error.is_nan() || error > bound {
            failures.push(format!("{name} at {level}: {error:.2e} > {bound:.0e}"));
        }
    }
    for (variant, device) in support::gpu::opened().take(variants) {
        let mut gpu = device.backend();
        if graph.nodes.iter().any(|node| !gpu.facts().ops.contains(&node.op.kind())) {
            continue;
        }
        let error = error(&expected, &run_all(&mut gpu, graph, limits, steps));
        let is_half = gpu.device().caps().tile.input == Input::Halves;
        let bound = bound.max(if is_half { HALF_BOUND } else { GPU_BOUND });
        if error.is_nan() || error > bound {
            failures.push(format!("{name} on {variant}: {error:.2e} > {bound:.0e}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn record(tensors: &Tensors, body: impl FnOnce(&mut Recorder<'_>) -> Value) -> Graph {
    let mut recorder = Recorder::new(tensors);
    recorder.layer(Some(0));
    let out = body(&mut recorder);
    recorder.finish(out)
}

/// A graph over one or two random values of a width.
fn over(
    width: usize,
    tensors: Tensors,
    body: impl FnOnce(&mut Recorder<'_>, Value, Value) -> Value,
) -> Graph {
    let tensors = tensors.with("table a", Type::F32, &[VOCAB, width]).with(
        "table b",
        Type::F32,
        &[VOCAB, width],
    );
    record(&tensors, |r| {
        let a = r.matrix("table a", VOCAB, width).unwrap();
        let b = r.matrix("table b", VOCAB, width).unwrap();
        let (a, b) = (r.embed("a", a), r.embed("b", b));
        body(r, a, b)
    })
}

// ---- Ops ----------------------------------------------------------------------------------------

/// A small graph with an op. The match has every kind, so that a new op does not compile without its row here.
fn smallest(kind: OpKind) -> Graph {
    const WIDTH: usize = 64;
    let tensors = || {
        let matrix = Tensors::default().with("w", Type::F32, &[32, WIDTH]);
        matrix.with("g", Type::F32, &[WIDTH]).with("b", Type::F32, &[WIDTH])
    };
    let elementwise =
        |body: fn(&mut Recorder<'_>, Value, Value) -> Value| over(WIDTH, Tensors::default(), body);
    match kind {
        OpKind::Embed => elementwise(|_, a, _| a),
        OpKind::RmsNorm => over(WIDTH, tensors(), |r, a, _| {
            let gain = r.vector("g", WIDTH).unwrap();
            r.rms_norm("x", a, Some(gain), 1e-5)
        }),
        OpKind::LayerNorm => over(WIDTH, tensors(), |r, a, _| {
            let (gain, bias) = (r.vector("g", WIDTH).unwrap(), r.vector("b", WIDTH).unwrap());
            r.layer_norm("x", a, gain, Some(bias), 1e-5)
        }),
        OpKind::HeadNorm => over(2 * WIDTH, tensors(), |r, a, _| {
            let gain = r.vector("g", WIDTH).unwrap();
            r.head_norm("x", a, gain, 1e-6)
        }),
        OpKind::MatMul => over(WIDTH, tensors(), |r, a, _| {
            let weight = r.matrix("w", 32, WIDTH).unwrap();
            r.matmul("x", a, weight, None)
        }),
        OpKind::Rope => elementwise(|r, a, _| r.rope("x", a, 32, &rope(32, Pairs::Halves, None))),
        OpKind::Attend => attention(HEADS),
        OpKind::Conv => convolution(WIDTH, 3, None),
        OpKind::Scan => recurrence([4, 2, 1], [8, 16], Rule::Sum),
        OpKind::Gate => elementwise(|r, a, b| r.gate("x", a, Some(b), Activation::Silu)),
        OpKind::Add => elementwise(|r, a, b| r.add("x", a, b)),
        OpKind::Scale => elementwise(|r, a, _| r.scale("x", a, 3.0)),
        OpKind::SoftCap => elementwise(|r, a, _| r.soft_cap("x", a, 1.3)),
        OpKind::Part => elementwise(|r, a, _| r.part("x", a, 32, 5..12)),
        OpKind::Join => elementwise(|r, a, b| r.join("x", a, b, [8, 8])),
        OpKind::Rows => elementwise(|r, a, _| r.rows_wanted("x", a)),
        OpKind::Pool => elementwise(|r, a, _| r.pool("x", a)),
        OpKind::TopK => {
            let mut graph = elementwise(|r, a, b| r.add("x", a, b));
            graph.logits = graph.top_k(5);
            graph
        }
        OpKind::Route => elementwise(|r, a, _| r.route("x", Route { logits: a, ..TWO })),
        OpKind::Experts | OpKind::Mix => STORED.graph(),
        OpKind::RouteAll => by_heads(Type::F32, [4, 8, 16]),
    }
}

/// A convolution over time, with the bias of this name or none.
fn convolution(width: usize, taps: usize, bias: Option<&str>) -> Graph {
    let tensors =
        Tensors::default().with("taps", Type::F32, &[width, taps]).with("b", Type::F32, &[width]);
    over(width, tensors, |r, a, _| {
        let weight = r.stack_vector("taps", [width, taps]).unwrap();
        let bias = bias.map(|name| r.vector(name, width).unwrap());
        r.conv("x", a, weight, bias)
    })
}

#[test]
fn convolution_over_time() {
    for (width, taps) in [(8, 2), (96, 3), (257, 4), (2048, 3), (64, 7)] {
        let graph = convolution(width, taps, (width != 96).then_some("b"));
        // Two sequences, one of which goes on; then both.
        let steps = [
            Owned::of(1, &[(1, 0, &[3])]),
            Owned::of(2, &[(33, 0, &[5, 6]), (2, 1, &[3])]),
            Owned::of(3, &[(1, 3, &[3]), (1, 33, &[5, 6]), (40, 0, &[1, 2])]),
            Owned::of(4, &[(2, 40, &[1, 2]), (3, 4, &[3])]),
        ];
        compare(&format!("conv {taps} of {width}"), &graph, limits(), &steps, FLOAT_BOUND);
    }
}

/// How a recurrence changes its state.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Sum,
    Delta,
}

/// A recurrence of so many heads, groups, and neighbours in a group, with states `[head_dim, state_dim]`.
fn recurrence(
    [heads, groups, neighbours]: [usize; 3],
    [head_dim, state_dim]: [usize; 2],
    rule: Rule,
) -> Graph {
    let (inner, of_groups) = (heads * head_dim, groups * state_dim);
    let width = inner + 2 * of_groups + 2 * heads;
    let of_heads = |tensors: Tensors, name| tensors.with(name, Type::F32, &[heads]);
    let tensors = ["bias", "decay", "skip"].into_iter().fold(Tensors::default(), of_heads);
    over(width, tensors, |r, a, _| {
        let columns = |first| Columns { value: a, first };
        let [dt, beta] = [2, 1].map(|i| {
            let first = width - i * heads;
            r.part("rate", a, width, first..first + heads)
        });
        let [bias, decay, skip] =
            ["bias", "decay", "skip"].map(|name| r.vector(name, heads).unwrap());
        let scan = Scan {
            x: columns(0),
            b: columns(inner),
            c: columns(inner + of_groups),
            b_factor: 0.5 / (state_dim as f32).sqrt(),
            c_factor: 2.0,
            dt,
            bias,
            decay,
            update: match rule {
                Rule::Sum => Update::Sum { skip },
                Rule::Delta => Update::Delta { beta },
            },
            heads,
            groups,
            neighbours,
            head_dim,
            state_dim,
            state: StateId(0), // replaced by the recorder, like the next
            out: a,
        };
        r.scan("x", scan)
    })
}

/// Sizes that fill vectors, and odd ones; several sequences that go on from one step to the next.
#[test]
fn recurrences_over_time() {
    let cases = [([4, 2, 2], [8, 16]), ([3, 1, 3], [5, 7]), ([6, 3, 1], [40, 130])];
    for (heads, dims) in cases {
        for rule in [Rule::Sum, Rule::Delta] {
            let graph = recurrence(heads, dims, rule);
            let steps = [
                Owned::of(1, &[(1, 0, &[3])]),
                Owned::of(2, &[(33, 0, &[5, 6]), (2, 1, &[3])]),
                Owned::of(3, &[(1, 3, &[3]), (1, 33, &[5, 6]), (30, 0, &[1, 2])]),
            ];
            let name = format!("scan {heads:?} {dims:?}, {rule:?}");
            compare(&name, &graph, limits(), &steps, FLOAT_BOUND);
        }
    }
}

/// Every op is in the table of the CPU and in the reference, and is compared.
#[test]
fn every_op_is_run_and_compared() {
    let cpu = cpu(Level::detect(), 1);
    for kind in OpKind::ALL {
        assert!(cpu.facts().ops.contains(&kind), "the CPU's table of ops lacks {kind:?}");
        assert!(Reference::new().facts().ops.contains(&kind), "the reference lacks {kind:?}");
        let graph = smallest(kind);
        assert!(graph.nodes.iter().any(|node| node.op.kind() == kind), "{kind:?} is not recorded");
        compare(kind.stem(), &graph, limits(), &[1, 7].map(Owned::tokens), FLOAT_BOUND);
    }
}

#[test]
fn elementwise_ops_and_norms() {
    for width in [8, 24, 96, 257, 2048] {
        let graphs = [
            ("add", over(width, Tensors::default(), |r, a, b| r.add("x", a, b))),
            ("scale", over(width, Tensors::default(), |r, a, _| r.scale("x", a, -2.5))),
            ("soft_cap", over(width, Tensors::default(), |r, a, _| r.soft_cap("x", a, 1.3))),
            (
                "clamped swiglu",
                over(width, Tensors::default(), |r, a, b| {
                    // Values beyond the clamp on both sides.
                    let (a, b) = (r.scale("a", a, 9.0), r.scale("b", b, 9.0));
                    r.gate("x", a, Some(b), Activation::ClampedSwiglu)
                }),
            ),
            (
                "clamped swiglu alone",
                over(width, Tensors::default(), |r, a, _| {
                    let a = r.scale("a", a, 9.0);
                    r.gate("x", a, None, Activation::ClampedSwiglu)
                }),
            ),
            ("pool", over(width, Tensors::default(), |r, a, _| r.pool("x", a))),
            ("rms_norm", over(width, Tensors::default(), |r, a, _| r.rms_norm("x", a, None, 1e-5))),
            ("rows", over(width, Tensors::default(), |r, a, _| r.rows_wanted("x", a))),
        ];
        let mut gates = Activation::ALL.to_vec();
        gates.retain(|activation| *activation != Activation::ClampedSwiglu);
        let gates = gates.iter().flat_map(|&activation| {
            let gated =
                over(width, Tensors::default(), |r, a, b| r.gate("x", a, Some(b), activation));
            let alone = over(width, Tensors::default(), |r, a, _| r.gate("x", a, None, activation));
            [("gate", gated), ("activation alone", alone)]
        });
        for (name, graph) in graphs.into_iter().chain(gates) {
            compare(name, &graph, limits(), &[Owned::tokens(1), Owned::tokens(13)], FLOAT_BOUND);
        }
        for ty in [Type::F32, Type::F16, Type::BF16] {
            let tensors = || Tensors::default().with("g", ty, &[width]).with("b", ty, &[width]);
            let rms = over(width, tensors(), |r, a, _| {
                let gain = r.vector("g", width).unwrap();
                r.rms_norm("x", a, Some(gain), 1e-5)
            });
            let layer = over(width, tensors(), |r, a, _| {
                let gain = r.vector("g", width).unwrap();
                let bias = r.vector("b", width).unwrap();
                r.layer_norm("x", a, gain, Some(bias), 1e-5)
            });
            for graph in [rms, layer] {
                compare("norm", &graph, limits(), &[Owned::tokens(5)], FLOAT_BOUND);
            }
        }
    }
}

/// Widths below, at and above the block that is searched at once; ties.
#[test]
fn the_best_of_each_row() {
    for (width, k) in [(8, 8), (64, 1), (257, 40), (2048, 64)] {
        for tying in [false, k > 1] {
            let mut graph = over(width, Tensors::default(), |r, a, b| {
                // All ties, as zeros of either sign.
                if tying { r.scale("x", a, 0.0) } else { r.add("x", a, b) }
            });
            graph.logits = graph.top_k(k);
            let name = format!("top {k} of {width}");
            // As many as there is room for, and fewer.
            let fewer = [Some(1), Some(k.div_ceil(3))].into_iter().filter(|_| !tying);
            for top_k in std::iter::once(None).chain(fewer) {
                let step = |count| Owned { top_k, ..Owned::tokens(count) };
                compare(&name, &graph, limits(), &[step(1), step(13)], 0.0);
            }
        }
    }
}

#[test]
fn embeddings_of_every_type() {
    for &ty in bilayer_quant::all().iter().filter(|ty| ty.quantize.is_some()) {
        let tensors = Tensors::default().with("table", ty, &[VOCAB, 512]);
        let graph = record(&tensors, |r| {
            let table = r.matrix("table", VOCAB, 512).unwrap();
            r.embed("x", table)
        });
        let steps = [Owned::tokens(1), Owned::tokens(40)];
        compare_on_cpu(ty.name, &graph, limits(), &steps, 0.0);
        // Types without a shader are stored as half-precision floats.
        let gpu = support::gpu::gpu();
        let is_half = gpu.is_some_and(|gpu| gpu.facts().converted.contains(&(ty, Type::F16)));
        compare(ty.name, &graph, limits(), &steps, if is_half { 2.5e-4 } else { 0.0 });
    }
}

#[test]
fn embeddings_of_positions() {
    for ty in [Type::F32, Type::F16, Type::Q8_0] {
        let tensors = Tensors::default().with("table", ty, &[VOCAB, 64]);
        let graph = record(&tensors, |r| {
            let table = r.matrix("table", VOCAB, 64).unwrap();
            let (tokens, places) = (r.embed("a", table), r.embed_positions("b", table));
            r.add("x", tokens, places)
        });
        // Two sequences, one up to the table's last row.
        let pages = [3, 1, 2, 0];
        let both = Owned::of(5, &[(9, 30, &pages), (40, VOCAB as u32 - 40, &pages)]);
        compare(ty.name, &graph, limits(), &[Owned::tokens(1), both], 0.0);
    }
}

/// The mean of a span up to each output row, independent of other spans.
#[test]
fn rows_are_pooled_span_by_span() {
    let graph = over(96, Tensors::default(), |r, a, b| {
        let sum = r.add("sum", a, b);
        r.pool("x", sum)
    });
    let (one, two, three) = ([3, 1], [2], [0, 5]);
    let spans = [(40u32, 0, &one[..]), (1, 0, &two), (33, 0, &three)];
    let last = Owned { outputs: vec![39, 40, 73], ..Owned::of(5, &spans) };
    let some = Owned { outputs: vec![0, 20, 72], ..Owned::of(6, &spans) };
    compare("pool", &graph, limits(), &[last, some], FLOAT_BOUND);
}

/// Rows of a table by the number of texts that end before the token, at most the last row.
#[test]
fn embeddings_of_places_among_texts() {
    for ty in [Type::F32, Type::F16] {
        let tensors = Tensors::default().with("table", ty, &[2, 64]);
        let graph = record(&tensors, |r| {
            let table = r.matrix("table", 2, 64).unwrap();
            r.embed_segments("x", table, 7)
        });
        let pages = [3, 1];
        let tokens = vec![1, 7, 2, 7, 7, 1, 1, 2, 7, 7, 3];
        let step = Owned { tokens, ..Owned::of(5, &[(6, 0, &pages), (5, 0, &pages)]) };
        compare(ty.name, &graph, limits(), &[step], 0.0);
    }
}

#[test]
fn positions_past_their_table_are_refused() {
    let tensors = Tensors::default().with("table", Type::F32, &[VOCAB, 64]);
    let graph = record(&tensors, |r| {
        let table = r.matrix("table", VOCAB, 64).unwrap();
        r.embed_positions("x", table)
    });
    let pages = [0, 1, 2, 3];
    let past = Owned::of(5, &[(2, VOCAB as u32 - 1, &pages)]);
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(cpu(Level::Scalar, 1))];
    backends.extend(support::gpu::gpu().map(|gpu| Box::new(gpu) as Box<dyn Backend>));
    for mut backend in backends {
        let segment = prepare(backend.as_mut(), &graph, limits());
        let refused = backend.submit(segment, &past.step());
        assert!(matches!(refused, Err(Error::Limit { .. })), "{}", backend.facts().name);
    }
}

#[test]
fn parts_and_learned_factors() {
    for (stride, range) in [(24, 0..8), (24, 16..24), (96, 1..95), (5, 3..4), (480, 0..480)] {
        let graph = over(480, Tensors::default(), |r, a, _| r.part("x", a, stride, range.clone()));
        compare("part", &graph, limits(), &[1, 13].map(Owned::tokens), FLOAT_BOUND);
    }
    let tensors = Tensors::default().with("s", Type::F32, &[1]);
    let graph = over(96, tensors, |r, a, _| {
        let by = r.vector("s", 1).unwrap();
        r.scale_by("x", a, by)
    });
    compare("scale by a weight", &graph, limits(), &[Owned::tokens(5)], FLOAT_BOUND);
}

#[test]
fn temperatures_follow_the_position() {
    for width in [24, 257, 2048] {
        for temperature in [
            Temperature { scale: 0.1, length: 8192, offset: 1 },
            Temperature { scale: 0.5, length: 7, offset: 0 },
        ] {
            let graph = over(width, Tensors::default(), |r, a, _| r.temper("x", a, temperature));
            let pages = vec![0; 3200];
            let far = Owned::of(3, &[(7, 98_300, &pages), (5, 6, &pages)]);
            let limits = Limits { page_entries: 6400, ..limits() };
            compare("temper", &graph, limits, &[Owned::tokens(40), far], FLOAT_BOUND);
        }
    }
}

#[test]
fn head_norms_and_rotations() {
    for (heads, head_dim, dims) in [(4, 64, 64), (3, 80, 80), (2, 128, 32), (5, 8, 8)] {
        let width = heads * head_dim;
        let tensors = || {
            let gains = Tensors::default().with("g", Type::F32, &[head_dim]);
            gains.with("each", Type::F32, &[heads, head_dim]).with("f", Type::F32, &[dims / 2])
        };
        let norm = over(width, tensors(), |r, a, _| {
            let gain = r.vector("g", head_dim).unwrap();
            r.head_norm("x", a, gain, 1e-6)
        });
        compare("head_norm", &norm, limits(), &[Owned::tokens(9)], FLOAT_BOUND);
        let unit = over(width, tensors(), |r, a, _| r.head_unit("x", a, head_dim, 1e-6));
        compare("head_norm without a gain", &unit, limits(), &[Owned::tokens(9)], FLOAT_BOUND);
        let centered = over(width, tensors(), |r, a, _| {
            let gain = r.stack_vector("each", [heads, head_dim]).unwrap();
            r.head_layer_norm("x", a, (gain, head_dim), 1e-6)
        });
        compare("layer norm of heads", &centered, limits(), &[Owned::tokens(9)], FLOAT_BOUND);
        for pairs in [Pairs::Interleaved, Pairs::Halves] {
            for factored in [false, true] {
                let graph = over(width, tensors(), |r, a, _| {
                    let factors = factored.then(|| r.vector("f", dims / 2).unwrap());
                    let rope = rope(dims, pairs, factors);
                    r.rope("x", a, head_dim, &rope)
                });
                // The last step is at a high position: f32 angles would be off by 0.004.
                let pages = vec![0; 3200];
                let far = Owned::of(3, &[(7, 100_000, &pages)]);
                let limits = Limits { page_entries: 3200, ..limits() };
                let steps = [Owned::tokens(1), Owned::tokens(40), far];
                compare("rope", &graph, limits, &steps, FLOAT_BOUND);
            }
        }
    }
}

fn rope(dims: usize, pairs: Pairs, factors: Option<WeightId>) -> Rope {
    let frequency = |i: usize| 10_000f32.powf(-2.0 * i as f32 / dims as f32);
    let frequencies = (0..dims / 2).map(frequency).collect();
    Rope { pairs, frequencies, magnitude: 1.1, factors }
}

/// Bound on [`error`] of a product with weights of a type. Many activations are rounded to bf16 where the CPU multiplies
/// those, for weights in BF16.
fn product_bound(ty: Type) -> f64 {
    match ty.block_weights {
        1 if ty == Type::BF16 => FINE_BOUND,
        1 => FLOAT_BOUND,
        _ => INT8_BOUND,
    }
}

/// Types of which each family of loaders has one: what differs between shapes and variants of kernels is the same for all
/// types of a family.
const FAMILIES: [Type; 7] =
    [Type::F32, Type::BF16, Type::Q4_0, Type::Q8_0, Type::Q4_K, Type::Q6_K, Type::MXFP4];

/// On the CPU every type in every shape; on the GPU, whose software driver compiles each kernel in up to a second, every
/// type in the last shape, and all shapes for one type of each family.
#[test]
fn products_of_every_type() {
    for &ty in bilayer_quant::all().iter().filter(|ty| ty.quantize.is_some()) {
        let bound = product_bound(ty);
        for (rows, cols, biased) in [(1, 256, false), (100, 512, true), (515, 768, false)] {
            let tensors =
                Tensors::default().with("w", ty, &[rows, cols]).with("b", Type::F32, &[rows]);
            let graph = over(cols, tensors, |r, a, _| {
                let weight = r.matrix("w", rows, cols).unwrap();
                let bias = biased.then(|| r.vector("b", rows).unwrap());
                r.matmul("x", a, weight, bias)
            });
            let steps: Vec<_> = [1, 2, 7, 9, 33].map(Owned::tokens).into();
            let name = format!("{ty} {rows} x {cols}");
            let varied = [Type::Q4_K, Type::Q8_0, Type::F16].contains(&ty) && cols == 256;
            let variants = match cols {
                _ if varied => usize::MAX,
                768 => 1,
                _ => usize::from(FAMILIES.contains(&ty)),
            };
            compare_on(variants, &name, &graph, limits(), &steps, bound);
        }
    }
}

/// Tiles of cooperative matrices, against weights and activations that are not rounded: rows and columns that fill no tile,
/// each epilogue, several matrices, and activations that halves could not hold without a factor per row.
#[test]
fn tiles_of_matrices_round_to_halves() {
    let devices = support::gpu::with_matrices();
    let (rows, cols) = (132, 256);
    for &ty in bilayer_quant::all().iter().filter(|ty| ty.quantize.is_some()) {
        if devices.is_empty() || !bilayer_gpu::kernels::weights::is_native(ty) {
            continue;
        }
        let tensors = ["v", "w"].into_iter();
        let tensors =
            tensors.fold(Tensors::default(), |tensors, name| tensors.with(name, ty, &[rows, cols]));
        let graph = over(cols, tensors.with("b", Type::F32, &[rows]), |r, a, _| {
            let [v, w] = ["v", "w"].map(|name| r.matrix(name, rows, cols).unwrap());
            let bias = r.vector("b", rows).unwrap();
            let large = r.scale("large", a, 3e6);
            let product = r.matmul("product", large, v, None);
            let one = r.scale("one", product, 3e-7);
            let two = r.matmul("two", a, w, Some(bias));
            let (gate, up) = (r.matmul("gate", a, v, None), r.matmul("up", a, w, None));
            let gated = r.gate("gated", gate, Some(up), Activation::Silu);
            let sum = r.add("sum", one, two);
            r.add("x", sum, gated)
        });
        let steps: Vec<_> = [9, 64, 80].map(Owned::tokens).into();
        let expected = run_all(&mut Reference::new(), &graph, limits(), &steps);
        for (at, (variant, device)) in devices.iter().enumerate() {
            // What is tried beside what the adapter lists need not have every type.
            let is_wanted = match is_slow_to_compile(device) {
                true => [Type::Q8_0, Type::Q4_K].contains(&ty),
                false => at == 0 || FAMILIES.contains(&ty),
            };
            if !is_wanted {
                continue;
            }
            let found = run_all(&mut device.backend(), &graph, limits(), &steps);
            let error = error(&expected, &found);
            eprintln!("{ty} on {variant}: {error:.2e}");
            assert!(error < HALF_BOUND, "{ty} on {variant}: {error:.2e} > {HALF_BOUND:.0e}");
        }
    }
}

/// Next to products of the same input that may round it.
#[test]
fn exact_products_do_not_round_activations_to_eight_bits() {
    let (rows, cols) = (96, 256);
    for ty in [Type::F32, Type::F16, Type::Q4_0, Type::Q8_0, Type::Q4_K] {
        let matrix = [rows, cols];
        let tensors = ["w", "v", "u"].into_iter();
        let tensors =
            tensors.fold(Tensors::default(), |tensors, name| tensors.with(name, ty, &matrix));
        let graph = over(cols, tensors, |r, a, _| {
            let [w, v, u] = ["w", "v", "u"].map(|name| r.matrix(name, rows, cols).unwrap());
            let fine = r.matmul_of("fine", a, w, None, Precision::Fine);
            let other = r.matmul_of("other", a, v, None, Precision::Fine);
            let coarse = r.matmul("coarse", a, u, None);
            let coarse = r.scale("nothing of it", coarse, 1e-6);
            let fine = r.add("sum", fine, other);
            r.add("x", fine, coarse)
        });
        let steps: Vec<_> = [1, 2, 7, 9, 33].map(Owned::tokens).into();
        let compared = if ty == Type::Q8_0 { compare_variants } else { compare };
        compared(&format!("fine {ty}"), &graph, limits(), &steps, FINE_BOUND);
    }
}

#[test]
fn products_of_parts_of_a_tensor_and_of_wanted_rows() {
    let tensors = Tensors::default().with("w", Type::Q8_0, &[96, 64]).with("b", Type::F32, &[192]);
    let graph = over(64, tensors, |r, a, _| {
        let up = r.matrix_rows("w", 96, 32, 64, 64).unwrap();
        let a = r.rows_wanted("rows", a);
        let bias = r.vector_part("b", 192, 64, 64).unwrap();
        r.matmul("x", a, up, Some(bias))
    });
    assert_eq!(graph.weights[3].range_in_tensor(), 256..512);
    let pages = [0, 1, 2];
    let steps = [
        Owned { outputs: vec![0, 3, 4, 8], ..Owned::tokens(9) },
        Owned { outputs: vec![], ..Owned::tokens(9) },
        Owned::of(4, &[(40, 0, &pages)]),
    ];
    compare("parts", &graph, limits(), &steps, INT8_BOUND);
}

// ---- Experts ----------------------------------------------------------------------------------

/// Routing by the logits of a router matrix.
fn routed(r: &mut Recorder<'_>, x: Value, experts: usize, rule: &Route) -> Value {
    let router = r.matrix("router", experts, r.width(x)).unwrap();
    let logits = r.matmul("logits", x, router, None);
    r.route("route", Route { logits, ..rule.clone() })
}

/// The top two experts by the softmax of their logits.
const TWO: Route = Route {
    logits: Value(0),
    bias: None,
    used: 2,
    groups: None,
    score: Score::Softmax,
    normalise: true,
    scale: 1.0,
    factors: None,
    out: Value(0),
};

#[test]
fn routes() {
    for (experts, used) in [(1, 1), (8, 2), (60, 4), (128, 8), (300, 300)] {
        for (score, normalise, biased) in [
            (Score::Softmax, true, false),
            (Score::Softmax, false, true),
            (Score::Sigmoid, false, false),
            (Score::Sigmoid, true, true),
        ] {
            let tensors = Tensors::default().with("b", Type::F32, &[experts]);
            let tensors = tensors.with("f", Type::F32, &[experts]);
            let graph = over(experts, tensors, |r, logits, _| {
                let bias = biased.then(|| r.vector("b", experts).unwrap());
                let factors = normalise.then(|| r.vector("f", experts).unwrap());
                let rule = Route { bias, used, score, normalise, scale: 1.5, factors, ..TWO };
                r.route("x", Route { logits, ..rule })
            });
            let name = format!("{used} of {experts} {score:?}");
            let compared = if used == 8 { compare_variants } else { compare };
            compared(&name, &graph, limits(), &[1, 13].map(Owned::tokens), FLOAT_BOUND);
        }
    }
}

/// A product of each of `heads` parts of a row with a matrix `[rows, cols]` of its own.
fn by_heads(ty: Type, [heads, rows, cols]: [usize; 3]) -> Graph {
    let tensors = Tensors::default().with("w", ty, &[heads, rows, cols]);
    over(heads * cols, tensors, |r, a, _| {
        let route = r.route_all("route", heads);
        let stack = r.stack("w", |_| String::new(), [heads, rows, cols]).unwrap();
        r.experts("x", Experts { input: a, route, stack, bias: None, factors: None, out: a })
    })
}

#[test]
fn products_by_heads() {
    for (ty, shape) in [
        (Type::F32, [3, 20, 8]),
        (Type::F16, [16, 32, 24]),
        (Type::Q8_0, [5, 48, 64]),
        (Type::Q4_K, [2, 64, 256]),
    ] {
        let bound = if ty.block_weights == 1 { FLOAT_BOUND } else { INT8_BOUND };
        let steps = [1, 2, 50].map(Owned::tokens);
        compare(&format!("{ty} by heads"), &by_heads(ty, shape), limits(), &steps, bound);
    }
}

/// Values by groups, one of which may be as wide as a row.
#[test]
fn joined_values() {
    for widths in [[8, 8], [1, 1], [64, 64]] {
        let graph = over(64, Tensors::default(), |r, a, b| r.join("x", a, b, widths));
        compare("join", &graph, limits(), &[1, 13].map(Owned::tokens), FLOAT_BOUND);
    }
    let graph = over(64, Tensors::default(), |r, a, b| {
        let b = r.part("first", b, 16, 0..4);
        r.join("x", a, b, [16, 4])
    });
    compare("join of a part", &graph, limits(), &[1, 13].map(Owned::tokens), FLOAT_BOUND);
}

/// Groups by their best expert or their best two, with and without a bias.
#[test]
fn routes_within_groups() {
    for (experts, used, [count, chosen, best], biased) in [
        (64, 6, [8, 3, 1], false),
        (256, 8, [8, 4, 2], true),
        (12, 2, [12, 5, 2], true),
        (16, 4, [4, 2, 2], false),
    ] {
        let tensors = Tensors::default().with("b", Type::F32, &[experts]);
        let graph = over(experts, tensors, |r, logits, _| {
            let bias = biased.then(|| r.vector("b", experts).unwrap());
            let groups = Some(Groups { count, used: chosen, best });
            let score = if best == 1 { Score::Softmax } else { Score::Sigmoid };
            r.route("x", Route { logits, bias, used, groups, score, ..TWO })
        });
        let name = format!("{used} of {experts} in {chosen} of {count}");
        let compared = if biased && count == 8 { compare_variants } else { compare };
        compared(&name, &graph, limits(), &[1, 13].map(Owned::tokens), FLOAT_BOUND);
    }
}

#[test]
fn routing_of_non_finite_logits_gives_valid_experts() {
    // Infinite logits in every row: the products run, and the weights are not finite.
    let tensors =
        Tensors::default().with("router", Type::F32, &[8, 64]).with("w", Type::F32, &[8, 16, 64]);
    let graph = over(64, tensors, |r, a, _| {
        let wild = r.scale("wild", a, f32::MAX);
        let wild = r.scale("wilder", wild, f32::MAX);
        let route = routed(r, wild, 8, &TWO);
        let stack = r.stack("w", |_| String::new(), [8, 16, 64]).unwrap();
        let y =
            r.experts("y", Experts { input: a, route, stack, bias: None, factors: None, out: a });
        r.mix("x", y, route)
    });
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Reference::new())];
    backends.push(Box::new(cpu(Level::detect(), 2)));
    backends.extend(support::gpu::gpu().map(|gpu| Box::new(gpu) as Box<dyn Backend>));
    for mut backend in backends {
        for rows in [1, 40] {
            let segment = prepare(backend.as_mut(), &graph, limits());
            let found = run(backend.as_mut(), segment, &graph, &Owned::tokens(rows));
            assert!(found.iter().all(|x| x.is_nan()), "{}", backend.facts().name);
        }
    }
}

/// Storage and shape of a layer's experts.
#[derive(Clone, Copy, Debug)]
struct Stored {
    ty: Type,
    /// Another type of the second matrix.
    up: Type,
    experts: usize,
    used: usize,
    width: usize,
    inner: usize,
    /// A tensor for each expert.
    split: bool,
    biased: bool,
    /// A factor for each expert's products.
    factored: bool,
    activation: Activation,
}

const STORED: Stored = Stored {
    ty: Type::F32,
    up: Type::F32,
    experts: 8,
    used: 2,
    width: 64,
    inner: 32,
    split: false,
    biased: false,
    factored: false,
    activation: Activation::Silu,
};

impl Stored {
    fn of(ty: Type) -> Stored {
        Stored { ty, up: ty, width: 256, inner: 512, ..STORED }
    }

    /// `mix(down(activation(gate(x)) * up(x)))`.
    fn graph(self) -> Graph {
        let Stored { ty, up, experts, used, width, inner, split, biased, factored, activation } =
            self;
        let mut tensors = Tensors::default().with("router", Type::F32, &[experts, width]);
        let stored =
            [("gate", ty, inner, width), ("up", up, inner, width), ("down", ty, width, inner)];
        for (name, ty, rows, cols) in stored {
            tensors = match split {
                true => (0..experts).fold(tensors, |tensors, expert| {
                    tensors.with(&format!("{name}.{expert}"), ty, &[rows, cols])
                }),
                false => tensors.with(name, ty, &[experts, rows, cols]),
            };
            tensors = tensors.with(&format!("{name}_bias"), Type::F32, &[experts, rows]);
            tensors = tensors.with(&format!("{name}_factors"), Type::F32, &[experts]);
        }
        over(width, tensors, |r, a, _| {
            let route = routed(r, a, experts, &Route { used, ..TWO });
            let product = |r: &mut Recorder<'_>, name: &'static str, input, rows, cols| {
                let each = |expert| format!("{name}.{expert}");
                let stack = r.stack(name, each, [experts, rows, cols]).unwrap();
                let bias = format!("{name}_bias");
                let bias = biased.then(|| r.expert_vectors(&bias, [experts, rows]).unwrap());
                let factors = format!("{name}_factors");
                let factors = factored.then(|| r.expert_factors(&factors, experts).unwrap());
                r.experts(name, Experts { input, route, stack, bias, factors, out: input })
            };
            let gate = product(r, "gate", a, inner, width);
            let up = product(r, "up", a, inner, width);
            let act = r.gate("act", gate, Some(up), activation);
            let down = product(r, "down", act, width, inner);
            r.mix("x", down, route)
        })
    }
}

#[test]
fn experts_of_every_family_of_types() {
    // Loaders are those of products with one matrix, so one type of each family suffices.
    for ty in FAMILIES {
        let bound = 2.0 * product_bound(ty);
        let steps: Vec<_> = [1, 3, 50].map(Owned::tokens).into();
        let compared = if ty == Type::Q6_K { compare_variants } else { compare };
        compared(ty.name, &Stored::of(ty).graph(), limits(), &steps, bound);
    }
}

#[test]
fn experts_of_every_shape() {
    let shapes = [
        STORED,
        Stored { biased: true, ..STORED },
        Stored { biased: true, activation: Activation::ClampedSwiglu, ..STORED },
        Stored { factored: true, experts: 5, ..STORED },
        Stored { factored: true, ..Stored::of(Type::NVFP4) },
        Stored { activation: Activation::ClampedSwiglu, ..Stored::of(Type::MXFP4) },
        Stored { split: true, biased: true, ..STORED },
        Stored { experts: 3, used: 3, inner: 96, ..STORED },
        Stored { experts: 130, used: 8, width: 96, inner: 20, ..STORED },
        Stored { experts: 1, used: 1, ..STORED },
        Stored { experts: 5, used: 2, split: true, ..Stored::of(Type::Q8_0) },
        Stored { up: Type::Q6_K, ..Stored::of(Type::Q4_K) },
        Stored { ty: Type::F16, up: Type::Q8_0, inner: 96, ..STORED },
    ];
    for shape in shapes {
        let floats = shape.up.block_weights == 1;
        let bound = if floats { FLOAT_BOUND } else { 2.0 * INT8_BOUND };
        // One token, fewer than the GEMM kernels take, and many of the same expert.
        let steps: Vec<_> = [1, 2, 9, 80].map(Owned::tokens).into();
        let is_odd = shape.split && shape.biased || shape.factored;
        let compared = if is_odd { compare_variants } else { compare };
        compared(&format!("{shape:?}"), &shape.graph(), limits(), &steps, bound);
    }
}

/// Few tokens of an expert are packed in another format than many, and in chunks of other sizes.
#[test]
fn experts_whose_activations_are_rounded() {
    let graph = Stored { experts: 1, used: 1, inner: 4096, ..Stored::of(Type::BF16) }.graph();
    let steps: Vec<_> = (8..=18).map(Owned::tokens).collect();
    let expected = run_all(&mut Reference::new(), &graph, limits(), &steps);
    for level in Level::available() {
        let options = Options { threads: Some(2), level: Some(level), ..Options::default() };
        let mut cpu = Cpu::new(Options { fast_prefill: true, ..options }).unwrap();
        let error = error(&expected, &run_all(&mut cpu, &graph, limits(), &steps));
        assert!(error < 2.0 * INT8_BOUND, "{level}: {error}");
    }
}

#[test]
fn experts_of_wanted_rows_and_of_none() {
    let tensors =
        Tensors::default().with("router", Type::F32, &[8, 64]).with("w", Type::Q8_0, &[8, 96, 64]);
    let graph = over(64, tensors, |r, a, _| {
        let a = r.rows_wanted("rows", a);
        let route = routed(r, a, 8, &TWO);
        let stack = r.stack("w", |_| String::new(), [8, 96, 64]).unwrap();
        r.experts("x", Experts { input: a, route, stack, bias: None, factors: None, out: a })
    });
    let steps = [
        Owned { outputs: vec![0, 3, 4, 8], ..Owned::tokens(9) },
        Owned { outputs: vec![], ..Owned::tokens(9) },
    ];
    compare("rows", &graph, limits(), &steps, INT8_BOUND);
}

/// As where a GPU has some of a layer's experts: most slots have none, and few rows already fill tiles. What other steps left
/// in memory must not be read.
#[test]
fn products_without_an_expert_are_zero() {
    let (used, width, inner) = (8, 256, 128);
    let tensors = Tensors::default().with(ROUTES, Type::F32, &[VOCAB, 2 * used]);
    let tensors = tensors.with("gate", Type::Q4_K, &[RESIDENTS, inner, width]);
    let tensors = tensors.with("up", Type::Q4_K, &[RESIDENTS, inner, width]);
    let tensors = tensors.with("down", Type::Q8_0, &[RESIDENTS, width, inner]);
    let graph = over(width, tensors, |r, a, _| {
        let routes = r.matrix(ROUTES, VOCAB, 2 * used).unwrap();
        let route = r.embed("route", routes);
        let product = |r: &mut Recorder<'_>, name: &'static str, input, rows, cols| {
            let stack = r.stack(name, |_| String::new(), [RESIDENTS, rows, cols]).unwrap();
            r.experts(name, Experts { input, route, stack, bias: None, factors: None, out: input })
        };
        let gate = product(r, "gate", a, inner, width);
        let up = product(r, "up", a, inner, width);
        let act = r.gate("act", gate, Some(up), Activation::Silu);
        let down = product(r, "down", act, width, inner);
        r.mix("x", down, route)
    });
    let steps: Vec<_> = [80, 33, 8, 7, 5, 3, 1, 79].map(Owned::tokens).into();
    compare_variants("without an expert", &graph, limits(), &steps, 2.0 * INT8_BOUND);
}

#[test]
fn separate_experts_of_different_types_are_refused() {
    let tensors =
        Tensors::default().with("w.0", Type::F32, &[4, 8]).with("w.1", Type::F16, &[4, 8]);
    let mut recorder = Recorder::new(&tensors);
    let refused = recorder.stack("w", |expert| format!("w.{expert}"), [2, 4, 8]);
    assert!(matches!(&refused, Err(Error::StackType { name, .. }) if name == "w.1"), "{refused:?}");
}

#[test]
fn a_sum_reuses_the_memory_of_a_value_not_read_afterwards() {
    let width = 96;
    let graph = |read_again: bool| {
        let tensors = Tensors::default().with("w", Type::F32, &[width, width]);
        over(width, tensors, |r, a, b| {
            let weight = r.matrix("w", width, width).unwrap();
            let product = r.matmul("product", b, weight, None);
            let sum = r.add("sum", product, a);
            if read_again { r.add("twice", sum, a) } else { sum }
        })
    };
    let steps: Vec<_> = [1, 3, 50].map(Owned::tokens).into();
    let held = [false, true].map(|read_again| {
        let graph = graph(read_again);
        compare("sum", &graph, limits(), &steps, FLOAT_BOUND);
        let mut cpu = cpu(Level::detect(), 1);
        prepare(&mut cpu, &graph, limits());
        cpu.held_bytes().unwrap()
    });
    assert_eq!(held[1] - held[0], (4 * limits().tokens * width) as u64);
}

// ---- Attention ----------------------------------------------------------------------------------

/// Parameters of an attention test.
#[derive(Clone, Copy, Debug)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<Window>,
    softcap: Option<f32>,
    sinks: bool,
    bias: Option<Bias>,
    both_ways: bool,
    /// Elements of a key that are its value.
    in_keys: Option<usize>,
}

/// A form of [`DistanceBias`].
#[derive(Clone, Copy, Debug)]
enum Bias {
    /// From none to a half.
    Slopes,
    /// The number of buckets, and the distance of the last.
    Buckets(usize, u32),
}

const HEADS: Heads = Heads {
    heads: 8,
    kv_heads: 2,
    head_dim: 64,
    window: None,
    softcap: None,
    sinks: false,
    bias: None,
    both_ways: false,
    in_keys: None,
};

fn attention(h: Heads) -> Graph {
    attention_scaled(h, [1.0; 2])
}

/// With queries and keys multiplied by factors.
fn attention_scaled(h: Heads, factors: [f32; 2]) -> Graph {
    let (width, kv_width) = (h.heads * h.head_dim, h.kv_heads * h.head_dim);
    let tensors = Tensors::default()
        .with("table q", Type::F32, &[VOCAB, width])
        .with("table k", Type::F32, &[VOCAB, kv_width])
        .with("table v", Type::F32, &[VOCAB, kv_width])
        .with("sinks", Type::F32, &[h.heads]);
    let tensors = match h.bias {
        Some(Bias::Buckets(count, _)) => tensors.with("biases", Type::F32, &[count, h.heads]),
        Some(Bias::Slopes) | None => tensors,
    };
    record(&tensors, |r| {
        let cache = || r.cache_of(h.kv_heads, h.head_dim, h.in_keys, h.window);
        let cache = (!h.both_ways).then(cache);
        let q = r.matrix("table q", VOCAB, width).unwrap();
        let k = r.matrix("table k", VOCAB, kv_width).unwrap();
        let v = r.matrix("table v", VOCAB, kv_width).unwrap();
        let sinks = h.sinks.then(|| r.vector("sinks", h.heads).unwrap());
        let (q, k, v) = (r.embed("q", q), r.embed("k", k), r.embed("v", v));
        let [q, k] = [(q, factors[0]), (k, factors[1])].map(|(x, factor)| match factor {
            1.0 => x,
            _ => r.scale("scaled", x, factor),
        });
        let bias = h.bias.map(|bias| match bias {
            Bias::Slopes => {
                let slope = |head| head as f32 / (2 * h.heads) as f32;
                DistanceBias::Slopes((0..h.heads).map(slope).collect())
            }
            Bias::Buckets(count, distance_max) => {
                let table = r.stack_vector("biases", [count, h.heads]).unwrap();
                DistanceBias::Buckets(Buckets { table, count, distance_max })
            }
        });
        r.attend("x", Attend { bias, ..attend(h, cache, [q, k, v], sinks) })
    })
}

fn attend(
    h: Heads,
    cache: Option<bilayer_graph::CacheId>,
    [q, k, v]: [Value; 3],
    sinks: Option<WeightId>,
) -> Attend {
    Attend {
        q,
        k,
        v: h.in_keys.map_or(Values::Beside(v), Values::InKeys),
        out: Value(0),
        cache,
        heads: h.heads,
        kv_heads: h.kv_heads,
        head_dim: h.head_dim,
        scale: 1.5 / (h.head_dim as f32).sqrt(),
        window: h.window,
        softcap: h.softcap,
        sinks,
        bias: None,
    }
}

/// Three sequences: a prompt, single tokens, and a prompt in two pieces during decoding of others.
fn conversation() -> Vec<Owned> {
    let one = [9, 4, 6, 30];
    let two = [1, 2, 3, 5];
    let three = [20, 21, 22];
    vec![
        Owned::of(1, &[(70, 0, &one[..3])]),
        Owned::of(2, &[(1, 70, &one[..3])]),
        Owned::of(3, &[(33, 0, &two[..2]), (1, 71, &one[..3])]),
        Owned::of(4, &[(5, 72, &one[..3]), (40, 33, &two[..3]), (31, 0, &three[..1])]),
        Owned::of(5, &[(1, 77, &one[..3]), (1, 73, &two[..3]), (1, 31, &three[..1])]),
        Owned::of(6, &[(20, 78, &one), (30, 74, &two), (3, 32, &three[..2])]),
    ]
}

#[test]
fn attention_of_every_shape() {
    let shapes = [
        HEADS,
        Heads { heads: 4, kv_heads: 4, ..HEADS },
        Heads { heads: 7, kv_heads: 1, head_dim: 128, ..HEADS },
        Heads { heads: 24, kv_heads: 2, head_dim: 80, ..HEADS },
        Heads { heads: 32, kv_heads: 1, head_dim: 8, ..HEADS },
        Heads { heads: 6, kv_heads: 2, head_dim: 96, ..HEADS },
        Heads { heads: 4, kv_heads: 2, head_dim: 256, ..HEADS },
        Heads { window: Some(Window::Last(1)), ..HEADS },
        Heads { window: Some(Window::Last(32)), ..HEADS },
        Heads { window: Some(Window::Last(45)), ..HEADS },
        Heads { window: Some(Window::Chunk(1)), ..HEADS },
        Heads { window: Some(Window::Chunk(24)), ..HEADS },
        Heads { window: Some(Window::Chunk(64)), ..HEADS },
        Heads { softcap: Some(2.0), ..HEADS },
        Heads { sinks: true, ..HEADS },
        Heads { bias: Some(Bias::Slopes), ..HEADS },
        Heads { bias: Some(Bias::Buckets(12, 40)), ..HEADS },
        Heads { window: Some(Window::Last(40)), softcap: Some(3.0), sinks: true, ..HEADS },
        Heads { bias: Some(Bias::Slopes), softcap: Some(3.0), sinks: true, ..HEADS },
    ];
    for shape in shapes {
        let name = format!("{shape:?}");
        let compared =
            if shape.sinks && shape.softcap.is_some() { compare_variants } else { compare };
        compared(&name, &attention(shape), limits(), &conversation(), FLOAT_BOUND);
    }
}

/// Values that are the first elements of the keys, with every type of cache, in all steps and copies.
#[test]
fn attention_whose_values_are_in_its_keys() {
    let latent = Heads { heads: 6, kv_heads: 1, head_dim: 96, in_keys: Some(64), ..HEADS };
    for (key_type, _) in TYPES {
        let limits = Limits { key_type, ..limits() };
        let name = format!("values in keys {key_type}");
        // On the GPU, one of each size, and both ways of storing scales.
        let compared = if key_type == Type::F16 {
            compare_variants
        } else if [Type::F32, Type::Q8_0, Type::Q5_1].contains(&key_type) {
            compare
        } else {
            compare_on_cpu
        };
        compared(&name, &attention(latent), limits, &conversation(), cache_bound(limits));
    }
    let odd = Heads { heads: 20, head_dim: 44, in_keys: Some(36), ..latent };
    let special = Heads { window: Some(Window::Last(40)), softcap: Some(3.0), sinks: true, ..odd };
    let two = Heads { heads: 8, kv_heads: 2, in_keys: Some(96), ..latent };
    for shape in [odd, special, two] {
        compare(&format!("{shape:?}"), &attention(shape), limits(), &conversation(), FLOAT_BOUND);
    }
    let copies = vec![PageCopy { from: 7, to: 3 }, PageCopy { from: 3, to: 5 }];
    let steps = [
        Owned::of(1, &[(40, 0, &[7, 8])]),
        Owned { copies, ..Owned::of(2, &[(1, 20, &[3]), (1, 25, &[5])]) },
        Owned::of(3, &[(1, 21, &[3]), (1, 26, &[5]), (1, 40, &[7, 8])]),
    ];
    compare("copies of values in keys", &attention(latent), limits(), &steps, FLOAT_BOUND);
}

/// Pages whose values are in their keys, or whose keys are transformed, from each backend to each.
#[test]
fn pages_move_between_backends() {
    let latent = Heads { heads: 6, kv_heads: 1, head_dim: 96, in_keys: Some(64), ..HEADS };
    let pages = [9, 4, 5];
    let [before, after] = [Owned::of(1, &[(70, 0, &pages)]), Owned::of(2, &[(1, 70, &pages)])];
    for (heads, key_type) in
        [(latent, Type::F16), (latent, Type::Q8_0), (latent, Type::Q5_1), (HEADS, Type::Q4_0)]
    {
        let graph = attention(heads);
        let hadamard_keys = heads.in_keys.is_none();
        let limits = Limits { key_type, hadamard_keys, ..limits() };
        let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Reference::new())];
        backends.push(Box::new(cpu(Level::detect(), 2)));
        backends.extend(support::gpu::gpu().map(|gpu| Box::new(gpu) as Box<dyn Backend>));
        let cache = bilayer_graph::CacheId(0);
        let mut saved = Vec::new();
        let mut segments = Vec::new();
        for backend in &mut backends {
            let segment = prepare(backend.as_mut(), &graph, limits);
            run(backend.as_mut(), segment, &graph, &before);
            saved.push(backend.save(cache, &pages).unwrap());
            segments.push(segment);
        }
        let expected = run(backends[0].as_mut(), segments[0], &graph, &after);
        for pages_of in &saved {
            assert_eq!(pages_of.values.is_empty(), heads.in_keys.is_some(), "{key_type}");
            for (backend, segment) in backends.iter_mut().zip(&segments) {
                backend.restore(cache, &pages, pages_of).unwrap();
                let found = run(backend.as_mut(), *segment, &graph, &after);
                let error = error(&expected, &found);
                let bound = cache_bound(limits);
                assert!(error < bound, "{key_type} on {}: {error}", backend.facts().name);
            }
        }
    }
}

/// Whole sequences of unequal lengths in one step, without a cache: each token sees all of its own.
#[test]
fn attention_both_ways_of_every_shape() {
    let both = Heads { both_ways: true, heads: 4, kv_heads: 4, ..HEADS };
    let grouped = Heads { heads: 6, kv_heads: 2, window: Some(Window::Last(40)), ..both };
    let shapes = [
        both,
        Heads { heads: 12, kv_heads: 12, head_dim: 32, ..both },
        Heads { heads: 6, kv_heads: 2, head_dim: 96, ..both },
        Heads { window: Some(Window::Last(1)), ..both },
        Heads { window: Some(Window::Last(9)), ..both },
        Heads { window: Some(Window::Last(65)), ..both },
        Heads { bias: Some(Bias::Slopes), ..both },
        Heads { bias: Some(Bias::Buckets(32, 128)), ..both },
        Heads { bias: Some(Bias::Slopes), ..grouped },
        Heads { bias: Some(Bias::Buckets(12, 40)), softcap: Some(3.0), sinks: true, ..grouped },
        Heads { window: Some(Window::Last(40)), softcap: Some(3.0), sinks: true, ..both },
    ];
    let (one, two, three, four) = ([9, 4, 6, 30, 11], [1], [20, 21], [3, 5, 8]);
    let steps = [
        Owned::of(1, &[(1, 0, &two)]),
        Owned::of(2, &[(140, 0, &one)]),
        Owned::of(3, &[(33, 0, &three), (1, 0, &two), (70, 0, &four)]),
        Owned::of(4, &[(20, 0, &two), (65, 0, &four), (64, 0, &three)]),
    ];
    let limits = Limits { tokens: 160, outputs: 160, ..limits() };
    for shape in shapes {
        let name = format!("{shape:?}");
        let compared = if shape.sinks { compare_variants } else { compare };
        compared(&name, &attention(shape), limits, &steps, FLOAT_BOUND);
    }
}

/// Each type as keys and as values, in pairs of two types, with heads of whole blocks and with a short last block in turn.
/// The CPU has them all in both.
#[test]
fn caches_of_every_type() {
    let types = TYPES.map(|(ty, _)| ty);
    for (at, &key_type) in types.iter().enumerate() {
        let value_type = types[(at + 4) % types.len()];
        let limits = Limits { key_type, value_type, ..limits() };
        for head_dim in [64, 44] {
            let name = format!("{key_type} {value_type} in heads of {head_dim}");
            let graph = attention(Heads { head_dim, ..HEADS });
            let compared = if (head_dim == 64) == (at % 2 == 0) { compare } else { compare_on_cpu };
            compared(&name, &graph, limits, &conversation(), cache_bound(limits));
        }
    }
    let mut cpu = cpu(Level::Scalar, 1);
    let graph = attention(HEADS);
    for (id, bytes) in weights(&graph) {
        cpu.load(graph.weight(id), bytes).unwrap();
    }
    for (key_type, value_type) in [(Type::Q4_K, Type::F16), (Type::F16, Type::I8)] {
        let limits = Limits { key_type, value_type, ..limits() };
        let refused = cpu.compile(&whole(&graph), limits).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused:?}");
        assert!(refused.to_string().contains("q4_0 or iq4_nl"), "{refused}");
    }
}

/// Keys after the Hadamard transform: plain ones and, in a whole model, normalized and rotated ones. With exact keys it changes
/// nothing. The CPU has it for every type, the GPU for blocks.
#[test]
fn keys_are_transformed_before_they_are_rounded() {
    let graph = attention(HEADS);
    for (key_type, _) in TYPES {
        let limits = Limits { key_type, hadamard_keys: true, ..limits() };
        let compared = if key_type == Type::Q5_1 { compare } else { compare_on_cpu };
        // Sums in f32 differ from those of the reference, so more codes are neighbours.
        let bound = if key_type.block_weights > 1 { 2.0 * CODES_BOUND } else { FLOAT_BOUND };
        compared(&format!("transformed {key_type} keys"), &graph, limits, &conversation(), bound);
    }
    let limits = Limits { key_type: Type::Q8_0, hadamard_keys: true, ..limits() };
    compare_on_cpu("llama with transformed keys", &llama(), limits, &conversation(), MODEL_BOUND);

    let exact = Limits { key_type: Type::F32, value_type: Type::F32, ..limits };
    let as_they_are = Limits { hadamard_keys: false, ..exact };
    let expected = run_all(&mut Reference::new(), &graph, as_they_are, &conversation());
    let found = run_all(&mut Reference::new(), &graph, exact, &conversation());
    assert!(expected != found && error(&expected, &found) < 1e-6, "{}", error(&expected, &found));

    let latent = Heads { heads: 8, kv_heads: 1, in_keys: Some(32), ..HEADS };
    for (shape, limits, part) in [
        (Heads { head_dim: 44, ..HEADS }, limits, "heads of 44 elements"),
        (latent, limits, "keys that have the values"),
        (HEADS, exact, "a Hadamard transform of F32 keys"),
    ] {
        let graph = attention(shape);
        let floats = |backend: &dyn Backend| limits == exact && backend.facts().family != "gpu";
        for mut backend in devices().into_iter().filter(|backend| !floats(backend.as_ref())) {
            for (id, bytes) in weights(&graph) {
                backend.load(graph.weight(id), bytes).unwrap();
            }
            let refused = backend.compile(&whole(&graph), limits).unwrap_err();
            let name = backend.facts().name.clone();
            assert!(refused.to_string().contains(part), "{name}: {refused}");
        }
    }
}

/// The bound where keys and values are rounded to these types: a GPU divides less exactly, so a code near the middle of two
/// may be its neighbour, which is a step of up to an eighth of the largest element.
fn cache_bound(limits: Limits) -> f64 {
    let coarse = |ty: Type| ty.block_weights > 1 && ty != Type::Q8_0;
    if coarse(limits.key_type) || coarse(limits.value_type) { CODES_BOUND } else { FLOAT_BOUND }
}

/// Heads, the type of their cache, and factors of queries and keys.
type Attention = (Heads, Type, [f32; 2]);

/// Attention with cooperative matrices: heads of 16 to 96 elements, groups that fill no tile, masks, types of caches, queries
/// that halves could not hold without a factor, and scores of which the highest come late, so that sums are rescaled.
#[test]
fn attention_with_matrices_rounds_queries_and_weights_to_halves() {
    let special =
        Heads { window: Some(Window::Last(40)), softcap: Some(3.0), sinks: true, ..HEADS };
    let plain = [1.0; 2];
    let cases = [
        (HEADS, Type::F16, [1e5, 1e-4]),
        (special, Type::F16, plain),
        (Heads { heads: 3, kv_heads: 3, head_dim: 48, ..HEADS }, Type::F16, [20.0, 1.0]),
        (Heads { heads: 7, kv_heads: 1, head_dim: 16, ..HEADS }, Type::F16, plain),
        (Heads { window: Some(Window::Chunk(24)), head_dim: 32, ..HEADS }, Type::F16, plain),
        (Heads { heads: 6, kv_heads: 2, head_dim: 96, ..HEADS }, Type::Q8_0, plain),
        (Heads { head_dim: 32, ..HEADS }, Type::Q5_1, plain),
    ];
    let devices = support::gpu::with_matrices();
    for (at, case) in cases.into_iter().enumerate() {
        let tested = devices.iter().filter(|(_, device)| at == 0 || !is_slow_to_compile(device));
        attend_with_matrices(tested.copied().collect(), case);
    }
}

/// Attention with cooperative matrices and heads of 128 and of 256 elements, whose values are taken in parts. A software driver
/// takes minutes to compile them.
#[test]
fn large_heads_with_matrices_are_attended() {
    let devices = support::gpu::with_matrices();
    let tested: Vec<_> = devices
        .iter()
        .copied()
        .filter(|(_, device)| {
            let has_time = has_time() && !is_slow_to_compile(device);
            has_time || device.device().is_hardware()
        })
        .collect();
    if tested.is_empty() && !devices.is_empty() {
        let why = "a software adapter takes minutes to compile large heads";
        skip_matrices(why, "coop-check -- large_heads");
    }
    for head_dim in [128, 256] {
        let began = std::time::Instant::now();
        let heads = Heads { head_dim, ..HEADS };
        attend_with_matrices(tested.clone(), (heads, Type::F16, [1.0; 2]));
        eprintln!("heads of {head_dim}: {:?}", began.elapsed());
    }
}

/// Whether a device's driver takes ten times as long as for others to compile cooperative matrices: a software one for small
/// matrices.
fn is_slow_to_compile(opened: &Opened) -> bool {
    let device = opened.device();
    !device.is_hardware() && device.caps().coop.is_some_and(|coop| coop.edge == 8)
}

/// Compares attention on devices with cooperative matrices with the reference.
fn attend_with_matrices(
    devices: Vec<(&'static str, &'static Opened)>,
    (heads, ty, factors): Attention,
) {
    if devices.is_empty() {
        return;
    }
    let graph = attention_scaled(heads, factors);
    let limits = Limits { key_type: ty, value_type: ty, ..limits() };
    let expected = run_all(&mut Reference::new(), &graph, limits, &conversation());
    for (variant, device) in devices {
        let found = run_all(&mut device.backend(), &graph, limits, &conversation());
        let error = error(&expected, &found);
        eprintln!("{heads:?} {ty} {factors:?} on {variant}: {error:.2e}");
        // The higher the scores, the more a query's rounding changes weights.
        let sharpness = f64::from(factors[0] * factors[1]).max(1.0).sqrt();
        let bound = (sharpness * HALF_BOUND).max(cache_bound(limits));
        assert!(error < bound, "{heads:?} on {variant}: {error:.2e} > {bound:.0e}");
        assert!(error > FLOAT_BOUND, "{heads:?} on {variant}: {error:.2e} without matrices");
    }
}

#[test]
fn attention_far_into_sequences_is_cut_by_pages() {
    for window in [None, Some(Window::Last(700)), Some(Window::Chunk(600))] {
        let graph = attention(Heads { window, ..HEADS });
        let one: Vec<u32> = (0..60).rev().collect();
        let two: Vec<u32> = (60..128).collect();
        let limits = Limits { tokens: 700, ..limits() };
        let steps = [
            Owned::of(1, &[(700, 0, &one[..22])]),
            Owned::of(2, &[(700, 700, &one[..44])]),
            Owned::of(3, &[(690, 0, &two[..22])]),
            Owned::of(4, &[(1, 1400, &one), (1, 690, &two[..22])]),
            Owned::of(5, &[(5, 1401, &one), (3, 691, &two[..22])]),
            Owned::of(6, &[(20, 1406, &one), (1, 694, &two[..22])]),
        ];
        compare("far", &graph, limits, &steps, FLOAT_BOUND);
    }
}

#[test]
fn pages_are_copied_before_the_step() {
    let graph = attention(HEADS);
    let copies = vec![PageCopy { from: 7, to: 3 }, PageCopy { from: 3, to: 5 }];
    let steps = [
        Owned::of(1, &[(40, 0, &[7, 8])]),
        // Page 3 is overwritten after its copy; 5 keeps the prefix.
        Owned { copies, ..Owned::of(2, &[(1, 20, &[3]), (1, 25, &[5])]) },
        Owned::of(3, &[(1, 21, &[3]), (1, 26, &[5]), (1, 40, &[7, 8])]),
    ];
    compare("copies", &graph, limits(), &steps, FLOAT_BOUND);
}

// ---- Whole models -------------------------------------------------------------------------------

/// A small model with all fusable ops: two Llama layers, the second with head norms and a sliding window.
#[expect(clippy::too_many_lines, reason = "a whole layer, recorded as it is read")]
fn llama() -> Graph {
    let (width, ff) = (256, 512);
    let h = Heads { heads: 4, kv_heads: 2, head_dim: 64, ..HEADS };
    let mut tensors = Tensors::default()
        .with("table", Type::Q6_K, &[VOCAB, width])
        .with("norm", Type::F32, &[width])
        .with("freqs", Type::F32, &[32]);
    for layer in 0..2 {
        let value = if layer == 0 { Type::Q6_K } else { Type::Q4_K };
        for (name, ty, shape) in [
            ("attn_norm", Type::F32, vec![width]),
            ("q", Type::Q4_K, vec![width, width]),
            ("q_bias", Type::F32, vec![width]),
            ("k", Type::Q4_K, vec![128, width]),
            ("v", value, vec![128, width]),
            ("head_norm", Type::F32, vec![64]),
            ("o", Type::Q4_K, vec![width, width]),
            ("ffn_norm", Type::F32, vec![width]),
            ("gate", Type::Q4_K, vec![ff, width]),
            ("up", Type::Q5_K, vec![ff, width]),
            ("down", Type::Q8_0, vec![width, ff]),
        ] {
            tensors = tensors.with(&format!("{layer}.{name}"), ty, &shape);
        }
    }
    let mut r = Recorder::new(&tensors);
    let table = r.matrix("table", VOCAB, width).unwrap();
    let mut x = r.embed("embed", table);
    let freqs = r.vector("freqs", 32).unwrap();
    let rope = rope(64, Pairs::Halves, Some(freqs));
    for layer in 0..2 {
        r.layer(Some(layer));
        let second = layer == 1;
        let name = |part: &str| format!("{layer}.{part}");
        let window = second.then_some(Window::Last(24));
        let h = Heads { window, ..h };
        let cache = r.cache(h.kv_heads, h.head_dim, window);
        let gain = r.vector(&name("attn_norm"), width).unwrap();
        let head_gain = r.vector(&name("head_norm"), 64).unwrap();
        let normed = r.rms_norm("attn_norm", x, Some(gain), 1e-5);
        let turn = |r: &mut Recorder<'_>, value: Value| {
            let value =
                if second { r.head_norm("head_norm", value, head_gain, 1e-5) } else { value };
            r.rope("rope", value, 64, &rope)
        };
        let weight = r.matrix(&name("q"), width, width).unwrap();
        let bias = r.vector(&name("q_bias"), width).unwrap();
        let q = r.matmul("q", normed, weight, Some(bias));
        let q = turn(&mut r, q);
        let weight = r.matrix(&name("k"), 128, width).unwrap();
        let k = r.matmul("k", normed, weight, None);
        let k = turn(&mut r, k);
        let weight = r.matrix(&name("v"), 128, width).unwrap();
        let v = r.matmul("v", normed, weight, None);
        let mixed = r.attend("attend", attend(h, Some(cache), [q, k, v], None));
        let weight = r.matrix(&name("o"), width, width).unwrap();
        let mixed = r.matmul("o", mixed, weight, None);
        x = r.add("residual", x, mixed);
        let gain = r.vector(&name("ffn_norm"), width).unwrap();
        let normed = r.rms_norm("ffn_norm", x, Some(gain), 1e-5);
        let weight = r.matrix(&name("gate"), ff, width).unwrap();
        let gate = r.matmul("gate", normed, weight, None);
        let weight = r.matrix(&name("up"), ff, width).unwrap();
        let up = r.matmul("up", normed, weight, None);
        let gated = r.gate("gated", gate, Some(up), Activation::Silu);
        let weight = r.matrix(&name("down"), width, ff).unwrap();
        let down = r.matmul("down", gated, weight, None);
        x = r.add("residual", down, x);
    }
    r.layer(None);
    let x = r.rows_wanted("wanted", x);
    let gain = r.vector("norm", width).unwrap();
    let x = r.rms_norm("norm", x, Some(gain), 1e-5);
    let logits = r.matmul("logits", x, table, None);
    r.finish(logits)
}

#[test]
fn a_small_model_computes_what_the_reference_does() {
    compare_variants("llama", &llama(), limits(), &conversation(), MODEL_BOUND);
}

/// Products with residuals, norms between them, and gates: what a product of one column may prepare for the next one.
fn feed_forward(ty: Type, ff: usize) -> Graph {
    let width = 256;
    let mut tensors = Tensors::default();
    for (name, shape) in [
        ("first", [width, width]),
        ("gate", [ff, width]),
        ("up", [ff, width]),
        ("down", [width, ff]),
        ("own", [width, width]),
        ("last", [100, width]),
    ] {
        tensors = tensors.with(name, ty, &shape);
    }
    let tensors = tensors.with("g", Type::F32, &[width]).with("bias", Type::F32, &[width]);
    over(width, tensors, |r, a, b| {
        let weight = r.matrix("first", width, width).unwrap();
        let bias = r.vector("bias", width).unwrap();
        let first = r.matmul("first", a, weight, Some(bias));
        let x = r.add("residual", first, b);
        let gain = r.vector("g", width).unwrap();
        let normed = r.rms_norm("norm", x, Some(gain), 1e-5);
        let weight = r.matrix("gate", ff, width).unwrap();
        let gate = r.matmul("gate", normed, weight, None);
        let weight = r.matrix("up", ff, width).unwrap();
        let up = r.matmul("up", normed, weight, None);
        let gated = r.gate("gated", gate, Some(up), Activation::Silu);
        let weight = r.matrix("down", width, ff).unwrap();
        let down = r.matmul("down", gated, weight, None);
        let x = r.add("residual", x, down);
        let normed = r.rms_norm("norm", x, Some(gain), 1e-5);
        // A residual that is the product's own input: this norm is computed.
        let weight = r.matrix("own", width, width).unwrap();
        let own = r.matmul("own", normed, weight, None);
        let x = r.add("residual", normed, own);
        let normed = r.rms_norm("norm", x, Some(gain), 1e-5);
        let weight = r.matrix("last", 100, width).unwrap();
        r.matmul("last", normed, weight, None)
    })
}

/// In steps of few rows, between those of many, with results that are no whole units of 64.
#[test]
fn products_prepare_the_input_of_the_next() {
    let steps: Vec<_> = [2, 1, 9, 8, 3].map(Owned::tokens).into();
    for (ty, ff, bound) in [
        (Type::Q8_0, 352, MODEL_BOUND),
        (Type::Q4_K, 512, MODEL_BOUND),
        (Type::F16, 336, 10.0 * FLOAT_BOUND),
    ] {
        compare_variants(&format!("{ty}"), &feed_forward(ty, ff), limits(), &steps, bound);
    }
    let Some(opened) = support::gpu::as_hardware_without_subgroups() else { return };
    let mut gpu = opened.backend();
    let graph = feed_forward(Type::Q8_0, 352);
    let expected = run_all(&mut Reference::new(), &graph, limits(), &steps);
    let error = error(&expected, &run_all(&mut gpu, &graph, limits(), &steps));
    assert!(error < MODEL_BOUND, "without subgroups: {error:e}");
    let mut names = |limits| {
        let segment = prepare(&mut gpu, &graph, limits);
        let kernels = gpu.kernels(segment);
        kernels.into_iter().map(|kernel| kernel.name).collect::<Vec<_>>().join("\n")
    };
    let fused = names(limits());
    for part in
        [" bias add norm q8", " scaled 16x1 m2 silu q8", " m1 add norm q8", " scaled 2x1 m1 "]
    {
        assert!(fused.contains(part), "{part} in\n{fused}");
    }
    let checked = names(Limits { check: true, ..limits() });
    assert!(!checked.contains("scaled"), "values that are checked are all computed:\n{checked}");
}

/// A layer of BERT with int8 weights: no gate, norms of sums, attention without a cache.
fn encoder() -> Graph {
    let (width, ff, ty) = (128, 256, Type::W8A8);
    let h = Heads { heads: 4, kv_heads: 4, head_dim: 32, both_ways: true, ..HEADS };
    let vector = |tensors: Tensors, name: &str, len| tensors.with(name, Type::F32, &[len]);
    let mut tensors = Tensors::default().with("table", Type::F32, &[VOCAB, width]);
    for (name, rows, cols) in [
        ("q", width, width),
        ("k", width, width),
        ("v", width, width),
        ("o", width, width),
        ("up", ff, width),
        ("down", width, ff),
    ] {
        tensors = vector(tensors.with(name, ty, &[rows, cols]), &format!("{name}_bias"), rows);
    }
    for name in ["first", "first_bias", "second", "second_bias"] {
        tensors = vector(tensors, name, width);
    }
    let mut r = Recorder::new(&tensors);
    let table = r.matrix("table", VOCAB, width).unwrap();
    let x = r.embed("embed", table);
    r.layer(Some(0));
    let product = |r: &mut Recorder<'_>, name: &'static str, x, rows, cols| {
        let weight = r.matrix(name, rows, cols).unwrap();
        let bias = r.vector(&format!("{name}_bias"), rows).unwrap();
        r.matmul(name, x, weight, Some(bias))
    };
    let norm = |r: &mut Recorder<'_>, name: &'static str, x| {
        let gain = r.vector(name, width).unwrap();
        let bias = r.vector(&format!("{name}_bias"), width).unwrap();
        r.layer_norm(name, x, gain, Some(bias), 1e-12)
    };
    let qkv = ["q", "k", "v"].map(|name| product(&mut r, name, x, width, width));
    let mixed = r.attend("attend", attend(h, None, qkv, None));
    let mixed = product(&mut r, "o", mixed, width, width);
    let x = r.add("residual", x, mixed);
    let x = norm(&mut r, "first", x);
    let up = product(&mut r, "up", x, ff, width);
    let active = r.gate("active", up, None, Activation::Gelu);
    let down = product(&mut r, "down", active, width, ff);
    let x = r.add("residual", down, x);
    let x = norm(&mut r, "second", x);
    r.layer(None);
    let x = r.rows_wanted("wanted", x);
    r.finish(x)
}

/// Texts of one token, of pages that are not full, and of more keys than are scored at a time.
fn texts() -> (Limits, Vec<Owned>) {
    let pages: Vec<u32> = (0..20).collect();
    let steps = vec![
        Owned::of(1, &[(1, 0, &pages)]),
        Owned::of(2, &[(33, 0, &pages), (1, 0, &pages[4..]), (70, 0, &pages[8..])]),
        Owned::of(3, &[(300, 0, &pages), (12, 0, &pages[12..])]),
        Owned::of(4, &[(256, 0, &pages), (64, 0, &pages[12..])]),
    ];
    (Limits { tokens: 320, outputs: 8, ..limits() }, steps)
}

#[test]
fn an_int8_encoder_computes_what_the_reference_does() {
    let (limits, steps) = texts();
    compare("encoder", &encoder(), limits, &steps, MODEL_BOUND);
}

/// An activation is applied where the product is stored, and queries and keys are multiplied in eight bits if the level does
/// so fast.
#[test]
fn kernels_chosen_for_an_int8_encoder() {
    let graph = encoder();
    for level in Level::available() {
        let mut cpu = cpu(level, 1);
        let segment = prepare(&mut cpu, &graph, texts().0);
        let names: Vec<String> = cpu.kernels(segment).into_iter().map(|k| k.name).collect();
        let is_fast = (Level::Avx2..=Level::Amx).contains(&level);
        let attend = if is_fast { "attend int8 both ways" } else { "attend f32/f32 both ways" };
        assert!(names.contains(&format!("{attend} {level}")), "{names:?}");
        let activated = |name: &String| name.contains("matmul") && name.ends_with(" gate");
        assert_eq!(names.iter().filter(|name| activated(name)).count(), 1, "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("gate")), "{names:?}");
    }
}

/// Opening a device tries packed dot products; where the driver has them, they are right.
#[test]
fn packed_dot_products_are_found_to_work() {
    for (variant, opened) in support::gpu::opened().take(1) {
        let gpu = opened.backend();
        let adapter = bilayer_gpu::find(Some(gpu.device().name())).unwrap();
        assert_eq!(gpu.device().caps().dot4, adapter.caps().dot4, "{variant}");
    }
}

#[test]
fn fusion_gives_the_same_bits() {
    let graph = llama();
    for level in Level::available() {
        for (key_type, hadamard_keys) in [(Type::F16, false), (Type::Q4_0, true)] {
            let run = |fuse, check| {
                let limits = Limits { key_type, hadamard_keys, fuse, check, ..limits() };
                run_all(&mut cpu(level, 2), &graph, limits, &conversation())
            };
            let fused = run(true, false);
            assert_eq!(fused, run(false, false), "{level} {key_type}");
            assert_eq!(fused, run(true, true), "{level} {key_type}");
        }
        let (texts, steps) = texts();
        let run = |fuse, check| {
            let limits = Limits { fuse, check, ..texts };
            run_all(&mut cpu(level, 2), &encoder(), limits, &steps)
        };
        let fused = run(true, false);
        assert_eq!(fused, run(false, false), "{level}, encoder");
        assert_eq!(fused, run(true, true), "{level}, encoder");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let graph = llama();
    for level in Level::available() {
        let run = |threads| run_all(&mut cpu(level, threads), &graph, limits(), &conversation());
        let one = run(1);
        for threads in [2, 3, 5] {
            assert_eq!(one, run(threads), "{level} with {threads} threads");
        }
        let (limits, steps) = texts();
        let run = |threads| run_all(&mut cpu(level, threads), &encoder(), limits, &steps);
        assert_eq!(run(1), run(3), "{level}, encoder");
    }
}

#[test]
fn kernels_chosen() {
    let graph = llama();
    let list = |fuse| {
        let mut cpu = cpu(Level::Scalar, 1);
        let segment = prepare(&mut cpu, &graph, Limits { fuse, ..limits() });
        let kernels = cpu.kernels(segment);
        let mut nodes: Vec<u32> = kernels.iter().flat_map(|k| k.nodes.clone()).collect();
        nodes.sort_unstable();
        assert!(nodes.into_iter().eq(0..graph.nodes.len() as u32), "each node once");
        let line = |kernel: &bilayer_graph::Kernel| format!("{:?} {}", kernel.nodes, kernel.name);
        kernels.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!("kernels_fused", list(true));
    insta::assert_snapshot!("kernels_unfused", list(false));
}

#[test]
fn every_cut_into_segments_computes_the_same() {
    let graph = llama();
    let steps = conversation();
    let expected = run_all(&mut cpu(Level::detect(), 2), &graph, limits(), &steps);
    for cut in [1, 9, 17, 33] {
        let mut cpu = cpu(Level::detect(), 2);
        for (id, bytes) in weights(&graph) {
            cpu.load(graph.weight(id), bytes).unwrap();
        }
        let made = |range: &std::ops::Range<usize>, value: Value| {
            graph.nodes[range.clone()].iter().any(|node| node.op.out() == value)
        };
        let ranges = [0..cut, cut..graph.nodes.len()];
        let mut crossing: Vec<Value> =
            graph.nodes[cut..].iter().flat_map(|node| node.op.inputs()).collect();
        crossing.retain(|&value| made(&ranges[0], value));
        crossing.sort_unstable();
        crossing.dedup();
        let first = Segment {
            graph: &graph,
            nodes: ranges[0].clone(),
            inputs: vec![],
            outputs: crossing.clone(),
        };
        let second = Segment {
            graph: &graph,
            nodes: ranges[1].clone(),
            inputs: crossing.clone(),
            outputs: vec![graph.logits],
        };
        let first = cpu.compile(&first, limits()).unwrap();
        let second = cpu.compile(&second, limits()).unwrap();
        let mut found = Vec::new();
        for step in &steps {
            cpu.submit(first, &step.step()).unwrap();
            for &value in &crossing {
                let mut rows = vec![0.0; step.tokens.len() * graph.width(value)];
                cpu.read(value, &mut rows).unwrap();
                cpu.write(value, &rows).unwrap();
            }
            found.extend(run(&mut cpu, second, &graph, step));
        }
        assert_eq!(expected, found, "cut before node {cut}");
    }
}

// ---- Faults -------------------------------------------------------------------------------------

#[test]
fn the_nan_check_names_the_op() {
    let tensors =
        Tensors::default().with("table", Type::F32, &[VOCAB, 64]).with("w", Type::F32, &[64, 64]);
    let mut r = Recorder::new(&tensors);
    let table = r.matrix("table", VOCAB, 64).unwrap();
    let x = r.embed("embed", table);
    r.layer(Some(3));
    let weight = r.matrix("w", 64, 64).unwrap();
    let x = r.matmul("ffn_out", x, weight, None);
    let x = r.add("residual", x, x);
    let graph = r.finish(x);
    let mut cpu = cpu(Level::detect(), 2);
    for (id, bytes) in weights(&graph) {
        let mut bytes = bytes.to_vec();
        if graph.weight(id).name == "w" {
            bytes[400..404].copy_from_slice(&f32::INFINITY.to_le_bytes());
        }
        cpu.load(graph.weight(id), bytes.into()).unwrap();
    }
    let segment = cpu.compile(&whole(&graph), Limits { check: true, ..limits() }).unwrap();
    for rows in [1, 20] {
        let mut out = vec![0.0; rows * 64];
        cpu.submit(segment, &Owned::tokens(rows).step()).unwrap();
        let failure = cpu.read(graph.logits, &mut out);
        let label = "layer 3 ffn_out".to_owned();
        assert_eq!(failure, Err(Error::NotFinite { label, op: "matmul" }));
    }
}

/// The CPU and, if there is one, the GPU.
fn devices() -> Vec<Box<dyn Backend>> {
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(cpu(Level::detect(), 2))];
    backends.extend(support::gpu::gpu().map(|gpu| Box::new(gpu) as Box<dyn Backend>));
    backends
}

/// Loads the graph's weights with the number 5 of `table` replaced, and runs five times the first token.
fn with_wild(
    backend: &mut dyn Backend,
    graph: &Graph,
    limits: Limits,
    (table, wild): (&str, f32),
) -> Vec<f32> {
    for (id, bytes) in weights(graph) {
        let mut bytes = bytes.to_vec();
        if graph.weight(id).name == table {
            bytes[20..24].copy_from_slice(&wild.to_le_bytes());
        }
        backend.load(graph.weight(id), bytes.into()).unwrap();
    }
    let segment = backend.compile(&whole(graph), limits).unwrap();
    let step = Owned { tokens: vec![0; 5], ..Owned::tokens(5) };
    run(backend, segment, graph, &step)
}

#[test]
fn a_key_or_value_that_is_not_finite_is_never_hidden() {
    let capped = Heads { softcap: Some(2.0), ..HEADS };
    let mut cases = Vec::new();
    for ty in [Type::F16, Type::F32, Type::Q8_0] {
        cases.extend([(HEADS, ty, f32::NAN), (capped, ty, f32::NAN), (HEADS, ty, f32::INFINITY)]);
    }
    for ty in [Type::BF16, Type::Q5_1, Type::Q4_0, Type::IQ4_NL] {
        cases.push((HEADS, ty, f32::NAN));
    }
    cases.push((HEADS, Type::F16, f32::NEG_INFINITY));
    for (heads, ty, wild) in cases {
        let graph = attention(heads);
        let limits = Limits { key_type: ty, value_type: ty, ..limits() };
        for table in ["table k", "table v"] {
            for mut backend in devices() {
                let found = with_wild(backend.as_mut(), &graph, limits, (table, wild));
                let name = &backend.facts().name;
                let rows = found.chunks(HEADS.heads * HEADS.head_dim);
                let noticed = rows.map(|row| row.iter().any(|x| !x.is_finite()));
                assert!(noticed.eq([true; 5]), "{name}: {table} of {ty} with {wild}");
            }
        }
    }
}

#[test]
fn norms_of_rows_too_large_to_square_are_no_numbers() {
    for width in [64, 257] {
        let tensors = || Tensors::default().with("g", Type::F32, &[width]);
        let rms = over(width, tensors(), |r, a, _| {
            let a = r.scale("large", a, 1e30);
            r.rms_norm("x", a, None, 1e-5)
        });
        let layer = over(width, tensors(), |r, a, _| {
            let (a, gain) = (r.scale("large", a, 1e30), r.vector("g", width).unwrap());
            r.layer_norm("x", a, gain, None, 1e-5)
        });
        for graph in [rms, layer] {
            for mut backend in devices() {
                let segment = prepare(backend.as_mut(), &graph, limits());
                let found = run(backend.as_mut(), segment, &graph, &Owned::tokens(3));
                assert!(found.iter().all(|x| x.is_nan()), "{}", backend.facts().name);
            }
        }
    }
}

#[test]
fn soft_caps_and_products_do_not_hide_nan() {
    let tensors = || {
        Tensors::default().with("table", Type::F32, &[VOCAB, 64]).with("w", Type::Q8_0, &[64, 64])
    };
    let over_table = |body: &dyn Fn(&mut Recorder<'_>, Value) -> Value| {
        record(&tensors(), |r| {
            let table = r.matrix("table", VOCAB, 64).unwrap();
            let x = r.embed("embed", table);
            body(r, x)
        })
    };
    let graphs = [
        over_table(&|r, x| r.soft_cap("x", x, 2.0)),
        over_table(&|r, x| r.gate("x", x, Some(x), Activation::ClampedSwiglu)),
        over_table(&|r, x| {
            let weight = r.matrix("w", 64, 64).unwrap();
            r.matmul("x", x, weight, None)
        }),
    ];
    for (at, graph) in graphs.iter().enumerate() {
        for mut backend in devices() {
            let found = with_wild(backend.as_mut(), graph, limits(), ("table", f32::NAN));
            let noticed = found.chunks(64).map(|row| row.iter().any(|x| x.is_nan()));
            assert!(noticed.eq([true; 5]), "{}: graph {at}", backend.facts().name);
        }
    }
}

#[test]
fn nan_in_pages_of_other_sequences_does_not_spread() {
    let graph = attention(HEADS);
    // Token 0 of the values' table is NaN, and one sequence has used page 4 for it.
    let id = graph.weights.iter().find(|w| w.name == "table v").unwrap().id;
    let mut bytes = weights(&graph)[&id].to_vec();
    bytes[..4 * 128].copy_from_slice(&f32::NAN.to_le_bytes().repeat(128));
    for mut poisoned in devices() {
        let name = poisoned.facts().name.clone();
        for (other, good) in weights(&graph) {
            let bytes = if other == id { bytes.clone().into() } else { good };
            poisoned.load(graph.weight(other), bytes).unwrap();
        }
        let segment = poisoned.compile(&whole(&graph), limits()).unwrap();
        let nans = Owned { tokens: vec![0; 32], ..Owned::of(1, &[(32, 0, &[4])]) };
        let found = run(poisoned.as_mut(), segment, &graph, &nans);
        assert!(found.iter().all(|x| x.is_nan()), "{name}");
        for rows in [1, 5] {
            let mut reused = Owned::of(1, &[(rows, 0, &[4])]);
            reused.tokens.iter_mut().for_each(|token| *token = (*token).max(1));
            let found = run(poisoned.as_mut(), segment, &graph, &reused);
            assert!(found.iter().all(|x| x.is_finite()), "{name}: {rows} rows");
        }
    }
}

#[test]
fn a_graph_with_too_many_steps_is_refused() {
    let tensors = Tensors::default();
    let graph = over(4, tensors, |r, a, b| (0..70_000).fold(a, |sum, _| r.add("sum", sum, b)));
    let mut cpu = cpu(Level::Scalar, 1);
    for (id, bytes) in weights(&graph) {
        cpu.load(graph.weight(id), bytes).unwrap();
    }
    let refused = cpu.compile(&whole(&graph), limits()).unwrap_err();
    assert!(matches!(refused, Error::TooDeep { .. }), "{refused}");
}

#[test]
fn wrong_calls_are_errors() {
    let graph = llama();
    let mut cpu = cpu(Level::detect(), 2);
    let missing = cpu.compile(&whole(&graph), limits());
    assert!(matches!(missing, Err(Error::WeightNotLoaded { .. })), "{missing:?}");
    let weight = &graph.weights[0];
    let short = cpu.load(weight, SharedBytes::from(vec![0; weight.bytes() - 1]));
    assert!(matches!(short, Err(Error::WeightBytes { .. })), "{short:?}");
    let segment = prepare(&mut cpu, &graph, limits());
    let mut out = vec![0.0; VOCAB];
    let early = cpu.read(graph.logits, &mut out);
    assert!(matches!(early, Err(Error::Limit { .. })), "{early:?}");
    let good = Owned::tokens(3);
    let bad = [
        Owned::tokens(81),
        Owned { tokens: vec![VOCAB as u32; 3], ..good.clone() },
        Owned { pages: vec![128], ..good.clone() },
        Owned { outputs: vec![3], ..good.clone() },
        Owned { spans: vec![], ..good.clone() },
    ];
    for step in bad {
        let refused = cpu.submit(segment, &step.step());
        assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");
    }
    let unknown = cpu.submit(SegmentId(7), &good.step());
    assert!(matches!(unknown, Err(Error::Limit { .. })), "{unknown:?}");
    let unknown = cpu.write(graph.logits, &out);
    assert!(matches!(unknown, Err(Error::Limit { .. })), "{unknown:?}");
    run(&mut cpu, segment, &graph, &good);
    let long = cpu.read(graph.logits, &mut vec![0.0; 2 * VOCAB]);
    assert!(matches!(long, Err(Error::Limit { .. })), "{long:?}");
    let other = Limits { pages: 5, ..limits() };
    assert!(matches!(cpu.compile(&whole(&graph), other), Err(Error::Limit { .. })));
    assert!(Cpu::new(Options { threads: Some(0), ..Default::default() }).is_err());
}

#[test]
fn timings_cover_every_kernel() {
    let graph = llama();
    let mut cpu = cpu(Level::detect(), 2);
    let segment = prepare(&mut cpu, &graph, Limits { timings: true, ..limits() });
    run(&mut cpu, segment, &graph, &Owned::tokens(20));
    let kernels = cpu.kernels(segment);
    let timed: Vec<u32> = cpu.timings(segment).iter().map(|time| time.node).collect();
    let expected: Vec<u32> = kernels.iter().map(|kernel| kernel.nodes[0]).collect();
    assert_eq!(timed, expected);
    assert!(cpu.timings(segment).iter().any(|time| time.ns > 0));
}

#[test]
fn simulated_nodes_give_the_bits_of_one_at_every_level() {
    let (graph, steps) = (llama(), [Owned::tokens(70), Owned::tokens(1)]);
    for level in Level::available() {
        let mut one = cpu(level, 2);
        let expected = run_all(&mut one, &graph, limits(), &steps);
        assert_eq!((one.nodes().count(), one.stolen()), (1, 0));
        let options = Options {
            threads: Some(3),
            level: Some(level),
            numa: Numa::Simulate(2),
            ..Default::default()
        };
        let mut two = Cpu::new(options).unwrap();
        assert_eq!(two.nodes().iter().map(|node| node.threads).collect::<Vec<_>>(), [2, 1]);
        assert!(run_all(&mut two, &graph, limits(), &steps) == expected, "{level}");
    }
}

#[test]
fn thousands_of_small_steps_on_crowded_cores() {
    let graph = over(64, Tensors::default(), |r, a, b| {
        let sum = r.add("x", a, b);
        r.scale("y", sum, 0.5)
    });
    let cores = std::thread::available_parallelism().unwrap().get();
    let expected = run_all(&mut Reference::new(), &graph, limits(), &[Owned::tokens(2)]);
    for threads in [2, cores + 2] {
        let mut cpu = cpu(Level::detect(), threads);
        let segment = prepare(&mut cpu, &graph, limits());
        for _ in 0..3000 {
            let found = run(&mut cpu, segment, &graph, &Owned::tokens(2));
            assert!(error(&expected, &found) < FLOAT_BOUND);
        }
    }
}

// ---- Every type has kernels ---------------------------------------------------------------------

/// Plain numbers, which are not used for weights.
const PLAIN: &[&str] = &["I8", "I16", "I32", "I64", "F64"];

/// Types without a dot kernel: a block is dequantized, then multiplied in f32.
const SLOW_ON_CPU: &[&str] = &[];

/// Types without a loader in shaders/quant: uploaded as F16.
const SLOW_ON_GPU: &[&str] = &[
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4",
];

#[test]
fn every_type_has_kernels_or_is_listed_as_slow() {
    // The GPU stores some types in their exact dense form.
    let is_widened = |ty: Type| ty.dense().is_some_and(|dense| Numbers::of(dense.ty).is_some());
    for &ty in bilayer_quant::all() {
        if PLAIN.contains(&ty.name) {
            continue;
        }
        let dot = dot(ty, 256, Level::Scalar).name;
        let is_slow = SLOW_ON_CPU.contains(&ty.name);
        assert_eq!(dot.starts_with("generic."), is_slow, "{ty} on the CPU: {dot}");
        let is_slow = SLOW_ON_GPU.contains(&ty.name);
        assert_eq!(Numbers::of(ty).is_none() && !is_widened(ty), is_slow, "{ty} on the GPU");
    }
    for name in PLAIN.iter().chain(SLOW_ON_CPU).chain(SLOW_ON_GPU) {
        assert!(bilayer_quant::by_name(name).is_ok(), "{name} is no type");
    }
}
