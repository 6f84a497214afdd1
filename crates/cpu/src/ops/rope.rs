//! RoPE: pairs of a head's elements are rotated by an angle proportional to the position.

use bilayer_graph::{Op, Pairs, Rope};

use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};
use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// The table of cosines and sines of the step's tokens: `[T, 2 * pairs]`, cosines first.
///
/// They are computed once per step for all layers with the same RoPE. Angles are f64: at position 100000 an f32
/// product would be off by up to 0.004 radians.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) buffer: Buffer,
}

/// Fills a [`Table`].
pub(crate) struct MakeTable {
    pub(crate) table: Table,
    /// Radians per position of each pair, with factors applied.
    frequencies: Vec<f64>,
    magnitude: f64,
}

impl MakeTable {
    /// `factors` divide the frequencies.
    pub(crate) fn new(rope: &Rope, factors: Option<&[f32]>, table: Table) -> MakeTable {
        let factor = |at: usize| factors.map_or(1.0, |factors| f64::from(factors[at]));
        let frequencies = rope.frequencies.iter().enumerate();
        MakeTable {
            table,
            frequencies: frequencies.map(|(at, &f)| f64::from(f) / factor(at)).collect(),
            magnitude: f64::from(rope.magnitude),
        }
    }
}

/// The stage of an [`Op::Rope`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Rope { input, head_dim, rope, out } = lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let table = lowering.table(rope);
    let (input, out) = (lowering.buffer(*input), lowering.buffer(*out));
    Box::new(RopeStage { table, pairs: rope.pairs, head_dim: *head_dim, input, out })
}

impl Stage for MakeTable {
    fn chunks(&self, state: &State) -> usize {
        // Tokens per chunk; about 40 ns per pair.
        state.tokens.len().div_ceil(16)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let end = (16 * (chunk + 1)).min(context.state.tokens.len());
        for row in 16 * chunk..end {
            let position = f64::from(context.state.positions[row]);
            // SAFETY: each chunk writes different rows.
            let out = unsafe { self.table.buffer.get_mut(context.arena, row..row + 1) };
            let (cos, sin) = out.split_at_mut(self.frequencies.len());
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&self.frequencies) {
                let (s, c) = (position * frequency).sin_cos();
                *cos = (c * self.magnitude) as f32;
                *sin = (s * self.magnitude) as f32;
            }
        }
    }
}

/// Rotates each head of a value.
pub(crate) struct RopeStage {
    pub(crate) table: Table,
    pub(crate) pairs: Pairs,
    pub(crate) head_dim: usize,
    pub(crate) input: Buffer,
    pub(crate) out: Buffer,
}

impl Stage for RopeStage {
    fn chunks(&self, state: &State) -> usize {
        self.out.row_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        for row in self.out.chunk_range(context.state, chunk) {
            // SAFETY: input and table were written by earlier stages; each chunk writes different rows.
            let (table, input, out) = unsafe {
                (
                    self.table.buffer.get(context.arena, row..row + 1),
                    self.input.get(context.arena, row..row + 1),
                    self.out.get_mut(context.arena, row..row + 1),
                )
            };
            out.copy_from_slice(input);
            turn(context.level, self.pairs, table, self.head_dim, out);
        }
    }
}

/// Rotates every `head_dim` elements of `x`; `table` is a row of a [`Table`].
pub(crate) fn turn(level: Level, pairs: Pairs, table: &[f32], head_dim: usize, x: &mut [f32]) {
    dispatch(level, Rotate { pairs, table, head_dim, x });
}

struct Rotate<'a> {
    pairs: Pairs,
    table: &'a [f32],
    head_dim: usize,
    x: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let half = self.table.len() / 2;
        let (cos, sin) = self.table.split_at(half);
        for head in self.x.chunks_exact_mut(self.head_dim) {
            let head = &mut head[..2 * half];
            match self.pairs {
                Pairs::Interleaved => {
                    for ((pair, c), s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                        let [x, y] = *pair;
                        *pair = [x * c - y * s, x * s + y * c];
                    }
                }
                Pairs::Halves => {
                    let (left, right) = head.split_at_mut(half);
                    for (((a, b), c), s) in left.iter_mut().zip(right).zip(cos).zip(sin) {
                        let (x, y) = (*a, *b);
                        *a = x * c - y * s;
                        *b = x * s + y * c;
                    }
                }
            }
        }
    }
}
