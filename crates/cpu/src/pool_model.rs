//! The pool under a model checker: its threads take turns at every lock and atomic, in thousands of random schedules.
//!
//! It finds chunks that are lost or run twice, stages that begin early, and lost wake-ups, as deadlocks. Its atomics are
//! sequentially consistent, so weaker orderings are not checked; and orders that need a thread to stop twice at one exact
//! step are too rare for it, such as the ones that a ticket's generation guards against.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicU32, Ordering};

use crate::host::Topology;
use crate::numa::{Nodes, Numa};
use pool::{Job, Pool, Work};

#[allow(dead_code, reason = "the model runs jobs without times")]
#[allow(
    clippy::duplicate_mod,
    reason = "once with threads of the system, once with those of the checker"
)]
#[path = "pool.rs"]
mod pool;

/// As the module of this name in the crate, with threads of the checker, which park at once.
mod sync {
    use std::time::Duration;

    pub(crate) use shuttle::hint::spin_loop;
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use shuttle::thread::{Builder, JoinHandle, yield_now};

    pub(crate) const LOOKS: usize = 1;
    pub(crate) const SPIN: Duration = Duration::ZERO;
    pub(crate) const YIELD: Duration = Duration::ZERO;
}

/// The remaining chunks of each stage.
struct Counting(Vec<AtomicU32>);

impl Work for Arc<Counting> {
    fn run(&self, stage: usize, _: usize, _: usize) {
        let early = self.0[..stage].iter().any(|left| left.load(Ordering::SeqCst) > 0);
        assert!(!early, "stage {stage} began early");
        assert_ne!(self.0[stage].fetch_sub(1, Ordering::SeqCst), 0, "a chunk ran twice");
    }
}

fn job(stages: usize, lanes: usize) -> (Arc<Counting>, Arc<Job>) {
    let counting = Arc::new(Counting((0..stages).map(|_| AtomicU32::new(0)).collect()));
    let job = Arc::new(Job::new(stages, lanes, Box::new(counting.clone())));
    (counting, job)
}

/// Opens and publishes a run, given the ends of the lanes' chunks in each stage.
fn begin(pool: &mut Pool, (counting, job): &(Arc<Counting>, Arc<Job>), ends: &[usize]) {
    let lanes = ends.len() / counting.0.len();
    for (left, ends) in counting.0.iter().zip(ends.chunks(lanes)) {
        left.store(ends[lanes - 1] as u32, Ordering::SeqCst);
    }
    job.open(ends.iter().copied());
    pool.publish(job);
}

/// Runs of two jobs; the pool ends in the middle of another one.
fn jobs_run_once_and_the_pool_ends() {
    let mut pool = Pool::new(Arc::new(Nodes::one(3))).expect("the checker has threads");
    let jobs = [job(3, 1), job(1, 1)];
    for (of, chunks) in [(0, &[2, 0, 1][..]), (1, &[3]), (1, &[0]), (0, &[0, 1, 2])] {
        let of = &jobs[of];
        begin(&mut pool, of, chunks);
        pool.finish(&of.1);
        assert!(of.1.is_finished() && of.1.panicked().is_none());
        assert!(of.0.0.iter().all(|left| left.load(Ordering::SeqCst) == 0), "a chunk is missing");
    }
    begin(&mut pool, &jobs[0], &[2, 1, 1]);
}

/// Runs of a job on two nodes, which have chunks in some stages only.
fn nodes_steal_and_the_pool_ends() {
    let nodes = Nodes::new(Numa::Simulate(2), &Topology::default(), 3);
    let mut pool = Pool::new(Arc::new(nodes)).expect("the checker has threads");
    let of = job(3, 2);
    for ends in [[1, 2, 0, 1, 1, 1], [0, 0, 1, 3, 0, 0], [0, 2, 0, 1, 0, 1]] {
        begin(&mut pool, &of, &ends);
        pool.finish(&of.1);
        assert!(of.1.is_finished() && of.1.panicked().is_none());
        assert!(of.0.0.iter().all(|left| left.load(Ordering::SeqCst) == 0), "a chunk is missing");
    }
    begin(&mut pool, &of, &[1, 2, 0, 1, 1, 1]);
}

#[test]
fn no_schedule_loses_a_chunk_or_a_thread() {
    shuttle::check_random(jobs_run_once_and_the_pool_ends, 1000);
    // Schedules with few changes of threads, which some rare orders need.
    shuttle::check_pct(jobs_run_once_and_the_pool_ends, 1000, 3);
    shuttle::check_random(nodes_steal_and_the_pool_ends, 500);
    shuttle::check_pct(nodes_steal_and_the_pool_ends, 500, 3);
}
