//! Q4_K unpacked.

use bilayer_quant::k_scales::scales_mins;
use bilayer_quant::q4_k::Block;

use super::{Form, Span, Unpack, f16_values};

pub(crate) struct Q4K;

impl Unpack for Q4K {
    const FORM: Form = Form::Affine32K;
    const BIAS: u8 = 0;
    const HIGHEST: u8 = 15;

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        nibbles(&block.quants, &mut span.quants);
        lines([block.d, block.dmin], &block.scales, span);
    }
}

/// The four low bits of each weight, as Q4_K and Q5_K store them.
#[inline(always)]
pub(crate) fn nibbles(packed: &[u8; 128], quants: &mut [u8; 256]) {
    let parts = quants.as_chunks_mut::<64>().0;
    for (part, packed) in parts.iter_mut().zip(packed.as_chunks::<32>().0) {
        for l in 0..32 {
            part[l] = packed[l] & 15;
            part[32 + l] = packed[l] >> 4;
        }
    }
}

/// The scales and minimums of Q4_K and Q5_K; `bits` are those of d and dmin.
#[inline(always)]
pub(crate) fn lines(bits: [u16; 2], packed: &[u8; 12], span: &mut Span) {
    let [d, dmin] = f16_values(bits);
    let (scales, mins) = scales_mins(packed);
    for part in 0..8 {
        span.scales[part] = d * f32::from(scales[part]);
        span.mins[part] = -dmin * f32::from(mins[part]);
    }
}
