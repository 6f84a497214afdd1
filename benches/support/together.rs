//! Times work that runs on several threads at once.

use std::sync::Barrier;
use std::time::Duration;

/// Runs `work` on `threads` threads at once and returns the longest time.
pub fn together(threads: usize, work: impl Fn(usize) -> Duration + Sync) -> Duration {
    if threads == 1 {
        return work(0);
    }
    let barrier = Barrier::new(threads);
    let (work, barrier) = (&work, &barrier);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    barrier.wait();
                    work(thread)
                })
            })
            .collect();
        let times = running.into_iter().map(|thread| thread.join().expect("no panic"));
        times.max().unwrap_or_default()
    })
}
