//! Weighted sum of the chosen experts' outputs.

use bilayer_graph::Op;

use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// Columns per chunk.
const COLS: usize = 1024;

/// `input [rows, used * width]`, `route [rows, 2 used]`, to `out [rows, width]`. Sums are f32, the best expert first.
pub(crate) struct Mix {
    pub(crate) input: Buffer,
    pub(crate) route: Buffer,
    pub(crate) out: Buffer,
}

impl Mix {
    /// Chunks per row.
    fn pieces(&self) -> usize {
        self.out.width.div_ceil(COLS)
    }
}

/// The stage of an [`Op::Mix`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Mix { input, route, out } = lowering.op(node) else { unreachable!("the table of ops") };
    let [input, route, out] = [input, route, out].map(|value| lowering.buffer(*value));
    Box::new(Mix { input, route, out })
}

impl Stage for Mix {
    fn chunks(&self, state: &State) -> usize {
        state.rows(self.out.rows) * self.pieces()
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let (row, first) = (chunk / self.pieces(), chunk % self.pieces() * COLS);
        let cols = first..(first + COLS).min(self.out.width);
        let start = row * self.out.width;
        // SAFETY: the inputs were written by earlier stages; each chunk writes different elements.
        let (input, route, out) = unsafe {
            (
                self.input.get(context.arena, row..row + 1),
                self.route.get(context.arena, row..row + 1),
                self.out.elements_mut(context.arena, start + cols.start..start + cols.end),
            )
        };
        let weights = &route[..self.route.width / 2];
        for (slot, (x, &weight)) in input.chunks_exact(self.out.width).zip(weights).enumerate() {
            let x = &x[cols.clone()];
            match slot {
                0 => out.iter_mut().zip(x).for_each(|(out, x)| *out = weight * x),
                _ => out.iter_mut().zip(x).for_each(|(out, x)| *out += weight * x),
            }
        }
    }
}
