//! How fast this machine's memory is read: the yardstick for every kernel that streams weights.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::lanes::{Kernel, Lanes, dispatch};
use crate::level::Level;
use crate::memory::Memory;

/// Bytes each pass reads: far more than any cache.
const BYTES: usize = 512 << 20;

/// Passes; the best counts.
const PASSES: usize = 6;

/// How far ahead of the sum lines are asked for, bytes: as far as the weight kernels do.
const AHEAD: usize = 8 << 10;

/// Reading speed of large memory by `threads` threads at the detected level, GB/s (10^9 bytes a second): the
/// best of six passes over half a gigabyte, each thread summing a part of its own. 0 when there is no memory
/// for it.
#[must_use]
pub fn read_gbps(threads: usize) -> f64 {
    read_gbps_of(threads, BYTES)
}

/// [`read_gbps`] over a buffer of about `bytes`.
#[must_use]
pub fn read_gbps_of(threads: usize, bytes: usize) -> f64 {
    let level = Level::detect();
    let threads = threads.max(1);
    let part = (bytes / threads / 4096).max(1) * 4096;
    let Ok(memory) = Memory::new(part * threads, "a reading probe") else { return 0.0 };
    let barrier = Barrier::new(threads);
    let passes = |thread: usize| {
        // SAFETY: each thread has a part of its own.
        let own = unsafe { memory.get_mut::<f32>(thread * part, part / 4) };
        own.fill(1.0);
        let mut best = Duration::MAX;
        for _ in 0..PASSES {
            barrier.wait();
            let start = Instant::now();
            std::hint::black_box(dispatch(level, Sum(own)));
            barrier.wait();
            best = best.min(start.elapsed());
        }
        best
    };
    let best = std::thread::scope(|scope| {
        for thread in 1..threads {
            let passes = &passes;
            scope.spawn(move || passes(thread));
        }
        passes(0)
    });
    (part * threads) as f64 / best.as_secs_f64() / 1e9
}

/// The sum of whole kilobytes.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let mut sums = [l.splat(0.0); 8];
        for block in self.0.chunks_exact(8 * L::N) {
            for line in (0..32 * L::N).step_by(64) {
                l.prefetch(block.as_ptr().cast::<u8>().wrapping_add(AHEAD + line));
            }
            for (at, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the block has 8 N elements.
                *sum = l.add(*sum, unsafe { l.load(block.as_ptr().add(at * L::N)) });
            }
        }
        sums.into_iter().map(|sum| l.sum(sum)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_right_and_the_speed_is_plausible() {
        let ones = [1.0; 1024];
        for level in Level::available() {
            assert_eq!(dispatch(level, Sum(&ones)), 1024.0);
        }
        let speed = read_gbps_of(2, 8 << 20);
        assert!(speed > 0.05 && speed < 10_000.0, "{speed}");
    }
}
