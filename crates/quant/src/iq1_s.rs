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

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::grid_block::{self, Coded, Coding, Ladder, Multipliers};
use crate::grids;
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
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("points", 32), ("high", 16)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.457,
    holds_zero: false,
};

/// Added to or subtracted from every ternary weight.
pub const SHIFT: f32 = 0.125;

static CODING: LazyLock<Coding<8, 3>> = LazyLock::new(|| Coding {
    codebook: Codebook::new(&grids::IQ1, Signs::ShiftOfPart(SHIFT)),
    multipliers: Multipliers { first: 1.0, step: 2.0, count: 8 },
    ladder: Ladder { first: 0.4, last: 1.2, count: 5 },
});

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

/// Chooses the scales and points that minimize the error; see `grid_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let Coded { d, scales, units } = grid_block::code::<_, _, 8>(&CODING, values, importance);
    let mut high = [0; 8];
    for (p, high) in high.iter_mut().enumerate() {
        *high = u16::from(scales[p]) << 12 | u16::from(units[4 * p].signs) << 15;
        for (k, unit) in units[4 * p..][..4].iter().enumerate() {
            *high |= (unit.points[0] >> 8) << (3 * k);
        }
    }
    Block { d, points: units.map(|unit| unit.points[0] as u8), high }
}
