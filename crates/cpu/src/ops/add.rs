//! Elementwise sum, used for the residual connection.

use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// `out = a + b`.
pub(crate) struct Add {
    pub(crate) a: Buffer,
    pub(crate) b: Buffer,
    pub(crate) out: Buffer,
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
