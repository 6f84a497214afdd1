//! Pooling: the mean of a sequence's rows.

use bilayer_graph::Op;

use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// `out[i]` = the mean of `input` from the first row of the span that contains row `outputs[i]` up to that row: `[T,
/// width]` to `[R, width]`. Sums are f32, in row order.
pub(crate) struct Pool {
    pub(crate) input: Buffer,
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::Pool`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Pool { input, out } = lowering.op(node) else { unreachable!("the table of ops") };
    Box::new(Pool { input: lowering.buffer(*input), out: lowering.buffer(*out) })
}

impl Stage for Pool {
    fn chunks(&self, state: &State) -> usize {
        state.rows(self.out.rows)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let last = context.state.outputs[chunk];
        let rows = context.state.span_start(last) as usize..last as usize + 1;
        let count = rows.len() as f32;
        // SAFETY: the input was written by an earlier stage; each chunk writes a different row.
        let (input, out) = unsafe {
            (self.input.get(context.arena, rows), self.out.get_mut(context.arena, chunk..chunk + 1))
        };
        out.fill(0.0);
        for row in input.chunks_exact(self.input.width) {
            out.iter_mut().zip(row).for_each(|(out, x)| *out += x);
        }
        out.iter_mut().for_each(|out| *out /= count);
    }
}
