//! Layer norm: each row normalized to mean 0 and variance 1; and the choice between layer norm and RMS norm.

use std::sync::Arc;

use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};
use crate::ops::rms_norm::rms_norm;

/// A norm with its parameters.
#[derive(Clone)]
pub(crate) enum Norm {
    Rms { gain: Option<Arc<[f32]>>, eps: f32 },
    Layer { gain: Arc<[f32]>, bias: Option<Arc<[f32]>>, eps: f32 },
}

impl Norm {
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

/// `out[i] = gain[i] * (x[i] - mean) / sqrt(variance + eps) + bias[i]`. Two passes: the variance is computed from the
/// differences. Sums are f32 in 16 accumulators.
struct LayerNorm<'a> {
    gain: &'a [f32],
    bias: Option<&'a [f32]>,
    eps: f32,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let len = self.x.len() as f32;
        let mean = sum(self.x, |x| x) / len;
        let variance = sum(self.x, |x| (x - mean) * (x - mean)) / len;
        let factor = inverse_root(variance + self.eps);
        for ((out, x), gain) in self.out.iter_mut().zip(self.x).zip(self.gain) {
            *out = gain * ((x - mean) * factor);
        }
        for (out, bias) in self.out.iter_mut().zip(self.bias.unwrap_or(&[])) {
            *out += bias;
        }
    }
}

/// `1 / sqrt(x)` for a mean of squares. Squares that overflow give NaN: a factor of zero would make zeros of the row.
#[inline(always)]
pub(crate) fn inverse_root(x: f32) -> f32 {
    if x.is_finite() { 1.0 / x.sqrt() } else { f32::NAN }
}

#[inline(always)]
fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut parts = [0.0; 16];
    let (blocks, tail) = x.as_chunks::<16>();
    for block in blocks {
        for (part, &x) in parts.iter_mut().zip(block) {
            *part += f(x);
        }
    }
    parts.iter().sum::<f32>() + tail.iter().map(|&x| f(x)).sum::<f32>()
}
