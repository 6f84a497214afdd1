//! Selects the rows whose logits are requested.

/// `input [T, width]`, `outputs [R]`, to `out [R, width]`.
pub(super) fn rows(input: &[f32], outputs: &[u32], width: usize, out: &mut [f32]) {
    for (r, &row) in outputs.iter().enumerate() {
        out[r * width..][..width].copy_from_slice(&input[row as usize * width..][..width]);
    }
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn copies_the_listed_rows() {
        let mut out = [0.0; 4];
        rows(&[0.0, 1.0, 10.0, 11.0, 20.0, 21.0], &[0, 2], 2, &mut out);
        assert_eq!(out, [0.0, 1.0, 20.0, 21.0]);
    }
}
