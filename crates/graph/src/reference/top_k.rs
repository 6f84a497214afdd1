//! The largest elements of each row, with their indices.

/// `input [rows, width]` to `out [rows, 2k]`: `k` values, largest first, then their indices.
pub(super) fn top_k(input: &[f32], width: usize, k: usize, out: &mut [f32]) {
    for (row, out) in input.chunks_exact(width).zip(out.chunks_exact_mut(2 * k)) {
        if !row.iter().all(|x| x.is_finite()) {
            out.fill(f32::NAN);
            continue;
        }
        let mut order: Vec<usize> = (0..width).collect();
        // Zeros of either sign are equal; NaN does not occur here.
        let larger_first = |a: usize, b: usize| row[b].partial_cmp(&row[a]).expect("finite");
        order.sort_by(|&a, &b| larger_first(a, b).then(a.cmp(&b)));
        let (values, places) = out.split_at_mut(k);
        for (i, &place) in order[..k].iter().enumerate() {
            values[i] = row[place];
            places[i] = place as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::top_k;

    #[test]
    fn the_lower_place_comes_first_where_values_tie() {
        let mut out = [0.0; 12];
        let row = [1.0, 5.0, 2.0, 5.0, 0.5];
        let odd = [1.0, f32::NEG_INFINITY, 2.0, 0.0, 0.0];
        top_k(&[row, odd].concat(), 5, 3, &mut out);
        assert_eq!(out[..6], [5.0, 5.0, 2.0, 1.0, 3.0, 2.0]);
        assert!(out[6..].iter().all(|x| x.is_nan()));
    }
}
