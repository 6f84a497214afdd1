//! Soft capping: squashes values into the range from `-cap` to `cap`.

use bilayer_graph::Op;

use crate::level::Level;
use crate::lowering::Lowering;
use crate::math::{Function, map};
use crate::stage::{Elementwise, Stage};

/// The stage of an [`Op::SoftCap`]: `out = cap * tanh(input / cap)`.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::SoftCap { input, cap, out } = *lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let compute = move |level: Level, [input]: [&[f32]; 1], out: &mut [f32]| {
        map(level, Function::SoftCap(cap), input, out);
    };
    Elementwise { inputs: [lowering.buffer(input)], out: lowering.buffer(out), compute }.boxed()
}
