//! Loads of 512 bits.

use std::arch::x86_64::*;

#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn load<T>(from: &[T; 64]) -> __m512i {
    const { assert!(size_of::<T>() == 1) };
    // SAFETY: 64 bytes are read from a reference to 64.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn load_floats(from: &[f32]) -> __m512 {
    let from = &from[..16];
    // SAFETY: the slice has 16 elements.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}
