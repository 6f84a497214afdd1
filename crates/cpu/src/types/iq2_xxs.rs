//! IQ2_XXS: points of eight magnitudes; a word of signs and scale for each 32 weights.

use std::mem::offset_of;

use bilayer_quant::grids::IQ2_XXS;
use bilayer_quant::iq2_xxs::Block;

use super::grids::{eight, even_signs, odd_of_tops};
use super::{Scales, Sign, SuperBlock};
use crate::bytes::{Bytes, Points, Words, u32_at};

pub(crate) struct Iq2Xxs;

const GROUPS: usize = offset_of!(Block, groups);

impl SuperBlock for Iq2Xxs {
    const BYTES: usize = size_of::<Block>();
    const SIGN: Sign = Sign::Apart;
    const HIGHEST: u8 = 43;
    const GROUP: usize = 32;
    const D: usize = offset_of!(Block, d);
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn codes<V: Bytes>(block: &[u8], first: usize) -> V {
        V::eights::<Self>(block, first)
    }

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        let tops = |at: usize| {
            let ([_, a, _, b], [_, c, _, d]) = (words(GROUPS + at), words(GROUPS + at + 16));
            odd_of_tops([a, b, c, d])
        };
        Scales::only([tops(0), tops(32), W::all(0), W::all(0)])
    }

    #[inline(always)]
    fn signs(block: &[u8]) -> [u32; 8] {
        std::array::from_fn(|part| even_signs(u32_at(block, GROUPS + 8 * part + 4)))
    }
}

impl Points for Iq2Xxs {
    #[inline(always)]
    fn eight(block: &[u8], point: usize) -> u64 {
        eight(IQ2_XXS[usize::from(block[GROUPS + point / 4 * 8 + point % 4])])
    }
}
