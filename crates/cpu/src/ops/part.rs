//! A part of every group of elements of a row.

use std::ops::Range;

use bilayer_graph::Op;

use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// Copies, of every `stride` elements, those of `range`.
pub(crate) struct PartStage {
    pub(crate) input: Buffer,
    pub(crate) stride: usize,
    pub(crate) range: Range<usize>,
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::Part`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Part { input, stride, first, width, out } = *lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let (input, out) = (lowering.buffer(input), lowering.buffer(out));
    Box::new(PartStage { input, stride, range: first..first + width, out })
}

impl Stage for PartStage {
    fn chunks(&self, state: &State) -> usize {
        self.out.row_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let rows = self.out.chunk_range(context.state, chunk);
        // SAFETY: the input was written by an earlier stage; each chunk writes different rows.
        let (input, out) = unsafe {
            (self.input.get(context.arena, rows.clone()), self.out.get_mut(context.arena, rows))
        };
        let groups = input.chunks_exact(self.stride);
        for (group, out) in groups.zip(out.chunks_exact_mut(self.range.len())) {
            out.copy_from_slice(&group[self.range.clone()]);
        }
    }
}
