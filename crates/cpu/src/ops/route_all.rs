//! The route to all experts in order.

use bilayer_graph::Op;

use crate::lowering::Lowering;
use crate::stage::{Rowwise, Stage};

/// The stage of an [`Op::RouteAll`]: weights of 1 and the experts' indices, in every row of `out [rows, 2 experts]`.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::RouteAll { out, .. } = *lowering.op(node) else { unreachable!("the table of ops") };
    let out = lowering.buffer(out);
    Rowwise::light(out, move |_, _, results| {
        for row in results.chunks_exact_mut(out.width) {
            let (weights, numbers) = row.split_at_mut(out.width / 2);
            weights.fill(1.0);
            numbers.iter_mut().enumerate().for_each(|(i, number)| *number = i as f32);
        }
    })
}
