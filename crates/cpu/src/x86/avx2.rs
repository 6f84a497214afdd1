//! Loads of 128 and 256 bits.

use std::arch::x86_64::*;

#[target_feature(enable = "sse2")]
#[inline]
pub(crate) fn load_128(from: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes are read from a reference to 16.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn load(from: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes are read from a reference to 32.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn load_floats(from: &[f32]) -> __m256 {
    let from = &from[..8];
    // SAFETY: the slice has 8 elements.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}
