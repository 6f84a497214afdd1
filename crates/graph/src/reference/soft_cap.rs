//! Soft cap: a smooth clamp to the open interval from `-cap` to `cap`.

/// `input` and `out`: `[rows, width]` each; `out = cap * tanh(input / cap)`.
pub(super) fn soft_cap(input: &[f32], cap: f32, out: &mut [f32]) {
    for i in 0..out.len() {
        out[i] = capped(f64::from(input[i]), cap) as f32;
    }
}

/// `cap * tanh(x / cap)`.
pub(super) fn capped(x: f64, cap: f32) -> f64 {
    f64::from(cap) * (x / f64::from(cap)).tanh()
}

#[cfg(test)]
mod tests {
    use super::soft_cap;
    use crate::reference::tests::assert_near;

    #[test]
    fn small_values_pass_and_large_ones_stop_at_the_cap() {
        // tanh(ln 2) = (4 - 1) / (4 + 1) = 0.6.
        let x = 10.0 * 2f32.ln();
        let mut out = [0.0; 4];
        soft_cap(&[0.01, x, -x, 1e9], 10.0, &mut out);
        assert_near(&out, &[0.01, 6.0, -6.0, 10.0], 1e-5);
    }
}
