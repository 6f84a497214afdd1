//! Writing into panels, 16 rows at a time.

use std::arch::x86_64::*;

use super::Panel;

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

#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn store_floats(to: &mut [f32], value: __m512) {
    let to = &mut to[..16];
    // SAFETY: the slice has 16 elements.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
}

/// Stores the four columns of step `step` of rows `first..first + 16`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn put(panel: &mut Panel, step: usize, first: usize, quants: __m512i) {
    let to = &mut panel.quants[step][first..first + 16];
    // SAFETY: 16 rows of four bytes are written, as many as the slice has.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), quants) }
}
