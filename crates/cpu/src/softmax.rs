//! Log-softmax of rows of logits that are already in memory, as perplexities and log-probabilities need it.

use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};
use crate::math::{self, Function};

/// Logits whose exponentials are summed in f32; sums of blocks are added in f64.
const BLOCK: usize = 64;

/// Independent maxima, so that one comparison does not wait for the one before.
const MAXIMA: usize = 4;

/// The normalization of a row of logits: `ln p = logit - largest - ln_sum`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogSum {
    /// The largest logit.
    pub largest: f32,
    /// The natural logarithm of the sum of `exp(logit - largest)`; its absolute error is below 1e-6.
    pub ln_sum: f64,
}

/// The normalization of `logits` `[vocab]`, of which one is finite and none is NaN, with the highest level of this CPU.
#[must_use]
pub fn log_sum(logits: &[f32]) -> LogSum {
    dispatch(Level::detect(), Row { logits })
}

/// `out[i] = exp(x[i])` with a relative error below 2e-7; 0 below -87.7, infinity above 88.4. With the highest level of this
/// CPU.
///
/// # Panics
/// If the lengths differ.
pub fn exp(x: &[f32], out: &mut [f32]) {
    math::map(Level::detect(), Function::Exp, x, out);
}

struct Row<'a> {
    logits: &'a [f32],
}

impl Kernel for Row<'_> {
    type Output = LogSum;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> LogSum {
        let (blocks, rest) = self.logits.as_chunks::<BLOCK>();
        // Negative infinity changes neither the maximum nor the sum.
        let mut last = [f32::NEG_INFINITY; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        let mut maxima = [l.splat(f32::NEG_INFINITY); MAXIMA];
        for block in blocks.iter().chain([&last]) {
            for (k, x) in block.chunks_exact(L::N).enumerate() {
                maxima[k % MAXIMA] = l.max(l.read(x), maxima[k % MAXIMA]);
            }
        }
        let [a, b, c, d] = maxima;
        let largest = l.largest(l.max(l.max(a, b), l.max(c, d)));
        let mut total = 0.0;
        for block in blocks.iter().chain([&last]) {
            let mut sum = l.splat(0.0);
            for x in block.chunks_exact(L::N) {
                sum = l.add(sum, math::exp(l, l.sub(l.read(x), l.splat(largest))));
            }
            total += f64::from(l.sum(sum));
        }
        LogSum { largest, ln_sum: total.ln() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_within_its_stated_error_on_every_level() {
        let noise = |i: usize| (i as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32;
        let rows: [(&str, &dyn Fn(usize) -> f32); 6] = [
            ("wide", &|i| 40.0 * noise(i) - 25.0),
            ("narrow", &|i| 1e-3 * noise(i)),
            ("equal", &|_| -7.5),
            ("one far above", &|i| if i == 0 { 300.0 } else { noise(i) }),
            ("large", &|i| 1e30 * noise(i)),
            ("some impossible", &|i| if i % 3 == 1 { f32::NEG_INFINITY } else { noise(i) }),
        ];
        for len in [1, 2, 63, 64, 65, 1000, 50_257] {
            for (name, logit) in rows {
                let logits: Vec<f32> = (0..len).map(logit).collect();
                let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exps = logits.iter().map(|x| (f64::from(*x) - f64::from(largest)).exp());
                let expected = exps.sum::<f64>().ln();
                for level in Level::available() {
                    let found = dispatch(level, Row { logits: &logits });
                    assert_eq!(found.largest, largest, "{name}, {len}, {level}");
                    let error = (found.ln_sum - expected).abs();
                    assert!(error < 1e-6, "{name}, {len}, {level}: {error}");
                }
            }
        }
    }
}
