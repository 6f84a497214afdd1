//! TQ2_0: ternary codes of two bits.

use std::mem::offset_of;

use bilayer_quant::tq2_0::Block;

use super::{Scales, SuperBlock};
use crate::bytes::{Field, Words};

pub(crate) struct Tq2_0;

impl SuperBlock for Tq2_0 {
    const BYTES: usize = size_of::<Block>();
    const CODES: &[Field] = &[Field { at: offset_of!(Block, quants), bits: 2, run: 32 }];
    const ZERO: u8 = 1;
    const HIGHEST: u8 = 3;
    const GROUP: usize = 32;
    const D: usize = offset_of!(Block, d);

    #[inline(always)]
    fn scales<W: Words>(_words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        Scales::only([W::all(0x0101_0101); 4])
    }
}
