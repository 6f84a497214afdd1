//! A compiled segment: stages over one arena, run by the threads of a pool.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bilayer_graph::{Error, Kernel, Step, Value};

use crate::level::Level;
use crate::memory::Memory;
#[cfg(debug_assertions)]
use crate::memory::claims;
use crate::numa::Nodes;
use crate::pool::Work;
use crate::stage::{Buffer, Context, Stage};
use crate::state::State;

pub(crate) mod check;
pub(crate) mod lower;
pub(crate) mod place;

/// A kernel of a program: the ops it covers and its stages.
pub(crate) struct Placed {
    pub(crate) kernel: Kernel,
    pub(crate) stages: Range<usize>,
}

/// A compiled segment.
pub(crate) struct Program {
    pub(crate) level: Level,
    nodes: Arc<Nodes>,
    pub(crate) stages: Vec<Box<dyn Stage>>,
    /// What each stage may write, [`Stage::writes`].
    writes: Vec<Vec<Range<usize>>>,
    pub(crate) kernels: Vec<Placed>,
    pub(crate) arena: Memory,
    /// Each thread's scratch, contiguous.
    pub(crate) scratch: Memory,
    pub(crate) scratch_bytes: usize,
    pub(crate) inputs: Vec<(Value, Buffer)>,
    pub(crate) outputs: Vec<(Value, Buffer)>,
    /// The result of checking every op's output; present if requested.
    pub(crate) check: Option<Arc<check::Verdict>>,
    state: UnsafeCell<State>,
    /// The number of the step, for the check that chunks write to disjoint bytes.
    #[cfg(debug_assertions)]
    step: AtomicU64,
}

// SAFETY: everything but the state is constant or designed for sharing. The state is written only by `set`, whose
// caller guarantees that no run is open; while one is open, threads only read it.
unsafe impl Sync for Program {}

/// The components produced by lowering.
pub(crate) struct Parts {
    pub(crate) stages: Vec<Box<dyn Stage>>,
    pub(crate) kernels: Vec<Placed>,
    pub(crate) arena_bytes: usize,
    pub(crate) inputs: Vec<(Value, Buffer)>,
    pub(crate) outputs: Vec<(Value, Buffer)>,
    pub(crate) check: Option<Arc<check::Verdict>>,
    pub(crate) state: State,
}

impl Program {
    /// Allocates the memory of a program for the threads of some nodes.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(parts: Parts, level: Level, nodes: Arc<Nodes>) -> Result<Program, Error> {
        let scratch_bytes = parts.stages.iter().map(|stage| stage.scratch_bytes()).max();
        // Two cache lines between the threads' parts, so that none fetches another's.
        let scratch_bytes = scratch_bytes.unwrap_or(0).next_multiple_of(128) + 128;
        let scratch = Memory::new(scratch_bytes * nodes.threads(), "scratch of the threads")?;
        Ok(Program {
            level,
            nodes,
            arena: Memory::new(parts.arena_bytes, "activations")?,
            scratch,
            scratch_bytes,
            writes: parts.stages.iter().map(|stage| stage.writes(&parts.state)).collect(),
            stages: parts.stages,
            kernels: parts.kernels,
            inputs: parts.inputs,
            outputs: parts.outputs,
            check: parts.check,
            state: UnsafeCell::new(parts.state),
            #[cfg(debug_assertions)]
            step: AtomicU64::new(claims::step()),
        })
    }

    /// Size of its activations and of the threads' scratch in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.arena.bytes() + self.scratch.bytes()
    }

    /// The current step.
    pub(crate) fn state(&self) -> &State {
        // SAFETY: `set` is not running, as guaranteed by its caller.
        unsafe { &*self.state.get() }
    }

    /// Sets the step.
    ///
    /// # Errors
    /// Those of [`State::set`].
    ///
    /// # Safety
    /// No run of the program is open, and no result of [`Program::state`] is still in use.
    pub(crate) unsafe fn set(&self, step: &Step<'_>) -> Result<(), Error> {
        #[cfg(debug_assertions)]
        self.step.store(claims::step(), Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { &mut *self.state.get() }.set(step)
    }

    /// The end of each node's chunks in the current step, stage by stage.
    pub(crate) fn chunk_ends(&self) -> impl Iterator<Item = usize> {
        self.stages.iter().flat_map(|stage| {
            (0..self.nodes.count()).map(|node| stage.end(self.state(), &self.nodes, node))
        })
    }

    /// What runs, for the checks of debug builds.
    #[cfg(debug_assertions)]
    fn running(&self, stage: usize, chunk: usize) -> claims::Chunk {
        let end = |node: &usize| self.stages[stage].end(self.state(), &self.nodes, *node);
        let node = (0..self.nodes.count()).find(|node| chunk < end(node)).unwrap_or(0);
        claims::Chunk { step: self.step.load(Relaxed), stage, chunk, node }
    }
}

/// A program as the pool's work.
pub(crate) struct ProgramRun(pub(crate) Arc<Program>);

impl Work for ProgramRun {
    fn run(&self, stage: usize, chunk: usize, thread: usize) {
        let program = &*self.0;
        let (own, bytes) = (thread * program.scratch_bytes, program.scratch_bytes - 128);
        let writes = (&program.arena, &program.writes[stage][..]);
        // SAFETY: the pool assigns a number to one thread at a time, and the parts of scratch do not overlap; `writes`
        // are the stage's, and the pool runs one stage at a time.
        let context = unsafe {
            let scratch = program.scratch.get_mut(own, bytes);
            Context::new(writes, program.state(), scratch, program.level)
        };
        #[cfg(debug_assertions)]
        let _running = claims::enter(program.running(stage, chunk));
        program.stages[stage].run(context, chunk);
    }
}
