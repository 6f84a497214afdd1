//! RMS norm or layer norm over each head of a row, with one gain for all heads or one for the row.

use std::sync::Arc;

use bilayer_graph::Op;

use crate::level::dispatch;
use crate::lowering::Lowering;
use crate::ops::layer_norm::LayerNorm;
use crate::ops::rms_norm::rms_norm;
use crate::stage::{Rowwise, Stage};

/// The stage of an [`Op::HeadNorm`]: a norm of each run of `head_dim` elements. The gain is `[head_dim]` or of a whole row.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::HeadNorm { input, gain, head_dim: dim, centered, eps, out } = *lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let mut gain = gain.map(|gain| lowering.vector(gain));
    if centered && gain.is_none() {
        gain = Some(vec![1.0; dim].into());
    }
    let (input, out) = (lowering.buffer(input), lowering.buffer(out));
    Rowwise::light(out, move |context, rows, results| {
        let heads = input.get(&context, rows).chunks_exact(dim);
        for (head, (x, out)) in heads.zip(results.chunks_exact_mut(dim)).enumerate() {
            let of_head = |gain: &'_ Arc<[f32]>| head * dim % gain.len();
            let gain = gain.as_ref().map(|gain| &gain[of_head(gain)..][..dim]);
            match gain.filter(|_| centered) {
                Some(gain) => {
                    dispatch(context.level, LayerNorm { gain, bias: None, eps, x, out });
                }
                None => rms_norm(context.level, gain, eps, x, out),
            }
        }
    })
}
