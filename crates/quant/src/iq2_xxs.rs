//! IQ2_XXS: 256 weights as points of an 8-dimensional grid; 2.0625 bits per weight.
//!
//! ```text
//! byte  0        2                      66
//!       [ d: f16 ][ groups: 8 × 8 bytes ]          one group per 32 weights:
//!       bytes 0..4   four points of 8 weights, by index into the grid
//!       bytes 4..8   a word: bits 7 k .. 7 k + 7 the signs of point k, bits 28..32 the scale s
//!       weight       = d · (s + 1/2) / 4 · ± grid
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
    /// Per 32 weights: four grid indices, then signs and scale.
    pub groups: [[u8; 8]; 8],
}

const _: () = assert!(size_of::<Block>() == 66);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "IQ2_XXS",
    gguf_id: 16,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("groups", 64)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.336,
    holds_zero: false,
};

static CODING: LazyLock<Coding<8, 3>> = LazyLock::new(|| Coding {
    codebook: Codebook::new(&grids::IQ2_XXS, Signs::Even),
    multipliers: Multipliers { first: 0.125, step: 0.25, count: 16 },
    ladder: Ladder { first: 5.0, last: 26.0, count: 6 },
});

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    for (group, out) in block.groups.iter().zip(out.as_chunks_mut::<32>().0) {
        let word = u32::from_le_bytes([group[4], group[5], group[6], group[7]]);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (i, out) in out.iter_mut().enumerate() {
            let point = grids::IQ2_XXS[usize::from(group[i / 8])];
            let signs = even_signs((word >> (i / 8 * 7) & 127) as u8);
            *out = signed(scale * f32::from(point[i % 8]), signs, i % 8);
        }
    }
}

/// Chooses the scales and points that minimize the error; see `grid_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let Coded { d, scales, units } = grid_block::code::<_, _, 8>(&CODING, values, importance);
    let mut block = Block { d, groups: [[0; 8]; 8] };
    for (p, group) in block.groups.iter_mut().enumerate() {
        let mut word = u32::from(scales[p]) << 28;
        for (k, unit) in units[4 * p..][..4].iter().enumerate() {
            group[k] = unit.points[0] as u8;
            word |= u32::from(unit.seven_signs()) << (7 * k);
        }
        group[4..].copy_from_slice(&word.to_le_bytes());
    }
    block
}
