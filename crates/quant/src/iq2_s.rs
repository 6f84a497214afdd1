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

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::grid_block::{self, Coded, Coding, Ladder, Multipliers};
use crate::grids::{self, signed};
use crate::nearest::{Codebook, Signs};
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
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("points", 32), ("signs", 32), ("high", 8), ("scales", 8)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.244,
    holds_zero: false,
};

static CODING: LazyLock<Coding<8, 3>> = LazyLock::new(|| Coding {
    codebook: Codebook::new(&grids::IQ2_S, Signs::Free),
    multipliers: Multipliers { first: 0.125, step: 0.25, count: 16 },
    ladder: Ladder { first: 5.0, last: 26.0, count: 6 },
});

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

/// Chooses the scales and points that minimize the error; see `grid_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let Coded { d, scales, units } = grid_block::code::<_, _, 16>(&CODING, values, importance);
    let mut high = [0; 8];
    for (k, unit) in units.iter().enumerate() {
        high[k / 4] |= ((unit.points[0] >> 8) as u8) << (k % 4 * 2);
    }
    Block {
        d,
        points: units.map(|unit| unit.points[0] as u8),
        signs: units.map(|unit| unit.signs),
        high,
        scales: std::array::from_fn(|p| scales[2 * p] | scales[2 * p + 1] << 4),
    }
}
