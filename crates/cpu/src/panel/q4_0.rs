//! Unpacks Q4_0: quants are biased by 8, as stored.

use bilayer_quant::q4_0::Block;

use super::{Block32, Form, Span, Unpack, blocks_of_32, halves};

pub(crate) struct Q4_0;

impl Unpack for Q4_0 {
    const FORM: Form = Form::Signed32;
    const BIAS: u8 = 8;
    const HIGHEST: u8 = 15;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        blocks_of_32::<Block>(blocks, span);
    }
}

impl Block32 for Block {
    #[inline(always)]
    fn unpack(&self, quants: &mut [u8; 32]) -> [u16; 2] {
        halves(&self.quants, quants);
        [self.d, 0]
    }
}
