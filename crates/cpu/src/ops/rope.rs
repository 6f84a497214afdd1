//! RoPE: pairs of a head's elements are rotated by an angle proportional to the position.

use std::ops::Range;

use bilayer_graph::{Op, Pairs, Rope};

use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};
use crate::lowering::Lowering;
use crate::stage::{Buffer, Context, Rowwise, Stage};

/// The stage that fills a table of cosines and sines of the step's tokens: `[T, 2 * pairs]`, cosines first. `factors`
/// divide the frequencies.
///
/// They are computed once per step for all layers with the same RoPE. Angles are f64: at position 100000 an f32
/// product would be off by up to 0.004 radians.
pub(crate) fn fill_table(rope: &Rope, factors: Option<&[f32]>, table: Buffer) -> Box<dyn Stage> {
    let factor = |at: usize| factors.map_or(1.0, |factors| f64::from(factors[at]));
    let frequencies = rope.frequencies.iter().enumerate();
    let frequencies: Vec<f64> = frequencies.map(|(at, &f)| f64::from(f) / factor(at)).collect();
    let magnitude = f64::from(rope.magnitude);
    let compute = move |context: Context<'_>, rows: Range<usize>, results: &mut [f32]| {
        for (row, out) in rows.zip(results.chunks_exact_mut(table.width)) {
            let position = f64::from(context.state.positions[row]);
            let (cos, sin) = out.split_at_mut(frequencies.len());
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&frequencies) {
                let (s, c) = (position * frequency).sin_cos();
                *cos = (c * magnitude) as f32;
                *sin = (s * magnitude) as f32;
            }
        }
    };
    // About 40 ns per pair.
    Rowwise { out: table, rows: 16, scratch_bytes: 0, compute }.boxed()
}

/// The stage of an [`Op::Rope`]: rotates each head of a value.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let &Op::Rope { input, head_dim, ref rope, out } = lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let (pairs, table) = (rope.pairs, lowering.table(rope));
    let (input, out) = (lowering.buffer(input), lowering.buffer(out));
    Rowwise::light(out, move |context, rows, results| {
        results.copy_from_slice(input.get(&context, rows.clone()));
        for (row, out) in rows.zip(results.chunks_exact_mut(out.width)) {
            turn(context.level, pairs, table.get(&context, row..row + 1), head_dim, out);
        }
    })
}

/// Rotates every `head_dim` elements of `x`; `table` is a row of a table of cosines and sines.
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
