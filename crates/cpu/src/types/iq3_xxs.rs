//! IQ3_XXS: points of four magnitudes; a word of signs and scale for each 32 weights.

use std::mem::offset_of;

use bilayer_quant::grids::IQ3_XXS;
use bilayer_quant::iq3_xxs::Block;

use super::grids::{even_signs, four, odd_of_tops, pick};
use super::{Scales, Sign, SuperBlock};
use crate::bytes::{Bytes, Points, Words, u32_at};

pub(crate) struct Iq3Xxs;

const POINTS: usize = offset_of!(Block, points);
const WORDS: usize = offset_of!(Block, signs_scales);

impl SuperBlock for Iq3Xxs {
    const BYTES: usize = size_of::<Block>();
    const SIGN: Sign = Sign::Apart;
    const HIGHEST: u8 = 62;
    const GROUP: usize = 32;
    const D: usize = offset_of!(Block, d);
    const UNIT: f32 = 0.25;

    #[inline(always)]
    fn codes<V: Bytes>(block: &[u8], first: usize) -> V {
        V::eights::<Self>(block, first)
    }

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        let [low, high] = [words(WORDS), words(WORDS + 16)];
        Scales::only([odd_of_tops(low), odd_of_tops(high), W::all(0), W::all(0)])
    }

    #[inline(always)]
    fn signs(block: &[u8]) -> [u32; 8] {
        std::array::from_fn(|part| even_signs(u32_at(block, WORDS + 4 * part)))
    }
}

impl Points for Iq3Xxs {
    #[inline(always)]
    fn eight(block: &[u8], index: usize) -> u64 {
        u64::from(point(block, 2 * index)) | u64::from(point(block, 2 * index + 1)) << 32
    }
}

/// The four weights of a point.
#[inline(always)]
fn point(block: &[u8], point: usize) -> u32 {
    four(pick(&IQ3_XXS, usize::from(block[POINTS + point])))
}
