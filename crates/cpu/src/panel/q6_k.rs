//! Q6_K unpacked: quants 32 too high, as they are stored.

use bilayer_quant::q6_k::Block;

use super::{Form, Span, Unpack, f16_values};

pub(crate) struct Q6K;

impl Unpack for Q6K {
    const FORM: Form = Form::Signed16K;
    const BIAS: u8 = 32;
    const HIGHEST: u8 = 63;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        for (half, quants) in span.quants.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let low = &block.low.as_chunks::<64>().0[half];
            let high = &block.high.as_chunks::<32>().0[half];
            for l in 0..32 {
                quants[l] = low[l] & 15 | (high[l] & 3) << 4;
                quants[32 + l] = low[32 + l] & 15 | (high[l] >> 2 & 3) << 4;
                quants[64 + l] = low[l] >> 4 | (high[l] >> 4 & 3) << 4;
                quants[96 + l] = low[32 + l] >> 4 | high[l] >> 6 << 4;
            }
        }
        let [d] = f16_values([block.d]);
        for (out, scale) in span.scales.iter_mut().zip(&block.scales) {
            *out = d * f32::from(*scale);
        }
    }
}
