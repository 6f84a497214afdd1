//! What the pool promises, on threads of this machine.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use crate::host::Node;
use crate::host::Topology;
use crate::numa::{Nodes, Numa};
use crate::pool::{Job, Pool, Work};

/// So many rounds, or a hundredth of them in Miri, which takes a second for each.
fn rounds(many: usize) -> usize {
    if cfg!(miri) { many / 100 } else { many }
}

/// A pool of one node.
fn pool(threads: usize) -> std::io::Result<Pool> {
    Pool::new(Arc::new(Nodes::one(threads)))
}

/// Counts the remaining chunks of each stage of a run, and asserts that a stage begins after the previous ones
/// have finished and that no thread number is used twice at a time.
struct Counting {
    left: Vec<AtomicU32>,
    ran: AtomicU32,
    running: Vec<AtomicBool>,
    slow_thread: Option<usize>,
    panic_at: Option<(usize, usize)>,
}

impl Counting {
    fn new(stages: usize, threads: usize) -> Counting {
        Counting {
            left: (0..stages).map(|_| AtomicU32::new(0)).collect(),
            ran: AtomicU32::new(0),
            running: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            slow_thread: None,
            panic_at: None,
        }
    }

    fn round(&self, pool: &mut Pool, job: &Arc<Job>, chunks: &[usize]) {
        for (left, &count) in self.left.iter().zip(chunks) {
            left.store(count as u32, Ordering::SeqCst);
        }
        job.open(chunks.iter().copied());
        pool.publish(job);
        pool.finish(job);
        assert!(job.is_finished());
    }

    fn assert_whole(&self, job: &Job) {
        assert_eq!(job.panicked(), None);
        assert!(self.left.iter().all(|left| left.load(Ordering::SeqCst) == 0));
    }
}

impl Work for Arc<Counting> {
    fn run(&self, stage: usize, chunk: usize, thread: usize) {
        assert!(!self.running[thread].swap(true, Ordering::SeqCst), "thread {thread} twice");
        let early = self.left[..stage].iter().any(|left| left.load(Ordering::SeqCst) > 0);
        assert!(!early, "stage {stage} began early");
        if self.slow_thread == Some(thread) && chunk.is_multiple_of(7) {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.running[thread].store(false, Ordering::SeqCst);
        assert_ne!(self.panic_at, Some((stage, chunk)), "as asked");
        self.ran.fetch_add(1, Ordering::SeqCst);
        assert_ne!(self.left[stage].fetch_sub(1, Ordering::SeqCst), 0, "a chunk ran twice");
    }
}

fn job_of(counting: &Arc<Counting>) -> Arc<Job> {
    Arc::new(Job::new(counting.left.len(), 1, Box::new(counting.clone())).timed())
}

#[test]
fn every_chunk_runs_once_in_order_of_stages() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in [1, 2, 3, cpus + 3] {
        let mut pool = pool(threads).unwrap();
        let counting = Arc::new(Counting::new(5, threads));
        let job = job_of(&counting);
        for round in 0..rounds(2000) {
            counting.round(&mut pool, &job, &[4, 1 + round % 9, 1, 7, 2]);
            counting.assert_whole(&job);
        }
    }
}

#[test]
fn empty_stages_are_passed() {
    let mut pool = pool(3).unwrap();
    let counting = Arc::new(Counting::new(4, 3));
    let job = job_of(&counting);
    for chunks in [[0, 9, 0, 0], [0, 0, 0, 0], [0, 0, 0, 3]] {
        counting.round(&mut pool, &job, &chunks);
        counting.assert_whole(&job);
    }
    assert_eq!(job.stage_ns().count(), 4);
    assert_eq!(counting.ran.load(Ordering::SeqCst), 12);
}

#[test]
fn a_forgotten_job_is_freed() {
    let mut pool = pool(3).unwrap();
    let counting = Arc::new(Counting::new(2, 3));
    let job = job_of(&counting);
    counting.round(&mut pool, &job, &[4, 1]);
    drop(job);
    pool.forget();
    // A worker may not have left it yet.
    let began = Instant::now();
    while Arc::strong_count(&counting) > 1 {
        assert!(began.elapsed() < Duration::from_secs(10), "the pool keeps it");
        std::thread::yield_now();
    }
}

#[test]
fn a_slow_worker_holds_up_only_its_own_chunk() {
    let mut pool = pool(2).unwrap();
    let counting = Arc::new(Counting { slow_thread: Some(0), ..Counting::new(3, 2) });
    let job = job_of(&counting);
    for _ in 0..20 {
        counting.round(&mut pool, &job, &[40, 40, 40]);
        counting.assert_whole(&job);
    }
}

/// Rows in pieces on two simulated cores: a row takes thread 0 four units of time and thread 1 one. A thread comes
/// back for its next piece when its clock is the earlier one, so the result does not depend on the machine's load.
struct SlowCore {
    pieces: crate::pieces::Pieces,
    /// Each thread's time and the number of pieces that were claimed.
    state: Mutex<([usize; 2], usize)>,
    changed: Condvar,
}

impl Work for Arc<SlowCore> {
    fn run(&self, _: usize, chunk: usize, thread: usize) {
        let row = if thread == 0 { 4 } else { 1 };
        let mut state = self.state.lock().unwrap();
        state.0[thread] += row * self.pieces.range(chunk).len();
        state.1 += 1;
        self.changed.notify_all();
        let early = |(clocks, claimed): &mut ([usize; 2], usize)| {
            clocks[thread] > clocks[1 - thread] && *claimed < self.pieces.len()
        };
        drop(self.changed.wait_while(state, early));
    }
}

#[test]
fn a_core_of_a_quarter_of_the_speed_gets_a_fifth_of_the_rows() {
    let rows = 6400;
    let pieces = crate::pieces::Pieces::new(rows, 64, 2);
    let chunks = pieces.len();
    let cores = Arc::new(SlowCore { pieces, state: Mutex::default(), changed: Condvar::new() });
    let mut pool = pool(2).unwrap();
    let job = Arc::new(Job::new(1, 1, Box::new(cores.clone())));
    job.open([chunks].into_iter());
    pool.publish(&job);
    pool.finish(&job);
    let (clocks, claimed) = *cores.state.lock().unwrap();
    assert_eq!(claimed, chunks);
    assert_eq!(clocks[0] / 4 + clocks[1], rows);
    // Both together are 1.25 times as fast as the fast thread; two equal halves would take 2.5 times as long.
    let best = rows * 4 / 5;
    let took = clocks[0].max(clocks[1]);
    assert!(took < best * 11 / 10, "{clocks:?}, at best {best}");
}

#[test]
fn a_panic_is_reported_and_the_next_run_is_whole() {
    let mut pool = pool(2).unwrap();
    let counting = Arc::new(Counting { panic_at: Some((1, 3)), ..Counting::new(3, 2) });
    let job = job_of(&counting);
    counting.round(&mut pool, &job, &[8, 8, 8]);
    assert!(job.panicked().unwrap().contains("stage 1, chunk 3"), "{:?}", job.panicked());
    counting.round(&mut pool, &job, &[2, 0, 2]);
    counting.assert_whole(&job);
}

#[test]
fn jobs_alternate_and_dropping_an_unfinished_one_ends() {
    let mut pool = pool(4).unwrap();
    let jobs: Vec<(Arc<Counting>, Arc<Job>)> = (0..3)
        .map(|_| {
            let counting = Arc::new(Counting::new(2, 4));
            let job = job_of(&counting);
            (counting, job)
        })
        .collect();
    for round in 0..rounds(3000) {
        let (counting, job) = &jobs[round % 3];
        counting.round(&mut pool, job, &[1 + round % 16, 16]);
        counting.assert_whole(job);
    }
    for left in &jobs[0].0.left {
        left.store(16, Ordering::SeqCst);
    }
    jobs[0].1.open([16, 16].into_iter());
    pool.publish(&jobs[0].1);
    drop(pool);
}

/// Notes which thread ran each chunk of a stage; chunks take long on the threads of the given node.
struct Noting {
    ran_by: Vec<AtomicU32>,
    nodes: Arc<Nodes>,
    slow_node: Option<usize>,
}

impl Work for Arc<Noting> {
    fn run(&self, _: usize, chunk: usize, thread: usize) {
        if self.slow_node == Some(self.nodes.of_thread(thread)) {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.ran_by[chunk].store(thread as u32, Ordering::SeqCst);
    }
}

#[test]
fn threads_run_the_chunks_of_their_node_and_steal_when_it_has_no_more() {
    // Threads; ends of the lanes' chunks, one stage of all; a thread of the slow node.
    let cases: [(usize, &[usize], Option<usize>); 5] = [
        (2, &[20, 40], None),
        (2, &[20, 40], Some(0)),
        (4, &[0, 40], Some(3)),
        (5, &[7, 7, 40], None),
        (3, &[40, 40], Some(1)),
    ];
    for (threads, ends, slow_thread) in cases {
        let nodes = Nodes::new(Numa::Simulate(ends.len()), &Topology::default(), threads);
        let nodes = Arc::new(nodes);
        let mut pool = Pool::new(nodes.clone()).unwrap();
        let ran_by = (0..40).map(|_| AtomicU32::new(u32::MAX)).collect();
        let slow_node = slow_thread.map(|thread| nodes.of_thread(thread));
        let noting = Arc::new(Noting { ran_by, nodes: nodes.clone(), slow_node });
        let job = Arc::new(Job::new(3, ends.len(), Box::new(noting.clone())));
        for _ in 0..20 {
            let before = job.stolen();
            // The other stages are empty.
            job.open([0, 1, 0].iter().flat_map(|all| ends.iter().map(move |end| all * end)));
            pool.publish(&job);
            pool.finish(&job);
            let lane = |chunk: usize| ends.partition_point(|&end| end <= chunk);
            let node = |chunk: usize| {
                let thread = noting.ran_by[chunk].swap(u32::MAX, Ordering::SeqCst);
                nodes.of_thread(thread as usize)
            };
            let strangers = (0..40).filter(|&chunk| node(chunk) != lane(chunk)).count();
            assert_eq!(job.stolen() - before, strangers as u64, "{threads} threads, {ends:?}");
        }
        if slow_node.is_some() {
            assert!(job.stolen() > 0, "a slow node is helped");
        }
    }
}

#[test]
fn every_chunk_of_several_nodes_runs_once_in_order_of_stages() {
    for threads in [2, 4] {
        let nodes = Nodes::new(Numa::Simulate(2), &Topology::default(), threads);
        let mut pool = Pool::new(Arc::new(nodes)).unwrap();
        let counting = Arc::new(Counting::new(4, threads));
        let job = Arc::new(Job::new(4, 2, Box::new(counting.clone())).timed());
        for round in 0..rounds(2000) {
            let ends = [[2, 4], [0, 1 + round % 9], [1, 1], [round % 3, 7]];
            for (left, [_, all]) in counting.left.iter().zip(ends) {
                left.store(all as u32, Ordering::SeqCst);
            }
            job.open(ends.into_iter().flatten());
            pool.publish(&job);
            pool.finish(&job);
            assert!(job.is_finished());
            counting.assert_whole(&job);
        }
        assert_eq!(job.stage_ns().count(), 4);
    }
}

/// Asserts that each chunk runs on the CPUs of its thread's node.
#[cfg(target_os = "linux")]
struct Bound(Arc<Nodes>);

#[cfg(target_os = "linux")]
impl Work for Bound {
    fn run(&self, _: usize, _: usize, thread: usize) {
        let node = self.0.iter().nth(self.0.of_thread(thread)).unwrap();
        assert_eq!(Topology::of_this_process().allowed, node.cpus);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn threads_run_on_their_nodes_and_the_caller_goes_back() {
    let allowed = Topology::of_this_process().allowed;
    let [first, second, ..] = allowed[..] else { return };
    let node = |number, cpu| Node { number, cpus: vec![cpu], memory_bytes: 0 };
    let nodes = vec![node(0, first), node(1, second)];
    let topology = Topology { allowed: allowed.clone(), nodes, ..Topology::default() };
    let nodes = Arc::new(Nodes::new(Numa::Distribute, &topology, 3));
    let mut pool = Pool::new(nodes.clone()).unwrap();
    let job = Arc::new(Job::new(1, 2, Box::new(Bound(nodes))));
    for _ in 0..50 {
        job.open([8, 16].into_iter());
        pool.publish(&job);
        pool.finish(&job);
        assert_eq!(job.panicked(), None);
        assert_eq!(Topology::of_this_process().allowed, allowed);
    }
}
