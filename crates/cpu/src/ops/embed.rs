//! Embedding: one table row per token, dequantized by the type's scalar code.

use std::ops::Range;

use bilayer_graph::SharedBytes;
use bilayer_quant::Type;

use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// Row `tokens[t]` of `table [vocab, width]` to `out [T, width]`.
pub(crate) struct Embed {
    pub(crate) table: SharedBytes,
    pub(crate) ty: Type,
    pub(crate) row_bytes: usize,
    pub(crate) out: Buffer,
}

impl Embed {
    fn row(&self, token: u32) -> Range<usize> {
        let first = token as usize * self.row_bytes;
        first..first + self.row_bytes
    }
}

impl Stage for Embed {
    fn chunks(&self, state: &State) -> usize {
        self.out.row_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let rows = self.out.chunk_range(context.state, chunk);
        // SAFETY: each chunk makes other rows.
        let out = unsafe { self.out.get_mut(context.arena, rows.clone()) };
        for (&token, out) in
            context.state.tokens[rows].iter().zip(out.chunks_exact_mut(self.out.width))
        {
            let row = &self.table[self.row(token)];
            self.ty.dequantize(row, out).expect("loading has checked the table's bytes");
        }
    }
}
