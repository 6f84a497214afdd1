//! IQ2_S: 256 weights as points of an 8-dimensional grid, every sign stored; 2.5625 bits per weight.
//!
//! ```text
//! byte  0        2                  34               66             74               82
//!       [ d: f16 ][ points: 32 bytes ][ signs: 32 bytes ][ high: 8 bytes ][ scales: 8 bytes ]
//!       points[i / 8]   low 8 bits of the index into the grid
//!       signs[i / 8]    bit i % 8: the weight is negative
//!       high[i / 32]    bits 2 k, 2 k + 1 = high bits of the index, k = (i / 8) % 4
//!       scales[i / 32]  half (i / 16) % 2 = s
//!       weight i        = d · (s + 1/2) / 4 · ± grid
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::grids::{self, signed};
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The shared scale, f16 bits.
    pub d: u16,
    /// Per 8 weights: low bits of the grid index.
    pub points: [u8; 32],
    /// One bit per weight.
    pub signs: [u8; 32],
    /// High bits of four grid indices per byte.
    pub high: [u8; 8],
    /// Per 16 weights: a 4-bit scale.
    pub scales: [u8; 8],
}

const _: () = assert!(size_of::<Block>() == 82);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "IQ2_S",
    gguf_id: 22,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    planes: &Plane::split([("d", 2), ("points", 32), ("signs", 32), ("high", 8), ("scales", 8)]),
    quantize: None,
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: f32::INFINITY,
};

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    for (i, out) in out.iter_mut().enumerate() {
        let s = block.scales[i / 32] >> (i / 16 % 2 * 4) & 15;
        let scale = d * (0.5 + f32::from(s)) * 0.25;
        let high = block.high[i / 32] >> (i / 8 % 4 * 2) & 3;
        let point = grids::IQ2_S[usize::from(block.points[i / 8]) | usize::from(high) << 8];
        *out = signed(scale * f32::from(point[i % 8]), block.signs[i / 8], i % 8);
    }
}
