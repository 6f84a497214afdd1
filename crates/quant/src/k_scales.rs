//! Eight 6-bit scales and eight 6-bit minimums in twelve bytes, as Q4_K and Q5_K store them.
//!
//! ```text
//! byte      7 6 5 4 3 2 1 0          s0..s7 scales, m0..m7 minimums
//! 0..4      [s4+i ][ s0+i  ]         high two bits of s4..s7 over s0..s3
//! 4..8      [m4+i ][ m0+i  ]         high two bits of m4..m7 over m0..m3
//! 8..12     [ m4+i ][ s4+i ]         low four bits of both
//! ```

/// Size of the packed numbers in bytes.
pub const SCALES_BYTES: usize = 12;

/// The eight scales and the eight minimums, each 0..=63.
#[inline]
#[must_use]
pub fn scales_mins(packed: &[u8; SCALES_BYTES]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        let (high_scale, high_min, low) = (packed[i], packed[4 + i], packed[8 + i]);
        scales[i] = high_scale & 63;
        mins[i] = high_min & 63;
        scales[4 + i] = (low & 15) | (high_scale >> 6 << 4);
        mins[4 + i] = (low >> 4) | (high_min >> 6 << 4);
    }
    (scales, mins)
}

/// The inverse of [`scales_mins`]; all numbers at most 63.
#[must_use]
pub fn pack_scales_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; SCALES_BYTES] {
    let mut packed = [0; SCALES_BYTES];
    for i in 0..4 {
        packed[i] = scales[i] | (scales[4 + i] >> 4 << 6);
        packed[4 + i] = mins[i] | (mins[4 + i] >> 4 << 6);
        packed[8 + i] = (scales[4 + i] & 15) | (mins[4 + i] & 15) << 4;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_round_trips() {
        for seed in 0..64 {
            let scales = std::array::from_fn(|i| ((seed * 7 + i * 11) % 64) as u8);
            let mins = std::array::from_fn(|i| ((seed * 5 + i * 13 + 1) % 64) as u8);
            assert_eq!(scales_mins(&pack_scales_mins(&scales, &mins)), (scales, mins));
        }
    }
}
