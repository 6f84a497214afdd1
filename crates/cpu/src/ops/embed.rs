//! Embedding: one table row per token, selected by id, segment or position, dequantized by the type's scalar code.

use std::ops::Range;

use bilayer_graph::{Ids, Op, SharedBytes};
use bilayer_quant::Type;

use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// Copies row `ids[t]` of `table [vocab, width]` to `out [T, width]`.
pub(crate) struct Embed {
    pub(crate) table: SharedBytes,
    pub(crate) ids: Ids,
    pub(crate) ty: Type,
    pub(crate) row_bytes: usize,
    pub(crate) out: Buffer,
}

impl Embed {
    fn row(&self, id: u32) -> Range<usize> {
        let first = id as usize * self.row_bytes;
        first..first + self.row_bytes
    }
}

/// The stage of an [`Op::Embed`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Embed { table, ids, out } = lowering.op(node) else { unreachable!("the table of ops") };
    let (weight, bytes) = lowering.weight(*table);
    let (ty, row_bytes) = (weight.ty, weight.row_bytes());
    Box::new(Embed { table: bytes, ids: *ids, ty, row_bytes, out: lowering.buffer(*out) })
}

impl Stage for Embed {
    fn chunks(&self, state: &State) -> usize {
        self.out.row_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let rows = self.out.chunk_range(context.state, chunk);
        // SAFETY: each chunk writes different rows.
        let out = unsafe { self.out.get_mut(context.arena, rows.clone()) };
        let ids = match self.ids {
            Ids::Tokens => &context.state.tokens[rows],
            Ids::Positions => &context.state.positions[rows],
            Ids::Segments { .. } => &context.state.segments[rows],
        };
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(self.out.width)) {
            let row = &self.table[self.row(id)];
            self.ty.dequantize(row, out).expect("loading has checked the table's bytes");
        }
    }
}
