//! Multiplication by a constant: embedding, residual and logit multipliers.

/// `input` and `out`: `[rows, width]` each.
pub(super) fn scale(input: &[f32], factor: f32, out: &mut [f32]) {
    for i in 0..out.len() {
        out[i] = factor * input[i];
    }
}

#[cfg(test)]
mod tests {
    use super::scale;

    #[test]
    fn multiplies_elementwise() {
        let mut out = [0.0; 3];
        scale(&[1.0, -2.0, 0.0], -1.5, &mut out);
        assert_eq!(out, [-1.5, 3.0, 0.0]);
    }
}
