//! Q5_K unpacked.

use bilayer_quant::q5_k::Block;

use super::q4_k::{lines, nibbles};
use super::{Form, Span, Unpack};

pub(crate) struct Q5K;

impl Unpack for Q5K {
    const FORM: Form = Form::Affine32K;
    const BIAS: u8 = 0;
    const HIGHEST: u8 = 31;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        nibbles(&block.quants, &mut span.quants);
        for (part, quants) in span.quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (quant, high) in quants.iter_mut().zip(&block.high) {
                *quant |= (high >> part & 1) << 4;
            }
        }
        lines([block.d, block.dmin], &block.scales, span);
    }
}
