//! Searches for values that a type cannot hold: infinities, NaN, magnitudes beyond a bound.

/// Values that are tested together, without an early exit, so that the test compiles to SIMD.
const BLOCK: usize = 64;

/// The index of the first value that is infinite or NaN.
#[must_use]
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    first_beyond(values, f32::MAX)
}

/// The index of the first value with a magnitude above `most`, which is positive and finite, or that is NaN.
#[must_use]
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
pub fn first_beyond(values: &[f32], most: f32) -> Option<usize> {
    let blocks = values.as_chunks::<BLOCK>().0;
    let first = blocks.iter().position(|block| has_beyond(block, most)).unwrap_or(blocks.len());
    let rest = &values[first * BLOCK..];
    let at = rest.iter().position(|value| is_beyond(*value, most))?;
    Some(first * BLOCK + at)
}

#[inline(always)]
fn has_beyond(block: &[f32; BLOCK], most: f32) -> bool {
    let mut found = 0;
    for value in block {
        found |= u32::from(is_beyond(*value, most));
    }
    found != 0
}

/// Bits of magnitudes compare as the magnitudes do, and those of NaN are above infinity's.
#[inline(always)]
fn is_beyond(value: f32, most: f32) -> bool {
    value.abs().to_bits().cast_signed() > most.to_bits().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_beyond_a_bound_is_found_at_every_place() {
        let bad = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let good = [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, f32::from_bits(1), -1.5];
        for len in [0, 1, 63, 64, 65, 128, 200] {
            let values: Vec<f32> = (0..len).map(|i| good[i % good.len()]).collect();
            assert_eq!(first_not_finite(&values), None, "{len}");
            for at in 0..len {
                let mut values = values.clone();
                values[at] = bad[at % 4];
                values[len - 1] = if at % 3 == 0 { f32::NAN } else { values[len - 1] };
                assert_eq!(first_not_finite(&values), Some(at), "{len}");
            }
        }
        let mut values = vec![65504.0; 100];
        values[70] = -65504.0;
        assert_eq!(first_beyond(&values, 65504.0), None);
        values[90] = f32::NAN;
        values[80] = (-65504f32).next_down();
        assert_eq!(first_beyond(&values, 65504.0), Some(80));
    }
}
