//! Elementwise sum, used for the residual connection.

use bilayer_graph::Op;

use crate::lowering::Lowering;
use crate::stage::{Elementwise, Stage};

/// The stage of an [`Op::Add`]: `out = a + b`.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Add { a, b, out } = lowering.op(node) else { unreachable!("the table of ops") };
    let [a, b, out] = [a, b, out].map(|value| lowering.buffer(*value));
    let compute = |_, [a, b]: [&[f32]; 2], out: &mut [f32]| {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a + b;
        }
    };
    Elementwise { inputs: [a, b], out, compute }.boxed()
}
