//! Layer norm: each row normalized to mean 0 and variance 1.

use crate::lanes::{Kernel, Lanes};

use crate::ops::rms_norm::inverse_root;

/// `out[i] = gain[i] * (x[i] - mean) / sqrt(variance + eps) + bias[i]`. Two passes: the variance is computed from the
/// differences. Sums are f32 in 16 accumulators.
pub(crate) struct LayerNorm<'a> {
    pub(crate) gain: &'a [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) eps: f32,
    pub(crate) x: &'a [f32],
    pub(crate) out: &'a mut [f32],
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
