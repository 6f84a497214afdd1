//! Pooling: the mean of a sequence's rows.

use std::ops::Range;

use bilayer_graph::Op;

use crate::lowering::Lowering;
use crate::stage::{Context, Rowwise, Stage};

/// The stage of an [`Op::Pool`]: `out[i]` = the mean of `input` from the first row of the span that contains row
/// `outputs[i]` up to that row: `[T, width]` to `[R, width]`. Sums are f32, in row order.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Pool { input, out } = *lowering.op(node) else { unreachable!("the table of ops") };
    let (input, out) = (lowering.buffer(input), lowering.buffer(out));
    let compute = move |context: Context<'_>, rows: Range<usize>, out: &mut [f32]| {
        let last = context.state.outputs[rows.start];
        let rows = context.state.span_start(last) as usize..last as usize + 1;
        let count = rows.len() as f32;
        out.fill(0.0);
        for row in input.get(&context, rows).chunks_exact(input.width) {
            out.iter_mut().zip(row).for_each(|(out, x)| *out += x);
        }
        out.iter_mut().for_each(|out| *out /= count);
    };
    Rowwise { out, rows: 1, scratch_bytes: 0, compute }.boxed()
}
