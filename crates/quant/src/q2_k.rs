//! Q2_K: 256 weights of 2 bits, 4-bit scales and minimums every 16; 2.625 bits per weight.
//!
//! ```text
//! byte  0                  16                 80       82          84
//!       [ scales: 16 bytes ][ quants: 64 bytes ][ d: f16 ][ dmin: f16 ]
//!       scales[p]          = min[p] << 4 | scale[p]                 p = i / 16
//!       quants[32 h + l]   bits 2 k, 2 k + 1 = q[128 h + 32 k + l]  h < 2, k < 4, l < 32
//!       weight i           = d · scale[p] · q - dmin · min[p]
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::search::Sweep;
use crate::super_block;
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// Per 16 weights: the scale in the low, the minimum in the high nibble.
    pub scales: [u8; 16],
    /// Four weights per byte, 32 apart.
    pub quants: [u8; 64],
    /// The shared scale, f16 bits.
    pub d: u16,
    /// The shared scale of the minimums, f16 bits.
    pub dmin: u16,
}

const _: () = assert!(size_of::<Block>() == 84);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "Q2_K",
    gguf_id: 10,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("scales", 16), ("quants", 64), ("d", 2), ("dmin", 2)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.275,
    holds_zero: false,
};

const SWEEP: Sweep = Sweep { first: 2.4, last: 3.9, count: 6 };

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let (d, dmin) = (f16_value(block.d), f16_value(block.dmin));
    for (i, out) in out.iter_mut().enumerate() {
        let scales = block.scales[i / 16];
        let q = code(&block.quants, i);
        *out = d * f32::from(scales & 15) * f32::from(q) - dmin * f32::from(scales >> 4);
    }
}

/// Chooses the scales and minimums that minimize the error; see `super_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let lines = super_block::lines::<16, 16>(values, importance, 3.0, 15.0, SWEEP);
    let codes = lines.codes.as_flattened();
    Block {
        scales: std::array::from_fn(|part| lines.scales[part] | lines.mins[part] << 4),
        quants: pack(codes),
        d: lines.d,
        dmin: lines.dmin,
    }
}

/// The 2-bit code of weight `i`, as Q2_K and Q3_K store them.
#[inline]
pub(crate) fn code(quants: &[u8; 64], i: usize) -> u8 {
    quants[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

/// The inverse of [`code`]; only the two low bits of each code are used.
pub(crate) fn pack(codes: &[u8]) -> [u8; 64] {
    let mut quants = [0; 64];
    for (i, code) in codes.iter().enumerate() {
        quants[i / 128 * 32 + i % 32] |= (code & 3) << (i / 32 % 4 * 2);
    }
    quants
}
