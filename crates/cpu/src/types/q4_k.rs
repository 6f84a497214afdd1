//! Q4_K: codes of four bits; scales and minimums of six, packed in twelve bytes.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::mem::offset_of;

use bilayer_quant::q4_k::Block;

use super::{Scales, SuperBlock};
#[cfg(target_arch = "x86_64")]
use crate::bytes::part;
use crate::bytes::{Field, Words};
#[cfg(target_arch = "x86_64")]
use crate::level::Level;

pub(crate) struct Q4K;

impl SuperBlock for Q4K {
    const BYTES: usize = size_of::<Block>();
    const CODES: &[Field] = &[Field { at: offset_of!(Block, quants), bits: 4, run: 32 }];
    const HIGHEST: u8 = 15;
    const GROUP: usize = 32;
    const D: usize = offset_of!(Block, d);
    const HAS_MINS: bool = true;

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        scales(words)
    }

    /// From words it takes 11 % more time with AVX-512 (Zen 4, in cache, one column) and 4 % with AVX-VNNI, and 7 % less with
    /// AVX2 (Zen 5).
    #[cfg(target_arch = "x86_64")]
    const NUMBERS_AT: &[Level] = &[Level::AvxVnni, Level::Avx512Vnni];

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn numbers(block: &[u8]) -> [__m128i; 2] {
        numbers(block)
    }
}

/// The scales of Q4_K and Q5_K, whose blocks start alike: six bits of the first four scales and minimums; of the last
/// four, four bits separately and two above the first four.
#[inline(always)]
pub(super) fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
    const { assert!(offset_of!(Block, scales) == 4) };
    let [_, a, b, c] = words(0);
    let first = |word: W| word.and(0x3f3f_3f3f);
    let last = |low: W, word: W| low.and(0x0f0f_0f0f).or(word.shr(2).and(0x3030_3030));
    let none = W::all(0);
    Scales {
        scales: [first(a), last(c, a), none, none],
        mins: [first(b), last(c.shr(4), b), none, none],
    }
}

/// [`scales`] of one row.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn numbers(block: &[u8]) -> [__m128i; 2] {
    // SAFETY: called with AVX2 only; the reference covers the bytes.
    unsafe {
        let head = _mm_loadu_si128(part::<16>(block, 0).as_ptr().cast());
        let low = _mm_shuffle_epi32::<0b11_10_11_01>(head);
        let low = _mm_srlv_epi32(low, _mm_set_epi32(4, 0, 0, 0));
        let low_mask = _mm_set_epi32(0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f);
        let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(head));
        let high_mask = _mm_set_epi32(0x3030_3030, 0, 0x3030_3030, 0);
        let both = _mm_or_si128(_mm_and_si128(low, low_mask), _mm_and_si128(high, high_mask));
        [both, both]
    }
}
