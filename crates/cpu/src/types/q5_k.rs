//! Q5_K: Q4_K with a fifth bit.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m128i;
use std::mem::offset_of;

use bilayer_quant::q5_k::Block;

use super::{Scales, SuperBlock, q4_k};
use crate::bytes::{Field, Words};
#[cfg(target_arch = "x86_64")]
use crate::level::Level;

pub(crate) struct Q5K;

impl SuperBlock for Q5K {
    const BYTES: usize = size_of::<Block>();
    const CODES: &[Field] = &[
        Field { at: offset_of!(Block, quants), bits: 4, run: 32 },
        Field { at: offset_of!(Block, high), bits: 1, run: 32 },
    ];
    const HIGHEST: u8 = 31;
    const GROUP: usize = 32;
    const D: usize = offset_of!(Block, d);
    const HAS_MINS: bool = true;

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        q4_k::scales(words)
    }

    /// From words it takes 6 % more time with AVX-512 (Zen 4, in cache, one column).
    #[cfg(target_arch = "x86_64")]
    const NUMBERS_AT: &[Level] = &[Level::Avx512Vnni];

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn numbers(block: &[u8]) -> [__m128i; 2] {
        q4_k::numbers(block)
    }
}
