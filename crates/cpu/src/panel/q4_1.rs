//! Q4_1 unpacked.

use bilayer_quant::q4_1::Block;

use super::{Form, Span, Unpack, blocks_of_32, halves};

pub(crate) struct Q4_1;

impl Unpack for Q4_1 {
    const FORM: Form = Form::Affine32;
    const BIAS: u8 = 0;
    const HIGHEST: u8 = 15;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        blocks_of_32(blocks, span, |block: &Block| (halves(&block.quants), block.d, block.m));
    }
}
