//! IQ4_XS: codes of four bits with a codebook; scales of four bits and two, biased by 32.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::mem::offset_of;

use bilayer_quant::iq4_nl::CODEBOOK;
use bilayer_quant::iq4_xs::Block;

use super::grids::spread_nibbles;
use super::{Quads, ScaleBits, Scales, Sign, SuperBlock, Values, lifted};
#[cfg(target_arch = "x86_64")]
use crate::bytes::u16_at;
use crate::bytes::{Field, Words, f16_at, u32_at};

pub(crate) struct Iq4Xs;

const CODES: Field = Field { at: offset_of!(Block, quants), bits: 4, run: 16 };

impl SuperBlock for Iq4Xs {
    const BYTES: usize = size_of::<Block>();
    const CODES: &[Field] = &[CODES];
    const BOOK: Option<[u8; 16]> = Some(lifted(&CODEBOOK, 0));
    const SIGN: Sign = Sign::Code;
    const HIGHEST: u8 = 113;
    const GROUP: usize = 32;
    const SCALE_ZERO: u8 = 32;
    const D: usize = offset_of!(Block, d);

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        let [head, low, ..] = words(0);
        // The two high bits of four scales, to bits 4 and 5 of a byte each.
        let high = |four: W| {
            let pairs = four.or(four.shl(12)).and(0x000f_000f);
            pairs.or(pairs.shl(6)).and(0x0303_0303).shl(4)
        };
        let [a, b] = spread_nibbles(low);
        let (c, d) = (high(head.shr(16).and(0xff)), high(head.shr(24)));
        Scales::only([a.or(c), b.or(d), W::all(0), W::all(0)])
    }

    /// From words it takes 13 % more time, through bytes 3 % (AVX2, Zen 5, in cache).
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn scales_256(block: &[u8]) -> Option<__m256i> {
        // SAFETY: called with AVX2 only.
        unsafe {
            let low = _mm_cvtsi32_si128(u32_at(block, 4).cast_signed());
            let nibbles = _mm_unpacklo_epi8(low, _mm_srli_epi16::<4>(low));
            let low = _mm_cvtepu8_epi16(_mm_and_si128(nibbles, _mm_set1_epi8(15)));
            // The two high bits of scale p, at bit 2 p, moved to bits 14 and 15, then to 4 and 5.
            let high = _mm_set1_epi16(u16_at(block, 2).cast_signed());
            let up = _mm_set_epi16(1, 1 << 2, 1 << 4, 1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14);
            let high = _mm_srli_epi16::<14>(_mm_mullo_epi16(high, up));
            let scales = _mm_or_si128(low, _mm_slli_epi16::<4>(high));
            let scales = _mm_sub_epi16(scales, _mm_set1_epi16(32));
            Some(_mm256_broadcastsi128_si256(scales))
        }
    }
}

impl Quads for Iq4Xs {
    const WEIGHTS: usize = 256;
    const BLOCK: usize = size_of::<Block>();
    const QUADS: usize = 2;
    const CODES: Field = CODES;
    const VALUES: Values = Values::Book(&CODEBOOK, 0x80);
    const HIGHEST: u8 = 241;
    const SCALES: ScaleBits = ScaleBits::Computed;

    #[inline(always)]
    fn computed(blocks: &[u8]) -> [f32; 8] {
        let words = |at| [0, 4, 8, 12].map(|word| u32_at(blocks, at + word));
        let [low, high, ..] = <Self as SuperBlock>::scales(words).scales;
        let scales: [u8; 8] = bytemuck::cast([low, high]);
        let d = f16_at(blocks, 0);
        scales.map(|scale| d * f32::from(i16::from(scale) - i16::from(Self::SCALE_ZERO)))
    }

    /// As an array it takes 20 % more time with AVX-VNNI, 75 % at 512 bits (Zen 5, in cache).
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn computed_256(block: &[u8]) -> __m256 {
        // SAFETY: called with AVX2 only.
        unsafe {
            let low = _mm256_set1_epi32(u32_at(block, 4).cast_signed());
            let low = _mm256_srlv_epi32(low, _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0));
            let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
            // The two high bits of each are at 2 p and must become bits 4 and 5.
            let high = _mm256_set1_epi32(i32::from(u16_at(block, 2)) << 4);
            let high = _mm256_srlv_epi32(high, _mm256_set_epi32(14, 12, 10, 8, 6, 4, 2, 0));
            let high = _mm256_and_si256(high, _mm256_set1_epi32(0x30));
            let scales = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
            let d = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16_at(block, 0))));
            _mm256_mul_ps(_mm256_broadcastss_ps(d), _mm256_cvtepi32_ps(scales))
        }
    }
}
