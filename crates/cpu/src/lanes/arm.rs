//! Eight lanes of NEON in two vectors, which use as many registers as AVX2 has.

use crate::neon::intrinsics::*;

use super::{Lanes, Transform};
use crate::neon;

/// No proof is needed: every 64-bit Arm CPU has NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

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
    type Bytes = uint8x16_t;
    const N: usize = 8;
    const TILE_ROWS: usize = 4;
    const DIRECT_ROWS: usize = 4;

    #[inline(never)]
    unsafe fn enter<T: Transform>(kernel: T, out: &mut T::Out) {
        kernel.run(Neon, out);
    }
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
    fn read_bf16(self, from: &[u8]) -> Self::F {
        let bits = neon::load(from.first_chunk().expect("eight values"));
        let bits = vreinterpretq_u16_u8(bits);
        let wide = [vmovl_u16(vget_low_u16(bits)), vmovl_u16(vget_high_u16(bits))];
        wide.map(|wide| vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide)))
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
