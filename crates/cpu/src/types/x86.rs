//! The scales of a block of 256 weights in vectors, for its dot products and for tiles.

use std::arch::x86_64::*;

use super::{Scales, SuperBlock};
use crate::bytes::{part, u32_at};
use crate::level::Vectors;

/// The scales, biased no longer, and the minimums, a byte for each group; of groups of 32 in the lower and in the
/// upper half of the same vector.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn numbers<T: SuperBlock, R: Vectors>(block: &[u8]) -> [__m128i; 2] {
    if const { R::LEVEL.is_in(T::NUMBERS_AT) } {
        return T::numbers(block);
    }
    let Scales { scales, mins } =
        T::scales(|at| [0, 4, 8, 12].map(|word| u32_at(block, at + word)));
    let zero = _mm_set1_epi8(T::SCALE_ZERO.cast_signed());
    if T::GROUP == 32 {
        let zero = if T::HAS_MINS { _mm_setzero_si128() } else { zero };
        let both = _mm_sub_epi8(together([scales[0], scales[1], mins[0], mins[1]]), zero);
        return [both, both];
    }
    [_mm_sub_epi8(together(scales), zero), together(mins)]
}

/// Four words.
#[inline]
#[target_feature(enable = "sse2")]
fn together(words: [u32; 4]) -> __m128i {
    let [a, b, c, d] = words.map(u32::cast_signed);
    _mm_set_epi32(d, c, b, a)
}

/// d times the type's unit, and dmin, in the first lanes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn units<T: SuperBlock>(block: &[u8]) -> [__m128; 2] {
    if T::HAS_MINS {
        let units = if T::D + 8 <= T::BYTES {
            // A load that the conversion can do itself.
            _mm_set_epi64x(0, i64::from_le_bytes(*part(block, T::D)))
        } else {
            _mm_cvtsi32_si128(u32_at(block, T::D).cast_signed())
        };
        let units = _mm_cvtph_ps(units);
        return [units, _mm_movehdup_ps(units)];
    }
    let d = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(T::d(block))));
    let d = if T::UNIT == 1.0 { d } else { _mm_mul_ss(d, _mm_set_ss(T::UNIT)) };
    [d, _mm_setzero_ps()]
}
