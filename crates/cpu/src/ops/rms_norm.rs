//! RMS norm: each row divided by its root mean square.

use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};
use crate::ops::layer_norm::{Norm, inverse_root};
use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// A norm of whole rows, of the kind in [`Norm`].
pub(crate) struct RowNorm {
    pub(crate) norm: Norm,
    pub(crate) input: Buffer,
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::RmsNorm`](bilayer_graph::Op::RmsNorm) or an [`Op::LayerNorm`](bilayer_graph::Op::LayerNorm).
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let op = lowering.op(node);
    let input = op.inputs().next().expect("a norm has an input");
    let (input, out) = (lowering.buffer(input), lowering.buffer(op.out()));
    Box::new(RowNorm { norm: lowering.norm(node), input, out })
}

impl Stage for RowNorm {
    fn chunks(&self, state: &State) -> usize {
        self.out.row_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        for row in self.out.chunk_range(context.state, chunk) {
            // SAFETY: the input was written by an earlier stage; each chunk writes different rows.
            let (input, out) = unsafe {
                (
                    self.input.get(context.arena, row..row + 1),
                    self.out.get_mut(context.arena, row..row + 1),
                )
            };
            self.norm.apply(context.level, input, out);
        }
    }
}

/// `out[i] = gain[i] * x[i] / sqrt(mean(x^2) + eps)`; no gain means all ones. The sum is f32, in as many accumulators
/// as a few vectors have lanes.
pub(crate) fn rms_norm(level: Level, gain: Option<&[f32]>, eps: f32, x: &[f32], out: &mut [f32]) {
    let squares = dispatch(level, Squares(x));
    let factor = inverse_root(squares / x.len() as f32 + eps);
    dispatch(level, Apply { factor, gain, x, out });
}

struct Squares<'a>(&'a [f32]);

impl Kernel for Squares<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let mut sums = [l.splat(0.0); 4];
        let blocks = self.0.chunks_exact(4 * L::N);
        let mut tail = 0.0;
        for x in blocks.remainder() {
            tail += x * x;
        }
        for block in blocks {
            for (at, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the block has 4 N elements.
                let x = unsafe { l.load(block.as_ptr().add(at * L::N)) };
                *sum = l.fma(x, x, *sum);
            }
        }
        tail + l.sum(l.add(l.add(sums[0], sums[1]), l.add(sums[2], sums[3])))
    }
}

struct Apply<'a> {
    factor: f32,
    gain: Option<&'a [f32]>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        match self.gain {
            Some(gain) => {
                for ((out, x), gain) in self.out.iter_mut().zip(self.x).zip(gain) {
                    *out = gain * (x * self.factor);
                }
            }
            None => self.out.iter_mut().zip(self.x).for_each(|(out, x)| *out = x * self.factor),
        }
    }
}
