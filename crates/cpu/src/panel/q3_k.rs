//! Q3_K unpacked: quants 4 too high, as they are stored.

use bilayer_quant::q3_k::{Block, scales};

use super::q2_k::pairs;
use super::{Form, Span, Unpack, f16_values};

pub(crate) struct Q3K;

impl Unpack for Q3K {
    const FORM: Form = Form::Signed16K;
    const BIAS: u8 = 4;
    const HIGHEST: u8 = 7;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        pairs(&block.quants, &mut span.quants);
        for (part, quants) in span.quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (quant, high) in quants.iter_mut().zip(&block.high) {
                *quant |= (high >> part & 1) << 2;
            }
        }
        [span.unit] = f16_values([block.d]);
        for (out, scale) in span.scales.iter_mut().zip(&scales(&block.scales)) {
            *out = f32::from(*scale);
        }
    }
}
