//! RMS norm over each head of a row, with one gain for all heads.

use std::sync::Arc;

use crate::ops::rms_norm::rms_norm;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// [`rms_norm`] of each run of `gain.len()` elements.
pub(crate) struct HeadNorm {
    pub(crate) gain: Arc<[f32]>,
    pub(crate) eps: f32,
    pub(crate) input: Buffer,
    pub(crate) out: Buffer,
}

impl Stage for HeadNorm {
    fn chunks(&self, state: &State) -> usize {
        self.out.row_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let rows = self.out.chunk_range(context.state, chunk);
        // SAFETY: the input was written by an earlier stage; each chunk writes different rows.
        let (input, out) = unsafe {
            (self.input.get(context.arena, rows.clone()), self.out.get_mut(context.arena, rows))
        };
        let dim = self.gain.len();
        for (x, out) in input.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
            rms_norm(context.level, Some(&self.gain), self.eps, x, out);
        }
    }
}
