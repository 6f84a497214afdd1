//! Benchmarks GEMM: every type with kernels of its own x instruction levels, one thread, GOPS reported as Gelem/s.
//!
//! `cargo bench --bench gemm -- q4_k/avx512vnni` runs a subset. The panel of a work item is timed with all tokens,
//! and packing separately; figures of two levels are comparable only within one run.

use std::hint::black_box;
use std::time::Duration;

use bilayer_cpu::gemm::{Gemm, PackedChunks, gemm, gemm_rounded};
use bilayer_cpu::level::Level;
use bilayer_quant::Type;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use support::weights::{fill, types};

mod support {
    pub mod weights;
}

/// Rows and columns: a square projection and half of a wide feed-forward.
const SHAPES: [(usize, usize); 2] = [(4096, 4096), (2048, 8192)];

/// Tokens: a small batch, a short prompt and a typical one.
const TOKENS: [usize; 3] = [12, 64, 512];

/// Reproducible random numbers.
fn noise(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

/// Weights `[rows, cols]`: a few rows repeated, since only the location of their bytes matters.
fn weights(ty: Type, rows: usize, cols: usize) -> Vec<u8> {
    let mut few = vec![0; 4 * ty.row_bytes(cols).expect("whole blocks")];
    fill(ty, cols, &mut few);
    few.repeat(rows / 4)
}

/// The operands of a product and its buffers.
struct Prepared {
    x: Vec<f32>,
    packed: PackedChunks,
    scratch: Vec<u8>,
    out: Vec<f32>,
}

impl Prepared {
    fn new(gemm: &Gemm, cols: usize, tokens: usize) -> Prepared {
        let x = noise(tokens * cols);
        Prepared {
            packed: gemm.packing.pack_all(&x, tokens),
            scratch: vec![0; gemm.scratch_bytes(tokens)],
            out: vec![0.0; gemm.panel_rows * tokens],
            x,
        }
    }
}

/// The kernels of a type by name: those of every level but `scalar` that do not repeat a lower one's, and those with
/// rounded weights where there are any.
fn kernels(ty: Type, cols: usize) -> Vec<(String, Gemm)> {
    let mut kernels: Vec<(String, Gemm)> = Vec::new();
    let mut names = Vec::new();
    for level in Level::available().filter(|level| *level != Level::Scalar) {
        let (exact, rounded) = (gemm(ty, cols, level), gemm_rounded(ty, cols, level));
        if names.contains(&exact.name) {
            continue;
        }
        names.push(exact.name);
        kernels.push((level.to_string(), exact));
        if rounded.rounds_from().is_some() {
            kernels.push((format!("{level}-rounded"), rounded));
        }
    }
    kernels
}

fn products(criterion: &mut Criterion) {
    for (rows, cols) in SHAPES {
        for ty in types(cols) {
            // Made when they are measured, as most are not if there is a filter.
            let mut bytes = None;
            for (level, gemm) in kernels(ty, cols) {
                let name = format!("{rows}x{cols}/{}/{level}", ty.name.to_lowercase());
                let mut group = criterion.benchmark_group(name);
                group.sample_size(10).warm_up_time(Duration::from_millis(100));
                group.measurement_time(Duration::from_millis(400));
                for tokens in TOKENS {
                    let (mut prepared, mut next) = (None, 0);
                    let operations = 2 * gemm.panel_rows * cols * tokens;
                    group.throughput(Throughput::Elements(operations as u64));
                    group.bench_function(BenchmarkId::new("run", tokens), |bencher| {
                        let bytes = bytes.get_or_insert_with(|| weights(ty, rows, cols));
                        let prepared =
                            prepared.get_or_insert_with(|| Prepared::new(&gemm, cols, tokens));
                        let Prepared { packed, scratch, out, .. } = prepared;
                        let panel_bytes = bytes.len() / rows * gemm.panel_rows;
                        bencher.iter(|| {
                            let panel = &bytes[next..next + panel_bytes];
                            gemm.run(panel, packed.get(), scratch, out);
                            black_box(&out);
                            next = (next + panel_bytes) % bytes.len();
                        });
                    });
                    group.throughput(Throughput::Elements((tokens * cols) as u64));
                    group.bench_function(BenchmarkId::new("pack", tokens), |bencher| {
                        let Prepared { packed, x, .. } =
                            prepared.get_or_insert_with(|| Prepared::new(&gemm, cols, tokens));
                        bencher.iter(|| packed.pack(black_box(x)));
                    });
                }
                group.finish();
            }
        }
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
