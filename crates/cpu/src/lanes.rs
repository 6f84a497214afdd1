//! Portable f32 vectors: one kernel body, compiled for each instruction level.
//!
//! **The idea.** A kernel is a struct of slices with a `run` that is generic over [`Lanes`]; [`dispatch`]
//! calls it inside a function compiled with the level's features. Everything between that function and the
//! intrinsics is `#[inline(always)]`, so the whole kernel becomes one region of that level.
//!
//! ***Price.** A `Lanes` value proves that its level was detected: only `dispatch` creates it, after
//! [`Level::is_available`], which the backend checks once. Quantized dot products and matrix products do not use
//! this; they are hand-written for each level.

use crate::level::Level;

/// The operations of one level on vectors of [`Lanes::N`] f32. Loads and stores take pointers, so that kernels check
/// their slices once before the loop.
pub(crate) trait Lanes: Copy {
    /// A vector.
    type F: Copy;
    /// Lanes per vector; divides 32.
    const N: usize;
    /// Rows of a `[rows, 2 N]` f32 accumulator that fit the registers together with their operands.
    const TILE_ROWS: usize;
    /// Number of rows up to which converting f16 for every tile beats converting it once to memory.
    const DIRECT_ROWS: usize;

    /// # Safety
    /// `from` is valid for reading N elements.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// # Safety
    /// `to` is valid for writing N elements.
    unsafe fn store(self, v: Self::F, to: *mut f32);
    /// N f16 values as f32.
    ///
    /// # Safety
    /// `from` is valid for reading N elements.
    unsafe fn load_f16(self, from: *const u16) -> Self::F;
    /// Rounds to f16, ties to even.
    ///
    /// # Safety
    /// `to` is valid for writing N elements.
    unsafe fn store_f16(self, v: Self::F, to: *mut u16);
    /// N signed bytes as f32.
    ///
    /// # Safety
    /// `from` is valid for reading N elements.
    unsafe fn load_i8(self, from: *const i8) -> Self::F;
    /// The entries of a table at sixteen places, each below 16.
    #[inline(always)]
    fn look_up(self, table: &[i8; 16], places: [u8; 16]) -> [i8; 16] {
        places.map(|place| table[usize::from(place & 15)])
    }
    fn splat(self, x: f32) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`; rounded once if the level supports it.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; `b` if either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` if either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, v: Self::F) -> Self::F;
    /// 2 to an integer power in -127..=128; -127 gives 0, 128 gives infinity.
    fn exp2_whole(self, v: Self::F) -> Self::F;
    fn sum(self, v: Self::F) -> f32;
    fn largest(self, v: Self::F) -> f32;
    /// Whether any lane is above `bound`; NaN is not.
    #[inline(always)]
    fn any_above(self, v: Self::F, bound: f32) -> bool {
        self.largest(v) > bound
    }
    /// Prefetches the cache line of an address; any address is allowed.
    fn prefetch(self, address: *const u8);
}

/// A kernel: a struct of its operands.
pub(crate) trait Kernel {
    type Output;
    /// The body; must be `#[inline(always)]`.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Runs a kernel with the instructions of `level`, which this CPU must support.
pub(crate) fn dispatch<K: Kernel>(level: Level, kernel: K) -> K::Output {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => {
            debug_assert!(level.is_available());
            // SAFETY: the backend has checked that the level is available.
            unsafe { x86::avx2(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni | Level::Amx => {
            debug_assert!(level.is_available());
            // SAFETY: the backend has checked that the level is available.
            unsafe { x86::avx512(kernel) }
        }
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::NeonDotprod | Level::NeonI8mm => kernel.run(arm::Neon),
        _ => kernel.run(Portable),
    }
}

/// Eight lanes in plain Rust, which the compiler maps to the target's baseline instructions.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Portable {
    #[inline(always)]
    fn map(a: [f32; 8], b: [f32; 8], f: impl Fn(f32, f32) -> f32) -> [f32; 8] {
        std::array::from_fn(|i| f(a[i], b[i]))
    }
}

impl Lanes for Portable {
    type F = [f32; 8];
    const N: usize = 8;
    const TILE_ROWS: usize = 1;
    const DIRECT_ROWS: usize = 1;

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, v: Self::F, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::F {
        // SAFETY: guaranteed by the caller.
        let bits = unsafe { from.cast::<[u16; 8]>().read_unaligned() };
        bits.map(|b| half::f16::from_bits(b).to_f32_const())
    }
    #[inline(always)]
    unsafe fn store_f16(self, v: Self::F, to: *mut u16) {
        let bits = v.map(|x| half::f16::from_f32_const(x).to_bits());
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[u16; 8]>().write_unaligned(bits) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::F {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<[i8; 8]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; 8]
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self, v: Self::F) -> Self::F {
        // Adding and subtracting 1.5 * 2^23 removes the fraction, for |v| < 2^22.
        const SHIFT: f32 = 12_582_912.0;
        v.map(|x| (x + SHIFT) - SHIFT)
    }
    #[inline(always)]
    fn exp2_whole(self, v: Self::F) -> Self::F {
        v.map(|x| f32::from_bits(((x as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        v.iter().sum()
    }
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        v.iter().fold(f32::MIN, |a, &b| if b > a { b } else { a })
    }
    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Eight lanes of AVX2 with FMA and F16C, sixteen of AVX-512.
    //!
    //! SAFETY of every intrinsic here: a token of its level exists only inside `avx2` and `avx512` below, whose
    //! callers have detected the features.

    use std::arch::x86_64::*;

    use super::{Kernel, Lanes};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<K: Kernel>(kernel: K) -> K::Output {
        crate::x86::whole_lines();
        kernel.run(Avx2(()))
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub fn avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx512(()))
    }

    #[derive(Clone, Copy)]
    pub struct Avx2(());

    /// Implements methods that are one intrinsic each.
    macro_rules! intrinsics {
        ($($method:ident($($arg:ident),*) -> $out:ty = $call:expr;)*) => {$(
            #[inline(always)]
            fn $method(self, $($arg: Self::F),*) -> $out {
                // SAFETY: the token proves the level; see the head of this module.
                unsafe { $call }
            }
        )*};
    }

    impl Lanes for Avx2 {
        type F = __m256;
        const N: usize = 8;
        const TILE_ROWS: usize = 4;
        const DIRECT_ROWS: usize = usize::MAX;

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
        #[inline(always)]
        fn look_up(self, table: &[i8; 16], places: [u8; 16]) -> [i8; 16] {
            // SAFETY: the token proves the level; both have 16 bytes.
            unsafe {
                let table = _mm_loadu_si128(table.as_ptr().cast());
                let places = _mm_loadu_si128(places.as_ptr().cast());
                bytemuck::cast(_mm_shuffle_epi8(table, places))
            }
        }
        #[inline(always)]
        fn splat(self, x: f32) -> __m256 {
            // SAFETY: the token proves the level.
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        fn prefetch(self, address: *const u8) {
            // SAFETY: a prefetch of an address that is not mapped does nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        }
        #[inline(always)]
        fn any_above(self, v: __m256, bound: f32) -> bool {
            // SAFETY: the token proves the level.
            unsafe {
                let above = _mm256_cmp_ps::<_CMP_GT_OQ>(v, _mm256_set1_ps(bound));
                _mm256_movemask_ps(above) != 0
            }
        }
        intrinsics! {
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
    pub struct Avx512(());

    impl Lanes for Avx512 {
        type F = __m512;
        const N: usize = 16;
        const TILE_ROWS: usize = 8;
        const DIRECT_ROWS: usize = 8;

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
        #[inline(always)]
        fn look_up(self, table: &[i8; 16], places: [u8; 16]) -> [i8; 16] {
            // SAFETY: the token proves the level; both have 16 bytes.
            unsafe {
                let table = _mm_loadu_si128(table.as_ptr().cast());
                let places = _mm_loadu_si128(places.as_ptr().cast());
                bytemuck::cast(_mm_shuffle_epi8(table, places))
            }
        }
        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            // SAFETY: the token proves the level.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        fn prefetch(self, address: *const u8) {
            // SAFETY: a prefetch of an address that is not mapped does nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        }
        #[inline(always)]
        fn any_above(self, v: __m512, bound: f32) -> bool {
            // SAFETY: the token proves the level.
            unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(v, _mm512_set1_ps(bound)) != 0 }
        }
        intrinsics! {
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
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! Eight lanes of NEON in two vectors, which use as many registers as AVX2 has.

    use crate::neon::intrinsics::*;

    use super::Lanes;
    use crate::neon;

    /// No proof is needed: every 64-bit Arm CPU has NEON.
    #[derive(Clone, Copy)]
    pub struct Neon;

    /// Implements methods that are one expression for each of the two vectors.
    macro_rules! pairwise {
        ($($method:ident($($arg:ident),*) = $call:expr;)*) => {$(
            #[inline(always)]
            fn $method(self, $($arg: Self::F),*) -> Self::F {
                let one = |$($arg: float32x4_t),*| $call;
                [one($($arg[0]),*), one($($arg[1]),*)]
            }
        )*};
    }

    impl Lanes for Neon {
        type F = [float32x4_t; 2];
        const N: usize = 8;
        const TILE_ROWS: usize = 4;
        const DIRECT_ROWS: usize = 4;

        #[inline(always)]
        unsafe fn load(self, from: *const f32) -> Self::F {
            // SAFETY: guaranteed by the caller.
            unsafe { [vld1q_f32(from), vld1q_f32(from.add(4))] }
        }
        #[inline(always)]
        unsafe fn store(self, v: Self::F, to: *mut f32) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                vst1q_f32(to, v[0]);
                vst1q_f32(to.add(4), v[1]);
            }
        }
        #[inline(always)]
        unsafe fn load_f16(self, from: *const u16) -> Self::F {
            // SAFETY: guaranteed by the caller.
            let bits = unsafe { vld1q_u16(from) };
            [neon::f16x4(vget_low_u16(bits)), neon::f16x4(vget_high_u16(bits))]
        }
        #[inline(always)]
        unsafe fn store_f16(self, v: Self::F, to: *mut u16) {
            let [low, high] = v.map(|v| vreinterpret_u16_f16(vcvt_f16_f32(v)));
            // SAFETY: guaranteed by the caller.
            unsafe { vst1q_u16(to, vcombine_u16(low, high)) }
        }
        #[inline(always)]
        unsafe fn load_i8(self, from: *const i8) -> Self::F {
            // SAFETY: guaranteed by the caller.
            let wide = vmovl_s8(unsafe { vld1_s8(from) });
            [vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))]
        }
        #[inline(always)]
        fn look_up(self, table: &[i8; 16], places: [u8; 16]) -> [i8; 16] {
            // SAFETY: both have 16 bytes.
            let (table, places) = unsafe { (vld1q_s8(table.as_ptr()), vld1q_u8(places.as_ptr())) };
            let mut found = [0; 16];
            // SAFETY: it has 16 bytes.
            unsafe { vst1q_s8(found.as_mut_ptr(), vqtbl1q_s8(table, places)) };
            found
        }
        #[inline(always)]
        fn splat(self, x: f32) -> Self::F {
            [vdupq_n_f32(x); 2]
        }
        #[inline(always)]
        fn sum(self, v: Self::F) -> f32 {
            vaddvq_f32(vaddq_f32(v[0], v[1]))
        }
        #[inline(always)]
        fn largest(self, v: Self::F) -> f32 {
            vmaxnmvq_f32(vmaxnmq_f32(v[0], v[1]))
        }
        #[inline(always)]
        fn prefetch(self, address: *const u8) {
            neon::prefetch(address);
        }
        pairwise! {
            add(a, b) = vaddq_f32(a, b);
            sub(a, b) = vsubq_f32(a, b);
            mul(a, b) = vmulq_f32(a, b);
            div(a, b) = vdivq_f32(a, b);
            fma(a, b, c) = vfmaq_f32(c, a, b);
            // The NEON instructions of these names give NaN if either is.
            max(a, b) = vbslq_f32(vcgtq_f32(a, b), a, b);
            min(a, b) = vbslq_f32(vcltq_f32(a, b), a, b);
            round(v) = vrndnq_f32(v);
            exp2_whole(v) = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(
                vcvtq_s32_f32(v),
                vdupq_n_s32(127),
            )));
        }
    }
}
