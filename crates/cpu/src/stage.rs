//! Stages: the steps of a program, each a number of chunks that any threads run in any order.
//!
//! Chunks share the arena, so a stage says which bytes of it the stage writes ([`Stage::writes`]): [`Context`] refuses
//! to read them or to write others, which leaves one obligation, that chunks write different parts of them. The stages
//! [`Elementwise`] and [`Rowwise`] fulfil it and hand slices to a closure; debug builds check it for all stages
//! (`memory/claims.rs`).

use std::ops::Range;

use bilayer_graph::Rows;
use bytemuck::Pod;

use crate::level::Level;
use crate::memory::{Memory, Strided};
use crate::numa::Nodes;
use crate::state::State;

/// Elements per chunk of elementwise work: a few microseconds.
const CHUNK_ELEMENTS: usize = 16 << 10;

/// A stage of a program: chunks that any threads run in any order, after the previous stage has finished.
pub(crate) trait Stage: Send + Sync {
    /// Number of chunks in this step; 0 skips the stage.
    fn chunks(&self, state: &State) -> usize;

    /// The end of a NUMA node's chunks, which follow those of the nodes before it. By default each has a part of them in
    /// proportion to its threads.
    fn end(&self, state: &State, nodes: &Nodes, node: usize) -> usize {
        nodes.end(self.chunks(state), node)
    }

    /// The byte ranges of the arena that the stage may write in any step.
    fn writes(&self, state: &State) -> Vec<Range<usize>>;

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
    arena: &'a Memory,
    /// The stage's [`Stage::writes`].
    writes: &'a [Range<usize>],
    /// The step.
    pub(crate) state: &'a State,
    /// The thread's own memory, 64-byte aligned, uninitialized.
    pub(crate) scratch: &'a mut [u8],
    /// The instruction level.
    pub(crate) level: Level,
}

impl<'a> Context<'a> {
    /// # Safety
    /// `writes` are those of the stage whose chunk gets the context, and no thread runs a chunk of another stage that
    /// writes to the arena.
    pub(crate) unsafe fn new(
        (arena, writes): (&'a Memory, &'a [Range<usize>]),
        state: &'a State,
        scratch: &'a mut [u8],
        level: Level,
    ) -> Context<'a> {
        Context { arena, writes, state, scratch, level }
    }

    /// `len` elements of the arena from byte `offset` on, written by an earlier stage.
    ///
    /// # Panics
    /// If this stage may write to them.
    pub(crate) fn read<T: Pod>(&self, offset: usize, len: usize) -> &'a [T] {
        let end = offset + len * size_of::<T>();
        let is_apart = |own: &Range<usize>| end <= own.start || own.end <= offset;
        assert!(self.writes.iter().all(is_apart), "a stage reads what its chunks write");
        // SAFETY: only chunks of this stage run now, and they write elsewhere, as checked here and in `write`.
        unsafe { self.arena.get(offset, len) }
    }

    /// `len` elements of the arena from byte `offset` on.
    ///
    /// # Safety
    /// No other chunk of the stage writes to them, and this one holds no other slice of them.
    ///
    /// # Panics
    /// If they are not among the stage's [`Stage::writes`].
    #[inline(always)]
    pub(crate) unsafe fn write<T: Pod>(&self, offset: usize, len: usize) -> &'a mut [T] {
        self.check_write(offset, len * size_of::<T>());
        // SAFETY: guaranteed by the caller; nothing that the stage writes is read by `read`.
        unsafe { self.arena.get_mut(offset, len) }
    }

    #[inline(always)]
    fn check_write(&self, start: usize, bytes: usize) {
        let end = start + bytes;
        let contains = |own: &Range<usize>| own.start <= start && end <= own.end;
        assert!(self.writes.iter().any(contains), "a stage writes what it has not named");
    }
}

/// Splits a thread's scratch into parts aligned to cache lines.
pub(crate) struct Scratch<'a>(&'a mut [f32]);

impl<'a> Scratch<'a> {
    /// All of [`Context::scratch`].
    pub(crate) fn of(scratch: &'a mut [u8]) -> Scratch<'a> {
        Scratch(bytemuck::cast_slice_mut(scratch))
    }

    /// The next `len` elements, uninitialized.
    pub(crate) fn take(&mut self, len: usize) -> &'a mut [f32] {
        let all = std::mem::take(&mut self.0);
        let (part, rest) = all.split_at_mut(len.next_multiple_of(16));
        self.0 = rest;
        &mut part[..len]
    }
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
    /// Its bytes in the arena, for all rows of any step.
    pub(crate) fn region(&self, state: &State) -> Range<usize> {
        self.offset..self.offset + 4 * state.rows_max(self.rows) * self.width
    }

    /// A range of rows, written by an earlier stage.
    pub(crate) fn get<'a>(&self, context: &Context<'a>, rows: Range<usize>) -> &'a [f32] {
        self.elements(context, rows.start * self.width..rows.end * self.width)
    }

    /// A range of elements, counted over all rows, written by an earlier stage.
    pub(crate) fn elements<'a>(&self, context: &Context<'a>, at: Range<usize>) -> &'a [f32] {
        context.read(self.offset + 4 * at.start, at.len())
    }

    /// A range of elements, counted over all rows, for writing.
    ///
    /// # Safety
    /// Those of [`Context::write`].
    #[inline(always)]
    pub(crate) unsafe fn elements_mut<'a>(
        &self,
        context: &Context<'a>,
        at: Range<usize>,
    ) -> &'a mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { context.write(self.offset + 4 * at.start, at.len()) }
    }

    /// Some columns of the first `count` rows for writing, a slice of each row.
    ///
    /// # Safety
    /// Those of [`Context::write`].
    ///
    /// # Panics
    /// If the columns are not the value's, or the rows not among the stage's [`Stage::writes`].
    #[inline(always)]
    pub(crate) unsafe fn columns_mut<'a>(
        &self,
        context: &Context<'a>,
        columns: Range<usize>,
        count: usize,
    ) -> impl Iterator<Item = &'a mut [f32]> + use<'a> {
        assert!(columns.end <= self.width, "columns {columns:?} of {}", self.width);
        let rows = Strided { count, len: columns.len(), stride: self.width };
        let offset = self.offset + 4 * columns.start;
        context.check_write(offset, rows.span_bytes::<f32>());
        // SAFETY: guaranteed by the caller; nothing that the stage writes is read by `read`.
        unsafe { context.arena.rows_mut(offset, rows) }
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

    /// Rows per chunk for work that costs a few passes over the value.
    pub(crate) fn chunk_rows(&self) -> usize {
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

/// A stage whose chunks each compute some consecutive elements of a value.
pub(crate) struct Pieces<F> {
    pub(crate) out: Buffer,
    /// Elements per chunk.
    pub(crate) len: usize,
    /// Scratch of a chunk, bytes.
    pub(crate) scratch_bytes: usize,
    /// Computes elements, which are counted over all rows; reads whatever other stages wrote.
    pub(crate) compute: F,
}

impl<F> Stage for Pieces<F>
where
    F: Fn(Context<'_>, Range<usize>, &mut [f32]) + Send + Sync,
{
    fn chunks(&self, state: &State) -> usize {
        (state.rows(self.out.rows) * self.out.width).div_ceil(self.len)
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        vec![self.out.region(state)]
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let all = context.state.rows(self.out.rows) * self.out.width;
        let at = chunk * self.len..((chunk + 1) * self.len).min(all);
        // SAFETY: the elements of two chunks are disjoint.
        let out = unsafe { self.out.elements_mut(&context, at.clone()) };
        (self.compute)(context, at, out);
    }

    fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }
}

/// A stage whose chunks each compute some elements of a value from the same elements of others.
pub(crate) struct Elementwise<const N: usize, F> {
    pub(crate) inputs: [Buffer; N],
    pub(crate) out: Buffer,
    /// Computes the elements of `out` from those of the inputs, slices of equal length.
    pub(crate) compute: F,
}

impl<const N: usize, F> Elementwise<N, F>
where
    F: Fn(Level, [&[f32]; N], &mut [f32]) + Send + Sync + 'static,
{
    /// The stage.
    pub(crate) fn boxed(self) -> Box<dyn Stage> {
        let Elementwise { inputs, out, compute } = self;
        let compute = move |context: Context<'_>, at: Range<usize>, results: &mut [f32]| {
            let inputs = inputs.map(|input| input.elements(&context, at.clone()));
            compute(context.level, inputs, results);
        };
        Box::new(Pieces { out, len: CHUNK_ELEMENTS, scratch_bytes: 0, compute })
    }
}

/// A stage whose chunks each compute some rows of a value.
pub(crate) struct Rowwise<F> {
    pub(crate) out: Buffer,
    /// Rows per chunk.
    pub(crate) rows: usize,
    /// Scratch of a chunk, bytes.
    pub(crate) scratch_bytes: usize,
    /// Computes the rows `[rows, width]`; reads whatever other stages wrote.
    pub(crate) compute: F,
}

impl<F> Rowwise<F>
where
    F: Fn(Context<'_>, Range<usize>, &mut [f32]) + Send + Sync + 'static,
{
    /// A stage for work that costs a few passes over the value.
    pub(crate) fn light(out: Buffer, compute: F) -> Box<dyn Stage> {
        Rowwise { out, rows: out.chunk_rows(), scratch_bytes: 0, compute }.boxed()
    }

    /// The stage.
    pub(crate) fn boxed(self) -> Box<dyn Stage> {
        let Rowwise { out, rows, scratch_bytes, compute } = self;
        let compute = move |context: Context<'_>, at: Range<usize>, results: &mut [f32]| {
            compute(context, at.start / out.width..at.end / out.width, results);
        };
        Box::new(Pieces { out, len: rows * out.width, scratch_bytes, compute })
    }
}
