//! Measures memory read bandwidth, the upper bound for kernels that stream weights, and how close these come to it.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bilayer_quant::Type;

use crate::activations::PreparedColumns;
use crate::dot::{AHEAD, dot};
use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};
use crate::memory::Memory;
use crate::stream::prefetch_lines;

/// Bytes read in turn: far more than any cache.
const BYTES: usize = 512 << 20;

/// Bytes per window over all threads: a few milliseconds at most, so that some windows fall between the time slices
/// of other processes.
const WINDOW_BYTES: usize = 16 << 20;

/// Number of passes over all windows.
const PASSES: usize = 4;

/// Prefetch distances in bytes: that of the weight kernels, or none. Which is faster depends on the CPU.
const DISTANCES: [usize; 2] = [AHEAD, 0];

/// Read bandwidth of large memory with `threads` threads at the detected level, GB/s (10^9 bytes per second): the
/// best 16 MiB window of half a gigabyte read four times, twice with prefetching and twice without. 0 if memory is
/// insufficient or a thread cannot be started.
#[must_use]
pub fn read_gbps(threads: usize) -> f64 {
    read_gbps_of(threads, BYTES)
}

/// [`read_gbps`] over approximately `bytes`.
#[must_use]
pub fn read_gbps_of(threads: usize, bytes: usize) -> f64 {
    let level = Level::detect();
    let threads = threads.max(1);
    // Whole pages for each thread.
    let part = (WINDOW_BYTES.min(bytes) / threads / 4096).max(1) * 4096;
    let windows = (bytes / (part * threads)).max(1);
    let Ok(memory) = Memory::new(part * threads * windows, "a reading probe") else { return 0.0 };
    let meeting = Meeting::of(threads);
    let passes = |thread: usize| {
        let own = |window: usize| {
            // SAFETY: each thread has its own part of each window.
            unsafe { memory.get_mut::<f32>((window * threads + thread) * part, part / 4) }
        };
        (0..windows).for_each(|window| own(window).fill(1.0));
        let mut best = Duration::MAX;
        for round in 0..PASSES * windows {
            meeting.wait(2 * round + 1);
            let start = Instant::now();
            let ahead = DISTANCES[round / windows % 2];
            std::hint::black_box(dispatch(level, Sum { floats: own(round % windows), ahead }));
            meeting.wait(2 * round + 2);
            best = best.min(start.elapsed());
        }
        best
    };
    let best = together(&meeting, &passes);
    best.map_or(0.0, |best| (part * threads) as f64 / best.as_secs_f64() / 1e9)
}

/// Bandwidths at which the kernels of a level read weights, GB/s (10^9 bytes per second): products of one vector with about `bytes`
/// of weights of each type and number of columns, `threads` threads at once, the fastest of a few passes. 0 for a type if
/// memory is insufficient, a thread cannot be started, or the rows do not consist of whole blocks.
#[must_use]
pub fn kernel_gbps(
    shapes: &[(Type, usize)],
    level: Level,
    threads: usize,
    bytes: usize,
) -> Vec<f64> {
    let threads = threads.max(1);
    let part = bytes / threads / 4096 * 4096;
    let none = || vec![0.0; shapes.len()];
    let Ok(memory) = Memory::new(part * threads, "a probe of kernels") else { return none() };
    let meeting = Meeting::of(threads);
    let passes = |thread: usize| {
        // SAFETY: each thread has its own part.
        let own = unsafe { memory.get_mut::<u8>(thread * part, part) };
        // As scales, small normal numbers of any float type; as places, one within a group.
        own.fill(0x11);
        let times = shapes.iter().enumerate().map(|(index, &(ty, cols))| {
            let Ok(row_bytes) = ty.row_bytes(cols) else { return (0, Duration::MAX) };
            let (dot, rows) = (dot(ty, cols, level), own.len() / row_bytes);
            let columns = PreparedColumns::new(dot.format, level, &vec![1.0; cols], cols);
            let (weights, mut out) = (&own[..rows * row_bytes], vec![0.0; rows]);
            let mut best = Duration::MAX;
            for pass in PASSES * index..PASSES * (index + 1) {
                meeting.wait(2 * pass + 1);
                let start = Instant::now();
                dot.run(weights, columns.get(), &mut out);
                std::hint::black_box(&out);
                meeting.wait(2 * pass + 2);
                best = best.min(start.elapsed());
            }
            (weights.len() * threads, best)
        });
        times.collect::<Vec<_>>()
    };
    let gbps = |(bytes, best): (usize, Duration)| bytes as f64 / best.as_secs_f64() / 1e9;
    together(&meeting, &passes).map_or_else(none, |times| times.into_iter().map(gbps).collect())
}

/// Minimum bytes that [`stream_gbps`] reads with each prefetch distance, so that thread start-up is negligible.
const STREAM_BYTES: usize = 1 << 30;

/// Maximum bytes per pass.
const STREAM_PASS: usize = 512 << 20;

/// Read bandwidth of `bytes` with `threads` threads, GB/s (10^9 bytes per second): each thread reads one part from
/// end to end, repeatedly until a gigabyte is read, with and without prefetching; the faster of the two averages.
/// Cached data is read from the cache, and file data through its map, as weights are. 0 for less than a kilobyte per
/// thread, or if a thread cannot be started.
#[must_use]
pub fn stream_gbps(threads: usize, bytes: &[u8]) -> f64 {
    let level = Level::detect();
    let threads = threads.max(1);
    // Float values do not matter: the time of a sum does not depend on them.
    let floats: &[f32] = bytemuck::pod_align_to(&bytes[..bytes.len().min(STREAM_PASS)]).1;
    let part = floats.len() / threads / 256 * 256;
    if part == 0 {
        return 0.0;
    }
    let passes = STREAM_BYTES.div_ceil(4 * part * threads).max(2);
    let meeting = Meeting::of(threads);
    let read = |thread: usize| {
        let own = &floats[thread * part..][..part];
        let sum = |ahead| std::hint::black_box(dispatch(level, Sum { floats: own, ahead }));
        // The first pass loads what is not in memory yet.
        sum(DISTANCES[0]);
        let mut best = Duration::MAX;
        for (way, ahead) in DISTANCES.into_iter().enumerate() {
            meeting.wait(2 * way + 1);
            let start = Instant::now();
            for _ in 1..passes {
                sum(ahead);
            }
            meeting.wait(2 * way + 2);
            best = best.min(start.elapsed());
        }
        best
    };
    let took = together(&meeting, &read);
    took.map_or(0.0, |took| (4 * part * threads * (passes - 1)) as f64 / took.as_secs_f64() / 1e9)
}

/// Runs `work` on each thread of a meeting, this one among them, and returns its result here. `None` if a thread cannot be
/// started.
fn together<T: Send>(meeting: &Meeting, work: &(impl Fn(usize) -> T + Sync)) -> Option<T> {
    std::thread::scope(|scope| {
        for thread in 1..meeting.threads {
            let start = move || {
                if meeting.begins() {
                    drop(work(thread))
                }
            };
            if std::thread::Builder::new().spawn_scoped(scope, start).is_err() {
                meeting.call_off();
                return None;
            }
        }
        meeting.begins().then(|| work(0))
    })
}

/// A spinning barrier: the system's costs as much as a window.
struct Meeting {
    threads: usize,
    arrived: AtomicUsize,
    /// Threads that wait for the others to be started; [`CALLED_OFF`] if one cannot be.
    ready: AtomicUsize,
}

/// No meeting has so many threads.
const CALLED_OFF: usize = usize::MAX / 2;

impl Meeting {
    fn of(threads: usize) -> Meeting {
        Meeting { threads, arrived: AtomicUsize::new(0), ready: AtomicUsize::new(0) }
    }

    /// Waits until all threads run; false if they do not.
    fn begins(&self) -> bool {
        self.ready.fetch_add(1, Ordering::AcqRel);
        loop {
            match self.ready.load(Ordering::Acquire) {
                ready if ready >= CALLED_OFF => return false,
                ready if ready == self.threads => return true,
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Ends the wait of the threads that run.
    fn call_off(&self) {
        self.ready.fetch_add(CALLED_OFF, Ordering::AcqRel);
    }

    /// Waits until all threads have arrived for the `count`th time.
    fn wait(&self, count: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut tries = 0u32;
        while self.arrived.load(Ordering::Acquire) < count * self.threads {
            tries += 1;
            // The missing thread may be waiting for this CPU.
            if tries.is_multiple_of(1024) { std::thread::yield_now() } else { spin_loop() }
        }
    }
}

/// The sum of a whole number of kilobytes.
struct Sum<'a> {
    floats: &'a [f32],
    /// Prefetch distance in bytes; 0 for none.
    ahead: usize,
}

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let mut sums = [l.splat(0.0); 8];
        for block in self.floats.chunks_exact(8 * L::N) {
            if self.ahead > 0 {
                let later = block.as_ptr().cast::<u8>().wrapping_add(self.ahead);
                prefetch_lines(later, (32 * L::N).div_ceil(64));
            }
            for (sum, floats) in sums.iter_mut().zip(block.chunks_exact(L::N)) {
                *sum = l.add(*sum, l.read(floats));
            }
        }
        sums.into_iter().map(|sum| l.sum(sum)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that were started do not wait for those that cannot be.
    #[test]
    fn a_meeting_that_is_called_off_begins_nowhere() {
        let meeting = Meeting::of(3);
        std::thread::scope(|scope| {
            let waiting = [(); 2].map(|()| scope.spawn(|| meeting.begins()));
            meeting.call_off();
            assert_eq!(waiting.map(|thread| thread.join().unwrap()), [false; 2]);
        });
        assert_eq!(together(&Meeting::of(3), &|thread| thread), Some(0));
    }

    #[test]
    fn the_sum_is_right_and_the_speed_is_plausible() {
        let ones = [1.0; 1024];
        for level in Level::available() {
            for ahead in DISTANCES {
                assert_eq!(dispatch(level, Sum { floats: &ones, ahead }), 1024.0);
            }
        }
        let speed = read_gbps_of(2, 8 << 20);
        assert!(speed > 0.05 && speed < 10_000.0, "{speed}");
        let stream = stream_gbps(2, &vec![7; 1 << 20]);
        assert!(stream > 0.05 && stream < 10_000.0, "{stream}");
        assert_eq!(stream_gbps(2, &[0; 1000]), 0.0);
        let shapes = [(Type::S4_8_64, 256), (Type::Q4_K, 256), (Type::Q4_K, 100)];
        let [sparse, dense, none] = kernel_gbps(&shapes, Level::detect(), 2, 1 << 20)[..] else {
            panic!("a bandwidth for each shape");
        };
        assert!(none == 0.0 && [sparse, dense].iter().all(|gbps| (0.001..10_000.0).contains(gbps)));
    }
}
