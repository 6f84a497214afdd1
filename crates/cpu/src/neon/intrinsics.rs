//! NEON arithmetic as safe functions, one line per intrinsic in use.
//!
//! The standard library requires `unsafe` wherever a function does not enable the feature, and trait methods cannot
//! enable one. The check is done once here: nothing is compiled for a CPU without NEON.

pub(crate) use std::arch::aarch64::{
    float16x4_t, float32x4_t, float64x2_t, int8x8_t, int8x16_t, int16x4_t, int16x8_t, int32x2_t,
    int32x4_t, uint8x8_t, uint8x16_t, uint8x16x4_t, uint16x4_t, uint16x8_t, uint32x4_t, uint64x2_t,
};
pub(crate) use std::arch::aarch64::{
    vld1_s8, vld1_s32, vld1_u16, vld1q_dup_s32, vld1q_f32, vld1q_s8, vld1q_u8, vld1q_u8_x4,
    vld1q_u16, vst1q_f32, vst1q_u8, vst1q_u16,
};

#[cfg(not(target_feature = "neon"))]
compile_error!("64-bit Arm without NEON is not supported");

/// Wraps intrinsics that only compute.
macro_rules! safe {
    ($($name:ident $(<$bits:ident>)? ($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        #[inline(always)]
        pub(crate) fn $name $(<const $bits: i32>)? ($($arg: $ty),*) -> $out {
            // SAFETY: the target has NEON, and the intrinsic touches no memory.
            unsafe { std::arch::aarch64::$name $(::<$bits>)? ($($arg),*) }
        }
    )*};
}

safe! {
    vaddq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vaddq_s32(a: int32x4_t, b: int32x4_t) -> int32x4_t;
    vaddq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vaddvq_f32(a: float32x4_t) -> f32;
    vaddvq_s32(a: int32x4_t) -> i32;
    vandq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vbslq_f32(a: uint32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t;
    vcgeq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vcgtq_f32(a: float32x4_t, b: float32x4_t) -> uint32x4_t;
    vcltq_f32(a: float32x4_t, b: float32x4_t) -> uint32x4_t;
    vcombine_s32(a: int32x2_t, b: int32x2_t) -> int32x4_t;
    vcombine_s8(a: int8x8_t, b: int8x8_t) -> int8x16_t;
    vcombine_u16(a: uint16x4_t, b: uint16x4_t) -> uint16x8_t;
    vcombine_u8(a: uint8x8_t, b: uint8x8_t) -> uint8x16_t;
    vcreate_s8(a: u64) -> int8x8_t;
    vcreate_u8(a: u64) -> uint8x8_t;
    vcvt_f16_f32(a: float32x4_t) -> float16x4_t;
    vcvt_f32_f16(a: float16x4_t) -> float32x4_t;
    vcvtq_f32_s32(a: int32x4_t) -> float32x4_t;
    vcvtq_s32_f32(a: float32x4_t) -> int32x4_t;
    vdivq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vdup_n_u8(value: u8) -> uint8x8_t;
    vdupq_n_f32(value: f32) -> float32x4_t;
    vdupq_n_s16(value: i16) -> int16x8_t;
    vdupq_n_s32(value: i32) -> int32x4_t;
    vdupq_n_s8(value: i8) -> int8x16_t;
    vdupq_n_u8(value: u8) -> uint8x16_t;
    veorq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vfmaq_f32(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t;
    vfmaq_n_f32(a: float32x4_t, b: float32x4_t, c: f32) -> float32x4_t;
    vfmsq_f32(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t;
    vget_high_u16(a: uint16x8_t) -> uint16x4_t;
    vget_low_s16(a: int16x8_t) -> int16x4_t;
    vget_low_s8(a: int8x16_t) -> int8x8_t;
    vget_low_u16(a: uint16x8_t) -> uint16x4_t;
    vmaxnmq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vmaxnmvq_f32(a: float32x4_t) -> f32;
    vmlal_high_s8(a: int16x8_t, b: int8x16_t, c: int8x16_t) -> int16x8_t;
    vmlal_s8(a: int16x8_t, b: int8x8_t, c: int8x8_t) -> int16x8_t;
    vmlaq_laneq_s32 <LANE> (a: int32x4_t, b: int32x4_t, c: int32x4_t) -> int32x4_t;
    vmovl_high_s16(a: int16x8_t) -> int32x4_t;
    vmovl_high_s8(a: int8x16_t) -> int16x8_t;
    vmovl_s16(a: int16x4_t) -> int32x4_t;
    vmovl_s8(a: int8x8_t) -> int16x8_t;
    vmovl_u16(a: uint16x4_t) -> uint32x4_t;
    vmull_s8(a: int8x8_t, b: int8x8_t) -> int16x8_t;
    vmulq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vmulq_n_f32(a: float32x4_t, b: f32) -> float32x4_t;
    vmulq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vorrq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vpadalq_s16(a: int32x4_t, b: int16x8_t) -> int32x4_t;
    vpaddq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vpaddq_s16(a: int16x8_t, b: int16x8_t) -> int16x8_t;
    vpaddq_s32(a: int32x4_t, b: int32x4_t) -> int32x4_t;
    vqtbl1q_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vreinterpret_f16_u16(a: uint16x4_t) -> float16x4_t;
    vreinterpret_u16_f16(a: float16x4_t) -> uint16x4_t;
    vreinterpretq_f32_f64(a: float64x2_t) -> float32x4_t;
    vreinterpretq_f32_s32(a: int32x4_t) -> float32x4_t;
    vreinterpretq_f32_u32(a: uint32x4_t) -> float32x4_t;
    vreinterpretq_f32_u8(a: uint8x16_t) -> float32x4_t;
    vreinterpretq_f64_f32(a: float32x4_t) -> float64x2_t;
    vreinterpretq_s32_f32(a: float32x4_t) -> int32x4_t;
    vreinterpretq_s8_s32(a: int32x4_t) -> int8x16_t;
    vreinterpretq_s8_u8(a: uint8x16_t) -> int8x16_t;
    vreinterpretq_u16_u8(a: uint8x16_t) -> uint16x8_t;
    vreinterpretq_u64_u8(a: uint8x16_t) -> uint64x2_t;
    vreinterpretq_u8_f32(a: float32x4_t) -> uint8x16_t;
    vreinterpretq_u8_u64(a: uint64x2_t) -> uint8x16_t;
    vqtbl4q_u8(a: uint8x16x4_t, b: uint8x16_t) -> uint8x16_t;
    vrndnq_f32(a: float32x4_t) -> float32x4_t;
    vshlq_n_s32 <N> (a: int32x4_t) -> int32x4_t;
    vshlq_n_u32 <N> (a: uint32x4_t) -> uint32x4_t;
    vshlq_u8(a: uint8x16_t, b: int8x16_t) -> uint8x16_t;
    vsubq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vsubq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vtrn1q_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vtrn1q_f64(a: float64x2_t, b: float64x2_t) -> float64x2_t;
    vtrn2q_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vtrn2q_f64(a: float64x2_t, b: float64x2_t) -> float64x2_t;
    vtstq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vuzp1q_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vuzp2q_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vzip1_s32(a: int32x2_t, b: int32x2_t) -> int32x2_t;
    vzip1q_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vzip1q_u64(a: uint64x2_t, b: uint64x2_t) -> uint64x2_t;
    vzip2_s32(a: int32x2_t, b: int32x2_t) -> int32x2_t;
    vzip2q_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vzip2q_u64(a: uint64x2_t, b: uint64x2_t) -> uint64x2_t;
}
