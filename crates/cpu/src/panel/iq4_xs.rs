//! IQ4_XS unpacked: the codebook's values 128 too high.

use bilayer_quant::iq4_xs::{Block, scales};

use super::iq4_nl::VALUES;
use super::{Form, Span, Unpack, f16_values, halves};

pub(crate) struct Iq4Xs;

impl Unpack for Iq4Xs {
    const FORM: Form = Form::Signed32K;
    const BIAS: u8 = 128;
    const HIGHEST: u8 = 241;
    const CODEBOOK: Option<[u8; 16]> = Some(VALUES);

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        [span.unit] = f16_values([block.d]);
        for (part, scale) in scales(&block).into_iter().enumerate() {
            span.scales[part] = f32::from(scale);
        }
        let parts = span.quants.as_chunks_mut::<32>().0;
        for (part, packed) in parts.iter_mut().zip(block.quants.as_chunks::<16>().0) {
            halves(packed, part);
        }
    }
}
