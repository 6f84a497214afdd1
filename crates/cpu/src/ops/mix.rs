//! Weighted sum of the chosen experts' outputs.

use std::ops::Range;

use bilayer_graph::Op;

use crate::lowering::Lowering;
use crate::stage::{Buffer, Context, Stage};
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

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        vec![self.out.region(state)]
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let (row, first) = (chunk / self.pieces(), chunk % self.pieces() * COLS);
        let cols = first..(first + COLS).min(self.out.width);
        let start = row * self.out.width;
        let input = self.input.get(&context, row..row + 1);
        let route = self.route.get(&context, row..row + 1);
        // SAFETY: each chunk writes different columns or rows.
        let out = unsafe { self.out.elements_mut(&context, start + cols.start..start + cols.end) };
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
