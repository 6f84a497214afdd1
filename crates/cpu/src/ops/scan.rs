//! A linear recurrence over time, each head by itself.
//!
//! **The idea.** The rows of a head's state `[head_dim, state_dim]` are independent of each other. A chunk is a block of them
//! that stays in the first-level cache while all rows of a sequence pass; vectors run along `state_dim`. The same sums in
//! the same order make every element, so every division of a text into steps gives the same bits.
//!
//! **Price.** Prefill computes the recurrence row by row, a few operations per element of the state and row, instead of
//! products of chunks of rows.

use std::ops::Range;
use std::sync::Arc;

use bilayer_graph::{Op, StateSpan};

use crate::lanes::{Kernel, Lanes};
use crate::level::dispatch;
use crate::lowering::Lowering;
use crate::slots::Slots;
use crate::stage::{Buffer, Context, Stage};
use crate::state::State;

/// Elements of the state that a chunk carries: 16 KiB, which leaves room for the inputs in a first-level cache.
const CHUNK_ELEMENTS: usize = 4 << 10;

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
    fn chunk_rows(&self) -> usize {
        (CHUNK_ELEMENTS / self.op.state_dim).clamp(1, self.op.head_dim)
    }

    /// Chunks of a head.
    fn head_chunks(&self) -> usize {
        self.op.head_dim.div_ceil(self.chunk_rows())
    }

    /// Takes rows `first..first + len` of a head's state through a span.
    fn carry(
        &self,
        context: &Context<'_>,
        span: &StateSpan,
        head: usize,
        (first, len): (usize, usize),
    ) {
        let (head_dim, state_dim) = (self.op.head_dim, self.op.state_dim);
        let at = head * head_dim + first;
        // SAFETY: only this chunk accesses these rows of the slots.
        let state = unsafe { self.slots.get_mut(span.to, at * state_dim, len * state_dim) };
        match span.from {
            None => state.fill(0.0),
            Some(slot) if slot != span.to => {
                // SAFETY: as above, and the slots differ.
                let from = unsafe { self.slots.get(slot, at * state_dim, len * state_dim) };
                state.copy_from_slice(from);
            }
            Some(_) => {}
        }
        let group = head / self.op.neighbours % self.op.groups * state_dim;
        let of_head = |buffer: &Buffer, row: usize| -> f32 {
            let at = row * buffer.width + head;
            buffer.elements(context, at..at + 1)[0]
        };
        for row in span.first_row as usize..(span.first_row + span.rows) as usize {
            let step = softplus(of_head(&self.dt, row) + self.bias[head]);
            let start = row * self.out.width + at;
            // SAFETY: only this chunk writes these elements of the result.
            let out = unsafe { self.out.elements_mut(context, start..start + len) };
            let beta = self.beta.as_ref().map(|beta| of_head(beta, row));
            let advance = Advance {
                x: self.x.get(context, row, at, len),
                b: self.b.get(context, row, group, state_dim),
                c: self.c.get(context, row, group, state_dim),
                factors: [self.op.b_factor, self.op.c_factor],
                kept: (step * self.decay[head]).exp(),
                step,
                rate: beta.map(|beta| 1.0 / (1.0 + (-beta).exp())),
                skip: self.skip.as_ref().map_or(0.0, |skip| skip[head]),
                state: &mut *state,
                out,
            };
            dispatch(context.level, advance);
        }
    }
}

impl Stage for Scan {
    fn chunks(&self, _: &State) -> usize {
        self.op.heads * self.head_chunks()
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        vec![self.out.region(state)]
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let (rows, of_head) = (self.chunk_rows(), self.head_chunks());
        let first = chunk % of_head * rows;
        let len = rows.min(self.op.head_dim - first);
        for span in &context.state.states {
            self.carry(&context, span, chunk / of_head, (first, len));
        }
    }
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
    kept: f32,
    step: f32,
    /// That of the delta rule.
    rate: Option<f32>,
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
        let Advance { x, b, c, factors: [b_factor, c_factor], kept, .. } = self;
        assert_eq!(b.len(), c.len());
        let rows = self.state.chunks_exact_mut(b.len());
        for ((state, &x), out) in rows.zip(x).zip(self.out) {
            let added = match self.rate {
                None => self.step * x,
                Some(rate) => rate * (x - kept * b_factor * dot(lanes, state, b)),
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
