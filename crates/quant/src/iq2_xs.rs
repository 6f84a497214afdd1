//! IQ2_XS: 256 weights as points of an 8-dimensional grid; 2.3125 bits per weight.
//!
//! ```text
//! byte  0        2                    66              74
//!       [ d: f16 ][ points: 32 × u16  ][ scales: 8 bytes ]
//!       points[i / 8]   bits 0..9 the index into the grid, bits 9..16 the signs
//!       scales[i / 32]  half (i / 16) % 2 = s
//!       weight i        = d · (s + 1/2) / 4 · ± grid
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::grids::{self, even_signs, signed};
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The shared scale, f16 bits.
    pub d: u16,
    /// Per 8 weights: grid index and signs.
    pub points: [u16; 32],
    /// Per 16 weights: a 4-bit scale.
    pub scales: [u8; 8],
}

const _: () = assert!(size_of::<Block>() == 74);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "IQ2_XS",
    gguf_id: 17,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    planes: &Plane::split([("d", 2), ("points", 64), ("scales", 8)]),
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
        let packed = block.points[i / 8];
        let point = grids::IQ2_XS[usize::from(packed & 511)];
        *out = signed(scale * f32::from(point[i % 8]), even_signs((packed >> 9) as u8), i % 8);
    }
}
