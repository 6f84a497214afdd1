//! 64 bytes with AVX-512.

use std::arch::x86_64::*;

use super::{Bytes, Field, Points, Words, part};
use crate::x86::{field as matrix, fields};

/// The matrix that picks `bits` bits from bit `shift` on, at `[shift][bits]`.
const MATRICES: [[i64; 9]; 8] = {
    let (mut table, mut shift) = ([[0; 9]; 8], 0);
    while shift < 8 {
        let mut bits = 0;
        while bits <= 8 - shift {
            table[shift as usize][bits as usize] = matrix(shift, bits);
            bits += 1;
        }
        shift += 1;
    }
    table
};

/// Places of the field of two times 32 weights.
#[inline(always)]
fn places(field: Field, first: usize) -> [(usize, usize); 2] {
    [first, first + 32].map(|index| {
        let (at, shift) = field.place(index);
        (at, shift as usize)
    })
}

/// 32 bytes each from two places.
#[inline(always)]
fn load(block: &[u8], a: usize, b: usize) -> __m512i {
    // SAFETY: called with AVX-512 only, as all of this file; the references cover the bytes.
    unsafe {
        if b == a + 32 {
            return _mm512_loadu_si512(part::<64>(block, a).as_ptr().cast());
        }
        let low = _mm256_loadu_si256(part::<32>(block, a).as_ptr().cast());
        if b == a {
            return _mm512_broadcast_i64x4(low);
        }
        let high = _mm256_loadu_si256(part::<32>(block, b).as_ptr().cast());
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }
}

#[inline(always)]
fn halves(a: i64, b: i64) -> __m512i {
    // SAFETY: as above.
    unsafe { _mm512_set_epi64(b, b, b, b, a, a, a, a) }
}

impl Bytes for __m512i {
    const WIDTH: usize = 64;

    #[inline(always)]
    fn store(self, to: &mut [u8]) {
        let to: &mut [u8; 64] = to.try_into().expect("a vector's bytes");
        // SAFETY: as above; the reference covers the bytes.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), self) }
    }

    #[inline(always)]
    fn codes(block: &[u8], field: Field, first: usize) -> Self {
        assert!(field.run >= 32, "shorter runs have no kernel of 64 bytes");
        let [(a, low), (b, high)] = places(field, first);
        // SAFETY: as above.
        unsafe {
            let bytes = load(block, a, b);
            if field.bits == 8 {
                bytes
            } else if low == 0 && high == 0 {
                _mm512_and_si512(bytes, _mm512_set1_epi8(field.mask().cast_signed()))
            } else {
                let [a, b] = [low, high].map(|shift| MATRICES[shift][field.bits as usize]);
                fields(bytes, [a, a, a, a, b, b, b, b])
            }
        }
    }

    #[inline(always)]
    fn join(self, block: &[u8], field: Field, first: usize, low: u32) -> Self {
        let [(a, shift), (b, above)] = places(field, first);
        // Left rotations of 64 bits that move the bits to bit `low`.
        let [turn, next] = [shift, above].map(|shift| (64 + low as i64 - shift as i64) % 64);
        // SAFETY: as above.
        unsafe {
            let turned = _mm512_rolv_epi64(load(block, a, b), halves(turn, next));
            let mask = _mm512_set1_epi8((field.mask() << low).cast_signed());
            // self | turned & mask
            _mm512_ternarylogic_epi64::<0xf8>(self, turned, mask)
        }
    }

    #[inline(always)]
    fn look_up(self, values: &[u8; 16]) -> Self {
        // SAFETY: as above; the reference covers the 16 bytes.
        unsafe {
            let values = _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast()));
            _mm512_shuffle_epi8(values, self)
        }
    }

    #[inline(always)]
    fn flip(self, mask: u8) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_xor_si512(self, _mm512_set1_epi8(mask.cast_signed())) }
    }

    #[inline(always)]
    fn eights<P: Points>(block: &[u8], first: usize) -> Self {
        let first = first / 8;
        let [a, b] = [P::eight(block, first), P::eight(block, first + 1)];
        let [c, d] = [P::eight(block, first + 2), P::eight(block, first + 3)];
        let [e, f] = [P::eight(block, first + 4), P::eight(block, first + 5)];
        let [g, h] = [P::eight(block, first + 6), P::eight(block, first + 7)];
        let [a, b, c, d] = [a, b, c, d].map(u64::cast_signed);
        let [e, f, g, h] = [e, f, g, h].map(u64::cast_signed);
        // SAFETY: as above.
        unsafe { _mm512_set_epi64(h, g, f, e, d, c, b, a) }
    }

    #[inline(always)]
    fn sixteens<'a>(sixteen: impl Fn(usize) -> &'a [u8; 16]) -> Self {
        let [a, b, c, d] = [sixteen(0), sixteen(1), sixteen(2), sixteen(3)];
        // SAFETY: as above; the references cover the bytes.
        unsafe {
            let low = _mm256_loadu2_m128i(b.as_ptr().cast(), a.as_ptr().cast());
            let high = _mm256_loadu2_m128i(d.as_ptr().cast(), c.as_ptr().cast());
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    }

    #[inline(always)]
    fn digits(self, powers: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            let low = _mm512_set1_epi16(0xff);
            let powers = _mm512_and_si512(powers, low);
            let even = _mm512_mullo_epi16(_mm512_and_si512(self, low), powers);
            let odd = _mm512_mullo_epi16(_mm512_andnot_si512(low, self), powers);
            let even = _mm512_mulhi_epu16(_mm512_and_si512(even, low), _mm512_set1_epi16(3 << 8));
            let odd = _mm512_mulhi_epu16(odd, _mm512_set1_epi16(3));
            _mm512_or_si512(even, _mm512_slli_epi16::<8>(odd))
        }
    }
}

impl Words for __m512i {
    intrinsics! {
        all(word: u32) = _mm512_set1_epi32(word.cast_signed());
        and(self, mask: u32) = _mm512_and_si512(self, _mm512_set1_epi32(mask.cast_signed()));
        or(self, other: Self) = _mm512_or_si512(self, other);
        shl(self, bits: u32) = _mm512_sll_epi32(self, _mm_cvtsi32_si128(bits.cast_signed()));
        shr(self, bits: u32) = _mm512_srl_epi32(self, _mm_cvtsi32_si128(bits.cast_signed()));
    }
}
