//! RMS norm (Zhang and Sennrich 2019): each row divided by its root mean square.

/// `input [rows, width]`, `gain [width]` or all ones, to `out [rows, width]`. The mean is an f64 sum.
pub(super) fn rms_norm(
    input: &[f32],
    gain: Option<&[f32]>,
    width: usize,
    eps: f32,
    out: &mut [f32],
) {
    for (x, y) in input.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let factor = 1.0 / (squares / width as f64 + f64::from(eps)).sqrt();
        for i in 0..width {
            let gain = gain.map_or(1.0, |gain| gain[i]);
            y[i] = gain * (f64::from(x[i]) * factor) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rms_norm;
    use crate::reference::tests::assert_near;

    #[test]
    fn divides_each_row_by_its_root_mean_square() {
        // Mean squares: (9 + 16) / 2 = 12.5 and (1 + 49) / 2 = 25.
        let mut out = [0.0; 4];
        rms_norm(&[3.0, 4.0, 1.0, -7.0], Some(&[1.0, 10.0]), 2, 0.0, &mut out);
        assert_near(&out, &[0.848_528_1, 11.313_708, 0.2, -14.0], 1e-6);
    }

    #[test]
    fn a_missing_gain_is_all_ones_and_eps_is_under_the_root() {
        let mut out = [0.0; 4];
        rms_norm(&[1.0, 1.0, 1.0, 1.0], None, 4, 3.0, &mut out);
        assert_near(&out, &[0.5; 4], 1e-7); // 1 / sqrt(1 + 3)
        rms_norm(&[0.0; 4], None, 4, 1e-5, &mut out);
        assert_eq!(out, [0.0; 4]);
    }
}
