//! Unpacks Q5_0: quants are biased by 16, as stored.

use bilayer_quant::q5_0::Block;

use super::{Block32, Form, Span, Unpack, blocks_of_32, halves};

pub(crate) struct Q5_0;

impl Unpack for Q5_0 {
    const FORM: Form = Form::Signed32;
    const BIAS: u8 = 16;
    const HIGHEST: u8 = 31;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        blocks_of_32::<Block>(blocks, span);
    }
}

impl Block32 for Block {
    #[inline(always)]
    fn unpack(&self, quants: &mut [u8; 32]) -> [u16; 2] {
        halves(&self.quants, quants);
        add_fifth_bits(self.high, quants);
        [self.d, 0]
    }
}

/// Adds 16 to each quant whose bit of `high` (weight i at bit i, little-endian) is set.
#[inline(always)]
pub(crate) fn add_fifth_bits(high: [u8; 4], quants: &mut [u8; 32]) {
    // Each weight's byte of `high` first, then its bit: both are single vector instructions.
    let mut bytes = [0; 32];
    for (l, byte) in bytes.iter_mut().enumerate() {
        *byte = high[l / 8];
    }
    for (l, quant) in quants.iter_mut().enumerate() {
        *quant |= if bytes[l] & (1 << (l % 8)) == 0 { 0 } else { 16 };
    }
}
