//! Q3_K: codes of two bits and one; scales of four bits and two, biased by 32.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::mem::offset_of;

use bilayer_quant::q3_k::Block;

use super::{Scales, SuperBlock};
#[cfg(target_arch = "x86_64")]
use crate::bytes::part;
use crate::bytes::{Field, Words};
#[cfg(target_arch = "x86_64")]
use crate::level::Level;

pub(crate) struct Q3K;

impl SuperBlock for Q3K {
    const BYTES: usize = size_of::<Block>();
    const CODES: &[Field] = &[
        Field { at: offset_of!(Block, quants), bits: 2, run: 32 },
        Field { at: offset_of!(Block, high), bits: 1, run: 32 },
    ];
    const ZERO: u8 = 4;
    const HIGHEST: u8 = 7;
    const GROUP: usize = 16;
    const SCALE_ZERO: u8 = 32;
    const D: usize = offset_of!(Block, d);

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        // Nibbles of eight bytes, then two bits of each from four more.
        let [_, a, b, c] = words(offset_of!(Block, scales) - 4);
        let six = |low: W, high: W| low.and(0x0f0f_0f0f).or(high.and(0x3030_3030));
        Scales::only([
            six(a, c.shl(4)),
            six(b, c.shl(2)),
            six(a.shr(4), c),
            six(b.shr(4), c.shr(2)),
        ])
    }

    /// From words it takes 11 % more time with AVX-512, one column, and 3 % with AVX2 (Zen 4, in cache).
    #[cfg(target_arch = "x86_64")]
    const NUMBERS_AT: &[Level] = &[Level::Avx2, Level::AvxVnni, Level::Avx512Vnni];

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn numbers(block: &[u8]) -> [__m128i; 2] {
        // SAFETY: called with AVX2 only; the reference covers the bytes.
        unsafe {
            // The last 16 bytes of a block: two of codes, twelve of scales, two of the block's scale.
            let tail = _mm_loadu_si128(part::<16>(block, Self::BYTES - 16).as_ptr().cast());
            let order = 0x0908_0706_0504_0302;
            let low = _mm_shuffle_epi8(tail, _mm_set_epi64x(order, order));
            let low = _mm_and_si128(_mm_srlv_epi64(low, _mm_set_epi64x(4, 0)), _mm_set1_epi8(15));
            let high = _mm_shuffle_epi8(tail, _mm_set1_epi32(0x0d0c_0b0a));
            let high = _mm_srlv_epi32(high, _mm_set_epi32(6, 4, 2, 0));
            let high = _mm_slli_epi16::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
            let scales = _mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32));
            [scales, _mm_setzero_si128()]
        }
    }
}
