//! 32 bytes with AVX2.

use std::arch::x86_64::*;

use super::{Bytes, Field, Flags, NarrowBytes, Points, Words, part, u32_at};

/// Shifts each byte right, or left if negative; bits of neighbours come in.
#[inline(always)]
fn shifted(bytes: __m256i, right: i32) -> __m256i {
    // SAFETY: called with AVX2 only, as all of this file.
    unsafe {
        match right {
            0 => bytes,
            1.. => _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(right)),
            _ => _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(-right)),
        }
    }
}

/// The bytes of a field for 32 weights, shifted right by `down` bits less than would bring them to bit 0.
#[inline(always)]
fn gather(block: &[u8], field: Field, first: usize, down: u32) -> __m256i {
    let ([at, shift], [next, above]) =
        (place(field, first), place(field, first + field.run.min(16)));
    // SAFETY: as above; the references cover the bytes loaded.
    unsafe {
        if next == at + 16 {
            let bytes = _mm256_loadu_si256(part::<32>(block, at).as_ptr().cast());
            return shifted(bytes, shift as i32 - down as i32);
        }
        // Both runs are in these bytes.
        assert!(down == 0 && next == at);
        let bytes = _mm256_castsi128_si256(_mm_loadu_si128(part::<16>(block, at).as_ptr().cast()));
        let bytes = match field.run {
            16 => _mm256_permute4x64_epi64::<0b01_00_01_00>(bytes),
            _ => _mm256_permute4x64_epi64::<0b01_01_00_00>(bytes),
        };
        let [a, b] = [shift as i64, above as i64];
        let shifts = match field.run {
            16 => _mm256_set_epi64x(b, b, a, a),
            _ => _mm256_set_epi64x(b, a, b, a),
        };
        _mm256_srlv_epi64(bytes, shifts)
    }
}

#[inline(always)]
fn place(field: Field, index: usize) -> [usize; 2] {
    let (at, shift) = field.place(index);
    [at, shift as usize]
}

#[inline(always)]
fn all(byte: u8) -> __m256i {
    // SAFETY: as above.
    unsafe { _mm256_set1_epi8(byte.cast_signed()) }
}

impl Bytes for __m256i {
    const WIDTH: usize = 32;

    #[inline(always)]
    fn store(self, to: &mut [u8]) {
        let to: &mut [u8; 32] = to.try_into().expect("a vector's bytes");
        // SAFETY: as above; the reference covers the bytes.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), self) }
    }

    #[inline(always)]
    fn codes(block: &[u8], field: Field, first: usize) -> Self {
        let bytes = gather(block, field, first, 0);
        // SAFETY: as above.
        if field.bits == 8 { bytes } else { unsafe { _mm256_and_si256(bytes, all(field.mask())) } }
    }

    #[inline(always)]
    fn join(self, block: &[u8], field: Field, first: usize, low: u32) -> Self {
        let bits = gather(block, field, first, low);
        // SAFETY: as above.
        unsafe { _mm256_or_si256(self, _mm256_and_si256(bits, all(field.mask() << low))) }
    }

    #[inline(always)]
    fn look_up(self, values: &[u8; 16]) -> Self {
        // SAFETY: as above; the reference covers the 16 bytes.
        unsafe {
            let values = _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast()));
            _mm256_shuffle_epi8(values, self)
        }
    }

    #[inline(always)]
    fn flip(self, mask: u8) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_xor_si256(self, all(mask)) }
    }

    #[inline(always)]
    fn eights<P: Points>(block: &[u8], first: usize) -> Self {
        let first = first / 8;
        let [a, b] = [P::eight(block, first), P::eight(block, first + 1)];
        let [c, d] = [P::eight(block, first + 2), P::eight(block, first + 3)];
        let [a, b, c, d] = [a, b, c, d].map(u64::cast_signed);
        // SAFETY: as above.
        unsafe { _mm256_set_epi64x(d, c, b, a) }
    }

    #[inline(always)]
    fn sixteens<'a>(sixteen: impl Fn(usize) -> &'a [u8; 16]) -> Self {
        // SAFETY: as above; the references cover the bytes.
        unsafe { _mm256_loadu2_m128i(sixteen(1).as_ptr().cast(), sixteen(0).as_ptr().cast()) }
    }

    #[inline(always)]
    fn digits(self, powers: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            let low = _mm256_set1_epi16(0xff);
            // A word's product with a power has the upper byte's product in its upper byte, if the lower is zero.
            let even =
                _mm256_mullo_epi16(_mm256_and_si256(self, low), _mm256_and_si256(powers, low));
            let odd =
                _mm256_mullo_epi16(_mm256_andnot_si256(low, self), _mm256_and_si256(powers, low));
            let even = _mm256_mulhi_epu16(_mm256_and_si256(even, low), _mm256_set1_epi16(3 << 8));
            let odd = _mm256_mulhi_epu16(odd, _mm256_set1_epi16(3));
            _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd))
        }
    }
}

impl NarrowBytes for __m256i {
    #[inline(always)]
    fn centred(self, signs: &[u32; 8], first: usize, zero: u8) -> Self {
        // SAFETY: as above.
        unsafe {
            let negative = spread_bits(signs[first / 32]);
            // -x = !x + 1
            let signed = _mm256_sub_epi8(_mm256_xor_si256(self, negative), negative);
            _mm256_add_epi8(signed, all(zero))
        }
    }

    #[inline(always)]
    fn flag(self, block: &[u8], flags: Flags, _first: usize) -> Self {
        // SAFETY: as above.
        unsafe {
            let set = spread_bits(u32_at(block, flags.at));
            _mm256_or_si256(self, _mm256_and_si256(set, all(flags.value)))
        }
    }
}

/// All bits of byte i from bit i.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn spread_bits(bits: u32) -> __m256i {
    // Byte i / 8 for byte i, then its own bit.
    let spread =
        _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let bits = _mm256_shuffle_epi8(_mm256_set1_epi32(bits.cast_signed()), spread);
    _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit), bit)
}

impl Words for __m256i {
    intrinsics! {
        all(word: u32) = _mm256_set1_epi32(word.cast_signed());
        and(self, mask: u32) = _mm256_and_si256(self, _mm256_set1_epi32(mask.cast_signed()));
        or(self, other: Self) = _mm256_or_si256(self, other);
        shl(self, bits: u32) = _mm256_sll_epi32(self, _mm_cvtsi32_si128(bits.cast_signed()));
        shr(self, bits: u32) = _mm256_srl_epi32(self, _mm_cvtsi32_si128(bits.cast_signed()));
    }
}
