//! Unpacks MXFP4: codes become doubled E2M1 values, biased by 12.

use bilayer_quant::mxfp4::{Block, CODEBOOK, half_scale};

use super::{Form, Span, Unpack, halves};

pub(crate) struct Mxfp4;

impl Unpack for Mxfp4 {
    const FORM: Form = Form::Signed32;
    const BIAS: u8 = 12;
    const HIGHEST: u8 = 24;
    const CODEBOOK: Option<[u8; 16]> = Some(VALUES);

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let parts = span.quants.as_chunks_mut::<32>().0;
        for (part, bytes) in blocks.chunks_exact(size_of::<Block>()).enumerate().take(8) {
            let block: Block = bytemuck::pod_read_unaligned(bytes);
            span.scales[part] = half_scale(block.e);
            halves(&block.quants, &mut parts[part]);
        }
        span.unit = 1.0;
    }
}

/// The codebook, biased by 12.
const VALUES: [u8; 16] = {
    let mut values = [0; 16];
    let mut code = 0;
    while code < 16 {
        values[code] = (CODEBOOK[code] + 12) as u8;
        code += 1;
    }
    values
};
