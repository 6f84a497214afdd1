//! Weighted sum of the chosen experts' outputs.

use std::ops::Range;

use bilayer_graph::Op;

use crate::lowering::Lowering;
use crate::stage::{Buffer, Context, Pieces, Stage};

/// Elements of the sum per chunk.
const CHUNK: usize = 1024;

/// `input [rows, used * width]`, `route [rows, 2 used]`, to `out [rows, width]`.
#[derive(Clone, Copy)]
struct Mix {
    input: Buffer,
    route: Buffer,
    out: Buffer,
}

/// The stage of an [`Op::Mix`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Mix { input, route, out } = lowering.op(node) else { unreachable!("the table of ops") };
    let [input, route, out] = [input, route, out].map(|value| lowering.buffer(*value));
    let mix = Mix { input, route, out };
    let compute = move |context: Context<'_>, at: Range<usize>, mut results: &mut [f32]| {
        let mut first = at.start;
        while first < at.end {
            let (row, col) = (first / out.width, first % out.width);
            let cols = col..out.width.min(col + at.end - first);
            first += cols.len();
            let (own, rest) = results.split_at_mut(cols.len());
            results = rest;
            mix.row(&context, row, cols, own);
        }
    };
    Box::new(Pieces { out, len: CHUNK, scratch_bytes: 0, compute })
}

impl Mix {
    /// Some columns of a row. Sums are f32, the best expert first.
    fn row(&self, context: &Context<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let input = self.input.get(context, row..row + 1);
        let route = self.route.get(context, row..row + 1);
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
