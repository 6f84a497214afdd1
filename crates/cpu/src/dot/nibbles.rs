//! Unpacking shared by the types with blocks of 32 weights as nibbles 16 apart: Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL and
//! MXFP4.
//!
//! `block` is the size of a block, `at` the offset of its 16 bytes of nibbles: weight i in the low, weight 16 + i in
//! the high nibble.

/// The code of weight `i` of a quad.
pub fn code(quad: &[u8], block: usize, at: usize, i: usize) -> u8 {
    quad[i / 32 * block + at + i % 16] >> (i / 16 % 2 * 4) & 15
}

/// The fifth bit of weight `i` of a quad, as bit 4; each block has 32 of them at `at`.
pub fn fifth(quad: &[u8], block: usize, at: usize, i: usize) -> u8 {
    (quad[i / 32 * block + at + i % 32 / 8] >> (i % 8) & 1) << 4
}

#[cfg(target_arch = "x86_64")]
pub use x86::*;

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Unpacking in whole vectors.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, part};
    use crate::x86::{field, fields};

    /// The codes of a quad.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn codes_256(quad: &[u8], block: usize, at: usize) -> [__m256i; 4] {
        let shifts = _mm256_set_epi64x(4, 4, 0, 0);
        [0, 1, 2, 3].map(|b| {
            let bytes = avx2::load_twice(quad, b * block + at);
            _mm256_and_si256(_mm256_srlv_epi64(bytes, shifts), _mm256_set1_epi8(15))
        })
    }

    /// The fifth bits of a quad.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn fifths_256(quad: &[u8], block: usize, at: usize) -> [__m256i; 4] {
        // Byte i / 8 of the bits for weight i, masked to its own bit.
        let spread = _mm256_set_epi64x(
            0x0303_0303_0303_0303,
            0x0202_0202_0202_0202,
            0x0101_0101_0101_0101,
            0,
        );
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
        [0, 1, 2, 3].map(|b| {
            let bits = _mm256_set1_epi32(i32::from_le_bytes(*part(quad, b * block + at)));
            let own = _mm256_and_si256(_mm256_shuffle_epi8(bits, spread), bit);
            _mm256_and_si256(_mm256_cmpeq_epi8(own, bit), _mm256_set1_epi8(16))
        })
    }

    /// The byte order that `codes_512` reads from 64 bytes: the nibbles of two blocks, at `a` and `b`, twice each.
    pub const fn order(a: usize, b: usize) -> [u8; 64] {
        let mut order = [0; 64];
        let mut i = 0;
        while i < 64 {
            let start = if i < 32 { a } else { b };
            order[i] = (start + i % 16) as u8;
            i += 1;
        }
        order
    }

    /// The codes of two blocks: each 16 bytes twice, the second copy shifted by four.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    pub fn codes_512(bytes: __m512i, order: &[u8; 64]) -> __m512i {
        const LOW: i64 = field(0, 4);
        const HIGH: i64 = field(4, 4);
        let ordered = _mm512_permutexvar_epi8(avx512::table(order), bytes);
        fields(ordered, [LOW, LOW, HIGH, HIGH, LOW, LOW, HIGH, HIGH])
    }

    /// The codes of two blocks with their fifth bits.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn with_fifths_512(codes: __m512i, low: [u8; 4], high: [u8; 4]) -> __m512i {
        let bits = u64::from(u32::from_le_bytes(low)) | u64::from(u32::from_le_bytes(high)) << 32;
        _mm512_mask_add_epi8(codes, bits, codes, _mm512_set1_epi8(16))
    }
}

#[cfg(target_arch = "aarch64")]
pub use arm::*;

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::neon;

    /// The codes of a quad.
    #[inline(always)]
    pub fn codes(quad: &[u8], block: usize, at: usize) -> [uint8x16_t; 8] {
        std::array::from_fn(|i| {
            let bytes = neon::load(quad, i / 2 * block + at);
            if i % 2 == 0 { vandq_u8(bytes, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(bytes) }
        })
    }

    /// The codes of a quad with their fifth bits, 32 in the four bytes at `at` of each block.
    #[inline(always)]
    pub fn with_fifths(
        codes: [uint8x16_t; 8],
        quad: &[u8],
        block: usize,
        at: usize,
    ) -> [uint8x16_t; 8] {
        let own = vcreate_u8(0x8040_2010_0804_0201);
        let own = vcombine_u8(own, own);
        std::array::from_fn(|i| {
            let at = i / 2 * block + at + i % 2 * 2;
            let bits = vcombine_u8(vdup_n_u8(quad[at]), vdup_n_u8(quad[at + 1]));
            vorrq_u8(codes[i], vandq_u8(vtstq_u8(bits, own), vdupq_n_u8(16)))
        })
    }
}
