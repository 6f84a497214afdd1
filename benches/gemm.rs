//! Benchmarks GEMM: weight types x instruction levels, one thread, GOPS reported as Gelem/s.
//!
//! `cargo bench --bench gemm -- q4_k/avx512vnni` runs a subset. The panel of a work item is timed with all tokens,
//! and packing separately; figures of two levels are comparable only within one run.

use std::hint::black_box;
use std::time::Duration;

use bilayer_cpu::gemm::{Gemm, PackedChunks, gemm, gemm_rounded};
use bilayer_cpu::level::Level;
use bilayer_quant::Type;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const TYPES: [Type; 9] = [
    Type::Q4_0,
    Type::Q8_0,
    Type::Q4_K,
    Type::Q5_K,
    Type::Q6_K,
    Type::IQ4_XS,
    Type::F16,
    Type::BF16,
    Type::F32,
];

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

/// Weights `[rows, cols]`: a few quantized rows repeated, since only the location of their bytes matters.
fn weights(ty: Type, rows: usize, cols: usize) -> Vec<u8> {
    let mut few = vec![0; 4 * ty.row_bytes(cols).expect("whole blocks")];
    ty.quantize(&noise(4 * cols), None, &mut few).expect("finite weights");
    few.repeat(rows / 4)
}

/// The packed activations of a product and its buffers.
struct Prepared {
    packed: PackedChunks,
    scratch: Vec<u8>,
    out: Vec<f32>,
}

impl Prepared {
    fn new(gemm: &Gemm, x: &[f32], tokens: usize) -> Prepared {
        Prepared {
            packed: gemm.packing.pack_all(x, tokens),
            scratch: vec![0; gemm.scratch_bytes(tokens)],
            out: vec![0.0; gemm.panel_rows * tokens],
        }
    }
}

/// The levels to measure, and whether with rounded weights, where there are any.
fn variants(ty: Type, cols: usize) -> impl Iterator<Item = (Level, bool)> {
    let levels = Level::available().filter(|level| *level != Level::Scalar);
    let rounds = move |level| gemm_rounded(ty, cols, level).rounds_from().is_some();
    levels.flat_map(move |level| {
        [(level, false)].into_iter().chain(rounds(level).then_some((level, true)))
    })
}

fn products(criterion: &mut Criterion) {
    for (rows, cols) in SHAPES {
        for ty in TYPES {
            let bytes = weights(ty, rows, cols);
            for (level, is_rounded) in variants(ty, cols) {
                let name = format!("{rows}x{cols}/{}/{level}", ty.name.to_lowercase());
                let (name, gemm) = match is_rounded {
                    true => (name + "-rounded", gemm_rounded(ty, cols, level)),
                    false => (name, gemm(ty, cols, level)),
                };
                let mut group = criterion.benchmark_group(name);
                group.sample_size(10).warm_up_time(Duration::from_millis(100));
                group.measurement_time(Duration::from_millis(600));
                for tokens in TOKENS {
                    let x = noise(tokens * cols);
                    let mut prepared = Prepared::new(&gemm, &x, tokens);
                    let mut panels =
                        bytes.chunks_exact(bytes.len() / rows * gemm.panel_rows).cycle();
                    group.throughput(Throughput::Elements(
                        2 * (gemm.panel_rows * cols * tokens) as u64,
                    ));
                    group.bench_function(BenchmarkId::new("run", tokens), |bencher| {
                        bencher.iter(|| {
                            let Prepared { packed, scratch, out } = &mut prepared;
                            let panel = panels.next().expect("an endless cycle");
                            gemm.run(panel, packed.get(), scratch, out);
                            black_box(&out);
                        });
                    });
                    group.throughput(Throughput::Elements((tokens * cols) as u64));
                    group.bench_function(BenchmarkId::new("pack", tokens), |bencher| {
                        bencher.iter(|| prepared.packed.pack(black_box(&x)));
                    });
                }
                group.finish();
            }
        }
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
