//! IQ4_XS: 256 weights of 4 bits from IQ4_NL's codebook, 6-bit scales every 32; 4.25 bits per weight.
//!
//! ```text
//! byte  0        2               4                      8                   136
//!       [ d: f16 ][ scales_high: 16 bits ][ scales_low: 4 bytes ][ quants: 128 bytes ]
//!       scales_low[p / 2]  half p % 2 = low4(s[p]),  scales_high bits 2 p, 2 p + 1 = s[p] >> 4
//!       quants[16 p + l]   = q[32 p + 16 + l] << 4 | q[32 p + l]       p < 8, l < 16
//!       weight i           = d · (s[p] - 32) · CODEBOOK[q]             p = i / 32
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::iq4_nl::{CODEBOOK, CODES, SWEEP, nearest};
use crate::super_block::{self, Codes};
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The shared scale, f16 bits.
    pub d: u16,
    /// Two high bits of each scale.
    pub scales_high: u16,
    /// Four low bits of each scale, two scales per byte.
    pub scales_low: [u8; 4],
    /// Two weights per byte, 16 apart.
    pub quants: [u8; 128],
}

const _: () = assert!(size_of::<Block>() == 136);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "IQ4_XS",
    gguf_id: 23,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("scales_high", 2), ("scales_low", 4), ("quants", 128)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.0785,
    holds_zero: false,
};

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    let scales = scales(block);
    for (i, out) in out.iter_mut().enumerate() {
        let q = block.quants[i / 32 * 16 + i % 16] >> (i / 16 % 2 * 4) & 15;
        *out = d * f32::from(scales[i / 32]) * f32::from(CODEBOOK[usize::from(q)]);
    }
}

/// Chooses the scales that minimize the error; see `super_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let codes = Codes { nearest, bias: 0.0 };
    let chosen = super_block::scales::<32, 8, _>(values, importance, -32.0, codes, SWEEP);
    let mut block = Block { d: chosen.d, scales_high: 0, scales_low: [0; 4], quants: [0; 128] };
    for (p, scale) in chosen.scales.into_iter().enumerate() {
        let biased = (scale + 32) as u8;
        block.scales_low[p / 2] |= (biased & 15) << (p % 2 * 4);
        block.scales_high |= u16::from(biased >> 4) << (2 * p);
        for (l, value) in chosen.codes[p].into_iter().enumerate() {
            block.quants[p * 16 + l % 16] |= CODES[usize::from(value)] << (l / 16 * 4);
        }
    }
    block
}

/// The eight scales of a block, bias removed: -32..=31.
#[inline]
#[must_use]
pub fn scales(block: &Block) -> [i8; 8] {
    std::array::from_fn(|p| {
        let low = block.scales_low[p / 2] >> (p % 2 * 4) & 15;
        let high = (block.scales_high >> (2 * p) & 3) as u8;
        (low | high << 4) as i8 - 32
    })
}
