//! Two values, group by group.

use bilayer_graph::Op;

use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// Copies `widths[0]` elements of the first input, then `widths[1]` of the second, and so on.
pub(crate) struct JoinStage {
    pub(crate) inputs: [Buffer; 2],
    pub(crate) widths: [usize; 2],
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::Join`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Join { a, b, widths, out } = *lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let inputs = [a, b].map(|input| lowering.buffer(input));
    Box::new(JoinStage { inputs, widths, out: lowering.buffer(out) })
}

impl Stage for JoinStage {
    fn chunks(&self, state: &State) -> usize {
        self.out.row_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let rows = self.out.chunk_range(context.state, chunk);
        let [first, second] = self.widths;
        // SAFETY: the inputs were written by earlier stages; each chunk writes different rows.
        let ([a, b], out) = unsafe {
            let inputs = self.inputs.map(|input| input.get(context.arena, rows.clone()));
            (inputs, self.out.get_mut(context.arena, rows))
        };
        let groups = a.chunks_exact(first).zip(b.chunks_exact(second));
        for (out, (a, b)) in out.chunks_exact_mut(first + second).zip(groups) {
            out[..first].copy_from_slice(a);
            out[first..].copy_from_slice(b);
        }
    }
}
