//! The factors of one input, and the exponent that loses least.

use bilayer_gguf::File;
use bilayer_measure::imatrix::Sample;
use bilayer_quant::Type;
use rayon::prelude::*;

use super::{Alpha, Smooth};
use crate::Error;
use bilayer_measure::links::TensorRows;

/// Rows of each matrix whose products are compared.
const ROWS: usize = 64;

/// The largest ratio of a factor to the mean of all.
const RATIO_MAX: f32 = 1e3;

/// What is needed of the matrices that share an input.
pub(super) struct Weights {
    cols: usize,
    /// The largest magnitude of each column, over all rows of all matrices.
    peaks: Vec<f32>,
    /// Some rows, `[rows, cols]`.
    rows: Vec<f32>,
}

impl Weights {
    /// Reads all rows once.
    ///
    /// # Errors
    /// [`Error::Weight`] for weights that are not finite.
    pub fn read(file: &File, matrices: &[TensorRows]) -> Result<Weights, Error> {
        let cols = matrices[0].cols;
        let mut all = Weights { cols, peaks: vec![0.0; cols], rows: Vec::new() };
        for TensorRows { tensor, first_row, rows, .. } in matrices {
            let wrong =
                |reason: &str| Error::Weight { tensor: tensor.clone(), reason: reason.into() };
            let entry = file.tensor(tensor).ok_or_else(|| wrong("the file has no such tensor"))?;
            let ty = entry.layout().ty();
            let quant = |error: bilayer_quant::Error| wrong(&error.to_string());
            let (bytes, row_bytes) = (file.bytes(entry), ty.row_bytes(cols).map_err(quant)?);
            let step = (rows / ROWS).max(1);
            let mut values = vec![0.0; cols];
            for row in *first_row..first_row + rows {
                ty.dequantize(&bytes[row * row_bytes..][..row_bytes], &mut values)
                    .map_err(quant)?;
                if values.iter().any(|value| !value.is_finite()) {
                    return Err(wrong(&format!("row {row} has a weight that is not finite")));
                }
                for (peak, value) in all.peaks.iter_mut().zip(&values) {
                    *peak = peak.max(value.abs());
                }
                if (row - first_row).is_multiple_of(step) {
                    all.rows.extend_from_slice(&values);
                }
            }
        }
        Ok(all)
    }
}

/// The exponent, the factors, and the relative squared errors without and with them.
pub(super) fn best(
    smooth: &Smooth,
    weights: &Weights,
    sample: Sample<'_>,
) -> (Option<f32>, Vec<f32>, [f64; 2]) {
    let ones = vec![1.0; weights.cols];
    let plain = error(smooth.ty, weights, sample, &ones);
    let tried = |alpha: f32| {
        let factors = factors(alpha, sample.peaks, &weights.peaks);
        let error = error(smooth.ty, weights, sample, &factors);
        (alpha, factors, error)
    };
    let (alpha, factors, error) = match smooth.alpha {
        Alpha::Fixed(alpha) => tried(alpha),
        Alpha::Auto => {
            let all = (1..10).map(|tenth| tried(tenth as f32 / 10.0));
            all.min_by(|a, b| a.2.total_cmp(&b.2)).expect("nine candidates")
        }
    };
    if smooth.alpha == Alpha::Auto && error >= plain {
        return (None, ones, [plain; 2]);
    }
    (Some(alpha), factors, [plain, error])
}

/// max|X_j|^α / max|W_j|^(1-α), divided by the geometric mean; 1 where a column has no weights or activations.
fn factors(alpha: f32, activations: &[f32], weights: &[f32]) -> Vec<f32> {
    let logs: Vec<Option<f32>> = activations
        .iter()
        .zip(weights)
        .map(|(x, w)| {
            let log = alpha * x.ln() - (1.0 - alpha) * w.ln();
            (*x > 0.0 && *w > 0.0).then_some(log)
        })
        .collect();
    let known = || logs.iter().flatten();
    let mean = known().sum::<f32>() / known().count().max(1) as f32;
    let factor = |log: &Option<f32>| log.map_or(1.0, |log| (log - mean).exp());
    logs.iter().map(|log| factor(log).clamp(1.0 / RATIO_MAX, RATIO_MAX)).collect()
}

/// The squared error of the sampled products with quantized weights and activations, relative to the products' squares.
fn error(ty: Type, weights: &Weights, sample: Sample<'_>, factors: &[f32]) -> f64 {
    let cols = weights.cols;
    let ty = if cols.is_multiple_of(ty.block_weights) { ty } else { Type::F16 };
    let mut x = sample.rows.to_vec();
    for row in x.chunks_exact_mut(cols) {
        row.iter_mut().zip(factors).for_each(|(x, factor)| *x /= factor);
        round(row);
    }
    let each = weights.rows.par_chunks_exact(cols).map(|row| {
        let scaled: Vec<f32> = row.iter().zip(factors).map(|(w, factor)| w * factor).collect();
        let (mut bytes, mut back) = (vec![0; ty.row_bytes(cols).unwrap_or(0)], vec![0.0; cols]);
        // Types that cannot be written, or need importance, are judged by their activations alone.
        let made = ty.quantize(&scaled, None, &mut bytes);
        let quantized = match made.and_then(|()| ty.dequantize(&bytes, &mut back)) {
            Ok(()) => &back,
            Err(_) => &scaled,
        };
        let (mut lost, mut whole) = (0.0, 0.0);
        for (exact, x) in sample.rows.chunks_exact(cols).zip(x.chunks_exact(cols)) {
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let (exact, found) = (f64::from(dot(exact, row)), f64::from(dot(x, quantized)));
            lost += (exact - found).powi(2);
            whole += exact.powi(2);
        }
        (lost, whole)
    });
    // In order, whichever threads computed them.
    let each: Vec<(f64, f64)> = each.collect();
    let (lost, whole) = each.iter().fold((0.0, 0.0), |sum, (a, b)| (sum.0 + a, sum.1 + b));
    if whole > 0.0 { lost / whole } else { 0.0 }
}

/// Rounds a row to eight bits with one scale.
fn round(row: &mut [f32]) {
    let peak = row.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
    if peak > 0.0 {
        let scale = peak / 127.0;
        row.iter_mut().for_each(|x| *x = (*x / scale).round_ties_even() * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One channel a hundred times larger than the others, in every row of activations.
    fn sample() -> (Vec<f32>, Vec<f32>) {
        let rows: Vec<f32> = (0..4 * 64)
            .map(|i| {
                let x = (i as f32 * 0.7).sin() + 0.1;
                if i % 64 == 5 { 100.0 * x.abs().max(0.3) } else { x }
            })
            .collect();
        let peaks = (0..64)
            .map(|col| rows.iter().skip(col).step_by(64).fold(0.0f32, |peak, x| peak.max(x.abs())));
        (peaks.collect(), rows.clone())
    }

    #[test]
    fn an_outlier_channel_moves_into_the_weights_and_the_error_falls() {
        let (peaks, rows) = sample();
        let sample = Sample { peaks: &peaks, rows: &rows };
        let values: Vec<f32> = (0..8 * 64).map(|i| (i as f32 * 1.3).cos() * 0.2).collect();
        let weights = Weights { cols: 64, peaks: vec![0.2; 64], rows: values };
        let of = |alpha| best(&Smooth { alpha, ty: Type::W8A8, threads: None }, &weights, sample);
        let (alpha, factors, [before, after]) = of(Alpha::Auto);
        assert!(alpha.is_some() && after < 0.3 * before, "{alpha:?}: {before} {after}");
        assert!(factors.iter().all(|factor| *factor <= factors[5]), "the outlier's is the largest");
        let product: f32 = factors.iter().map(|factor| factor.ln()).sum();
        assert!(product.abs() < 1e-2, "the geometric mean is 1");
        // The search is never worse than any fixed exponent among its candidates.
        for alpha in [0.1, 0.5, 0.9] {
            assert!(after <= of(Alpha::Fixed(alpha)).2[1]);
        }
        // An α of 1 makes all channels of the activations alike.
        let (_, factors, _) = of(Alpha::Fixed(1.0));
        let ratio = |a: usize, b: usize| (peaks[a] / factors[a]) / (peaks[b] / factors[b]);
        assert!((ratio(5, 6) - 1.0).abs() < 1e-3);
        // A channel without weights or activations keeps its scale.
        assert_eq!(super::factors(0.5, &[0.0, 1.0, 4.0], &[1.0, 0.0, 1.0])[..2], [1.0, 1.0]);
    }
}
