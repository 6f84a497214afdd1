//! IQ3_S: 256 weights as points of a 4-dimensional grid, every sign stored; 3.4375 bits per weight.
//!
//! ```text
//! byte  0        2                  66             74               106              110
//!       [ d: f16 ][ points: 64 bytes ][ high: 8 bytes ][ signs: 32 bytes ][ scales: 4 bytes ]
//!       points[i / 4]   low 8 bits of the index into the grid
//!       high[i / 32]    bit (i / 4) % 8 = high bit of the index
//!       signs[i / 8]    bit i % 8: the weight is negative
//!       scales[i / 64]  half (i / 32) % 2 = s
//!       weight i        = d · (1 + 2 s) · ± grid
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
    /// Per 4 weights: low bits of the grid index.
    pub points: [u8; 64],
    /// High bits of eight grid indices per byte.
    pub high: [u8; 8],
    /// One bit per weight.
    pub signs: [u8; 32],
    /// Per 32 weights: a 4-bit scale.
    pub scales: [u8; 4],
}

const _: () = assert!(size_of::<Block>() == 110);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "IQ3_S",
    gguf_id: 21,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    planes: &Plane::split([("d", 2), ("points", 64), ("high", 8), ("signs", 32), ("scales", 4)]),
    quantize: None,
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: f32::INFINITY,
};

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    for (i, out) in out.iter_mut().enumerate() {
        let s = block.scales[i / 64] >> (i / 32 % 2 * 4) & 15;
        let scale = d * f32::from(1 + 2 * s);
        let high = block.high[i / 32] >> (i / 4 % 8) & 1;
        let point = grids::IQ3_S[usize::from(block.points[i / 4]) | usize::from(high) << 8];
        *out = signed(scale * f32::from(point[i % 4]), block.signs[i / 8], i % 8);
    }
}
