//! RMS norm: each row divided by its root mean square.

use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};

/// `out[i] = gain[i] * x[i] / sqrt(mean(x^2) + eps)`; no gain means all ones. The sum is f32, in as many accumulators
/// as a few vectors have lanes.
pub(crate) fn rms_norm(level: Level, gain: Option<&[f32]>, eps: f32, x: &[f32], out: &mut [f32]) {
    let squares = dispatch(level, Squares(x));
    let factor = inverse_root(squares / x.len() as f32 + eps);
    dispatch(level, Apply { factor, gain, x, out });
}

struct Squares<'a>(&'a [f32]);

impl Kernel for Squares<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let mut sums = [l.splat(0.0); 4];
        let blocks = self.0.chunks_exact(4 * L::N);
        let mut tail = 0.0;
        for x in blocks.remainder() {
            tail += x * x;
        }
        for block in blocks {
            for (at, sum) in sums.iter_mut().enumerate() {
                let x = l.read(&block[at * L::N..]);
                *sum = l.fma(x, x, *sum);
            }
        }
        tail + l.sum(l.add(l.add(sums[0], sums[1]), l.add(sums[2], sums[3])))
    }
}

struct Apply<'a> {
    factor: f32,
    gain: Option<&'a [f32]>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        match self.gain {
            Some(gain) => {
                for ((out, x), gain) in self.out.iter_mut().zip(self.x).zip(gain) {
                    *out = gain * (x * self.factor);
                }
            }
            None => self.out.iter_mut().zip(self.x).for_each(|(out, x)| *out = x * self.factor),
        }
    }
}

/// `1 / sqrt(x)` for a mean of squares. Squares that overflow give NaN: a factor of zero would make zeros of the row.
#[inline(always)]
pub(crate) fn inverse_root(x: f32) -> f32 {
    if x.is_finite() { 1.0 / x.sqrt() } else { f32::NAN }
}
