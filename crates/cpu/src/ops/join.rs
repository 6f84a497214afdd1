//! Two values, group by group.

use bilayer_graph::Op;

use crate::lowering::Lowering;
use crate::stage::{Rowwise, Stage};

/// The stage of an [`Op::Join`]: copies `widths[0]` elements of the first input, then `widths[1]` of the second, and so
/// on.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Join { a, b, widths: [first, second], out } = *lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let [a, b, out] = [a, b, out].map(|value| lowering.buffer(value));
    Rowwise::light(out, move |context, rows, results| {
        let a = a.get(&context, rows.clone()).chunks_exact(first);
        let groups = a.zip(b.get(&context, rows).chunks_exact(second));
        for (out, (a, b)) in results.chunks_exact_mut(first + second).zip(groups) {
            out[..first].copy_from_slice(a);
            out[first..].copy_from_slice(b);
        }
    })
}
