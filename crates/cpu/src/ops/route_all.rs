//! The route to all experts in order.

use bilayer_graph::Op;

use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// Weights of 1 and the experts' indices, in every row of `out [rows, 2 experts]`.
pub(crate) struct RouteAll {
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::RouteAll`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::RouteAll { out, .. } = *lowering.op(node) else { unreachable!("the table of ops") };
    Box::new(RouteAll { out: lowering.buffer(out) })
}

impl Stage for RouteAll {
    fn chunks(&self, state: &State) -> usize {
        self.out.row_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let rows = self.out.chunk_range(context.state, chunk);
        // SAFETY: each chunk writes different rows.
        let out = unsafe { self.out.get_mut(context.arena, rows) };
        for row in out.chunks_exact_mut(self.out.width) {
            let (weights, numbers) = row.split_at_mut(self.out.width / 2);
            weights.fill(1.0);
            numbers.iter_mut().enumerate().for_each(|(i, number)| *number = i as f32);
        }
    }
}
