//! Selects the rows whose logits are requested.

use bilayer_graph::Op;

use crate::lowering::Lowering;
use crate::stage::{Rowwise, Stage};

/// The stage of an [`Op::Rows`]: `out[i] = input[outputs[i]]`, `[T, width]` to `[R, width]`.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Rows { input, out } = *lowering.op(node) else { unreachable!("the table of ops") };
    let (input, out) = (lowering.buffer(input), lowering.buffer(out));
    Rowwise::light(out, move |context, rows, results| {
        for (at, out) in rows.zip(results.chunks_exact_mut(out.width)) {
            let row = context.state.outputs[at] as usize;
            out.copy_from_slice(input.get(&context, row..row + 1));
        }
    })
}
