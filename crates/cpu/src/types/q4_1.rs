//! Q4_1: codes of four bits with a minimum.

use std::mem::offset_of;

use bilayer_quant::q4_1::Block;

use super::{Quads, ScaleBits, Values};
use crate::bytes::Field;

pub(crate) struct Q4_1;

impl Quads for Q4_1 {
    const BLOCK: usize = size_of::<Block>();
    const CODES: Field = Field { at: offset_of!(Block, quants), bits: 4, run: 16 };
    const VALUES: Values = Values::Lifted(0);
    const HIGHEST: u8 = 15;
    const SCALES: ScaleBits = ScaleBits::F16(offset_of!(Block, d));
    const MIN: Option<usize> = Some(offset_of!(Block, m));
}
