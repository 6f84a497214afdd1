//! Layer norm (Ba et al. 2016): each row normalized to mean 0 and variance 1.

/// The parameters besides input and output.
pub(super) struct LayerNorm<'a> {
    /// `[width]`.
    pub gain: &'a [f32],
    /// `[width]`, or all zeros.
    pub bias: Option<&'a [f32]>,
    /// Added to the variance.
    pub eps: f32,
}

/// `input [rows, width]` to `out [rows, width]`. Mean and (biased) variance are f64 sums.
pub(super) fn layer_norm(norm: &LayerNorm<'_>, input: &[f32], out: &mut [f32]) {
    let width = norm.gain.len();
    for (x, y) in input.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / width as f64;
        let squares: f64 = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum();
        let factor = 1.0 / (squares / width as f64 + f64::from(norm.eps)).sqrt();
        for i in 0..width {
            let bias = norm.bias.map_or(0.0, |bias| bias[i]);
            y[i] = norm.gain[i] * ((f64::from(x[i]) - mean) * factor) as f32 + bias;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LayerNorm, layer_norm};
    use crate::reference::tests::assert_near;

    #[test]
    fn subtracts_the_mean_and_divides_by_the_biased_deviation() {
        // Row 0: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5. Row 1: mean 1, variance 1.
        let norm = LayerNorm {
            gain: &[1.0, 1.0, 2.0, 1.0],
            bias: Some(&[0.0, 0.0, 0.0, 100.0]),
            eps: 0.0,
        };
        let mut out = [0.0; 8];
        layer_norm(&norm, &[1.0, 3.0, 5.0, 7.0, 0.0, 2.0, 0.0, 2.0], &mut out);
        let (one, three) = (0.447_213_6, 1.341_640_8); // 1 / sqrt(5), 3 / sqrt(5)
        assert_near(&out[..4], &[-three, -one, 2.0 * one, 100.0 + three], 1e-5);
        assert_near(&out[4..], &[-1.0, 1.0, -2.0, 101.0], 1e-5);
    }

    #[test]
    fn eps_is_under_the_root_and_the_bias_may_be_missing() {
        let norm = LayerNorm { gain: &[1.0, 1.0], bias: None, eps: 3.0 };
        let mut out = [0.0; 2];
        layer_norm(&norm, &[4.0, 6.0], &mut out); // variance 1
        assert_near(&out, &[-0.5, 0.5], 1e-7);
    }
}
