//! The factors of one input, and the exponent that loses least.

use bilayer_gguf::File;
use bilayer_measure::imatrix::Sample;
use bilayer_measure::links::{Link, TensorRows};
use bilayer_measure::products;
use bilayer_quant::Type;

use super::{Alpha, Smooth};
use crate::Error;
use crate::mix::fitting;

/// Rows of each matrix whose products are compared.
const ROWS: usize = 64;

/// The squared error that smoothing must leave at most, of that without it, for `auto` to choose it. Sampled products of one
/// input are a rough measure of what the predictions lose.
const GAIN: f64 = 0.5;

/// Relative squared errors up to which there is nothing to gain: those of f32 sums.
const LEAST: f64 = 1e-10;

/// The largest ratio of a factor to the mean of all.
const RATIO_MAX: f32 = 1e3;

/// What is needed of the matrices that share an input.
pub(super) struct Weights {
    cols: usize,
    /// The largest magnitude of each column's channel, over all rows of all matrices.
    peaks: Vec<f32>,
    /// Some rows, `[rows, cols]`.
    rows: Vec<f32>,
}

impl Weights {
    /// Reads all rows once.
    ///
    /// # Errors
    /// [`Error::Weight`] for weights that are not finite.
    pub fn read(file: &File, Link { matrices, repeats, .. }: &Link) -> Result<Weights, Error> {
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
        all.peaks = repeats.largest(&all.peaks);
        Ok(all)
    }
}

/// How an input is smoothed.
pub(super) struct Found {
    /// The exponent; `None` if nothing is gained, and all factors are 1.
    pub alpha: Option<f32>,
    pub factors: Vec<f32>,
    /// The relative squared errors without and with the factors.
    pub errors: [f64; 2],
}

/// The exponent and the factors of an input.
///
/// # Errors
/// A weight that is not finite with the factors, a type that cannot be written or not without importance.
pub(super) fn best(
    smooth: &Smooth,
    weights: &Weights,
    sample: Sample<'_>,
) -> Result<Found, bilayer_quant::Error> {
    let cols = weights.cols;
    let ones = vec![1.0; cols];
    let tried = |alpha: f32, rows: &[f32]| {
        let factors = factors(alpha, sample.peaks, &weights.peaks);
        let error = error(smooth.ty, weights, rows, &factors)?;
        Ok((alpha, factors, error))
    };
    let plain = error(smooth.ty, weights, sample.rows, &ones)?;
    if let Alpha::Fixed(alpha) = smooth.alpha {
        let (alpha, factors, error) = tried(alpha, sample.rows)?;
        return Ok(Found { alpha: Some(alpha), factors, errors: [plain, error] });
    }
    // One half of the rows chooses, and the other one judges: the best of nine on the rows that chose it is partly luck.
    let halves = [0, 1].map(|first| {
        let half = sample.rows.chunks_exact(cols).skip(first).step_by(2);
        half.flatten().copied().collect::<Vec<f32>>()
    });
    let all = (1..10).map(|tenth| tried(tenth as f32 / 10.0, &halves[0]));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    let (alpha, factors, _) =
        all.into_iter().min_by(|a, b| a.2.total_cmp(&b.2)).expect("nine candidates");
    let of_half = |rows: &[f32], factors: &[f32]| error(smooth.ty, weights, rows, factors);
    let is_better = |rows: &[f32]| {
        let (before, after) = (of_half(rows, &ones)?, of_half(rows, &factors)?);
        Ok(before > LEAST && after <= GAIN * before)
    };
    if !(is_better(&halves[0])? && (halves[1].is_empty() || is_better(&halves[1])?)) {
        return Ok(Found { alpha: None, factors: ones, errors: [plain; 2] });
    }
    let after = error(smooth.ty, weights, sample.rows, &factors)?;
    Ok(Found { alpha: Some(alpha), factors, errors: [plain, after] })
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

/// The squared error of the sampled products in the type, by its quantizer and kernel, relative to the products' squares.
fn error(
    ty: Type,
    weights: &Weights,
    rows: &[f32],
    factors: &[f32],
) -> Result<f64, bilayer_quant::Error> {
    let cols = weights.cols;
    let scaled = |rows: &[f32], by: &dyn Fn(f32, f32) -> f32| -> Vec<f32> {
        let each = rows.chunks_exact(cols).flat_map(|row| row.iter().zip(factors));
        each.map(|(value, factor)| by(*value, *factor)).collect()
    };
    let weights = scaled(&weights.rows, &|weight, factor| weight * factor);
    let x = scaled(rows, &|x, factor| x / factor);
    let [error] = products::errors([fitting(ty, cols as u64)], cols, &weights, &x)?;
    Ok(error)
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
        let of = |alpha| {
            best(&Smooth { alpha, ty: Type::W8A8, threads: None }, &weights, sample)
                .expect("finite")
        };
        let Found { alpha, factors, errors: [before, after] } = of(Alpha::Auto);
        assert!(alpha.is_some() && after < 0.3 * before, "{alpha:?}: {before} {after}");
        assert!(factors.iter().all(|factor| *factor <= factors[5]), "the outlier's is the largest");
        let product: f32 = factors.iter().map(|factor| factor.ln()).sum();
        assert!(product.abs() < 1e-2, "the geometric mean is 1");
        // The search is never worse than any fixed exponent among its candidates.
        for alpha in [0.1, 0.5, 0.9] {
            assert!(after <= of(Alpha::Fixed(alpha)).errors[1]);
        }
        // An α of 1 makes all channels of the activations alike.
        let Found { factors, .. } = of(Alpha::Fixed(1.0));
        let ratio = |a: usize, b: usize| (peaks[a] / factors[a]) / (peaks[b] / factors[b]);
        assert!((ratio(5, 6) - 1.0).abs() < 1e-3);
        // A channel without weights or activations keeps its scale.
        assert_eq!(super::factors(0.5, &[0.0, 1.0, 4.0], &[1.0, 0.0, 1.0])[..2], [1.0, 1.0]);
    }
    #[test]
    fn an_input_without_outliers_stays_as_it_is() {
        let value = |i: usize| ((i * i) as f32 * 0.37).sin();
        let rows: Vec<f32> = (0..32 * 256).map(value).collect();
        let values: Vec<f32> = (0..64 * 256).map(|i| 0.2 * value(i + 7)).collect();
        let (peaks, of_weights) = (vec![1.0; 256], vec![0.2; 256]);
        let sample = Sample { peaks: &peaks, rows: &rows };
        let weights = Weights { cols: 256, peaks: of_weights, rows: values };
        for ty in [Type::Q4_K, Type::Q8_0, Type::W8A8, Type::F16, Type::F32] {
            let smooth = Smooth { alpha: Alpha::Auto, ty, threads: None };
            let found = best(&smooth, &weights, sample).expect("finite");
            let Found { alpha, factors, errors: [before, after] } = found;
            assert_eq!((alpha, before), (None, after), "{ty}");
            assert!(factors.iter().all(|factor| *factor == 1.0), "{ty}");
        }
        // The error is that of the type's own kernel, not of eight bits with one scale.
        let error = |ty| error(ty, &weights, sample.rows, &[1.0; 256]).expect("finite");
        assert!(error(Type::F32) < 1e-10 && error(Type::Q4_K) > 10.0 * error(Type::Q8_0));
    }
}
