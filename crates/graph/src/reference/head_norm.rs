//! RMS norm over each head of a row, with one gain for all heads.

use super::rms_norm::rms_norm;

/// `input [rows, heads * head_dim]`, `gain [head_dim]`, to `out` of equal shape: in memory, heads are simply more
/// rows.
pub(super) fn head_norm(input: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    rms_norm(input, Some(gain), gain.len(), eps, out);
}

#[cfg(test)]
mod tests {
    use super::head_norm;
    use crate::reference::tests::assert_near;

    #[test]
    fn norms_each_head_alone_with_the_shared_gain() {
        // One row of two heads of two: root mean squares 5 and 1/2.
        let mut out = [0.0; 4];
        head_norm(&[1.0, -7.0, 0.5, 0.5], &[1.0, 3.0], 0.0, &mut out);
        assert_near(&out, &[0.2, -4.2, 1.0, 3.0], 1e-6);
    }
}
