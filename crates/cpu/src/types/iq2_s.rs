//! IQ2_S: points of eight magnitudes by ten bits, every sign stored.

use std::mem::offset_of;

use bilayer_quant::grids::IQ2_S;
use bilayer_quant::iq2_s::Block;

use super::grids::{eight, odd_of_nibbles};
use super::{Scales, Sign, SuperBlock};
use crate::bytes::{Bytes, Points, Words, u32_at};

pub(crate) struct Iq2S;

impl SuperBlock for Iq2S {
    const BYTES: usize = size_of::<Block>();
    const SIGN: Sign = Sign::Apart;
    const HIGHEST: u8 = 43;
    const GROUP: usize = 16;
    const D: usize = offset_of!(Block, d);
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn codes<V: Bytes>(block: &[u8], first: usize) -> V {
        V::eights::<Self>(block, first)
    }

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        let [_, _, low, high] = words(offset_of!(Block, scales) - 8);
        Scales::only(odd_of_nibbles(low, high))
    }

    #[inline(always)]
    fn signs(block: &[u8]) -> [u32; 8] {
        std::array::from_fn(|part| u32_at(block, offset_of!(Block, signs) + 4 * part))
    }
}

impl Points for Iq2S {
    #[inline(always)]
    fn eight(block: &[u8], point: usize) -> u64 {
        let high = block[offset_of!(Block, high) + point / 4] >> (point % 4 * 2) & 3;
        let low = block[offset_of!(Block, points) + point];
        eight(IQ2_S[usize::from(low) | usize::from(high) << 8])
    }
}
