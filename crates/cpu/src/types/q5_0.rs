//! Q5_0: Q4_0 with a fifth bit; codes around 16.

use std::mem::offset_of;

use bilayer_quant::q5_0::Block;

use super::{Quads, ScaleBits, Values};
use crate::bytes::{Field, Flags};

pub(crate) struct Q5_0;

impl Quads for Q5_0 {
    const BLOCK: usize = size_of::<Block>();
    const CODES: Field = Field { at: offset_of!(Block, quants), bits: 4, run: 16 };
    const FLAGS: Option<Flags> = Some(Flags { at: offset_of!(Block, high), value: 16 });
    const VALUES: Values = Values::Lifted(16);
    const HIGHEST: u8 = 31;
    const SCALES: ScaleBits = ScaleBits::F16(offset_of!(Block, d));
}
