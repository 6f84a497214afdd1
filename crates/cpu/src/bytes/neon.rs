//! 16 bytes with NEON.

use crate::neon::intrinsics::*;

use super::{Bytes, Field, Flags, NarrowBytes, Points, part};

/// Shifts each byte right, or left if negative.
#[inline(always)]
fn shifted(bytes: uint8x16_t, right: i32) -> uint8x16_t {
    if right == 0 { bytes } else { vshlq_u8(bytes, vdupq_n_s8(-right as i8)) }
}

#[inline(always)]
fn gather(block: &[u8], field: Field, first: usize, down: u32) -> uint8x16_t {
    let (at, shift) = field.place(first);
    if field.run >= 16 {
        return shifted(crate::neon::load(part(block, at)), shift as i32 - down as i32);
    }
    // Eight bytes hold two runs: a copy for each.
    let bytes = vcreate_u8(u64::from_le_bytes(*part(block, at)));
    let (_, above) = field.place(first + field.run);
    let down = |shift: u32| vcreate_s8(0x0101_0101_0101_0101 * u64::from((-(shift as i8)) as u8));
    vshlq_u8(vcombine_u8(bytes, bytes), vcombine_s8(down(shift), down(above)))
}

impl Bytes for uint8x16_t {
    const WIDTH: usize = 16;

    #[inline(always)]
    fn store(self, to: &mut [u8]) {
        let to: &mut [u8; 16] = to.try_into().expect("a vector's bytes");
        // SAFETY: the reference covers the bytes.
        unsafe { vst1q_u8(to.as_mut_ptr(), self) }
    }

    #[inline(always)]
    fn codes(block: &[u8], field: Field, first: usize) -> Self {
        let bytes = gather(block, field, first, 0);
        if field.bits == 8 { bytes } else { vandq_u8(bytes, vdupq_n_u8(field.mask())) }
    }

    #[inline(always)]
    fn join(self, block: &[u8], field: Field, first: usize, low: u32) -> Self {
        let bits = gather(block, field, first, low);
        vorrq_u8(self, vandq_u8(bits, vdupq_n_u8(field.mask() << low)))
    }

    #[inline(always)]
    fn look_up(self, values: &[u8; 16]) -> Self {
        vqtbl1q_u8(crate::neon::load(values), self)
    }

    #[inline(always)]
    fn flip(self, mask: u8) -> Self {
        veorq_u8(self, vdupq_n_u8(mask))
    }

    #[inline(always)]
    fn eights<P: Points>(block: &[u8], first: usize) -> Self {
        let (low, high) = (P::eight(block, first / 8), P::eight(block, first / 8 + 1));
        vcombine_u8(vcreate_u8(low), vcreate_u8(high))
    }

    #[inline(always)]
    fn sixteens<'a>(sixteen: impl Fn(usize) -> &'a [u8; 16]) -> Self {
        crate::neon::load(sixteen(0))
    }

    #[inline(always)]
    fn digits(self, powers: Self) -> Self {
        // A fraction from one or two thirds on.
        let bytes = vmulq_u8(self, powers);
        let [one, two] = [86, 171].map(|bound| vcgeq_u8(bytes, vdupq_n_u8(bound)));
        vsubq_u8(vdupq_n_u8(0), vaddq_u8(one, two))
    }
}

impl NarrowBytes for uint8x16_t {
    #[inline(always)]
    fn centred(self, signs: &[u32; 8], first: usize, zero: u8) -> Self {
        let [a, b, c, d] = signs[first / 32].to_le_bytes();
        let negative = spread_bits(if first.is_multiple_of(32) { [a, b] } else { [c, d] });
        // -x = !x + 1
        vaddq_u8(vsubq_u8(veorq_u8(self, negative), negative), vdupq_n_u8(zero))
    }

    #[inline(always)]
    fn flag(self, block: &[u8], flags: Flags, first: usize) -> Self {
        let [low, high] = *part(block, flags.at + first / 8);
        vorrq_u8(self, vandq_u8(spread_bits([low, high]), vdupq_n_u8(flags.value)))
    }
}

/// All bits of byte i from bit i.
#[inline(always)]
pub(crate) fn spread_bits([low, high]: [u8; 2]) -> uint8x16_t {
    let own = vcreate_u8(0x8040_2010_0804_0201);
    vtstq_u8(vcombine_u8(vdup_n_u8(low), vdup_n_u8(high)), vcombine_u8(own, own))
}
