//! Multiplication by a constant.

use bilayer_graph::Op;

use crate::level::Level;
use crate::lowering::Lowering;
use crate::math::{Function, map};
use crate::stage::{Elementwise, Rowwise, Stage};

/// The stage of an [`Op::Scale`]: `out = factor * input`, with a temperature times its value at the row's position.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Scale { input, factor, temperature, by, out } = *lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let factor = factor * by.map_or(1.0, |by| lowering.vector(by)[0]);
    let (input, out) = (lowering.buffer(input), lowering.buffer(out));
    let Some(temperature) = temperature else {
        let compute = move |level: Level, [input]: [&[f32]; 1], out: &mut [f32]| {
            map(level, Function::Scale(factor), input, out);
        };
        return Elementwise { inputs: [input], out, compute }.boxed();
    };
    Rowwise::light(out, move |context, rows, results| {
        for (row, out) in rows.zip(results.chunks_exact_mut(out.width)) {
            let factor = factor * temperature.at(context.state.positions[row]);
            let input = input.get(&context, row..row + 1);
            map(context.level, Function::Scale(factor), input, out);
        }
    })
}
