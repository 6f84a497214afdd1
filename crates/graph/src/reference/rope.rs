//! RoPE (Su et al. 2021): pairs of a head's elements are rotated by an angle proportional to the position.

use crate::Pairs;

/// The parameters besides input and output.
pub(super) struct Rotation<'a> {
    /// The pairing.
    pub pairs: Pairs,
    /// Radians per position `[dims / 2]`.
    pub frequencies: &'a [f32],
    /// Divides the frequencies `[dims / 2]`.
    pub factors: Option<&'a [f32]>,
    /// Factor on cosine and sine.
    pub magnitude: f32,
    /// Elements of one head; those from `dims` on are unchanged.
    pub head_dim: usize,
}

/// `input [T, heads * head_dim]`, one position per row, to `out` of equal shape. Angles are f64.
pub(super) fn rope(
    rotation: &Rotation<'_>,
    input: &[f32],
    positions: impl Iterator<Item = u32>,
    out: &mut [f32],
) {
    let half = rotation.frequencies.len();
    let positions: Vec<_> = positions.collect();
    let width = input.len() / positions.len();
    out.copy_from_slice(input);
    for (row, &position) in out.chunks_exact_mut(width).zip(&positions) {
        for head in row.chunks_exact_mut(rotation.head_dim) {
            for i in 0..half {
                let factor = rotation.factors.map_or(1.0, |factors| f64::from(factors[i]));
                let angle = f64::from(position) * f64::from(rotation.frequencies[i]) / factor;
                let cos = angle.cos() * f64::from(rotation.magnitude);
                let sin = angle.sin() * f64::from(rotation.magnitude);
                let (a, b) = match rotation.pairs {
                    Pairs::Interleaved => (2 * i, 2 * i + 1),
                    Pairs::Halves => (i, i + half),
                };
                let (x, y) = (f64::from(head[a]), f64::from(head[b]));
                head[a] = (x * cos - y * sin) as f32;
                head[b] = (x * sin + y * cos) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::f32::consts::{FRAC_PI_2, PI};

    use super::{Rotation, rope};
    use crate::Pairs;
    use crate::reference::tests::assert_near;

    const QUARTER_AND_HALF: Rotation<'_> = Rotation {
        pairs: Pairs::Interleaved,
        frequencies: &[FRAC_PI_2, PI],
        factors: None,
        magnitude: 1.0,
        head_dim: 4,
    };

    #[test]
    fn interleaved_pairs_turn_by_position_times_frequency() {
        // Position 1 rotates the first pair by 90 degrees and the second by 180; position 0 rotates nothing.
        let mut out = [0.0; 8];
        let input = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0];
        rope(&QUARTER_AND_HALF, &input, [0, 1].into_iter(), &mut out);
        assert_near(&out, &[1.0, 2.0, 3.0, 4.0, -2.0, 1.0, -3.0, -4.0], 1e-6);
    }

    #[test]
    fn halves_pair_each_element_with_the_one_half_a_head_on() {
        let rotation = Rotation { pairs: Pairs::Halves, ..QUARTER_AND_HALF };
        let mut out = [0.0; 4];
        rope(&rotation, &[1.0, 3.0, 2.0, 4.0], [1].into_iter(), &mut out);
        assert_near(&out, &[-2.0, -3.0, 1.0, -4.0], 1e-6);
    }

    #[test]
    fn every_head_turns_alike_and_elements_beyond_the_pairs_stay() {
        let rotation = Rotation { frequencies: &[FRAC_PI_2], head_dim: 3, ..QUARTER_AND_HALF };
        let mut out = [0.0; 6];
        rope(&rotation, &[1.0, 0.0, 7.0, 0.0, 1.0, 8.0], [1].into_iter(), &mut out);
        assert_near(&out, &[0.0, 1.0, 7.0, -1.0, 0.0, 8.0], 1e-6);
    }

    #[test]
    fn factors_divide_the_frequencies_and_the_magnitude_multiplies() {
        let rotation = Rotation {
            frequencies: &[PI],
            factors: Some(&[4.0]),
            magnitude: 3.0,
            head_dim: 2,
            ..QUARTER_AND_HALF
        };
        let mut out = [0.0; 2];
        rope(&rotation, &[1.0, 0.0], [2].into_iter(), &mut out); // 2 * 180 / 4 = 90 degrees
        assert_near(&out, &[0.0, 3.0], 1e-6);
    }
}
