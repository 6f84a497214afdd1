//! Codebooks of the IQ1, IQ2 and IQ3 types: lattice points that blocks refer to by index.
//!
//! The points are defined by the format (`ggml-common.h` of llama.cpp). The files below store each point packed, with
//! 2 or 3 bits per weight; they are unpacked at compile time into the signed bytes that kernels and uploads use.

mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;

/// Magnitudes of the IQ2 grids, before the scale of 1/8.
const IQ2_LEVELS: [i8; 4] = [8, 25, 43, 0];
/// Magnitudes of the IQ3_XXS grid.
const IQ3_XXS_LEVELS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
/// Magnitudes of the IQ3_S grid.
const IQ3_S_LEVELS: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Weights of the IQ1 grid.
const IQ1_LEVELS: [i8; 4] = [-1, 0, 1, 0];

/// IQ1_S and IQ1_M: 2,048 ternary points of 8 weights.
pub static IQ1: [[i8; 8]; 2048] = expand(&iq1_s::POINTS, &IQ1_LEVELS);
/// IQ2_XXS: 256 points of 8 magnitudes.
pub static IQ2_XXS: [[i8; 8]; 256] = expand(&iq2_xxs::POINTS, &IQ2_LEVELS);
/// IQ2_XS: 512 points of 8 magnitudes.
pub static IQ2_XS: [[i8; 8]; 512] = expand(&iq2_xs::POINTS, &IQ2_LEVELS);
/// IQ2_S: 1,024 points of 8 magnitudes.
pub static IQ2_S: [[i8; 8]; 1024] = expand(&iq2_s::POINTS, &IQ2_LEVELS);
/// IQ3_XXS: 256 points of 4 magnitudes.
pub static IQ3_XXS: [[i8; 4]; 256] = expand(&iq3_xxs::POINTS, &IQ3_XXS_LEVELS);
/// IQ3_S: 512 points of 4 magnitudes.
pub static IQ3_S: [[i8; 4]; 512] = expand(&iq3_s::POINTS, &IQ3_S_LEVELS);

/// The eight signs (bit set: negative) of a 7-bit sign index; the eighth makes the number of negatives even.
#[inline]
#[must_use]
pub fn even_signs(index: u8) -> u8 {
    debug_assert!(index < 128);
    index | ((index.count_ones() as u8 & 1) << 7)
}

/// `value`, negated where `bit` of `signs` is set.
#[inline]
pub(crate) fn signed(value: f32, signs: u8, bit: usize) -> f32 {
    if signs >> bit & 1 == 1 { -value } else { value }
}

/// Unpacks points of `WIDTH` weights whose codes of log2(LEVELS) bits select from `levels`.
const fn expand<const POINTS: usize, const WIDTH: usize, const LEVELS: usize>(
    points: &[u16; POINTS],
    levels: &[i8; LEVELS],
) -> [[i8; WIDTH]; POINTS] {
    let bits = LEVELS.trailing_zeros() as usize;
    let mut grid = [[0; WIDTH]; POINTS];
    let mut point = 0;
    while point < POINTS {
        let mut index = 0;
        while index < WIDTH {
            let code = (points[point] >> (bits * index)) as usize & (LEVELS - 1);
            grid[point][index] = levels[code];
            index += 1;
        }
        point += 1;
    }
    grid
}
