//! IQ2_XS: points of eight magnitudes by nine bits, seven of signs above them.

use std::mem::offset_of;

use bilayer_quant::grids::IQ2_XS;
use bilayer_quant::iq2_xs::Block;

use super::grids::{eight, even_signs, odd_of_nibbles};
use super::{Scales, Sign, SuperBlock};
use crate::bytes::{Bytes, Points, Words, u16_at};

pub(crate) struct Iq2Xs;

const POINTS: usize = offset_of!(Block, points);

impl SuperBlock for Iq2Xs {
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
        std::array::from_fn(|part| {
            let index =
                |k: usize| u32::from(u16_at(block, POINTS + 8 * part + 2 * k) >> 9) << (7 * k);
            even_signs(index(0) | index(1) | index(2) | index(3))
        })
    }
}

impl Points for Iq2Xs {
    #[inline(always)]
    fn eight(block: &[u8], point: usize) -> u64 {
        let packed = u16_at(block, POINTS + 2 * point);
        eight(IQ2_XS[usize::from(packed & 511)])
    }
}
