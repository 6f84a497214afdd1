//! A linear recurrence over time, each head by itself.
//!
//! **The idea.** The rows of a head's state `[head_dim, state_dim]` are independent of each other. In decode a chunk is a
//! block of them that stays in the first-level cache, and vectors run along `state_dim`: each row of a sequence decays the
//! state, adds to it and reads it in two passes. Many rows of a sequence are taken in tiles (`tile.rs`), a chunk being a
//! head, unless each row must have the bits of a single one.
//!
//! **Price.** A step with many rows of one sequence and few of others computes the latter in chunks of heads, too.

use std::ops::Range;
use std::sync::Arc;

use bilayer_graph::{Exactness, Op, StateSpan};

use crate::lanes::{Kernel, Lanes};
use crate::level::dispatch;
use crate::lowering::Lowering;
use crate::slots::Slots;
use crate::stage::{Buffer, Context, Scratch, Stage};
use crate::state::State;

mod tile;
use tile::{Factors, Room, TILE, Tile, transpose, transpose_back};

/// Elements of the state that a chunk carries: 16 KiB, which leaves room for the inputs in a first-level cache.
const CHUNK_ELEMENTS: usize = 4 << 10;

/// Rows of a sequence from which they are taken in tiles.
const TILED_ROWS: u32 = 8;

/// What a span begins with.
enum Start<'a> {
    /// Zeros.
    Zero,
    /// The rows of another slot.
    Other(&'a [f32]),
    /// What is stored in the rows.
    InPlace,
}

/// Columns of a buffer.
struct BufferColumns {
    buffer: Buffer,
    first: usize,
}

/// The recurrence. Sums are f32.
pub(crate) struct Scan {
    x: BufferColumns,
    b: BufferColumns,
    c: BufferColumns,
    dt: Buffer,
    beta: Option<Buffer>,
    out: Buffer,
    /// `[heads]`.
    bias: Arc<[f32]>,
    /// `[heads]`.
    decay: Arc<[f32]>,
    /// `[heads]`.
    skip: Option<Arc<[f32]>>,
    /// Sizes and factors.
    op: bilayer_graph::Scan,
    /// `[heads, head_dim, state_dim]` in each slot.
    slots: Arc<Slots>,
}

/// The stage of an [`Op::Scan`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Scan(op) = lowering.op(node) else { unreachable!("the table of ops") };
    let op = op.clone();
    let [x, b, c] = [op.x, op.b, op.c]
        .map(|of| BufferColumns { buffer: lowering.buffer(of.value), first: of.first });
    Box::new(Scan {
        x,
        b,
        c,
        dt: lowering.buffer(op.dt),
        beta: op.update.beta().map(|beta| lowering.buffer(beta)),
        out: lowering.buffer(op.out),
        bias: lowering.vector(op.bias),
        decay: lowering.vector(op.decay),
        skip: op.update.skip().map(|skip| lowering.vector(skip)),
        slots: lowering.slots(op.state),
        op,
    })
}

impl BufferColumns {
    /// Elements `at..at + len` of a row's columns.
    fn get<'m>(&self, context: &Context<'m>, row: usize, at: usize, len: usize) -> &'m [f32] {
        let first = row * self.buffer.width + self.first + at;
        self.buffer.elements(context, first..first + len)
    }
}

impl Scan {
    /// Rows of a head's state in a chunk.
    fn chunk_rows(&self, state: &State) -> usize {
        let head_dim = self.op.head_dim;
        match state.states.iter().any(|span| is_tiled(state, span)) {
            true => head_dim,
            false => (CHUNK_ELEMENTS / self.op.state_dim).clamp(1, head_dim),
        }
    }

    /// Chunks of a head.
    fn head_chunks(&self, state: &State) -> usize {
        self.op.head_dim.div_ceil(self.chunk_rows(state))
    }

    /// Blocks of 32 rows of a head's state.
    fn blocks(&self) -> usize {
        self.op.head_dim.div_ceil(TILE)
    }

    /// Passes what rows `first..first + len` of a head's state begin with, and the rows themselves, to what takes them
    /// through a span.
    fn carry(
        &self,
        span: &StateSpan,
        head: usize,
        (first, len): (usize, usize),
        through: impl FnOnce(Start<'_>, &mut [f32]),
    ) {
        let state_dim = self.op.state_dim;
        let at = (head * self.op.head_dim + first) * state_dim;
        let len = len * state_dim;
        let other = span.from.filter(|&slot| slot != span.to);
        // SAFETY: only one chunk accesses these rows of the slots, and the slots differ.
        let (state, other) = unsafe {
            let state = self.slots.get_mut(span.to, at, len);
            (state, other.map(|slot| self.slots.get(slot, at, len)))
        };
        let start = match (span.from, other) {
            (None, _) => Start::Zero,
            (_, Some(other)) => Start::Other(other),
            (_, None) => Start::InPlace,
        };
        through(start, state);
    }

    /// A row's decay, and its factor on what is added: the step, or the delta rule's rate.
    fn factors(&self, context: &Context<'_>, row: usize, head: usize) -> Factors {
        let of_head = |buffer: &Buffer| -> f32 {
            let at = row * buffer.width + head;
            buffer.elements(context, at..at + 1)[0]
        };
        let step = softplus(of_head(&self.dt) + self.bias[head]);
        let added = match &self.beta {
            None => step,
            Some(beta) => 1.0 / (1.0 + (-of_head(beta)).exp()),
        };
        Factors { kept: (step * self.decay[head]).exp(), added }
    }

    /// First element of the columns of `b` and `c` that a head reads.
    fn group(&self, head: usize) -> usize {
        head / self.op.neighbours % self.op.groups * self.op.state_dim
    }

    fn skip(&self, head: usize) -> f32 {
        self.skip.as_ref().map_or(0.0, |skip| skip[head])
    }

    /// Takes some rows of a head's state, from `first` on, through a span, row by row.
    fn row_by_row(
        &self,
        context: &Context<'_>,
        span: &StateSpan,
        (head, first): (usize, usize),
        (start, state): (Start<'_>, &mut [f32]),
    ) {
        match start {
            Start::Zero => state.fill(0.0),
            Start::Other(from) => state.copy_from_slice(from),
            Start::InPlace => {}
        }
        let len = state.len() / self.op.state_dim;
        let (at, group) = (head * self.op.head_dim + first, self.group(head));
        for row in span.first_row as usize..(span.first_row + span.rows) as usize {
            self.store(context, row, at..at + len, |out| {
                let advance = Advance {
                    x: self.x.get(context, row, at, len),
                    b: self.b.get(context, row, group, self.op.state_dim),
                    c: self.c.get(context, row, group, self.op.state_dim),
                    factors: [self.op.b_factor, self.op.c_factor],
                    row: self.factors(context, row, head),
                    is_delta: self.beta.is_some(),
                    skip: self.skip(head),
                    state: &mut *state,
                    out,
                };
                dispatch(context.level, advance);
            });
        }
    }

    /// Has elements of a row of the result computed, which belong to the chunk that calls it.
    fn store(
        &self,
        context: &Context<'_>,
        row: usize,
        at: Range<usize>,
        compute: impl FnOnce(&mut [f32]),
    ) {
        let first = row * self.out.width;
        // SAFETY: only this chunk writes these elements of the result.
        compute(unsafe { self.out.elements_mut(context, first + at.start..first + at.end) });
    }

    /// Copies the `b` and `c` that a head reads in consecutive rows, `[rows, state_dim]` each.
    fn gather(
        &self,
        context: &Context<'_>,
        (head, first): (usize, usize),
        b: &mut [f32],
        c: &mut [f32],
    ) {
        let (state_dim, group) = (self.op.state_dim, self.group(head));
        let rows = b.chunks_exact_mut(state_dim).zip(c.chunks_exact_mut(state_dim));
        for (row, (b, c)) in (first..).zip(rows) {
            b.copy_from_slice(self.b.get(context, row, group, state_dim));
            c.copy_from_slice(self.c.get(context, row, group, state_dim));
        }
    }

    /// Takes a head's state through a span, tile by tile.
    fn tile_by_tile(
        &self,
        context: &Context<'_>,
        mut scratch: Scratch<'_>,
        span: &StateSpan,
        head: usize,
        (start, stored): (Start<'_>, &mut [f32]),
    ) {
        let (head_dim, state_dim) = (self.op.head_dim, self.op.state_dim);
        let at = head * head_dim;
        let (of_block, of_tile) = (TILE * state_dim, TILE * TILE);
        let state = scratch.take(self.blocks() * of_block);
        let turn = |from: &[f32], state: &mut [f32]| {
            for (rows, block) in from.chunks(of_block).zip(state.chunks_exact_mut(of_block)) {
                transpose(rows, state_dim, block);
            }
        };
        match start {
            Start::Zero => state.fill(0.0),
            Start::Other(from) => turn(from, state),
            Start::InPlace => turn(stored, state),
        }
        let [b, c, b_columns] = [(); 3].map(|()| scratch.take(of_block));
        let [x, out] = [(); 2].map(|()| scratch.take(self.blocks() * of_tile));
        let [mixed, taken, known] = [(); 3].map(|()| scratch.take(of_tile));
        let end = (span.first_row + span.rows) as usize;
        for first in (span.first_row as usize..end).step_by(TILE) {
            let rows = (end - first).min(TILE);
            let (b, c) = (&mut b[..rows * state_dim], &mut c[..rows * state_dim]);
            self.gather(context, (head, first), b, c);
            transpose(b, state_dim, b_columns);
            x.fill(0.0);
            let mut factors = [Factors::default(); TILE];
            for (t, factors) in factors[..rows].iter_mut().enumerate() {
                *factors = self.factors(context, first + t, head);
                let from = self.x.get(context, first + t, at, head_dim).chunks(TILE);
                for (from, x) in from.zip(x.chunks_exact_mut(of_tile)) {
                    x[t * TILE..][..from.len()].copy_from_slice(from);
                }
            }
            let tile = Tile {
                factors: &factors[..rows],
                is_delta: self.beta.is_some(),
                skip: self.skip(head),
                b_factor: self.op.b_factor,
                c_factor: self.op.c_factor,
                state_dim,
                b,
                c,
                b_columns,
                state: &mut *state,
                x: &mut *x,
                out: &mut *out,
                room: Room { mixed: &mut *mixed, taken: &mut *taken, known: &mut *known },
            };
            dispatch(context.level, tile);
            for t in 0..rows {
                self.store(context, first + t, at..at + head_dim, |to| {
                    for (to, out) in to.chunks_mut(TILE).zip(out.chunks_exact(of_tile)) {
                        to.copy_from_slice(&out[t * TILE..][..to.len()]);
                    }
                });
            }
        }
        for (rows, block) in stored.chunks_mut(of_block).zip(state.chunks_exact(of_block)) {
            transpose_back(block, state_dim, rows);
        }
    }
}

impl Stage for Scan {
    fn chunks(&self, state: &State) -> usize {
        self.op.heads * self.head_chunks(state)
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        vec![self.out.region(state)]
    }

    fn scratch_bytes(&self) -> usize {
        let of_state = TILE * self.op.state_dim;
        let of_tiles = TILE * TILE * (2 * self.blocks() + 3);
        4 * (of_state * (self.blocks() + 3) + of_tiles)
    }

    fn run(&self, mut context: Context<'_>, chunk: usize) {
        let (state, scratch) = (context.state, std::mem::take(&mut context.scratch));
        let (rows, of_head) = (self.chunk_rows(state), self.head_chunks(state));
        let first = chunk % of_head * rows;
        let len = rows.min(self.op.head_dim - first);
        let head = chunk / of_head;
        for span in &state.states {
            self.carry(span, head, (first, len), |start, rows| {
                let rows = (start, rows);
                if is_tiled(state, span) {
                    self.tile_by_tile(&context, Scratch::of(&mut *scratch), span, head, rows);
                } else {
                    self.row_by_row(&context, span, (head, first), rows);
                }
            });
        }
    }
}

/// Whether a span's rows are taken in tiles, whose sums have another order.
fn is_tiled(state: &State, span: &StateSpan) -> bool {
    state.exactness == Exactness::Fastest && span.rows >= TILED_ROWS
}

/// `ln(1 + exp(x))`, which is `x` where exp would overflow.
fn softplus(x: f32) -> f32 {
    if x > 40.0 { x } else { x.exp().ln_1p() }
}

/// One row of a sequence through some rows of a head's state.
struct Advance<'a> {
    /// `[len]`.
    x: &'a [f32],
    /// `[state_dim]`.
    b: &'a [f32],
    /// `[state_dim]`.
    c: &'a [f32],
    /// On `b` and `c`.
    factors: [f32; 2],
    row: Factors,
    is_delta: bool,
    skip: f32,
    /// `[len, state_dim]`.
    state: &'a mut [f32],
    /// `[len]`.
    out: &'a mut [f32],
}

impl Kernel for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Advance { x, b, c, factors: [b_factor, c_factor], .. } = self;
        let Factors { kept, added: factor } = self.row;
        assert_eq!(b.len(), c.len());
        let rows = self.state.chunks_exact_mut(b.len());
        for ((state, &x), out) in rows.zip(x).zip(self.out) {
            let added = match self.is_delta {
                false => factor * x,
                true => factor * (x - kept * b_factor * dot(lanes, state, b)),
            };
            let sum = update(lanes, state, (b, added * b_factor), c, kept);
            *out = c_factor * sum + self.skip * x;
        }
    }
}

/// The sum of `a * b`.
#[inline(always)]
fn dot<L: Lanes>(lanes: L, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let whole = a.len() / L::N * L::N;
    let mut sums = lanes.splat(0.0);
    for i in (0..whole).step_by(L::N) {
        sums = lanes.fma(lanes.read(&a[i..]), lanes.read(&b[i..]), sums);
    }
    let tail = a[whole..].iter().zip(&b[whole..]).map(|(a, b)| a * b);
    lanes.sum(sums) + tail.sum::<f32>()
}

/// `state = kept * state + added * b`; the sum of `state * c`.
#[inline(always)]
fn update<L: Lanes>(
    lanes: L,
    state: &mut [f32],
    (b, added): (&[f32], f32),
    c: &[f32],
    kept: f32,
) -> f32 {
    assert!(state.len() == b.len() && state.len() == c.len());
    let whole = state.len() / L::N * L::N;
    let (all_kept, all_added) = (lanes.splat(kept), lanes.splat(added));
    let mut sums = lanes.splat(0.0);
    for i in (0..whole).step_by(L::N) {
        let taken = lanes.mul(all_added, lanes.read(&b[i..]));
        let new = lanes.fma(all_kept, lanes.read(&state[i..]), taken);
        lanes.write(new, &mut state[i..]);
        sums = lanes.fma(new, lanes.read(&c[i..]), sums);
    }
    let mut sum = lanes.sum(sums);
    for ((state, b), c) in state[whole..].iter_mut().zip(&b[whole..]).zip(&c[whole..]) {
        *state = kept * *state + added * b;
        sum += *state * c;
    }
    sum
}
