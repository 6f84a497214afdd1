//! The thread pool: jobs of many stages without a barrier, threads that spin before they park.
//!
//! **The idea.** A [`Job`] is a list of stages, and a stage a number of chunks. A single word, the ticket, holds the
//! current stage and the next chunk; a thread claims a chunk by incrementing it. The thread that finishes the last
//! chunk of a stage advances the ticket to the next stage. There is no other barrier: threads are not counted, so a
//! preempted worker delays the others only if it holds a chunk, and the thread that waits for the result works too.
//!
//! **NUMA.** With several nodes, each has a lane: a ticket for the chunks of its own, which its threads claim first. They
//! claim those of another lane, which reads memory of another node, when nothing is left in theirs. The stage is then a
//! word of its own, so that claims of different nodes share no cache line.
//!
//! **Waiting** means spinning for some tens of microseconds, then yielding, then parking. A thread that notices that
//! it was preempted while spinning assumes an oversubscribed machine and spins less.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bilayer_graph::panic_text;

use crate::numa::Nodes;

// A test compiles this file with those of a model checker: see `pool_model`.
use super::sync::{
    AtomicBool, AtomicU32, AtomicU64, Builder, Condvar, JoinHandle, LOOKS, Mutex, MutexGuard,
    Ordering, SPIN, YIELD, fence, spin_loop, yield_now,
};

/// Maximum chunks per stage.
pub(crate) const CHUNKS_MAX: usize = (1 << 24) - 1;

/// Maximum stages per job.
pub(crate) const STAGES_MAX: usize = (1 << 16) - 1;

/// A gap this long between two readings of the clock while spinning means that the thread was preempted.
const PUT_ASIDE: Duration = Duration::from_micros(300);

/// The work of a job.
pub(crate) trait Work: Send + Sync {
    /// Runs one chunk of a stage. `thread` is below the pool's thread count, and no two threads running at the same
    /// time share it.
    fn run(&self, stage: usize, chunk: usize, thread: usize);
}

/// A value on its own pair of cache lines, because CPUs fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(T);

/// The ticket: generation in the upper 24 bits, then 16 bits of stage, then 24 bits of next chunk. The generation
/// prevents a thread that slept through the end of a run from claiming a chunk of the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ticket(u64);

impl Ticket {
    fn new(generation: u64, stage: usize, next: u32) -> Ticket {
        Ticket(generation << 40 | (stage as u64) << 24 | u64::from(next))
    }

    fn generation(self) -> u64 {
        self.0 >> 40
    }

    fn stage(self) -> usize {
        (self.0 >> 24) as usize & STAGES_MAX
    }

    fn next(self) -> u32 {
        self.0 as u32 & CHUNKS_MAX as u32
    }

    /// Whether both are of the same stage of the same run.
    fn is_of(self, stage: Ticket) -> bool {
        self.0 >> 24 == stage.0 >> 24
    }
}

/// The chunks of a node in the current stage.
#[derive(Default)]
struct Lane {
    ticket: Padded<AtomicU64>,
    done: Padded<AtomicU32>,
}

/// A list of stages that a pool can run repeatedly, each time with different numbers of chunks.
pub(crate) struct Job {
    /// One for each node.
    lanes: Box<[Lane]>,
    /// Lanes of the current stage with chunks that have not finished.
    lanes_left: Padded<AtomicU32>,
    /// The ticket of the current stage, if there are several lanes; it is set after theirs.
    stage: Padded<AtomicU64>,
    stages: usize,
    /// The end of each lane's chunks in each stage of this run, `[stages, lanes]`.
    ends: Box<[AtomicU32]>,
    /// Chunks that ran on a thread of another node, in all runs.
    stolen: AtomicU64,
    /// End time of each stage, nanoseconds after `epoch`; empty if the job is not timed.
    stage_ends: Box<[AtomicU64]>,
    epoch: Instant,
    gate: Gate,
    cancelled: AtomicBool,
    panic: Mutex<Option<String>>,
    work: Box<dyn Work>,
}

impl Job {
    /// A finished job of `stages` stages for a pool with `lanes` nodes.
    pub(crate) fn new(stages: usize, lanes: usize, work: Box<dyn Work>) -> Job {
        assert!(stages < STAGES_MAX, "{stages} stages");
        let finished = || AtomicU64::new(Ticket::new(0, stages, 0).0);
        let lane = |_| Lane { ticket: Padded(finished()), done: Padded::default() };
        Job {
            lanes: (0..lanes).map(lane).collect(),
            lanes_left: Padded::default(),
            stage: Padded(finished()),
            stages,
            ends: (0..stages * lanes).map(|_| AtomicU32::new(0)).collect(),
            stolen: AtomicU64::new(0),
            stage_ends: Box::default(),
            epoch: Instant::now(),
            gate: Gate::default(),
            cancelled: AtomicBool::new(false),
            panic: Mutex::new(None),
            work,
        }
    }

    /// Enables timing of the stages.
    pub(crate) fn timed(mut self) -> Job {
        self.stage_ends = (0..=self.stages).map(|_| AtomicU64::new(0)).collect();
        self
    }

    /// The word that says which stage is current.
    fn current(&self) -> &AtomicU64 {
        match &*self.lanes {
            [one] => &one.ticket.0,
            _ => &self.stage.0,
        }
    }

    /// Whether the last run has finished.
    pub(crate) fn is_finished(&self) -> bool {
        Ticket(self.current().load(Ordering::Acquire)).stage() == self.stages
    }

    /// Starts a run with the given ends of the lanes' chunks, stage by stage. Threads may work on it from here on.
    ///
    /// # Panics
    /// If the last run has not finished.
    pub(crate) fn open(&self, ends: impl Iterator<Item = usize>) {
        let last = Ticket(self.current().load(Ordering::Acquire));
        assert_eq!(last.stage(), self.stages, "the last run has not ended");
        let mut known = 0;
        for (end, place) in ends.zip(&self.ends) {
            assert!(end < CHUNKS_MAX, "{end} chunks");
            place.store(end as u32, Ordering::Relaxed);
            known += 1;
        }
        assert_eq!(known, self.ends.len(), "a number of chunks for each stage and lane");
        self.cancelled.store(false, Ordering::Relaxed);
        *lock(&self.panic) = None;
        if let Some(first) = self.stage_ends.first() {
            first.store(self.now(), Ordering::Relaxed);
        }
        self.turn_to(last.generation() + 1, 0);
    }

    /// The chunks of a lane in a stage.
    fn range(&self, stage: usize, lane: usize) -> Range<u32> {
        let ends = &self.ends[stage * self.lanes.len()..][..=lane];
        let end = |of: Option<&AtomicU32>| of.map_or(0, |end| end.load(Ordering::Relaxed));
        end(lane.checked_sub(1).and_then(|before| ends.get(before)))..end(ends.last())
    }

    /// Runs chunks until the run has finished. `node` is that of the thread.
    fn work(&self, thread: usize, node: usize, patience: &mut Patience) {
        loop {
            let word = self.current().load(Ordering::Acquire);
            let ticket = Ticket(word);
            if ticket.stage() >= self.stages {
                return;
            }
            let lanes = (node..self.lanes.len()).chain(0..node);
            let mut claims = lanes.filter_map(|lane| Some((lane, self.claim(ticket, lane)?)));
            let Some((lane, chunk)) = claims.next() else {
                patience.wait(&self.gate, || self.current().load(Ordering::Acquire) != word);
                continue;
            };
            if lane != node {
                self.stolen.fetch_add(1, Ordering::Relaxed);
            }
            self.run_chunk(ticket.stage(), chunk as usize, thread);
            self.finish_chunk(ticket, lane);
        }
    }

    /// Claims the next chunk of a lane; `None` if none is left, or `stage` has ended.
    fn claim(&self, stage: Ticket, lane: usize) -> Option<u32> {
        // The end belongs to the run of `stage`; if that is over, the lane's ticket has another generation.
        let end = self.range(stage.stage(), lane).end;
        let next = &self.lanes[lane].ticket.0;
        loop {
            let word = next.load(Ordering::Acquire);
            let ticket = Ticket(word);
            if !ticket.is_of(stage) || ticket.next() >= end {
                return None;
            }
            let claim =
                next.compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Relaxed);
            if claim.is_ok() {
                return Some(ticket.next());
            }
        }
    }

    /// Counts a chunk as finished; the last one of the last lane ends the stage.
    fn finish_chunk(&self, stage: Ticket, lane: usize) {
        let count = self.range(stage.stage(), lane).len() as u32;
        if self.lanes[lane].done.0.fetch_add(1, Ordering::AcqRel) + 1 == count
            && self.lanes_left.0.fetch_sub(1, Ordering::AcqRel) == 1
        {
            self.end_stage(stage.stage());
            self.turn_to(stage.generation(), stage.stage() + 1);
        }
    }

    /// Runs one chunk. After a panic or a cancellation the remaining chunks are skipped, so that the run still
    /// finishes.
    fn run_chunk(&self, stage: usize, chunk: usize, thread: usize) {
        if self.cancelled.load(Ordering::Relaxed) {
            return;
        }
        let run = AssertUnwindSafe(|| self.work.run(stage, chunk, thread));
        if let Err(payload) = catch_unwind(run) {
            let text = panic_text(payload.as_ref());
            *lock(&self.panic) = Some(format!("stage {stage}, chunk {chunk} panicked: {text}"));
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Advances the tickets to `stage`, or past it if it has no chunks.
    fn turn_to(&self, generation: u64, mut stage: usize) {
        let lanes = self.lanes.len();
        while stage < self.stages && self.range(stage, lanes - 1).end == 0 {
            self.end_stage(stage);
            stage += 1;
        }
        let ticket = |next| Ticket::new(generation & 0xff_ffff, stage, next).0;
        let range = |lane| if stage < self.stages { self.range(stage, lane) } else { 0..0 };
        let busy = (0..lanes).filter(|&lane| !range(lane).is_empty()).count();
        self.lanes_left.0.store(busy as u32, Ordering::Relaxed);
        for (at, lane) in self.lanes.iter().enumerate() {
            lane.done.0.store(0, Ordering::Relaxed);
            // A lone lane's ticket is the stage's, which is set last.
            if lanes > 1 {
                lane.ticket.0.store(ticket(range(at).start), Ordering::Release);
            }
        }
        self.current().store(ticket(0), Ordering::SeqCst);
        self.gate.wake();
    }

    fn end_stage(&self, stage: usize) {
        if let Some(end) = self.stage_ends.get(stage + 1) {
            end.store(self.now(), Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Nanoseconds per stage of the last run; empty if the job is not timed.
    pub(crate) fn stage_ns(&self) -> impl Iterator<Item = u64> {
        let at = |end: &AtomicU64| end.load(Ordering::Relaxed);
        self.stage_ends.windows(2).map(move |pair| at(&pair[1]).saturating_sub(at(&pair[0])))
    }

    /// Chunks that ran on a thread of another node, in all runs.
    pub(crate) fn stolen(&self) -> u64 {
        self.stolen.load(Ordering::Relaxed)
    }

    /// The panic message of the last run, if a chunk panicked.
    pub(crate) fn panicked(&self) -> Option<String> {
        lock(&self.panic).clone()
    }
}

/// A place to park until a condition changes.
#[derive(Default)]
struct Gate {
    parked: Padded<AtomicU32>,
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl Gate {
    /// Parks until `ready`. A `wake` must not slip in between the count and the last check: here count, then check;
    /// there change, then read the count; all sequentially consistent.
    fn park(&self, ready: impl Fn() -> bool) {
        let mut guard = lock(&self.mutex);
        self.parked.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while !ready() {
            guard = self.condvar.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes parked threads; call after the change.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.parked.0.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.mutex));
            self.condvar.notify_all();
        }
    }
}

/// A thread's current spin limit.
struct Patience {
    spin: Duration,
    spin_max: Duration,
}

impl Patience {
    fn new(spin_max: Duration) -> Patience {
        Patience { spin: spin_max, spin_max }
    }

    fn wait(&mut self, gate: &Gate, ready: impl Fn() -> bool) {
        let start = Instant::now();
        let mut last = start;
        loop {
            for _ in 0..LOOKS {
                if ready() {
                    self.spin = (self.spin * 2).max(Duration::from_micros(1)).min(self.spin_max);
                    return;
                }
                spin_loop();
            }
            let now = Instant::now();
            if now - last > PUT_ASIDE {
                self.spin /= 8;
            }
            last = now;
            if now - start >= self.spin {
                break;
            }
        }
        while last - start < self.spin + YIELD {
            yield_now();
            if ready() {
                return;
            }
            last = Instant::now();
        }
        gate.park(ready);
    }
}

struct Shared {
    /// Number of published jobs.
    epoch: Padded<AtomicU64>,
    stop: AtomicBool,
    slot: Mutex<Option<Arc<Job>>>,
    gate: Gate,
}

/// `threads - 1` workers; the thread that owns the pool is the last one.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    nodes: Arc<Nodes>,
    patience: Patience,
}

impl Pool {
    /// Starts the workers, each bound to its node.
    ///
    /// # Errors
    /// The system cannot start more threads.
    pub(crate) fn new(nodes: Arc<Nodes>) -> std::io::Result<Pool> {
        let threads = nodes.threads();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let spin_max = if threads > cpus { Duration::ZERO } else { SPIN };
        let shared = Arc::new(Shared {
            epoch: Padded::default(),
            stop: AtomicBool::new(false),
            slot: Mutex::new(None),
            gate: Gate::default(),
        });
        // Workers are added one by one, so that those already started are stopped if a later one fails.
        let patience = Patience::new(spin_max);
        let mut pool = Pool { shared, workers: Vec::new(), nodes, patience };
        for thread in 0..threads.saturating_sub(1) {
            let (shared, nodes) = (pool.shared.clone(), pool.nodes.clone());
            let run = move || {
                let node = nodes.of_thread(thread);
                // The backend has tried every node; unbound it is only slower.
                let _bound = nodes.bind(node);
                serve(&shared, (thread, node), Patience::new(spin_max));
            };
            let named = Builder::new().name(format!("bilayer cpu {thread}"));
            pool.workers.push(named.spawn(run)?);
        }
        Ok(pool)
    }

    /// Publishes an open job to the workers.
    pub(crate) fn publish(&mut self, job: &Arc<Job>) {
        if self.workers.is_empty() {
            return;
        }
        *lock(&self.shared.slot) = Some(job.clone());
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        self.shared.gate.wake();
    }

    /// Lets go of the last job, which has finished: a pool keeps it until the next one is published.
    pub(crate) fn forget(&mut self) {
        let last = lock(&self.shared.slot).take();
        // What it held is freed here, where no lock is held.
        drop(last);
    }

    /// Works on the job until it has finished, bound to the last node meanwhile: the thread is the caller's, and has other
    /// things to do.
    pub(crate) fn finish(&mut self, job: &Job) {
        let thread = self.workers.len();
        let node = self.nodes.of_thread(thread);
        let _bound = self.nodes.bind(node);
        job.work(thread, node, &mut self.patience);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(job) = lock(&self.shared.slot).take() {
            job.cancelled.store(true, Ordering::Relaxed);
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        self.shared.gate.wake();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its chunks; if it dies otherwise, nothing can be done.
            let _ = worker.join();
        }
    }
}

/// A worker's main loop.
fn serve(shared: &Shared, (thread, node): (usize, usize), mut patience: Patience) {
    let mut seen = 0;
    loop {
        patience.wait(&shared.gate, || shared.epoch.0.load(Ordering::SeqCst) != seen);
        seen = shared.epoch.0.load(Ordering::SeqCst);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let job = lock(&shared.slot).clone();
        if let Some(job) = job {
            job.work(thread, node, &mut patience);
        }
    }
}

/// A panic while the lock was held leaves no invalid data: values are replaced as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
