//! Q2_K unpacked.

use bilayer_quant::q2_k::Block;

use super::{Form, Span, Unpack, f16_values};

pub(crate) struct Q2K;

impl Unpack for Q2K {
    const FORM: Form = Form::Affine16K;
    const BIAS: u8 = 0;
    const HIGHEST: u8 = 3;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        pairs(&block.quants, &mut span.quants);
        let [d, dmin] = f16_values([block.d, block.dmin]);
        (span.unit, span.min_unit) = (d, -dmin);
        for (out, packed) in span.scales.iter_mut().zip(&block.scales) {
            *out = f32::from(packed & 15);
        }
        for (out, packed) in span.mins.iter_mut().zip(&block.scales) {
            *out = f32::from(packed >> 4);
        }
    }
}

/// The two low bits of each weight, as Q2_K and Q3_K store them.
#[inline(always)]
pub(crate) fn pairs(packed: &[u8; 64], quants: &mut [u8; 256]) {
    let parts = quants.as_chunks_mut::<128>().0;
    for (part, packed) in parts.iter_mut().zip(packed.as_chunks::<32>().0) {
        for l in 0..32 {
            part[l] = packed[l] & 3;
            part[32 + l] = packed[l] >> 2 & 3;
            part[64 + l] = packed[l] >> 4 & 3;
            part[96 + l] = packed[l] >> 6;
        }
    }
}
