//! Elementwise sum, used for the residual connection.

use bilayer_graph::Op;

use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// `out = a + b`.
pub(crate) struct Add {
    pub(crate) a: Buffer,
    pub(crate) b: Buffer,
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::Add`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Add { a, b, out } = lowering.op(node) else { unreachable!("the table of ops") };
    let [a, b, out] = [a, b, out].map(|value| lowering.buffer(*value));
    Box::new(Add { a, b, out })
}

impl Stage for Add {
    fn chunks(&self, state: &State) -> usize {
        self.out.element_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let range = self.out.element_range(context.state, chunk);
        // SAFETY: the inputs were written by earlier stages; each chunk writes different elements.
        let (a, b, out) = unsafe {
            (
                self.a.elements(context.arena, range.clone()),
                self.b.elements(context.arena, range.clone()),
                self.out.elements_mut(context.arena, range),
            )
        };
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a + b;
        }
    }
}
