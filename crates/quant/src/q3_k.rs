//! Q3_K: 256 weights of 3 bits, signed 6-bit scales every 16; 3.4375 bits per weight.
//!
//! ```text
//! byte  0                  32                 96                 108      110
//!       [ high: 32 bytes   ][ quants: 64 bytes ][ scales: 12 bytes ][ d: f16 ]
//!       quants[32 h + l]   bits 2 k, 2 k + 1 = low bits of q[128 h + 32 k + l]
//!       high[l]            bit 4 h + k = high bit of q[128 h + 32 k + l]
//!       scales[p % 8]      halves of 4 bits = low bits of s[p], low half p < 8, high half p ≥ 8
//!       scales[8 + p % 4]  bits 2 (p / 4) and the next = high bits of s[p]          p = i / 16
//!       weight i           = d · (s[p] - 32) · (q - 4)
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::lanes::round;
use crate::q2_k;
use crate::search::Sweep;
use crate::super_block::{self, Codes};
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The third bits: byte l, bit k is that of weight 32 k + l.
    pub high: [u8; 32],
    /// Two low bits, four weights per byte, 32 apart.
    pub quants: [u8; 64],
    /// Sixteen 6-bit scales, biased by 32; see [`scales`].
    pub scales: [u8; 12],
    /// The shared scale, f16 bits.
    pub d: u16,
}

const _: () = assert!(size_of::<Block>() == 110);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "Q3_K",
    gguf_id: 11,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("high", 32), ("quants", 64), ("scales", 12), ("d", 2)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.151,
    holds_zero: true,
};

const SWEEP: Sweep = Sweep { first: -5.5, last: -3.0, count: 11 };

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    let scales = scales(&block.scales);
    for (i, out) in out.iter_mut().enumerate() {
        let high = block.high[i % 32] >> (i / 32) & 1;
        let q = q2_k::code(&block.quants, i) | high << 2;
        *out = d * f32::from(scales[i / 16]) * (f32::from(q) - 4.0);
    }
}

/// Chooses the scales that minimize the error; see `super_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let codes = Codes { nearest: |v| round(v, -4.0, 3.0), bias: 4.0 };
    let chosen = super_block::scales::<16, 16, _>(values, importance, -32.0, codes, SWEEP);
    let codes = chosen.codes.as_flattened();
    let mut high = [0; 32];
    for (i, code) in codes.iter().enumerate() {
        high[i % 32] |= code >> 2 << (i / 32);
    }
    Block { high, quants: q2_k::pack(codes), scales: pack_scales(&chosen.scales), d: chosen.d }
}

/// The sixteen scales, bias removed: -32..=31.
#[inline]
#[must_use]
pub fn scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|p| {
        let low = packed[p % 8] >> (p / 8 * 4) & 15;
        let high = packed[8 + p % 4] >> (p / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// The inverse of [`scales`].
#[must_use]
pub fn pack_scales(scales: &[i8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (p, scale) in scales.iter().enumerate() {
        let biased = (scale + 32) as u8;
        packed[p % 8] |= (biased & 15) << (p / 8 * 4);
        packed[8 + p % 4] |= biased >> 4 << (p / 4 * 2);
    }
    packed
}
