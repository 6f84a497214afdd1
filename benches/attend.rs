//! Benchmarks attention deep in a sequence: bandwidth of keys and values in decode, operations in prefill.
//!
//! The model is attention alone, with enough layers that its cache is several times the last-level cache. After
//! criterion's own lines, one line gives the best layer over all steps next to the memory bandwidth: single layers
//! fit between the time slices of other processes.
//!
//! `cargo bench --bench attend -- 'decode.*1 thread'` runs a subset.

use bilayer_cpu::{Cpu, Options, probe};
use bilayer_graph::{
    Attend, Backend, CacheId, CachePages, Catalog, Entry, Exactness, Graph, Limits, PAGE_TOKENS,
    Recorder, Segment, SegmentId, SharedBytes, Span, Step, Value,
};
use bilayer_quant::{Type, cache};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const LAYERS: usize = 16;
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 64;
/// Cached positions before the step.
const DEPTH: usize = 8192;

struct Tables;

impl Catalog for Tables {
    fn find(&self, name: &str) -> Option<Entry> {
        let width = if name == "q" { HEADS } else { KV_HEADS } * HEAD_DIM;
        Some(Entry { ty: Type::F32, shape: vec![2, width as u64] })
    }
}

/// Attention with equal queries, keys and values in every layer.
fn graph() -> Graph {
    let mut r = Recorder::new(&Tables);
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let width = if name == "q" { HEADS } else { KV_HEADS } * HEAD_DIM;
        let table = r.matrix(name, 2, width).expect("the catalog has every tensor");
        r.embed(name, table)
    });
    let mut out = Value(0);
    for layer in 0..LAYERS {
        r.layer(Some(layer as u32));
        let cache = r.cache(KV_HEADS, HEAD_DIM, None);
        let attend = Attend {
            q,
            k,
            v: bilayer_graph::Values::Beside(v),
            out,
            cache: Some(cache),
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            scale: 0.125,
            window: None,
            softcap: None,
            sinks: None,
            bias: None,
        };
        out = r.attend("attend", attend);
    }
    r.finish(out)
}

/// Writes all pages: unwritten ones are all mapped to a single zero page, which stays in the caches.
fn fill(cpu: &mut Cpu, pages: u32) {
    let width = PAGE_TOKENS * KV_HEADS * HEAD_DIM;
    let values: Vec<f32> = (0..width).map(|i| (i as f32).sin()).collect();
    let data = CachePages { keys: values.clone(), values };
    for layer in 0..LAYERS as u32 {
        for page in 0..pages {
            cpu.restore(CacheId(layer), &[page], &data).expect("the cache has the page");
        }
    }
}

/// A backend that steps at [`DEPTH`].
struct Bench {
    cpu: Cpu,
    graph: Graph,
    segment: SegmentId,
    tokens: Vec<u32>,
    pages: Vec<u32>,
    out: Vec<f32>,
    /// The shortest time of one layer, nanoseconds.
    best_ns: u64,
}

impl Bench {
    fn new(threads: usize, tokens: usize, ty: Type) -> Bench {
        let graph = graph();
        let options = Options { threads: Some(threads), ..Options::default() };
        let mut cpu = Cpu::new(options).expect("the host runs threads");
        for weight in &graph.weights {
            let values: Vec<u8> = (0..weight.rows * weight.cols)
                .flat_map(|i| (i as f32).sin().to_le_bytes())
                .collect();
            cpu.load(weight, SharedBytes::from(values)).expect("the bytes fit");
        }
        let pages = (DEPTH + tokens).div_ceil(PAGE_TOKENS);
        let limits = Limits {
            outputs: 1,
            states: 0,
            key_type: ty,
            value_type: ty,
            timings: true,
            ..Limits::new(tokens, pages)
        };
        let nodes = 0..graph.nodes.len();
        let outputs = vec![graph.logits];
        let segment = Segment { graph: &graph, nodes, inputs: vec![], outputs };
        let segment = cpu.compile(&segment, limits).expect("the graph compiles");
        fill(&mut cpu, pages as u32);
        Bench {
            cpu,
            segment,
            tokens: vec![1; tokens],
            pages: (0..pages as u32).collect(),
            out: vec![0.0; tokens * HEADS * HEAD_DIM],
            best_ns: u64::MAX,
            graph,
        }
    }

    fn step(&mut self) {
        let rows = self.tokens.len() as u32;
        let first_position = DEPTH as u32;
        let span = Span { first_row: 0, rows, first_position, first_page: 0 };
        let (tokens, pages) = (&self.tokens, &self.pages);
        let step = Step {
            tokens,
            spans: &[span],
            pages,
            outputs: &[],
            states: &[],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        self.cpu.submit(self.segment, &step).expect("the step fits");
        self.cpu.read(self.graph.logits, &mut self.out).expect("attention runs");
        // The three embeddings come first.
        let layers = self.cpu.timings(self.segment).iter().skip(3);
        self.best_ns =
            layers.map(|time| time.ns).min().map_or(self.best_ns, |ns| ns.min(self.best_ns));
    }
}

fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    group.sample_size(20);
    for threads in [1, 2] {
        let memory = probe::read_gbps(threads);
        for ty in cache::TYPES.map(|(ty, _)| ty) {
            let layer_bytes = 2 * DEPTH * KV_HEADS * cache::head_bytes(ty, HEAD_DIM);
            let mut bench = Bench::new(threads, 1, ty);
            group.throughput(Throughput::Bytes((LAYERS * layer_bytes) as u64));
            let id = BenchmarkId::new(ty.name, format!("{threads} threads"));
            group.bench_function(id, |b| b.iter(|| bench.step()));
            let best = layer_bytes as f64 / bench.best_ns as f64;
            let share = 100.0 * best / memory;
            let us = bench.best_ns as f64 / 1e3;
            eprintln!("best layer {us:.0} us, {best:.1} GB/s of {memory:.1} GB/s: {share:.0} %");
        }
    }
    group.finish();
}

fn prefill(criterion: &mut Criterion) {
    let tokens = 256;
    let mut group = criterion.benchmark_group("prefill");
    group.sample_size(10);
    for threads in [1, 2] {
        let mut bench = Bench::new(threads, tokens, Type::F16);
        let layer_ops = 4 * tokens * (DEPTH + tokens / 2) * HEADS * HEAD_DIM;
        group.throughput(Throughput::Elements((LAYERS * layer_ops) as u64));
        let id = BenchmarkId::new("f16", format!("{threads} threads"));
        group.bench_function(id, |b| b.iter(|| bench.step()));
        eprintln!("best layer {:.0} GFLOPS", layer_ops as f64 / bench.best_ns as f64);
    }
    group.finish();
}

criterion_group!(benches, decode, prefill);
criterion_main!(benches);
