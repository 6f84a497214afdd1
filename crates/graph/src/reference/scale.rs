//! Multiplication by a constant: embedding, residual and logit multipliers.

/// `input` and `out`: `[rows, width]` each.
pub(super) fn scale(input: &[f32], factor: f32, out: &mut [f32]) {
    for i in 0..out.len() {
        out[i] = factor * input[i];
    }
}

/// Each row of `input` times its own factor.
pub(super) fn scale_rows(input: &[f32], factors: &[f32], out: &mut [f32]) {
    let width = input.len() / factors.len().max(1);
    for (row, &factor) in factors.iter().enumerate() {
        let place = row * width..(row + 1) * width;
        scale(&input[place.clone()], factor, &mut out[place]);
    }
}

#[cfg(test)]
mod tests {
    use super::{scale, scale_rows};
    use crate::Temperature;

    #[test]
    fn a_temperature_grows_by_the_logarithm_of_whole_lengths() {
        // 1 + 0.5 ln(1 + floor((p + 1) / 4)) at 2, 3 and 11: floor 0, 1 and 3.
        let by = Temperature { scale: 0.5, length: 4, offset: 1 };
        let mut out = [0.0; 6];
        let factors: Vec<f32> = [2, 3, 11].map(|position| by.at(position)).to_vec();
        scale_rows(&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0], &factors, &mut out);
        let (two, four) = (1.0 + 0.5 * 2f32.ln(), 1.0 + 0.5 * 4f32.ln());
        assert_eq!(out, [1.0, 2.0, two, 2.0 * two, four, 2.0 * four]);
    }

    #[test]
    fn multiplies_elementwise() {
        let mut out = [0.0; 3];
        scale(&[1.0, -2.0, 0.0], -1.5, &mut out);
        assert_eq!(out, [-1.5, 3.0, 0.0]);
    }
}
