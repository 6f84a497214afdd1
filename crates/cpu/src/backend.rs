//! The CPU backend: its weights and caches, compiled segments, and the running segment.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bilayer_graph::{
    Attend, Backend, CacheId, CachePages, Error as GraphError, Facts, Holding, Kernel, Limits, Op,
    OpTime, Segment, SegmentId, SharedBytes, StateId, Step, Value, Weight, WeightId,
};

use crate::cache::{Cache, Heads, Layout};
use crate::held::Held;
use crate::host::{self, Topology};
use crate::level::{Level, LevelError};
use crate::lowering::Holdings;
use crate::matrix::Residents;
use crate::numa::{Nodes, Numa};
use crate::ops;
use crate::pool::{Job, Pool, STAGES_MAX};
use crate::program::lower::lower;
use crate::program::{Program, ProgramRun};
use crate::slots::Slots;
use crate::stage::Buffer;

/// Maximum number of threads.
const THREADS_MAX: usize = 1024;

/// Options of the backend; the default uses everything available to the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Number of threads; by default one per allowed physical core.
    pub threads: Option<usize>,
    /// Instruction level; by default the highest that this CPU supports.
    pub level: Option<Level>,
    /// Whether products of prompts may round the weights ([`gemm_rounded`](crate::gemm::gemm_rounded)).
    pub fast_prefill: bool,
    /// How threads and weights are divided among NUMA nodes.
    pub numa: Numa,
}

impl Options {
    /// The NUMA nodes among which threads and weights are divided on this machine.
    #[must_use]
    pub fn nodes(&self) -> Nodes {
        if let (Numa::Off, Some(threads)) = (self.numa, self.threads) {
            return Nodes::one(threads);
        }
        let topology = Topology::of_this_process();
        let threads = self.threads.unwrap_or_else(|| topology.threads());
        Nodes::new(self.numa, &topology, threads)
    }
}

/// Errors of opening the backend.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The CPU does not support the level.
    #[error(transparent)]
    Level(#[from] LevelError),
    /// Invalid number of threads.
    #[error("cannot run {0} threads; choose 1 to 1024")]
    Threads(usize),
    /// The system does not let threads be bound to CPUs.
    #[error("cannot bind threads to NUMA node {node}: {source}")]
    Bind {
        /// The node.
        node: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system cannot start the threads.
    #[error("cannot start {threads} threads: {source}")]
    Spawn {
        /// The requested number of threads.
        threads: usize,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The CPU as a backend.
///
/// With two or more threads, work continues after `submit` returns; with one thread it is done inside the next `read`
/// or `submit`. The thread that calls `read` works too.
///
/// Results do not depend on the number of threads: the split of the work depends only on the step, and so does the
/// order of every sum. Instruction levels differ in the last bits.
pub struct Cpu {
    facts: Facts,
    level: Level,
    fast_prefill: bool,
    nodes: Arc<Nodes>,
    weights: HashMap<WeightId, Held>,
    residents: Residents,
    caches: HashMap<CacheId, Arc<Cache>>,
    states: HashMap<StateId, Arc<Slots>>,
    segments: Vec<Compiled>,
    /// The last submitted segment, unless finished.
    running: Option<usize>,
    submits: u64,
    pool: Pool,
}

struct Compiled {
    program: Arc<Program>,
    job: Arc<Job>,
    /// Number of elements written to each input.
    written: Vec<usize>,
    /// The number of the last submit; 0 before the first.
    submitted: u64,
    /// Timings of the last run, if enabled.
    timings: Vec<OpTime>,
}

impl Compiled {
    fn output(&self, value: Value) -> Option<Buffer> {
        find(&self.program.outputs, value)
    }

    /// The error of the last run.
    fn failure(&self) -> Option<GraphError> {
        if let Some(reason) = self.job.panicked() {
            return Some(GraphError::DeviceLost { device: crate::NAME.to_owned(), reason });
        }
        self.program.check.as_ref()?.failure()
    }
}

fn find(buffers: &[(Value, Buffer)], value: Value) -> Option<Buffer> {
    buffers.iter().find(|(known, _)| *known == value).map(|(_, buffer)| *buffer)
}

impl Cpu {
    /// Starts the threads.
    ///
    /// # Errors
    /// An unsupported level, a number of threads out of range, or the system cannot start threads.
    pub fn new(options: Options) -> Result<Cpu, Error> {
        let level = options.level.unwrap_or_else(Level::detect);
        if !level.is_available() {
            return Err(LevelError::Unavailable(level, Level::detect()).into());
        }
        let checked = |threads| match threads {
            1..=THREADS_MAX => Ok(threads),
            _ => Err(Error::Threads(threads)),
        };
        options.threads.map(checked).transpose()?;
        let nodes = Arc::new(options.nodes());
        let threads = checked(nodes.threads())?;
        for (at, node) in nodes.iter().enumerate() {
            nodes.bind(at).map_err(|source| Error::Bind { node: node.number, source })?;
        }
        let pool = Pool::new(nodes.clone()).map_err(|source| Error::Spawn { threads, source })?;
        let mode = if options.fast_prefill { ", fast prefill" } else { "" };
        let mut identity = format!("{} ({}{mode})", host::name(), level.name());
        if nodes.is_divided() {
            identity += &format!(", {} NUMA nodes", nodes.count());
        }
        // A system that does not tell may have any.
        let memory_bytes = match host::memory_bytes() {
            0 => u64::MAX,
            bytes => bytes,
        };
        let facts = Facts {
            level: level.name().to_owned(),
            threads,
            ops: ops::all(),
            identity,
            copies_weights: nodes.is_divided(),
            ..Facts::host(crate::NAME, memory_bytes)
        };
        Ok(Cpu {
            facts,
            level,
            fast_prefill: options.fast_prefill,
            nodes,
            weights: HashMap::new(),
            residents: Residents::default(),
            caches: HashMap::new(),
            states: HashMap::new(),
            segments: Vec::new(),
            running: None,
            submits: 0,
            pool,
        })
    }

    /// The NUMA nodes among which threads and weights are divided; one if they are not.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Pieces of work that were done by a thread of another node than the one with their weights, because it had none left,
    /// in all steps of the segments that are compiled.
    #[must_use]
    pub fn stolen(&self) -> u64 {
        self.segments.iter().map(|compiled| compiled.job.stolen()).sum()
    }

    /// Works until no segment runs. Returns the error of the segment that was running, since a caller waiting for
    /// another segment would miss it.
    fn finish(&mut self) -> Result<(), GraphError> {
        let Some(index) = self.running.take() else { return Ok(()) };
        let compiled = &self.segments[index];
        self.pool.finish(&compiled.job);
        self.take_timings(index);
        self.segments[index].failure().map_or(Ok(()), Err)
    }

    fn take_timings(&mut self, index: usize) {
        let compiled = &mut self.segments[index];
        let mut stages = compiled.job.stage_ns().enumerate().peekable();
        compiled.timings.clear();
        if stages.peek().is_none() {
            return;
        }
        // Stages are in kernel order; those before the first kernel copy pages.
        let mut kernels = compiled.program.kernels.iter().peekable();
        let (mut ns, mut start_ns) = (0, 0);
        for (stage, stage_ns) in stages {
            let Some(placed) = kernels.peek() else { break };
            if placed.stages.contains(&stage) {
                ns += stage_ns;
            }
            if stage + 1 == placed.stages.end {
                compiled.timings.push(OpTime { node: placed.kernel.nodes[0], start_ns, ns });
                start_ns += ns;
                ns = 0;
                kernels.next();
            }
        }
    }

    /// Allocates the caches and states of a segment that do not exist yet.
    fn reserve(&mut self, segment: &Segment<'_>, limits: &Limits) -> Result<(), GraphError> {
        for node in &segment.graph.nodes[segment.nodes.clone()] {
            if let Some(id) = node.op.state()
                && limits.must_reserve_states(self.states.get(&id).map(|slots| slots.len()))?
            {
                let slots = Slots::new(segment.graph.state(id), limits)?;
                self.states.insert(id, Arc::new(slots));
            }
            let Op::Attend(Attend { cache: Some(id), .. }) = &node.op else { continue };
            let info = segment.graph.cache(*id);
            if let Some(cache) = self.caches.get(id) {
                if cache.layout != Layout::new(info, limits)? || cache.pages() != limits.pages {
                    return Err(limits.other_cache(cache.pages()));
                }
                continue;
            }
            let heads = Heads::divided(info.kv_heads, &self.nodes);
            self.caches.insert(*id, Arc::new(Cache::new(info, limits, heads)?));
        }
        Ok(())
    }
}

/// Temporary caches for a segment's attention without a cache, one per shape: a layer is done with it before the next
/// one begins.
fn scratch(segment: &Segment<'_>, limits: &Limits) -> Result<Vec<Arc<Cache>>, GraphError> {
    let mut scratch: Vec<Arc<Cache>> = Vec::new();
    for node in &segment.graph.nodes[segment.nodes.clone()] {
        let Op::Attend(attend @ Attend { cache: None, .. }) = &node.op else { continue };
        let info = attend.scratch();
        if !scratch.iter().any(|cache| cache.layout.holds(&info)) {
            scratch.push(Arc::new(Cache::scratch(&info, limits)?));
        }
    }
    Ok(scratch)
}

/// The error text for an unknown cache.
const CACHE: &str = "as a cache's number";

/// The error text for an unknown state.
const STATE: &str = "as a state's number";

/// The error for a segment or value that was never compiled.
fn unknown(what: &'static str, found: u32, limit: usize) -> GraphError {
    GraphError::Limit { what, limit, found: found as usize }
}

impl Backend for Cpu {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn reserve(&mut self, holding: &Holding<'_>) -> Result<(), GraphError> {
        // Weights stay in place, or are copied one by one, so nothing is laid out; only old contents are dropped. An open
        // run ends first; its error is irrelevant.
        let _ = self.finish();
        self.pool.forget();
        self.segments.clear();
        self.caches.retain(|id, _| holding.caches.contains(id));
        self.states.retain(|id, _| holding.states.contains(id));
        let wanted: HashSet<WeightId> = holding.weights.iter().map(|weight| weight.id).collect();
        self.weights.retain(|id, _| wanted.contains(id));
        self.residents.retain(|id| wanted.contains(id));
        let mut streamed = holding.streamed.iter().flat_map(|layer| &layer.weights);
        streamed.try_for_each(|(weight, bytes)| self.load(weight, bytes.clone()))
    }

    fn load(&mut self, weight: &Weight, bytes: SharedBytes) -> Result<(), GraphError> {
        if bytes.len() != weight.bytes() {
            return Err(GraphError::WeightBytes {
                name: weight.name.clone(),
                expected: weight.bytes(),
                found: bytes.len(),
            });
        }
        if weight.is_resident {
            self.residents.load(weight, &bytes);
        }
        let held = match self.weights.get(&weight.id) {
            Some(held) if held.is_copy_of(&bytes) => return Ok(()),
            // Residents are exchanged whole.
            _ if self.nodes.is_divided() && !weight.is_resident => {
                Held::divided(weight, &bytes, &self.nodes)?
            }
            _ => Held::mapped(bytes),
        };
        self.weights.insert(weight.id, held);
        Ok(())
    }

    fn exchange(
        &mut self,
        weight: &Weight,
        matrix: usize,
        bytes: &SharedBytes,
    ) -> Result<(), GraphError> {
        // What runs reads the matrix that was there.
        self.finish()?;
        let expected = weight.bytes() / weight.stacked;
        if bytes.len() != expected {
            let (name, found) = (weight.name.clone(), bytes.len());
            return Err(GraphError::WeightBytes { name, expected, found });
        }
        match self.residents.exchange(weight, matrix, bytes) {
            true => Ok(()),
            false => Err(unknown("as the number of an exchanged matrix", matrix as u32, 0)),
        }
    }

    fn compile(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<SegmentId, GraphError> {
        let graph = segment.graph;
        for node in &graph.nodes[segment.nodes.clone()] {
            if let Some(id) = node.op.weights().find(|id| !self.weights.contains_key(id)) {
                let name = graph.weight(id).name.clone();
                return Err(GraphError::WeightNotLoaded { name, device: crate::NAME.to_owned() });
            }
        }
        self.reserve(segment, &limits)?;
        let (weights, residents) = (&self.weights, &self.residents);
        let (caches, states) = (&self.caches, &self.states);
        let scratch = &scratch(segment, &limits)?;
        let (level, nodes, fast_prefill) = (self.level, &*self.nodes, self.fast_prefill);
        let holdings =
            Holdings { weights, residents, caches, states, scratch, level, fast_prefill, nodes };
        let parts = lower(segment, limits, &holdings);
        let program = Arc::new(Program::new(parts, self.level, self.nodes.clone())?);
        if program.stages.len() >= STAGES_MAX {
            let (device, found) = (crate::NAME.to_owned(), program.stages.len());
            return Err(GraphError::TooDeep { device, found, most: STAGES_MAX - 1 });
        }
        let run = Box::new(ProgramRun(program.clone()));
        let mut job = Job::new(program.stages.len(), self.nodes.count(), run);
        if limits.timings {
            job = job.timed();
        }
        let timings = Vec::with_capacity(program.kernels.len());
        let job = Arc::new(job);
        let written = vec![0; program.inputs.len()];
        self.segments.push(Compiled { program, job, written, submitted: 0, timings });
        Ok(SegmentId(self.segments.len() as u32 - 1))
    }

    fn next_segment(&self) -> SegmentId {
        SegmentId(self.segments.len() as u32)
    }

    fn free_segments(&mut self, from: SegmentId) {
        // An open run ends first; its error is irrelevant.
        let _ = self.finish();
        self.pool.forget();
        self.segments.truncate(from.0 as usize);
    }

    fn submit(&mut self, segment: SegmentId, step: &Step<'_>) -> Result<(), GraphError> {
        self.finish()?;
        let count = self.segments.len();
        let index = segment.0 as usize;
        let Some(compiled) = self.segments.get_mut(index) else {
            return Err(unknown("as a segment's number", segment.0, count));
        };
        let program = &compiled.program;
        // SAFETY: nothing runs after `finish`, and no borrow of the state outlives a call of this type.
        unsafe { program.set(step)? };
        for ((_, buffer), &found) in program.inputs.iter().zip(&compiled.written) {
            let limit = program.state().rows(buffer.rows) * buffer.width;
            if found != limit {
                return Err(GraphError::Limit {
                    what: "elements written of an input",
                    limit,
                    found,
                });
            }
        }
        if let Some(check) = &program.check {
            check.clear();
        }
        compiled.job.open(program.chunk_ends());
        self.submits += 1;
        compiled.submitted = self.submits;
        self.running = Some(index);
        self.pool.publish(&compiled.job);
        Ok(())
    }

    fn write(&mut self, value: Value, data: &[f32]) -> Result<(), GraphError> {
        let reads = |compiled: &Compiled| find(&compiled.program.inputs, value).is_some();
        if self.running.is_some_and(|index| reads(&self.segments[index])) {
            self.finish()?;
        }
        let mut known = false;
        for compiled in &mut self.segments {
            let inputs = compiled.program.inputs.iter().zip(&mut compiled.written);
            for ((_, buffer), written) in inputs.filter(|((input, _), _)| *input == value) {
                let limit = buffer.width * compiled.program.state().rows_max(buffer.rows);
                if data.len() > limit {
                    let what = "elements of an input";
                    return Err(GraphError::Limit { what, limit, found: data.len() });
                }
                // SAFETY: no segment with this value as input is running.
                let to =
                    unsafe { compiled.program.arena.get_mut::<f32>(buffer.offset, data.len()) };
                to.copy_from_slice(data);
                *written = data.len();
                known = true;
            }
        }
        if known { Ok(()) } else { Err(unknown("as the number of an input", value.0, 0)) }
    }

    fn read(&mut self, value: Value, data: &mut [f32]) -> Result<(), GraphError> {
        let made = self
            .segments
            .iter()
            .enumerate()
            .filter(|(_, compiled)| compiled.submitted > 0 && compiled.output(value).is_some());
        let Some((index, _)) = made.max_by_key(|(_, compiled)| compiled.submitted) else {
            return Err(unknown("as the number of an output", value.0, 0));
        };
        if self.running == Some(index) {
            self.finish()?;
        }
        let compiled = &self.segments[index];
        if let Some(failure) = compiled.failure() {
            return Err(failure);
        }
        let buffer = compiled.output(value).expect("just found");
        let limit = compiled.program.state().rows(buffer.rows) * buffer.width;
        if data.len() != limit {
            return Err(GraphError::Limit { what: "elements to read", limit, found: data.len() });
        }
        // SAFETY: the segment has finished, and restarts only through a call that borrows `self` mutably.
        data.copy_from_slice(unsafe { compiled.program.arena.get::<f32>(buffer.offset, limit) });
        Ok(())
    }

    fn held_bytes(&self) -> Option<u64> {
        let weights: usize = self.weights.values().map(Held::len).sum();
        let caches: usize = self.caches.values().map(|cache| cache.bytes()).sum();
        let states: usize = self.states.values().map(|slots| slots.bytes()).sum();
        let programs: usize = self.segments.iter().map(|compiled| compiled.program.bytes()).sum();
        Some((weights + caches + states + programs) as u64)
    }

    fn timings(&self, segment: SegmentId) -> &[OpTime] {
        self.segments.get(segment.0 as usize).map_or(&[], |compiled| &compiled.timings)
    }

    fn kernels(&self, segment: SegmentId) -> Vec<Kernel> {
        let compiled = self.segments.get(segment.0 as usize);
        let kernels = compiled.into_iter().flat_map(|compiled| &compiled.program.kernels);
        kernels.map(|placed| placed.kernel.clone()).collect()
    }

    fn save(&mut self, cache: CacheId, pages: &[u32]) -> Result<CachePages, GraphError> {
        self.finish()?;
        let known = self.caches.get(&cache).ok_or_else(|| unknown(CACHE, cache.0, 0))?;
        // SAFETY: nothing runs after `finish`.
        unsafe { known.save(pages) }
    }

    fn restore(
        &mut self,
        cache: CacheId,
        pages: &[u32],
        data: &CachePages,
    ) -> Result<(), GraphError> {
        self.finish()?;
        let known = self.caches.get(&cache).ok_or_else(|| unknown(CACHE, cache.0, 0))?;
        // SAFETY: nothing runs after `finish`.
        unsafe { known.restore(self.level, pages, data) };
        Ok(())
    }

    fn save_state(&mut self, state: StateId, slots: &[u32]) -> Result<Vec<f32>, GraphError> {
        self.finish()?;
        let known = self.states.get(&state).ok_or_else(|| unknown(STATE, state.0, 0))?;
        // SAFETY: nothing runs after `finish`.
        unsafe { known.save(slots) }
    }

    fn restore_state(
        &mut self,
        state: StateId,
        slots: &[u32],
        data: &[f32],
    ) -> Result<(), GraphError> {
        self.finish()?;
        let known = self.states.get(&state).ok_or_else(|| unknown(STATE, state.0, 0))?;
        // SAFETY: nothing runs after `finish`.
        unsafe { known.restore(slots, data) }
    }

    fn outstanding(&mut self) -> Option<usize> {
        let runs = self.running.is_some_and(|index| !self.segments[index].job.is_finished());
        Some(usize::from(runs))
    }
}
