//! Q2_K: codes of two bits; scales and minimums of four.

use std::mem::offset_of;

use bilayer_quant::q2_k::Block;

use super::{Scales, SuperBlock};
use crate::bytes::{Field, Words};

pub(crate) struct Q2K;

impl SuperBlock for Q2K {
    const BYTES: usize = size_of::<Block>();
    const CODES: &[Field] = &[Field { at: offset_of!(Block, quants), bits: 2, run: 32 }];
    const HIGHEST: u8 = 3;
    const GROUP: usize = 16;
    const D: usize = offset_of!(Block, d);
    const HAS_MINS: bool = true;

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        let [a, b, c, d] = words(offset_of!(Block, scales));
        let low = |word: W| word.and(0x0f0f_0f0f);
        let high = |word: W| word.shr(4).and(0x0f0f_0f0f);
        Scales {
            scales: [low(a), low(b), low(c), low(d)],
            mins: [high(a), high(b), high(c), high(d)],
        }
    }
}
