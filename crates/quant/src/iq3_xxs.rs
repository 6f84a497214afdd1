//! IQ3_XXS: 256 weights as points of a 4-dimensional grid; 3.0625 bits per weight.
//!
//! ```text
//! byte  0        2                   66                         98
//!       [ d: f16 ][ points: 64 bytes ][ signs_scales: 8 × 4 bytes ]
//!       points[i / 4]         the index into the grid
//!       signs_scales[i / 32]  a word: bits 7 k .. 7 k + 7 the signs of 8 weights, k = (i / 8) % 4,
//!                             bits 28..32 the scale s
//!       weight i              = d · (s + 1/2) / 2 · ± grid
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
    /// Per 4 weights: a grid index.
    pub points: [u8; 64],
    /// Per 32 weights: signs and scale, a little-endian word.
    pub signs_scales: [[u8; 4]; 8],
}

const _: () = assert!(size_of::<Block>() == 98);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "IQ3_XXS",
    gguf_id: 18,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("points", 64), ("signs_scales", 32)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.18,
    holds_zero: false,
};

static CODING: LazyLock<Coding<4, 8>> = LazyLock::new(|| Coding {
    codebook: Codebook::new(&grids::IQ3_XXS, Signs::Even),
    multipliers: Multipliers { first: 0.25, step: 0.5, count: 16 },
    ladder: Ladder { first: 5.0, last: 30.0, count: 8 },
});

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    for (i, out) in out.iter_mut().enumerate() {
        let word = u32::from_le_bytes(block.signs_scales[i / 32]);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let signs = even_signs((word >> (i / 8 % 4 * 7) & 127) as u8);
        let point = grids::IQ3_XXS[usize::from(block.points[i / 4])];
        *out = signed(scale * f32::from(point[i % 4]), signs, i % 8);
    }
}

/// Chooses the scales and points that minimize the error; see `grid_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let Coded { d, scales, units } = grid_block::code::<_, _, 8>(&CODING, values, importance);
    let mut block = Block { d, points: [0; 64], signs_scales: [[0; 4]; 8] };
    for (p, word) in block.signs_scales.iter_mut().enumerate() {
        let mut bits = u32::from(scales[p]) << 28;
        for (k, unit) in units[4 * p..][..4].iter().enumerate() {
            bits |= u32::from(unit.seven_signs()) << (7 * k);
        }
        *word = bits.to_le_bytes();
    }
    for (pair, unit) in block.points.as_chunks_mut::<2>().0.iter_mut().zip(&units) {
        *pair = unit.points.map(|point| point as u8);
    }
    block
}
