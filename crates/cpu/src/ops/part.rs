//! A part of every group of elements of a row.

use bilayer_graph::Op;

use crate::lowering::Lowering;
use crate::stage::{Rowwise, Stage};

/// The stage of an [`Op::Part`]: copies, of every `stride` elements, `width` from the first on.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Part { input, stride, first, width, out } = *lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let (input, out) = (lowering.buffer(input), lowering.buffer(out));
    Rowwise::light(out, move |context, rows, results| {
        let groups = input.get(&context, rows).chunks_exact(stride);
        for (group, out) in groups.zip(results.chunks_exact_mut(width)) {
            out.copy_from_slice(&group[first..first + width]);
        }
    })
}
