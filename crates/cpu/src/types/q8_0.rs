//! Q8_0: signed bytes.

use std::mem::offset_of;

use bilayer_quant::q8_0::Block;

use super::{Quads, ScaleBits, Values};
use crate::bytes::Field;

pub(crate) struct Q8_0;

impl Quads for Q8_0 {
    const BLOCK: usize = size_of::<Block>();
    const CODES: Field = Field { at: offset_of!(Block, quants), bits: 8, run: 32 };
    const VALUES: Values = Values::Signed;
    const HIGHEST: u8 = 255;
    const SCALES: ScaleBits = ScaleBits::F16(offset_of!(Block, d));
}
