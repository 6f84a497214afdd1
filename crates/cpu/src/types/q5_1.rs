//! Q5_1: Q4_1 with a fifth bit.

use std::mem::offset_of;

use bilayer_quant::q5_1::Block;

use super::{Quads, ScaleBits, Values};
use crate::bytes::{Field, Flags};

pub(crate) struct Q5_1;

impl Quads for Q5_1 {
    const BLOCK: usize = size_of::<Block>();
    const CODES: Field = Field { at: offset_of!(Block, quants), bits: 4, run: 16 };
    const FLAGS: Option<Flags> = Some(Flags { at: offset_of!(Block, high), value: 16 });
    const VALUES: Values = Values::Lifted(0);
    const HIGHEST: u8 = 31;
    const SCALES: ScaleBits = ScaleBits::F16(offset_of!(Block, d));
    const MIN: Option<usize> = Some(offset_of!(Block, m));
}
