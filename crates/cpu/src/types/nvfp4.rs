//! NVFP4: MXFP4's floats; a float of eight bits as the scale of each sixteen weights.

use std::mem::offset_of;

use bilayer_quant::mxfp4::CODEBOOK;
use bilayer_quant::nvfp4::{Block, half_scale};

use super::{Quads, ScaleBits, Values};
use crate::bytes::Field;

pub(crate) struct Nvfp4;

/// [`half_scale`] of every byte.
static SCALES: [f32; 256] = {
    let (mut scales, mut bits) = ([0.0; 256], 0);
    while bits < 256 {
        scales[bits] = half_scale(bits as u8);
        bits += 1;
    }
    scales
};

impl Quads for Nvfp4 {
    const WEIGHTS: usize = 64;
    const BLOCK: usize = size_of::<Block>();
    const CODES: Field = Field { at: offset_of!(Block, quants), bits: 4, run: 8 };
    const VALUES: Values = Values::Book(&CODEBOOK, 12);
    const HIGHEST: u8 = 24;
    const SCALES: ScaleBits = ScaleBits::Computed;
    const GROUP: usize = 16;

    #[inline(always)]
    fn computed(blocks: &[u8]) -> [f32; 8] {
        std::array::from_fn(|p| {
            SCALES[usize::from(blocks[p / 4 * Self::BLOCK + offset_of!(Block, scales) + p % 4])]
        })
    }
}
