//! Unpacks Q8_0: inverting the top bit turns two's complement into a bias of 128.

use bilayer_quant::q8_0::Block;

use super::{Block32, Form, Span, Unpack, blocks_of_32};

pub(crate) struct Q8_0;

impl Unpack for Q8_0 {
    const FORM: Form = Form::Signed32;
    const BIAS: u8 = 128;
    const HIGHEST: u8 = 255;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        blocks_of_32::<Block>(blocks, span);
    }
}

impl Block32 for Block {
    #[inline(always)]
    fn unpack(&self, quants: &mut [u8; 32]) -> [u16; 2] {
        for (out, quant) in quants.iter_mut().zip(&self.quants) {
            *out = *quant as u8 ^ 0x80;
        }
        [self.d, 0]
    }
}
