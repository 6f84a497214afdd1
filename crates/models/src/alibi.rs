//! ALiBi: the slopes by which attention scores fall with the distance of two tokens, from the number of heads.

use std::sync::Arc;

/// The slopes of `heads` heads (Press et al. 2022). Of a power of two of them, head `h` has `2^(-bias_max (h + 1) / heads)`;
/// otherwise the largest power of two below has these, and further heads every other slope of twice as many.
pub(crate) fn slopes(heads: usize, bias_max: f32) -> Arc<[f32]> {
    let whole = 1usize << heads.ilog2();
    let slope = |head: usize, of: usize| {
        (-f64::from(bias_max) * (head + 1) as f64 / of as f64).exp2() as f32
    };
    let more = (0..heads - whole).map(|head| slope(2 * head, 2 * whole));
    (0..whole).map(|head| slope(head, whole)).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::slopes;

    #[test]
    fn slopes_are_those_of_the_paper() {
        assert_eq!(*slopes(8, 8.0), [1, 2, 3, 4, 5, 6, 7, 8].map(|n| 0.5f32.powi(n)));
        assert_eq!(*slopes(4, 8.0), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        assert_eq!(*slopes(1, 8.0), [0.003_906_25]);
        // Twelve: those of eight, then the first, third, fifth and seventh of sixteen.
        let twelve = slopes(12, 8.0);
        assert_eq!(twelve[..8], *slopes(8, 8.0));
        for (found, exponent) in twelve[8..].iter().zip([0.5f64, 1.5, 2.5, 3.5]) {
            assert!((f64::from(*found) - (-exponent).exp2()).abs() < 1e-7, "{found}");
        }
    }
}
