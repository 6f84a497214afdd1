//! Unpacks Q5_1.

use bilayer_quant::q5_1::Block;

use super::q5_0::add_fifth_bits;
use super::{Block32, Form, Span, Unpack, blocks_of_32, halves};

pub(crate) struct Q5_1;

impl Unpack for Q5_1 {
    const FORM: Form = Form::Affine32;
    const BIAS: u8 = 0;
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
        [self.d, self.m]
    }
}
