//! The norms of whole rows: the choice between RMS norm and layer norm.

use std::sync::Arc;

use bilayer_graph::Op;

use crate::level::{Level, dispatch};
use crate::lowering::Lowering;
use crate::ops::layer_norm::LayerNorm;
use crate::ops::rms_norm::rms_norm;
use crate::stage::{Rowwise, Stage};

/// A norm with its parameters.
#[derive(Clone)]
pub(crate) enum Norm {
    Rms { gain: Option<Arc<[f32]>>, eps: f32 },
    Layer { gain: Arc<[f32]>, bias: Option<Arc<[f32]>>, eps: f32 },
}

impl Norm {
    /// The norm of a node.
    pub(crate) fn of(lowering: &Lowering<'_>, node: usize) -> Norm {
        match *lowering.op(node) {
            Op::RmsNorm { gain, eps, .. } => {
                Norm::Rms { gain: gain.map(|gain| lowering.vector(gain)), eps }
            }
            Op::LayerNorm { gain, bias, eps, .. } => {
                let bias = bias.map(|bias| lowering.vector(bias));
                Norm::Layer { gain: lowering.vector(gain), bias, eps }
            }
            _ => unreachable!("a norm"),
        }
    }

    /// Normalizes one row `x` to `out`.
    pub(crate) fn apply(&self, level: Level, x: &[f32], out: &mut [f32]) {
        match self {
            Norm::Rms { gain, eps } => rms_norm(level, gain.as_deref(), *eps, x, out),
            Norm::Layer { gain, bias, eps } => {
                dispatch(level, LayerNorm { gain, bias: bias.as_deref(), eps: *eps, x, out });
            }
        }
    }

    /// The stem of its op.
    pub(crate) fn stem(&self) -> &'static str {
        match self {
            Norm::Rms { .. } => "rms_norm",
            Norm::Layer { .. } => "layer_norm",
        }
    }
}

/// The stage of an [`Op::RmsNorm`] or an [`Op::LayerNorm`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let op = lowering.op(node);
    let input = op.inputs().next().expect("a norm has an input");
    let (input, out) = (lowering.buffer(input), lowering.buffer(op.out()));
    let norm = Norm::of(lowering, node);
    Rowwise::light(out, move |context, rows, results| {
        for (row, out) in rows.zip(results.chunks_exact_mut(out.width)) {
            norm.apply(context.level, input.get(&context, row..row + 1), out);
        }
    })
}
