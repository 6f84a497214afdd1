//! Multiplication by a constant.

use bilayer_graph::Op;

use crate::math::{Function, map};
use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// `out = factor * input`.
pub(crate) struct Scale {
    pub(crate) input: Buffer,
    pub(crate) factor: f32,
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::Scale`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Scale { input, factor, out } = lowering.op(node) else {
        unreachable!("the table of ops")
    };
    Box::new(Scale { input: lowering.buffer(*input), factor: *factor, out: lowering.buffer(*out) })
}

impl Stage for Scale {
    fn chunks(&self, state: &State) -> usize {
        self.out.element_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let range = self.out.element_range(context.state, chunk);
        // SAFETY: the input was written by an earlier stage; each chunk writes different elements.
        let (input, out) = unsafe {
            (
                self.input.elements(context.arena, range.clone()),
                self.out.elements_mut(context.arena, range),
            )
        };
        map(context.level, Function::Scale(self.factor), input, out);
    }
}
