//! RMS norm or layer norm over each head of a row, with one gain for all heads or one for the row.

use super::layer_norm::{LayerNorm, layer_norm};
use super::rms_norm::rms_norm;

/// The parameters besides input and output.
pub(super) struct HeadNorm<'a> {
    /// `[head_dim]`, `[heads * head_dim]`, or all ones.
    pub gain: Option<&'a [f32]>,
    /// Elements of a head.
    pub head_dim: usize,
    /// Layer norm instead of RMS norm.
    pub centered: bool,
    /// Added to the variance or the mean square.
    pub eps: f32,
}

/// `input [rows, heads * head_dim]` to `out` of equal shape: in memory, heads are simply more rows.
pub(super) fn head_norm(norm: &HeadNorm<'_>, input: &[f32], out: &mut [f32]) {
    let HeadNorm { gain, head_dim, centered, eps } = *norm;
    let ones = vec![1.0; head_dim];
    let heads = input.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
    for (head, (x, out)) in heads.enumerate() {
        let gain = gain.map(|gain| &gain[head * head_dim % gain.len()..][..head_dim]);
        match centered {
            true => {
                let norm = LayerNorm { gain: gain.unwrap_or(&ones), bias: None, eps };
                layer_norm(&norm, x, out);
            }
            false => rms_norm(x, gain, head_dim, eps, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HeadNorm, head_norm};
    use crate::reference::tests::assert_near;

    #[test]
    fn norms_each_head_alone_with_the_shared_gain() {
        // One row of two heads of two: root mean squares 5 and 1/2.
        let mut out = [0.0; 4];
        let input = [1.0, -7.0, 0.5, 0.5];
        let mut normed = |gain| {
            let norm = HeadNorm { gain, head_dim: 2, centered: false, eps: 0.0 };
            head_norm(&norm, &input, &mut out);
            out
        };
        assert_near(&normed(Some(&[1.0, 3.0])), &[0.2, -4.2, 1.0, 3.0], 1e-6);
        assert_near(&normed(Some(&[1.0, 3.0, 5.0, 7.0])), &[0.2, -4.2, 5.0, 7.0], 1e-6);
        assert_near(&normed(None), &[0.2, -1.4, 1.0, 1.0], 1e-6);
    }

    #[test]
    fn the_mean_of_each_head_is_subtracted() {
        // Two rows of two heads of two: means 4, -1, 0 and 6, deviations 3, 1, 2 and 4.
        let input = [1.0, 7.0, -2.0, 0.0, 2.0, -2.0, 10.0, 2.0];
        let norm = |gain| HeadNorm { gain, head_dim: 2, centered: true, eps: 0.0 };
        let mut out = [0.0; 8];
        head_norm(&norm(Some(&[1.0, 3.0, 5.0, 7.0])), &input, &mut out);
        assert_near(&out, &[-1.0, 3.0, -5.0, 7.0, 1.0, -3.0, 5.0, -7.0], 1e-6);
        head_norm(&norm(None), &input, &mut out);
        assert_near(&out, &[-1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0], 1e-6);
    }
}
