//! MXFP4: floats of four bits, doubled; the scale is an exponent.

use std::mem::offset_of;

use bilayer_quant::mxfp4::{Block, CODEBOOK};

use super::{Quads, ScaleBits, Values};
use crate::bytes::Field;

pub(crate) struct Mxfp4;

impl Quads for Mxfp4 {
    const BLOCK: usize = size_of::<Block>();
    const CODES: Field = Field { at: offset_of!(Block, quants), bits: 4, run: 16 };
    const VALUES: Values = Values::Book(&CODEBOOK, 12);
    const HIGHEST: u8 = 24;
    const SCALES: ScaleBits = ScaleBits::Exponent(offset_of!(Block, e));
}
