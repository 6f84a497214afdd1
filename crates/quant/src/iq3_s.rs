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
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("points", 64), ("high", 8), ("signs", 32), ("scales", 4)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.131,
    holds_zero: false,
};

static CODING: LazyLock<Coding<4, 8>> = LazyLock::new(|| Coding {
    codebook: Codebook::new(&grids::IQ3_S, Signs::Free),
    multipliers: Multipliers { first: 1.0, step: 2.0, count: 16 },
    ladder: Ladder { first: 1.5, last: 8.0, count: 8 },
});

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

/// Chooses the scales and points that minimize the error; see `grid_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let Coded { d, scales, units } = grid_block::code::<_, _, 8>(&CODING, values, importance);
    let mut block = Block {
        d,
        points: [0; 64],
        high: [0; 8],
        signs: units.map(|unit| unit.signs),
        scales: std::array::from_fn(|p| scales[2 * p] | scales[2 * p + 1] << 4),
    };
    for (k, point) in units.iter().flat_map(|unit| unit.points).enumerate() {
        block.points[k] = point as u8;
        block.high[k / 8] |= ((point >> 8) as u8) << (k % 8);
    }
    block
}
