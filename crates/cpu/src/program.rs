//! A compiled segment: stages over one arena, run by the threads of a pool.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;

use bilayer_graph::{Error, Kernel, Rows, Step, Value};

use crate::level::Level;
use crate::memory::Memory;
use crate::pool::Work;
use crate::state::State;

pub(crate) mod check;
pub(crate) mod lower;
pub(crate) mod place;

/// Elements per chunk of elementwise work: a few microseconds.
const CHUNK_ELEMENTS: usize = 16 << 10;

/// A stage of a program: chunks that any threads run in any order, after the previous stage has finished.
pub(crate) trait Stage: Send + Sync {
    /// Number of chunks in this step; 0 skips the stage.
    fn chunks(&self, state: &State) -> usize;

    /// Runs one chunk. Chunks of a stage write to disjoint places.
    fn run(&self, context: Context<'_>, chunk: usize);

    /// Required size of [`Context::scratch`] in bytes.
    fn scratch_bytes(&self) -> usize {
        0
    }
}

/// The environment of a chunk.
pub(crate) struct Context<'a> {
    /// The program's values and other buffers.
    pub(crate) arena: &'a Memory,
    /// The step.
    pub(crate) state: &'a State,
    /// The thread's own memory, 64-byte aligned, uninitialized.
    pub(crate) scratch: &'a mut [u8],
    /// The instruction level.
    pub(crate) level: Level,
}

/// The location of a value in the arena: `[rows, width]` f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// Offset in the arena, bytes.
    pub(crate) offset: usize,
    /// Elements per row.
    pub(crate) width: usize,
    /// Tokens or outputs.
    pub(crate) rows: Rows,
}

impl Buffer {
    /// A range of rows, for reading.
    ///
    /// # Safety
    /// No other thread writes to them meanwhile: they were written by an earlier stage.
    pub(crate) unsafe fn get<'m>(&self, arena: &'m Memory, rows: Range<usize>) -> &'m [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { arena.get(self.offset + 4 * rows.start * self.width, rows.len() * self.width) }
    }

    /// A range of rows, for writing.
    ///
    /// # Safety
    /// No other thread accesses them meanwhile: this stage writes this value, and each chunk different rows of it.
    #[expect(clippy::mut_from_ref, reason = "the threads of a stage write disjoint parts")]
    pub(crate) unsafe fn get_mut<'m>(
        &self,
        arena: &'m Memory,
        rows: Range<usize>,
    ) -> &'m mut [f32] {
        let (first, len) = (rows.start * self.width, rows.len() * self.width);
        // SAFETY: guaranteed by the caller.
        unsafe { self.elements_mut(arena, first..first + len) }
    }

    /// A range of elements, counted over all rows, for reading.
    ///
    /// # Safety
    /// Those of [`Buffer::get`].
    pub(crate) unsafe fn elements<'m>(&self, arena: &'m Memory, at: Range<usize>) -> &'m [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { arena.get(self.offset + 4 * at.start, at.len()) }
    }

    /// A range of elements, counted over all rows, for writing.
    ///
    /// # Safety
    /// Those of [`Buffer::get_mut`], for the elements.
    #[expect(clippy::mut_from_ref, reason = "the threads of a stage write disjoint parts")]
    pub(crate) unsafe fn elements_mut<'m>(
        &self,
        arena: &'m Memory,
        at: Range<usize>,
    ) -> &'m mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { arena.get_mut(self.offset + 4 * at.start, at.len()) }
    }

    /// Number of row chunks for work that costs a few passes over the value.
    pub(crate) fn row_chunks(&self, state: &State) -> usize {
        state.rows(self.rows).div_ceil(self.chunk_rows())
    }

    /// The rows of a chunk.
    pub(crate) fn chunk_range(&self, state: &State, chunk: usize) -> Range<usize> {
        let rows = self.chunk_rows();
        chunk * rows..((chunk + 1) * rows).min(state.rows(self.rows))
    }

    fn chunk_rows(&self) -> usize {
        (CHUNK_ELEMENTS / self.width.max(1)).max(1)
    }

    /// Number of element chunks for elementwise work.
    pub(crate) fn element_chunks(&self, state: &State) -> usize {
        (state.rows(self.rows) * self.width).div_ceil(CHUNK_ELEMENTS)
    }

    /// The elements of a chunk.
    pub(crate) fn element_range(&self, state: &State, chunk: usize) -> Range<usize> {
        let all = state.rows(self.rows) * self.width;
        chunk * CHUNK_ELEMENTS..((chunk + 1) * CHUNK_ELEMENTS).min(all)
    }
}

/// A kernel of a program: the ops it covers and its stages.
pub(crate) struct Placed {
    pub(crate) kernel: Kernel,
    pub(crate) stages: Range<usize>,
}

/// A compiled segment.
pub(crate) struct Program {
    pub(crate) level: Level,
    pub(crate) stages: Vec<Box<dyn Stage>>,
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
    /// Allocates the memory of a program for `threads` threads.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(parts: Parts, level: Level, threads: usize) -> Result<Program, Error> {
        let scratch_bytes = parts.stages.iter().map(|stage| stage.scratch_bytes()).max();
        // Two cache lines between the threads' parts, so that none fetches another's.
        let scratch_bytes = scratch_bytes.unwrap_or(0).next_multiple_of(128) + 128;
        let scratch = Memory::new(scratch_bytes * threads, "scratch of the threads")?;
        Ok(Program {
            level,
            arena: Memory::new(parts.arena_bytes, "activations")?,
            scratch,
            scratch_bytes,
            stages: parts.stages,
            kernels: parts.kernels,
            inputs: parts.inputs,
            outputs: parts.outputs,
            check: parts.check,
            state: UnsafeCell::new(parts.state),
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
        // SAFETY: guaranteed by the caller.
        unsafe { &mut *self.state.get() }.set(step)
    }

    /// Chunks of each stage in the current step.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = usize> {
        self.stages.iter().map(|stage| stage.chunks(self.state()))
    }
}

/// A program as the pool's work.
pub(crate) struct ProgramRun(pub(crate) Arc<Program>);

impl Work for ProgramRun {
    fn run(&self, stage: usize, chunk: usize, thread: usize) {
        let program = &*self.0;
        // SAFETY: the pool assigns a number to one thread at a time, and the parts do not overlap.
        let scratch = unsafe {
            program.scratch.get_mut(thread * program.scratch_bytes, program.scratch_bytes - 128)
        };
        let context = Context {
            arena: &program.arena,
            state: program.state(),
            scratch,
            level: program.level,
        };
        program.stages[stage].run(context, chunk);
    }
}
