//! Matrix product with a transposed weight: dot products of rows.

/// `input [rows, cols]`, `weight [outs, cols]`, `bias [outs]` or zeros, to `out [rows, outs]`.
/// Products and sums are f64, rounded once at the end.
pub(super) fn matmul(
    input: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    cols: usize,
    out: &mut [f32],
) {
    let outs = weight.len() / cols;
    for (x, y) in input.chunks_exact(cols).zip(out.chunks_exact_mut(outs)) {
        for (o, w) in weight.chunks_exact(cols).enumerate() {
            let mut sum = bias.map_or(0.0, |bias| f64::from(bias[o]));
            for c in 0..cols {
                sum += f64::from(x[c]) * f64::from(w[c]);
            }
            y[o] = sum as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matmul;

    #[test]
    fn each_output_is_the_dot_product_of_two_rows_plus_its_bias() {
        let input = [1.0, 2.0, 3.0, -1.0, 0.0, 4.0]; // [2, 3]
        let weight = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]; // [2, 3]
        let mut out = [0.0; 4];
        matmul(&input, &weight, None, 3, &mut out);
        assert_eq!(out, [1.0, 6.0, -1.0, 3.0]);
        matmul(&input, &weight, Some(&[10.0, 20.0]), 3, &mut out);
        assert_eq!(out, [11.0, 26.0, 9.0, 23.0]);
    }

    #[test]
    fn small_terms_survive_beside_large_ones() {
        // In f32 the 1 would be lost next to 2^25.
        let mut out = [0.0; 1];
        matmul(&[33_554_432.0, 1.0, -33_554_432.0], &[1.0; 3], None, 3, &mut out);
        assert_eq!(out, [1.0]);
    }
}
