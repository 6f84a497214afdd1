//! IQ1_S: 256 weights as points of a ternary 8-dimensional grid; 1.5625 bits per weight.
//!
//! ```text
//! byte  0        2                  34               50
//!       [ d: f16 ][ points: 32 bytes ][ high: 8 × u16 ]
//!       points[i / 8]  low 8 bits of the index into the grid
//!       high[i / 32]   bits 3 k .. 3 k + 3 = high bits of the index, k = (i / 8) % 4,
//!                      bits 12..15 the scale s, bit 15 the sign of the shift (set: negative)
//!       weight i       = d · (2 s + 1) · (grid ± SHIFT)
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::grids;
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The shared scale, f16 bits.
    pub d: u16,
    /// Per 8 weights: low bits of the grid index.
    pub points: [u8; 32],
    /// Per 32 weights: high bits of four grid indices, scale, sign of the shift.
    pub high: [u16; 8],
}

const _: () = assert!(size_of::<Block>() == 50);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "IQ1_S",
    gguf_id: 19,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    planes: &Plane::split([("d", 2), ("points", 32), ("high", 16)]),
    quantize: None,
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: f32::INFINITY,
};

/// Added to or subtracted from every ternary weight.
pub const SHIFT: f32 = 0.125;

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    for (i, out) in out.iter_mut().enumerate() {
        let high = block.high[i / 32];
        let scale = d * f32::from(2 * (high >> 12 & 7) + 1);
        let shift = if high >> 15 == 1 { -SHIFT } else { SHIFT };
        let number = u16::from(block.points[i / 8]) | (high >> (i / 8 % 4 * 3) & 7) << 8;
        *out = scale * (f32::from(grids::IQ1[usize::from(number)][i % 8]) + shift);
    }
}
