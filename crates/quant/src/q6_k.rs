//! Q6_K: 256 weights of 6 bits, signed 8-bit scales every 16; 6.5625 bits per weight.
//!
//! ```text
//! byte  0               128              192               208      210
//!       [ low: 128 bytes ][ high: 64 bytes ][ scales: 16 × i8 ][ d: f16 ]
//!       low[64 h + l]    = low4(q[128 h + 64 + l]) << 4 | low4(q[128 h + l])   h < 2, l < 64
//!       high[32 h + l]   bits 2 k, 2 k + 1 = high bits of q[128 h + 32 k + l]  k < 4, l < 32
//!       weight i         = d · scales[i / 16] · (q - 32)
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::lanes::round;
use crate::search::Sweep;
use crate::super_block::{self, Codes};
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// Four low bits, two weights per byte, 64 apart.
    pub low: [u8; 128],
    /// Two high bits, four weights per byte, 32 apart.
    pub high: [u8; 64],
    /// The scale of each 16 weights.
    pub scales: [i8; 16],
    /// The shared scale, f16 bits.
    pub d: u16,
}

const _: () = assert!(size_of::<Block>() == 210);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "Q6_K",
    gguf_id: 14,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("low", 128), ("high", 64), ("scales", 16), ("d", 2)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.0178,
    holds_zero: true,
};

const SWEEP: Sweep = Sweep { first: -33.5, last: -30.5, count: 7 };

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    for (i, out) in out.iter_mut().enumerate() {
        let low = block.low[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
        let high = block.high[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        *out = d * f32::from(block.scales[i / 16]) * (f32::from(low | high << 4) - 32.0);
    }
}

/// Chooses the scales that minimize the error; see `super_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let codes = Codes { nearest: |v| round(v, -32.0, 31.0), bias: 32.0 };
    let chosen = super_block::scales::<16, 16, _>(values, importance, -128.0, codes, SWEEP);
    let (mut low, mut high) = ([0; 128], [0; 64]);
    for (i, code) in chosen.codes.as_flattened().iter().enumerate() {
        low[i / 128 * 64 + i % 64] |= (code & 15) << (i / 64 % 2 * 4);
        high[i / 128 * 32 + i % 32] |= code >> 4 << (i / 32 % 4 * 2);
    }
    Block { low, high, scales: chosen.scales, d: chosen.d }
}
