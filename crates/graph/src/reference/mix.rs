//! Weighted sum of the chosen experts' outputs.

/// `input [rows, used, width]`, `route [rows, 2 used]`, to `out [rows, width]`. In f64, rounded once.
pub(super) fn mix(input: &[f32], route: &[f32], width: usize, out: &mut [f32]) {
    let rows = out.len() / width.max(1);
    let used = input.len() / (rows * width).max(1);
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        let weights = &route[row * 2 * used..][..used];
        for (i, out) in out.iter_mut().enumerate() {
            let of = |slot: usize| {
                f64::from(weights[slot]) * f64::from(input[(row * used + slot) * width + i])
            };
            *out = (0..used).map(of).sum::<f64>() as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::mix;

    #[test]
    fn results_are_added_by_their_weights() {
        let route = [0.5, 2.0, 7.0, 7.0, 1.0, -1.0, 7.0, 7.0];
        let mut out = [0.0; 4];
        mix(&[2.0, 4.0, 10.0, 20.0, 1.0, 2.0, 3.0, 5.0], &route, 2, &mut out);
        assert_eq!(out, [21.0, 42.0, -2.0, -3.0]);
    }
}
