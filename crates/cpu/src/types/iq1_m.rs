//! IQ1_M: IQ1_S with a shift for each eight weights and a scale for each sixteen.

use std::mem::offset_of;

use bilayer_quant::iq1_m::Block;
use bilayer_quant::iq1_s::SHIFT;

use super::grids::odd;
use super::iq1_s::{ZERO, codes};
use super::{Scales, SuperBlock};
use crate::bytes::{Bytes, Points, Words, u16_at};

pub(crate) struct Iq1M;

const SCALES: usize = offset_of!(Block, scales);

impl SuperBlock for Iq1M {
    const BYTES: usize = size_of::<Block>();
    const ZERO: u8 = ZERO;
    const HIGHEST: u8 = 2 * ZERO;
    const GROUP: usize = 16;
    const D: usize = SCALES;
    const UNIT: f32 = SHIFT;

    #[inline(always)]
    fn codes<V: Bytes>(block: &[u8], first: usize) -> V {
        V::eights::<Self>(block, first)
    }

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        // Four numbers of three bits in each half of the block's last two words.
        let [.., a, b] = words(SCALES - 8);
        let four = |word: W| {
            let pairs = word.and(0x3f).or(word.and(0xfc0).shl(10));
            odd(pairs.and(0x0007_0007).or(pairs.and(0x0038_0038).shl(5)))
        };
        Scales::only([four(a), four(a.shr(16)), four(b), four(b.shr(16))])
    }

    #[inline(always)]
    fn d(block: &[u8]) -> u16 {
        let nibble = |k: usize| u16_at(block, SCALES + 2 * k) >> 12 << (4 * k);
        nibble(0) | nibble(1) | nibble(2) | nibble(3)
    }
}

impl Points for Iq1M {
    #[inline(always)]
    fn eight(block: &[u8], point: usize) -> u64 {
        let high = block[offset_of!(Block, high) + point / 2] >> (point % 2 * 4);
        let low = block[offset_of!(Block, points) + point];
        codes(usize::from(low) | usize::from(high & 7) << 8, u64::from(high >> 3 & 1 ^ 1))
    }
}
