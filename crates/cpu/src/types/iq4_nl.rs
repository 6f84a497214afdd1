//! IQ4_NL: Q4_0's layout with a codebook.

use std::mem::offset_of;

use bilayer_quant::iq4_nl::{Block, CODEBOOK};

use super::{Quads, ScaleBits, Values};
use crate::bytes::Field;

pub(crate) struct Iq4Nl;

impl Quads for Iq4Nl {
    const BLOCK: usize = size_of::<Block>();
    const CODES: Field = Field { at: offset_of!(Block, quants), bits: 4, run: 16 };
    const VALUES: Values = Values::Book(&CODEBOOK, 0x80);
    const HIGHEST: u8 = 241;
    const SCALES: ScaleBits = ScaleBits::F16(offset_of!(Block, d));
}
