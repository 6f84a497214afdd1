//! Q4_0: codes of four bits around 8.

use std::mem::offset_of;

use bilayer_quant::q4_0::Block;

use super::{Quads, ScaleBits, Values};
use crate::bytes::Field;

pub(crate) struct Q4_0;

impl Quads for Q4_0 {
    const BLOCK: usize = size_of::<Block>();
    const CODES: Field = Field { at: offset_of!(Block, quants), bits: 4, run: 16 };
    const VALUES: Values = Values::Lifted(8);
    const HIGHEST: u8 = 15;
    const SCALES: ScaleBits = ScaleBits::F16(offset_of!(Block, d));
}
