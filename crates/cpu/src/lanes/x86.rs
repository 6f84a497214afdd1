//! Eight lanes of AVX2 with FMA and F16C, sixteen of AVX-512.
//!
//! SAFETY of every intrinsic here: a token of its level exists only inside `enter` and where [`Avx512::new`] makes one, whose
//! callers have detected the features.

use std::arch::x86_64::*;

use bilayer_quant::q8_0;

use super::{Lanes, Transform};
use crate::quantizer::{BLOCK, BLOCKS, Blocks, Scale, x86 as quantizer};

#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Implements methods that are one expression of intrinsics each; arguments without a type are vectors.
macro_rules! intrinsics {
    (@of) => { Self::F };
    (@of $ty:ty) => { $ty };
    ($($method:ident($($arg:ident $(: $ty:ty)?),*) -> $out:ty = $call:expr;)*) => {$(
        #[inline(always)]
        fn $method(self, $($arg: intrinsics!(@of $($ty)?)),*) -> $out {
            // SAFETY: the token proves the level; see the head of this module.
            unsafe { $call }
        }
    )*};
}

impl Lanes for Avx2 {
    type F = __m256;
    type Bytes = __m256i;
    const N: usize = 8;
    const TILE_ROWS: usize = 4;
    const DIRECT_ROWS: usize = usize::MAX;

    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn enter<T: Transform>(kernel: T, out: &mut T::Out) {
        crate::x86::whole_lines();
        kernel.run(Avx2(()), out);
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, v: __m256, to: *mut f32) {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe { _mm256_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m256 {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, v: __m256, to: *mut u16) {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> __m256 {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    intrinsics! {
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        read_bf16(from: &[u8]) -> __m256 = {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from[..16].as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        };
        any_above(v, bound: f32) -> bool = {
            let above = _mm256_cmp_ps::<_CMP_GT_OQ>(v, _mm256_set1_ps(bound));
            _mm256_movemask_ps(above) != 0
        };
        // Of an address that is not mapped it does nothing.
        prefetch(address: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(address.cast());
        quantize(x: &[f32], scale: Scale, out: &mut [i8]) -> () =
            quantizer::quantize_avx2::<false>(x, scale, out);
        quantize_blocks(x: &[f32; BLOCKS], out: &mut [i8; BLOCKS]) -> Option<Blocks> =
            Some(quantizer::quantize_blocks(x, out));
        quantize_stored(x: &[f32; BLOCK]) -> q8_0::Block = quantizer::quantize_stored(x);
        peak(x: &[f32]) -> u32 = quantizer::peak(x);
        sum_quants(quants: &[i8]) -> i32 = quantizer::sum(quants);
        add(a, b) -> __m256 = _mm256_add_ps(a, b);
        sub(a, b) -> __m256 = _mm256_sub_ps(a, b);
        mul(a, b) -> __m256 = _mm256_mul_ps(a, b);
        div(a, b) -> __m256 = _mm256_div_ps(a, b);
        fma(a, b, c) -> __m256 = _mm256_fmadd_ps(a, b, c);
        max(a, b) -> __m256 = _mm256_max_ps(a, b);
        min(a, b) -> __m256 = _mm256_min_ps(a, b);
        round(v) -> __m256 = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        exp2_whole(v) -> __m256 = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(
            _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127)),
        ));
        sum(v) -> f32 = {
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        };
        largest(v) -> f32 = {
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        };
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The lanes of a function that enables more features.
    ///
    /// # Safety
    /// The CPU has those of `enter`, and the caller enables them.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Avx512 {
        Avx512(())
    }
}

impl Lanes for Avx512 {
    type F = __m512;
    /// Blocks of 32 weights fill no wider vectors.
    type Bytes = __m256i;
    const N: usize = 16;
    const TILE_ROWS: usize = 8;
    const DIRECT_ROWS: usize = 8;

    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn enter<T: Transform>(kernel: T, out: &mut T::Out) {
        kernel.run(Avx512(()), out);
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, v: __m512, to: *mut f32) {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m512 {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, v: __m512, to: *mut u16) {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe {
            let bits = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
            _mm256_storeu_si256(to.cast(), bits);
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> __m512 {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    intrinsics! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        read_bf16(from: &[u8]) -> __m512 = {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from[..32].as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        };
        any_above(v, bound: f32) -> bool =
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(v, _mm512_set1_ps(bound)) != 0;
        // Of an address that is not mapped it does nothing.
        prefetch(address: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(address.cast());
        quantize(x: &[f32], scale: Scale, out: &mut [i8]) -> () =
            quantizer::quantize_avx512(x, scale, out);
        quantize_blocks(x: &[f32; BLOCKS], out: &mut [i8; BLOCKS]) -> Option<Blocks> =
            Some(quantizer::quantize_blocks(x, out));
        quantize_stored(x: &[f32; BLOCK]) -> q8_0::Block = quantizer::quantize_stored(x);
        peak(x: &[f32]) -> u32 = quantizer::peak(x);
        sum_quants(quants: &[i8]) -> i32 = quantizer::sum(quants);
        add(a, b) -> __m512 = _mm512_add_ps(a, b);
        sub(a, b) -> __m512 = _mm512_sub_ps(a, b);
        mul(a, b) -> __m512 = _mm512_mul_ps(a, b);
        div(a, b) -> __m512 = _mm512_div_ps(a, b);
        fma(a, b, c) -> __m512 = _mm512_fmadd_ps(a, b, c);
        max(a, b) -> __m512 = _mm512_max_ps(a, b);
        min(a, b) -> __m512 = _mm512_min_ps(a, b);
        round(v) -> __m512 =
            _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        exp2_whole(v) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(
            _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(127)),
        ));
        sum(v) -> f32 = _mm512_reduce_add_ps(v);
        largest(v) -> f32 = _mm512_reduce_max_ps(v);
    }
}
