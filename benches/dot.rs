//! Benchmarks the GEMV kernels: weight bytes per second next to the memory bandwidth, by type, level and threads.
//!
//! Half a GiB of weights is streamed window by window, and each kernel window is followed by a read-only one: the
//! machine's bandwidth fluctuates, so only the ratio of adjacent windows shows how well a kernel uses it. After
//! criterion's own lines, one line per kernel gives the best windows of both (GB/s, 10^9 bytes) and their ratio. The
//! kernel over 128 KiB that stay in the caches, `in cache`, shows the share of arithmetic.
//!
//! `cargo bench --bench dot -- 'q4_k.*1 thread'` runs a subset.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bilayer_cpu::activations::PreparedColumns;
use bilayer_cpu::dot::{AHEAD, Dot, dot};
use bilayer_cpu::level::Level;
use bilayer_quant::Type;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};
use support::together::together;

mod support {
    pub mod together;
}

/// Weights per row: a common model width.
const COLS: usize = 4096;
/// Bytes of weights, several times the last-level cache.
const SET_BYTES: usize = 512 << 20;
/// Bytes per thread and window: long enough to time, short enough to fit between the time slices of other processes.
const WINDOW_BYTES: usize = 4 << 20;
/// Bytes that stay in the second-level cache.
const NEAR_BYTES: usize = 128 << 10;

const TYPES: [Type; 30] = [
    Type::F32,
    Type::F16,
    Type::BF16,
    Type::Q8_0,
    Type::Q4_0,
    Type::Q4_1,
    Type::Q5_0,
    Type::Q5_1,
    Type::Q2_K,
    Type::Q3_K,
    Type::Q4_K,
    Type::Q5_K,
    Type::Q6_K,
    Type::IQ1_S,
    Type::IQ1_M,
    Type::IQ2_XXS,
    Type::IQ2_XS,
    Type::IQ2_S,
    Type::IQ3_XXS,
    Type::IQ3_S,
    Type::IQ4_NL,
    Type::IQ4_XS,
    Type::MXFP4,
    Type::NVFP4,
    Type::TQ1_0,
    Type::TQ2_0,
    Type::S4_8_64,
    Type::S4_16_64,
    Type::S8_8_64,
    Type::S8_16_64,
];

fn dots(criterion: &mut Criterion) {
    let mut bytes = vec![0; SET_BYTES];
    for ty in TYPES {
        fill(ty, &mut bytes);
        for level in Level::available() {
            let kernel = dot(ty, COLS, level);
            // A level without kernels of its own would only repeat a lower one.
            if level == Level::Scalar || !kernel.name.ends_with(level.name()) {
                continue;
            }
            for (threads, columns) in [(1, 1), (2, 1), (1, 4), (1, 8)] {
                stream(criterion, kernel, level, (threads, columns), &bytes);
            }
            near(criterion, kernel, level, &bytes);
        }
    }
}

/// Equal activation columns, prepared for a kernel.
fn columns(dot: Dot, level: Level, count: usize) -> PreparedColumns {
    let activations: Vec<f32> = (0..COLS).map(|i| (i as f32 * 0.37).sin()).collect();
    PreparedColumns::new(dot.format, level, &activations.repeat(count), COLS)
}

/// Benchmarks one kernel and column on weights that stay in the caches.
fn near(criterion: &mut Criterion, dot: Dot, level: Level, set: &[u8]) {
    let columns = columns(dot, level, 1);
    let rows = NEAR_BYTES / dot.row_bytes();
    let (weights, mut out) = (&set[..rows * dot.row_bytes()], vec![0.0; rows]);
    let mut group = criterion.benchmark_group(dot.name);
    group.throughput(Throughput::Bytes(weights.len() as u64));
    group.bench_function("in cache", |bencher| {
        bencher.iter(|| dot.run(black_box(weights), columns.get(), black_box(&mut out)));
    });
    group.finish();
}

/// Benchmarks one kernel on `threads` threads with `count` columns.
fn stream(
    criterion: &mut Criterion,
    dot: Dot,
    level: Level,
    (threads, count): (usize, usize),
    set: &[u8],
) {
    let columns = columns(dot, level, count);
    let columns = columns.get();

    let rows = WINDOW_BYTES / dot.row_bytes();
    let share_bytes = rows * dot.row_bytes();
    let window_bytes = threads * share_bytes;
    let share = |window: usize, thread: usize| {
        let windows = set.len() / window_bytes;
        &set[window % windows * window_bytes + thread * share_bytes..][..share_bytes]
    };
    let mut best = [Duration::MAX; 2];
    let mut window = 0;
    let mut group = criterion.benchmark_group(dot.name);
    group.throughput(Throughput::Bytes(window_bytes as u64));
    let id = BenchmarkId::from_parameter(format!("{threads} thread {count} columns"));
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|windows| {
            let mut total = Duration::ZERO;
            for _ in 0..windows {
                let taken = together(threads, |thread| {
                    let mut out = vec![0.0; rows * count];
                    let weights = share(window, thread);
                    let start = Instant::now();
                    dot.run(weights, columns, &mut out);
                    black_box(&out);
                    start.elapsed()
                });
                let read = together(threads, |thread| {
                    let start = Instant::now();
                    black_box(probe(share(window + 1, thread)));
                    start.elapsed()
                });
                best = [best[0].min(taken), best[1].min(read)];
                window += 2;
                total += taken;
            }
            total
        });
    });
    group.finish();
    if window > 0 {
        let [kernel, read] = best.map(|best| window_bytes as f64 / best.as_secs_f64() / 1e9);
        let name = dot.name;
        eprintln!(
            "best: {name:20} {threads} threads {count} columns: {kernel:6.2} GB/s, read {read:6.2} GB/s, ratio {:.2}",
            kernel / read
        );
    }
}

/// Reads everything with almost no computation, prefetching as the kernels do.
fn probe(bytes: &[u8]) -> u64 {
    let mut sums = [0; 32];
    for line in bytes.as_chunks::<256>().0 {
        #[cfg(target_arch = "x86_64")]
        for at in [0, 64, 128, 192] {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            #[allow(unused_unsafe, reason = "the intrinsic is unsafe on some compilers only")]
            // SAFETY: a prefetch affects only the caches.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD + at).cast());
            }
        }
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

/// Blocks of random codes with small scales.
fn fill(ty: Type, bytes: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in bytes.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    for (index, block) in bytes.chunks_exact_mut(ty.block_bytes).enumerate() {
        let value = index as f32 % 1000.0 * 0.001;
        match ty.block_bytes {
            4 if ty == Type::F32 => block.copy_from_slice(&value.to_le_bytes()),
            2 if ty == Type::F16 => block.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            2 => block.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            _ => {}
        }
        for plane in ty.planes {
            match (plane.name, &mut block[plane.offset..][..plane.len]) {
                ("d" | "dmin" | "m", [low, high]) => {
                    [*low, *high] = f16::from_f32(0.01).to_le_bytes();
                }
                ("e", [exponent]) => *exponent = 120,
                _ => {}
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = dots
}
criterion_main!(benches);
