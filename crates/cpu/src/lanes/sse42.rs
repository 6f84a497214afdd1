//! Eight lanes of SSE4.2 in two vectors, which take as many instructions as registers of AVX2 would be.
//!
//! SAFETY of every intrinsic here: a token of the level exists only inside `enter`, whose callers have detected the
//! features.

use std::arch::x86_64::*;

use super::{Lanes, Transform};

#[derive(Clone, Copy)]
pub(crate) struct Sse42(());

/// Implements methods that are one expression for each of the two vectors.
macro_rules! pairwise {
    ($($method:ident($($arg:ident),*) = $call:expr;)*) => {$(
        #[inline(always)]
        fn $method(self, $($arg: Self::F),*) -> Self::F {
            let one = |$($arg: __m128),*| {
                // SAFETY: the token proves the level.
                unsafe { $call }
            };
            [one($($arg[0]),*), one($($arg[1]),*)]
        }
    )*};
}

/// Converts four f16, one in each lane: their bits as those of a float are the value times 2^-112, subnormal ones too.
#[inline(always)]
unsafe fn widen(bits: __m128i) -> __m128 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let magnitude = _mm_and_si128(bits, _mm_set1_epi32(0x7fff));
        let sign = _mm_slli_epi32::<16>(_mm_xor_si128(bits, magnitude));
        let scaled = _mm_castsi128_ps(_mm_slli_epi32::<13>(magnitude));
        let value = _mm_mul_ps(scaled, _mm_set1_ps(f32::from_bits((112 + 127) << 23)));
        let special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff));
        let special = _mm_and_si128(special, _mm_set1_epi32(0x7f80_0000));
        _mm_or_ps(value, _mm_castsi128_ps(_mm_or_si128(special, sign)))
    }
}

impl Lanes for Sse42 {
    type F = [__m128; 2];
    type Bytes = [u8; 32];
    const N: usize = 8;
    const TILE_ROWS: usize = 2;
    const DIRECT_ROWS: usize = 1;

    #[inline(never)]
    #[target_feature(enable = "ssse3,sse4.1,sse4.2")]
    unsafe fn enter<T: Transform>(kernel: T, out: &mut T::Out) {
        kernel.run(Sse42(()), out);
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe { [_mm_loadu_ps(from), _mm_loadu_ps(from.add(4))] }
    }
    #[inline(always)]
    unsafe fn store(self, v: Self::F, to: *mut f32) {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe {
            _mm_storeu_ps(to, v[0]);
            _mm_storeu_ps(to.add(4), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::F {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe {
            let bits = _mm_loadu_si128(from.cast());
            [widen(_mm_cvtepu16_epi32(bits)), widen(_mm_cvtepu16_epi32(_mm_srli_si128::<8>(bits)))]
        }
    }
    #[inline(always)]
    fn read_bf16(self, from: &[u8]) -> Self::F {
        let from = &from[..16];
        // SAFETY: the slice has eight values; the token proves the level.
        unsafe {
            let (bits, zero) = (_mm_loadu_si128(from.as_ptr().cast()), _mm_setzero_si128());
            [_mm_unpacklo_epi16(zero, bits), _mm_unpackhi_epi16(zero, bits)]
                .map(|bits| _mm_castsi128_ps(bits))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, v: Self::F, to: *mut u16) {
        let mut values = [0.0; 8];
        self.write(v, &mut values);
        let bits = values.map(|x| half::f16::from_f32_const(x).to_bits());
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[u16; 8]>().write_unaligned(bits) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::F {
        // SAFETY: guaranteed by the caller; the token proves the level.
        unsafe {
            let bytes = _mm_loadl_epi64(from.cast());
            [bytes, _mm_srli_si128::<4>(bytes)]
                .map(|bytes| _mm_cvtepi32_ps(_mm_cvtepi8_epi32(bytes)))
        }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: the token proves the level.
        [unsafe { _mm_set1_ps(x) }; 2]
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        // SAFETY: the token proves the level.
        unsafe {
            let four = _mm_add_ps(v[0], v[1]);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        // SAFETY: the token proves the level.
        unsafe {
            let four = _mm_max_ps(v[0], v[1]);
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch of an address that is not mapped does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    pairwise! {
        add(a, b) = _mm_add_ps(a, b);
        sub(a, b) = _mm_sub_ps(a, b);
        mul(a, b) = _mm_mul_ps(a, b);
        div(a, b) = _mm_div_ps(a, b);
        fma(a, b, c) = _mm_add_ps(_mm_mul_ps(a, b), c);
        max(a, b) = _mm_max_ps(a, b);
        min(a, b) = _mm_min_ps(a, b);
        round(v) = _mm_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        exp2_whole(v) = _mm_castsi128_ps(_mm_slli_epi32::<23>(
            _mm_add_epi32(_mm_cvtps_epi32(v), _mm_set1_epi32(127)),
        ));
    }
}
