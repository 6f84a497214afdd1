//! Q8_0 unpacked: two's complement becomes 128 too high by its top bit.

use bilayer_quant::q8_0::Block;

use super::{Form, Span, Unpack, blocks_of_32};

pub(crate) struct Q8_0;

impl Unpack for Q8_0 {
    const FORM: Form = Form::Signed32;
    const BIAS: u8 = 128;
    const HIGHEST: u8 = 255;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        blocks_of_32(blocks, span, |block: &Block| {
            let mut quants = [0; 32];
            for l in 0..32 {
                quants[l] = block.quants[l] as u8 ^ 0x80;
            }
            (quants, block.d, 0)
        });
    }
}
