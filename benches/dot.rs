//! Benchmarks the GEMV kernels: weight bytes per second next to the memory bandwidth, by type, level and threads, of every
//! type with kernels of its own.
//!
//! Half a GiB of weights is streamed window by window, and each kernel window is followed by a read-only one: the
//! machine's bandwidth fluctuates, so only the ratio of adjacent windows shows how well a kernel uses it. After
//! criterion's own lines, one line per kernel gives the best windows of both (GB/s, 10^9 bytes) and their ratio. The
//! kernel over 128 KiB that stay in the caches, `in cache`, shows the share of arithmetic.
//!
//! `cargo bench --bench dot -- 'q4_k.*1 thread'` runs a subset.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bilayer_cpu::activations::{Activations, PreparedColumns};
use bilayer_cpu::dot::{AHEAD, Dot, dot};
use bilayer_cpu::level::Level;
use bilayer_quant::Type;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use support::together::together;
use support::weights::{fill, types};

mod support {
    pub mod together;
    pub mod weights;
}

/// Weights per row: a common model width.
const COLS: usize = 4096;
/// Bytes of weights, several times the last-level cache.
const SET_BYTES: usize = 512 << 20;
/// Bytes per thread and window: long enough to time, short enough to fit between the time slices of other processes.
const WINDOW_BYTES: usize = 4 << 20;
/// Bytes that stay in the second-level cache.
const NEAR_BYTES: usize = 128 << 10;

/// Weights, filled when the first kernel of a type is measured.
struct Weights {
    bytes: Vec<u8>,
    ty: Option<Type>,
}

impl Weights {
    /// The bytes, of a type.
    fn of(&mut self, ty: Type) -> &[u8] {
        if self.ty != Some(ty) {
            fill(ty, COLS, &mut self.bytes);
            self.ty = Some(ty);
        }
        &self.bytes
    }
}

fn dots(criterion: &mut Criterion) {
    let mut weights = Weights { bytes: vec![0; SET_BYTES], ty: None };
    for ty in types(COLS) {
        for level in Level::available() {
            let kernel = dot(ty, COLS, level);
            // A level without kernels of its own would only repeat a lower one.
            if level == Level::Scalar || !kernel.name.ends_with(level.name()) {
                continue;
            }
            for (threads, columns) in [(1, 1), (2, 1), (1, 4), (1, 8)] {
                let activations = prepared(kernel, level, columns);
                stream(criterion, kernel, (threads, activations.get()), (ty, &mut weights));
            }
            near(criterion, kernel, level, (ty, &mut weights));
        }
    }
}

/// Equal activation columns, prepared for a kernel.
fn prepared(dot: Dot, level: Level, count: usize) -> PreparedColumns {
    let activations: Vec<f32> = (0..COLS).map(|i| (i as f32 * 0.37).sin()).collect();
    PreparedColumns::new(dot.format, level, &activations.repeat(count), COLS)
}

/// Benchmarks one kernel and column on weights that stay in the caches.
fn near(criterion: &mut Criterion, dot: Dot, level: Level, (ty, set): (Type, &mut Weights)) {
    let columns = prepared(dot, level, 1);
    let rows = NEAR_BYTES / dot.row_bytes();
    let (bytes, mut out) = (rows * dot.row_bytes(), vec![0.0; rows]);
    let mut group = criterion.benchmark_group(dot.name);
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function("in cache", |bencher| {
        let weights = &set.of(ty)[..bytes];
        bencher.iter(|| dot.run(black_box(weights), columns.get(), black_box(&mut out)));
    });
    group.finish();
}

/// Benchmarks one kernel on `threads` threads.
fn stream(
    criterion: &mut Criterion,
    dot: Dot,
    (threads, columns): (usize, Activations<'_>),
    (ty, set): (Type, &mut Weights),
) {
    let count = columns.count;
    let rows = WINDOW_BYTES / dot.row_bytes();
    let share_bytes = rows * dot.row_bytes();
    let window_bytes = threads * share_bytes;
    let mut best = [Duration::MAX; 2];
    let mut window = 0;
    let mut group = criterion.benchmark_group(dot.name);
    group.throughput(Throughput::Bytes(window_bytes as u64));
    let id = BenchmarkId::from_parameter(format!("{threads} thread {count} columns"));
    group.bench_function(id, |bencher| {
        let set = set.of(ty);
        let share = |window: usize, thread: usize| {
            let windows = set.len() / window_bytes;
            &set[window % windows * window_bytes + thread * share_bytes..][..share_bytes]
        };
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
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            #[allow(unused_unsafe, reason = "the intrinsic is unsafe on some compilers only")]
            // SAFETY: a prefetch affects only the caches.
            unsafe {
                _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().wrapping_add(AHEAD + at).cast());
            }
        }
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
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
