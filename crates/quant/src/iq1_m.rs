//! IQ1_M: 256 weights as points of a ternary 8-dimensional grid; 1.75 bits per weight.
//!
//! ```text
//! byte  0                  32              48              56
//!       [ points: 32 bytes ][ high: 16 bytes ][ scales: 4 × u16 ]
//!       points[i / 8]   low 8 bits of the index into the grid
//!       high[i / 16]    half (i / 8) % 2: bits 0..3 high bits of the index, bit 3 the sign of
//!                       the shift (set: negative)
//!       scales[i / 64]  bits 3 k .. 3 k + 3 = s, k = (i / 16) % 4; bits 12..16 a nibble of d
//!       d               f16 bits, the lowest nibble in scales[0]
//!       weight i        = d · (2 s + 1) · (grid ± SHIFT)
//! ```

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::grid_block::{self, Coded, Coding, Ladder, Multipliers};
use crate::grids;
use crate::iq1_s::SHIFT;
use crate::nearest::{Codebook, Signs};
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// Per 8 weights: low bits of the grid index.
    pub points: [u8; 32],
    /// Per 8 weights: high bits of the grid index and the sign of the shift.
    pub high: [u8; 16],
    /// Per 16 weights: a 3-bit scale; above them the shared scale in nibbles.
    pub scales: [u16; 4],
}

const _: () = assert!(size_of::<Block>() == 56);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "IQ1_M",
    gguf_id: 29,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("points", 32), ("high", 16), ("scales", 8)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.421,
    holds_zero: false,
};

static CODING: LazyLock<Coding<8, 3>> = LazyLock::new(|| Coding {
    codebook: Codebook::new(&grids::IQ1, Signs::ShiftOfUnit(SHIFT)),
    multipliers: Multipliers { first: 1.0, step: 2.0, count: 8 },
    ladder: Ladder { first: 0.4, last: 1.2, count: 5 },
});

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(shared_scale(block));
    for (i, out) in out.iter_mut().enumerate() {
        let s = block.scales[i / 64] >> (i / 16 % 4 * 3) & 7;
        let scale = d * f32::from(2 * s + 1);
        let high = block.high[i / 16] >> (i / 8 % 2 * 4);
        let shift = if high & 8 != 0 { -SHIFT } else { SHIFT };
        let number = usize::from(block.points[i / 8]) | usize::from(high & 7) << 8;
        *out = scale * (f32::from(grids::IQ1[number][i % 8]) + shift);
    }
}

/// Chooses the scales and points that minimize the error; see `grid_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let Coded { d, scales, units } = grid_block::code::<_, _, 16>(&CODING, values, importance);
    let mut block =
        Block { points: units.map(|unit| unit.points[0] as u8), high: [0; 16], scales: [0; 4] };
    for (k, unit) in units.iter().enumerate() {
        let half = (unit.points[0] >> 8) as u8 | unit.signs << 3;
        block.high[k / 2] |= half << (k % 2 * 4);
    }
    for (k, packed) in block.scales.iter_mut().enumerate() {
        *packed = (d >> (4 * k) & 15) << 12;
        for (l, scale) in scales[4 * k..][..4].iter().enumerate() {
            *packed |= u16::from(*scale) << (3 * l);
        }
    }
    block
}

/// The shared scale (f16 bits), assembled from its nibbles.
#[inline]
#[must_use]
pub fn shared_scale(block: &Block) -> u16 {
    (0..4).fold(0, |bits, k| bits | block.scales[k] >> 12 << (4 * k))
}
