//! IQ2_XS: 256 weights as points of an 8-dimensional grid; 2.3125 bits per weight.
//!
//! ```text
//! byte  0        2                    66              74
//!       [ d: f16 ][ points: 32 × u16  ][ scales: 8 bytes ]
//!       points[i / 8]   bits 0..9 the index into the grid, bits 9..16 the signs
//!       scales[i / 32]  half (i / 16) % 2 = s
//!       weight i        = d · (s + 1/2) / 4 · ± grid
//! ```

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::grid_block::{self, Coded, Coding, Ladder, Multipliers};
use crate::grids::{self, even_signs, signed};
use crate::nearest::{Codebook, Signs};
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
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("points", 64), ("scales", 8)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.294,
    holds_zero: false,
};

static CODING: LazyLock<Coding<8, 3>> = LazyLock::new(|| Coding {
    codebook: Codebook::new(&grids::IQ2_XS, Signs::Even),
    multipliers: Multipliers { first: 0.125, step: 0.25, count: 16 },
    ladder: Ladder { first: 5.0, last: 26.0, count: 6 },
});

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

/// Chooses the scales and points that minimize the error; see `grid_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let Coded { d, scales, units } = grid_block::code::<_, _, 16>(&CODING, values, importance);
    Block {
        d,
        points: units.map(|unit| unit.points[0] | u16::from(unit.seven_signs()) << 9),
        scales: std::array::from_fn(|p| scales[2 * p] | scales[2 * p + 1] << 4),
    }
}
