//! RMS norm over each head of a row, with one gain for all heads or one for the row.

use super::rms_norm::rms_norm;

/// `input [rows, heads * head_dim]`, `gain [head_dim]`, `[heads * head_dim]` or ones, to `out` of equal shape: in memory,
/// heads are simply more rows.
pub(super) fn head_norm(
    input: &[f32],
    gain: Option<&[f32]>,
    head_dim: usize,
    eps: f32,
    out: &mut [f32],
) {
    let heads = input.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
    for (head, (x, out)) in heads.enumerate() {
        let gain = gain.map(|gain| &gain[head * head_dim % gain.len()..][..head_dim]);
        rms_norm(x, gain, head_dim, eps, out);
    }
}

#[cfg(test)]
mod tests {
    use super::head_norm;
    use crate::reference::tests::assert_near;

    #[test]
    fn norms_each_head_alone_with_the_shared_gain() {
        // One row of two heads of two: root mean squares 5 and 1/2.
        let mut out = [0.0; 4];
        let input = [1.0, -7.0, 0.5, 0.5];
        head_norm(&input, Some(&[1.0, 3.0]), 2, 0.0, &mut out);
        assert_near(&out, &[0.2, -4.2, 1.0, 3.0], 1e-6);
        head_norm(&input, Some(&[1.0, 3.0, 5.0, 7.0]), 2, 0.0, &mut out);
        assert_near(&out, &[0.2, -4.2, 5.0, 7.0], 1e-6);
        head_norm(&input, None, 2, 0.0, &mut out);
        assert_near(&out, &[0.2, -1.4, 1.0, 1.0], 1e-6);
    }
}
