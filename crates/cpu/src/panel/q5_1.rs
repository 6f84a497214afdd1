//! Q5_1 unpacked.

use bilayer_quant::q5_1::Block;

use super::q5_0::with_fifth_bits;
use super::{Form, Span, Unpack, blocks_of_32, halves};

pub(crate) struct Q5_1;

impl Unpack for Q5_1 {
    const FORM: Form = Form::Affine32;
    const BIAS: u8 = 0;
    const HIGHEST: u8 = 31;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        blocks_of_32(blocks, span, |block: &Block| {
            (with_fifth_bits(halves(&block.quants), block.high), block.d, block.m)
        });
    }
}
