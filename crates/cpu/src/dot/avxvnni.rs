//! The kernel families' loops with 256-bit VNNI integer dot products; everything else is shared with AVX2.

use std::arch::x86_64::*;

use super::avx2::{
    Half, K, QuadSum, k_close, k_scales, load, loops, open, quad_close, reduce, spread, unit,
    unpack,
};
use super::{AHEAD, Groups, Job, prefetch};
use crate::activations::{Block256, Quad32};
use crate::level::rows;
use crate::types::{Quads, SuperBlock};
use crate::x86::{dpwssd_vex as add_scaled, whole_lines};

loops!("avx2,fma,f16c,avxvnni", AvxVnni);

/// Values are unsigned, but for those with scales of 16 weights: their offsets would need sums of 16 activations.
const fn is_signed<T: Quads>() -> bool {
    T::GROUP == 16
}

/// One instruction; signed values transfer their sign.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn products<T: Quads>(values: __m256i, activations: __m256i) -> __m256i {
    let zero = _mm256_setzero_si256();
    if is_signed::<T>() {
        let signed = _mm256_sign_epi8(activations, values);
        return _mm256_dpbusd_avx_epi32(zero, _mm256_abs_epi8(values), signed);
    }
    _mm256_dpbusd_avx_epi32(zero, values, activations)
}
