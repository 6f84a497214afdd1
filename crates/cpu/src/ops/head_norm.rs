//! RMS norm over each head of a row, with one gain for all heads or one for the row.

use std::sync::Arc;

use bilayer_graph::Op;

use crate::ops::rms_norm::rms_norm;
use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// [`rms_norm`] of each run of `head_dim` elements.
pub(crate) struct HeadNorm {
    /// `[head_dim]` or of a whole row.
    pub(crate) gain: Option<Arc<[f32]>>,
    pub(crate) head_dim: usize,
    pub(crate) eps: f32,
    pub(crate) input: Buffer,
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::HeadNorm`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::HeadNorm { input, gain, head_dim, eps, out } = lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let gain = gain.map(|gain| lowering.vector(gain));
    Box::new(HeadNorm {
        gain,
        head_dim: *head_dim,
        eps: *eps,
        input: lowering.buffer(*input),
        out: lowering.buffer(*out),
    })
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
        let dim = self.head_dim;
        let heads = input.chunks_exact(dim).zip(out.chunks_exact_mut(dim));
        for (head, (x, out)) in heads.enumerate() {
            let of_head = |gain: &'_ Arc<[f32]>| head * dim % gain.len();
            let gain = self.gain.as_ref().map(|gain| &gain[of_head(gain)..][..dim]);
            rms_norm(context.level, gain, self.eps, x, out);
        }
    }
}
