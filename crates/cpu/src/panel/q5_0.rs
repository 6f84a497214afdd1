//! Q5_0 unpacked: quants 16 too high, as they are stored.

use bilayer_quant::q5_0::Block;

use super::{Form, Span, Unpack, blocks_of_32, halves};

pub(crate) struct Q5_0;

impl Unpack for Q5_0 {
    const FORM: Form = Form::Signed32;
    const BIAS: u8 = 16;
    const HIGHEST: u8 = 31;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        blocks_of_32(blocks, span, |block: &Block| {
            (with_fifth_bits(halves(&block.quants), block.high), block.d, 0)
        });
    }
}

/// Adds 16 to each quant whose bit of `high` (weight i at bit i, little-endian) is set.
#[inline(always)]
pub(crate) fn with_fifth_bits(mut quants: [u8; 32], high: [u8; 4]) -> [u8; 32] {
    let high = u32::from_le_bytes(high);
    for (l, quant) in quants.iter_mut().enumerate() {
        *quant |= (high >> l << 4) as u8 & 16;
    }
    quants
}
