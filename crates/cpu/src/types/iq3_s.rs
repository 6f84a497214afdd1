//! IQ3_S: points of four magnitudes by nine bits, every sign stored.

use std::mem::offset_of;

use bilayer_quant::grids::IQ3_S;
use bilayer_quant::iq3_s::Block;

use super::grids::{apart, four, odd, pick, spread_nibbles};
use super::{Scales, Sign, SuperBlock};
use crate::bytes::{Bytes, Points, Words, u32_at};

pub(crate) struct Iq3S;

impl SuperBlock for Iq3S {
    const BYTES: usize = size_of::<Block>();
    const SIGN: Sign = Sign::Apart;
    const HIGHEST: u8 = 15;
    const GROUP: usize = 32;
    const D: usize = offset_of!(Block, d);

    #[inline(always)]
    fn codes<V: Bytes>(block: &[u8], first: usize) -> V {
        V::eights::<Self>(block, first)
    }

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        // The block's last four bytes.
        let [.., word] = words(offset_of!(Block, scales) - 12);
        let [low, high] = spread_nibbles(word);
        Scales::only([odd(low), odd(high), W::all(0), W::all(0)])
    }

    #[inline(always)]
    fn signs(block: &[u8]) -> [u32; 8] {
        std::array::from_fn(|part| u32_at(block, offset_of!(Block, signs) + 4 * part))
    }
}

impl Points for Iq3S {
    #[inline(always)]
    fn eight(block: &[u8], index: usize) -> u64 {
        u64::from(point(block, 2 * index)) | u64::from(point(block, 2 * index + 1)) << 32
    }
}

/// The four weights of a point.
#[inline(always)]
fn point(block: &[u8], point: usize) -> u32 {
    let low = block[offset_of!(Block, points) + point];
    let high = apart(usize::from(block[offset_of!(Block, high) + point / 8]));
    four(pick(&IQ3_S, usize::from(low) | high << (8 - point % 8) & 0x100))
}
