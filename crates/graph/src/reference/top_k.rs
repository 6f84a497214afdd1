//! The largest elements of each row, with their indices.

/// `input [rows, width]` to `out [rows, 2k]`: the `count` largest values, zeros up to place `k`, then their indices and
/// zeros.
pub(super) fn top_k((input, width): (&[f32], usize), (k, count): (usize, usize), out: &mut [f32]) {
    for (row, out) in input.chunks_exact(width).zip(out.chunks_exact_mut(2 * k)) {
        if !row.iter().all(|x| x.is_finite()) {
            out.fill(f32::NAN);
            continue;
        }
        let mut order: Vec<usize> = (0..width).collect();
        // Zeros of either sign are equal; NaN does not occur here.
        let larger_first = |a: usize, b: usize| row[b].partial_cmp(&row[a]).expect("finite");
        order.sort_by(|&a, &b| larger_first(a, b).then(a.cmp(&b)));
        out.fill(0.0);
        let (values, places) = out.split_at_mut(k);
        for (i, &place) in order[..count].iter().enumerate() {
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
        let rows = [row, odd].concat();
        for (count, found) in [
            (3, [5.0, 5.0, 2.0, 1.0, 3.0, 2.0]),
            (1, [5.0, 0.0, 0.0, 1.0, 0.0, 0.0]),
            (0, [0.0; 6]),
        ] {
            top_k((&rows, 5), (3, count), &mut out);
            assert_eq!(out[..6], found);
            assert!(out[6..].iter().all(|x| x.is_nan()));
        }
    }
}
