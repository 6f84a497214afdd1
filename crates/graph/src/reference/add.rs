//! Elementwise sum: the residual connection.

/// `a`, `b`, `out`: `[rows, width]` each.
pub(super) fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    for i in 0..out.len() {
        out[i] = a[i] + b[i];
    }
}

#[cfg(test)]
mod tests {
    use super::add;

    #[test]
    fn adds_elementwise() {
        let mut out = [0.0; 3];
        add(&[1.0, 2.0, -3.0], &[10.0, 0.5, 3.0], &mut out);
        assert_eq!(out, [11.0, 2.5, 0.0]);
    }
}
