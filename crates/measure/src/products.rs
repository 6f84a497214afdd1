//! The error of matrix products in a quantized type: its CPU kernels round weights and activations.

use bilayer_cpu::activations::PreparedColumns;
use bilayer_cpu::dot::dot;
use bilayer_cpu::level::Level;
use bilayer_quant::{Error, Type};
use rayon::prelude::*;

/// Tokens that a thread multiplies at once.
const TOKENS: usize = 8;

/// The squared error of the products of `weights` `[rows, cols]` with activations `x` `[tokens, cols]` in each type, relative to
/// the squares of the exact products; 0 if those are all zero. The same on every CPU.
///
/// # Panics
/// If `cols` is not a whole number of blocks of each type.
///
/// # Errors
/// A weight is not finite; a type that cannot be written, or not without importance.
pub fn errors<const N: usize>(
    types: [Type; N],
    cols: usize,
    weights: &[f32],
    x: &[f32],
) -> Result<[f64; N], Error> {
    let tokens = x.par_chunks_exact(cols);
    let exact: Vec<f64> = tokens
        .flat_map_iter(|x| weights.chunks_exact(cols).map(move |row| product(row, x)))
        .collect();
    let whole: f64 = exact.iter().map(|product| product * product).sum();
    let mut errors = [0.0; N];
    for (ty, error) in types.into_iter().zip(&mut errors) {
        let found = rounded(ty, cols, weights, x)?;
        let lost = exact.iter().zip(found).map(|(exact, found)| (exact - f64::from(found)).powi(2));
        *error = if whole > 0.0 { lost.sum::<f64>() / whole } else { 0.0 };
    }
    Ok(errors)
}

fn product(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The products `[tokens, rows]` as the scalar kernel of a type computes them.
fn rounded(ty: Type, cols: usize, weights: &[f32], x: &[f32]) -> Result<Vec<f32>, Error> {
    let kernel = dot(ty, cols, Level::Scalar);
    let row_bytes = kernel.row_bytes();
    let mut rows = vec![0; weights.len() / cols * row_bytes];
    for (row, bytes) in weights.chunks_exact(cols).zip(rows.chunks_exact_mut(row_bytes)) {
        ty.quantize(row, None, bytes)?;
    }
    let count = weights.len() / cols;
    let mut out = vec![0.0; x.len() / cols * count];
    let tokens = x.par_chunks(TOKENS * cols).zip(out.par_chunks_mut(TOKENS * count));
    tokens.for_each(|(x, out)| {
        let columns = PreparedColumns::new(kernel.format, Level::Scalar, x, cols);
        kernel.run(&rows, columns.get(), out);
    });
    Ok(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    /// Numbers from -1 to 1.
    fn spread(count: u32, seed: u32) -> Vec<f32> {
        let hash = |i: u32| (i + seed).wrapping_mul(0x9e37_79b9) ^ (i << 7);
        (0..count)
            .map(|i| (hash(i).wrapping_mul(0x85eb_ca6b) >> 8) as f32 / 8_388_608.0 - 1.0)
            .collect()
    }

    fn of(types: [Type; 2], weights: &[f32], x: &[f32]) -> [f64; 2] {
        errors(types, 64, weights, x).unwrap()
    }

    #[test]
    fn the_error_of_a_type_is_that_of_its_steps() {
        let (weights, x) = (spread(32 * 64, 1), spread(16 * 64, 99));
        let [coarse, fine] = of([Type::Q4_0, Type::Q8_0], &weights, &x);
        // A step squared, by 12, by the mean square of 1/3, with steps of 1/8 and 1/127; activations have 1/127 in both.
        assert!((0.7 * 3.9e-3..1.3 * 3.9e-3).contains(&coarse), "{coarse}");
        assert!((0.7 * 3.1e-5..1.3 * 3.1e-5).contains(&fine), "{fine}");
        // Exact: all weights and activations are whole steps.
        let whole: Vec<f32> = (0..8 * 64).map(|i| ((i * 37) % 255) as f32 - 127.0).collect();
        let ones = vec![127.0; 4 * 64];
        assert_eq!(of([Type::W8A8, Type::F32], &whole, &ones)[1], 0.0);
        assert_eq!(of([Type::Q8_0, Type::Q8_0], &weights, &vec![0.0; 64]), [0.0; 2]);
    }

    #[test]
    fn one_scale_per_row_loses_by_a_large_weight_and_one_per_block_does_not() {
        let (mut weights, mut x) = (spread(32 * 64, 1), spread(16 * 64, 99));
        x.iter_mut().step_by(64).for_each(|x| *x = 0.0);
        let types = [Type::W8A8, Type::Q8_0];
        let before = of(types, &weights, &x);
        weights.iter_mut().step_by(64).for_each(|weight| *weight = 20.0);
        let after = of(types, &weights, &x);
        assert!(after[0] > 50.0 * before[0], "{before:?} {after:?}");
        assert!(after[1] > 10.0 * before[1] && after[0] > 1.5 * after[1], "{before:?} {after:?}");
    }

    #[test]
    fn a_weight_that_is_not_finite_is_an_error() {
        let mut weights = vec![1.0; 2 * 64];
        weights[70] = f32::NAN;
        assert!(errors([Type::W8A8], 64, &weights, &[1.0; 64]).is_err());
    }
}
