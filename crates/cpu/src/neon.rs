//! NEON instructions shared by several modules that the standard library lacks, has only unstably, or only for
//! pointers.
//!
//! NEON itself is part of every 64-bit Arm CPU, so its arithmetic is safe everywhere ([`intrinsics`]). Integer dot
//! products and matrix products are not: their functions enable the feature, and only a detected level calls them.

use std::arch::asm;

use intrinsics::*;

pub(crate) mod intrinsics;

/// Prefetches the cache line of an address into the first-level cache; any address is allowed.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: a prefetch of an address that is not mapped does nothing.
    unsafe {
        asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Prefetches the cache line of an address into the second-level cache.
#[inline(always)]
pub(crate) fn prefetch_outer(address: *const u8) {
    // SAFETY: as above.
    unsafe {
        asm!("prfm pldl2keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Adds the four products of each lane's bytes to the lane: SDOT.
#[inline]
#[target_feature(enable = "dotprod")]
pub(crate) fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction reads and writes the named registers only, and is enabled above.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// [`sdot`] with one lane of four bytes for all: the bits of `four`, a float so that it is loaded into a vector
/// register.
#[inline]
#[target_feature(enable = "dotprod")]
pub(crate) fn sdot_four(mut sums: int32x4_t, a: int8x16_t, four: f32) -> int32x4_t {
    // SAFETY: as above.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {a:v}.16b, {four:v}.4b[0]",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            four = in(vreg) four,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Adds a `[2, 8]` x b `[2, 8]` transposed to the sums `[2, 2]`: SMMLA.
#[inline]
#[target_feature(enable = "i8mm")]
pub(crate) fn smmla(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: as above.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Four f16 numbers from their bits.
#[inline(always)]
pub(crate) fn f16x4(bits: uint16x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(bits))
}

/// 16 bytes.
#[inline(always)]
pub(crate) fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the reference covers the 16 bytes; the load needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// 64 bytes, as the table of a lookup.
#[inline(always)]
pub(crate) fn load_64(bytes: &[i8; 64]) -> uint8x16x4_t {
    // SAFETY: the reference covers the 64 bytes; the load needs no alignment.
    unsafe { vld1q_u8_x4(bytes.as_ptr().cast()) }
}

/// Four floats.
#[inline(always)]
pub(crate) fn load_floats(values: &[f32; 4]) -> float32x4_t {
    // SAFETY: the reference covers the four floats.
    unsafe { vld1q_f32(values.as_ptr()) }
}

/// Stores four floats.
#[inline(always)]
pub(crate) fn store_floats(to: &mut [f32; 4], values: float32x4_t) {
    // SAFETY: the reference covers the four floats.
    unsafe { vst1q_f32(to.as_mut_ptr(), values) }
}
