//! The route to all experts in order.

/// `out [rows, 2 experts]`: weights of 1, then the experts' indices.
pub(super) fn route_all(experts: usize, out: &mut [f32]) {
    for row in out.chunks_exact_mut(2 * experts) {
        let (weights, numbers) = row.split_at_mut(experts);
        weights.fill(1.0);
        numbers.iter_mut().enumerate().for_each(|(i, number)| *number = i as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::route_all;

    #[test]
    fn every_row_goes_to_every_expert() {
        let mut out = [9.0; 12];
        route_all(3, &mut out);
        assert_eq!(out, [1.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 1.0, 1.0, 0.0, 1.0, 2.0]);
    }
}
