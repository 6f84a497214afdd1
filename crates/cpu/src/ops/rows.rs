//! Selects the rows whose logits are requested.

use bilayer_graph::Op;

use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// `out[i] = input[outputs[i]]`: `[T, width]` to `[R, width]`.
pub(crate) struct PickRows {
    pub(crate) input: Buffer,
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::Rows`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Rows { input, out } = lowering.op(node) else { unreachable!("the table of ops") };
    Box::new(PickRows { input: lowering.buffer(*input), out: lowering.buffer(*out) })
}

impl Stage for PickRows {
    fn chunks(&self, state: &State) -> usize {
        self.out.row_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        for at in self.out.chunk_range(context.state, chunk) {
            let row = context.state.outputs[at] as usize;
            // SAFETY: the input was written by an earlier stage; each chunk writes different rows.
            unsafe {
                let from = self.input.get(context.arena, row..row + 1);
                self.out.get_mut(context.arena, at..at + 1).copy_from_slice(from);
            }
        }
    }
}
