//! Q5_K: 256 weights of 5 bits, 6-bit scales and minimums every 32; 5.5 bits per weight.
//!
//! ```text
//! byte  0        2           4                  16               48                  176
//!       [ d: f16 ][ dmin: f16 ][ scales: 12 bytes ][ high: 32 bytes ][ quants: 128 bytes ]
//!       scales             eight scales s and minimums m, packed as in `k_scales`
//!       high[l]            bit k = high bit of q[32 k + l]                   k < 8, l < 32
//!       quants[32 h + l]   = low4(q[64 h + 32 + l]) << 4 | low4(q[64 h + l])
//!       weight i           = d · s[p] · q - dmin · m[p]                      p = i / 32
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::k_scales::{SCALES_BYTES, pack_scales_mins, scales_mins};
use crate::q4_k;
use crate::search::Sweep;
use crate::super_block;
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The shared scale, f16 bits.
    pub d: u16,
    /// The shared scale of the minimums, f16 bits.
    pub dmin: u16,
    /// Eight 6-bit scales and minimums; see [`scales_mins`].
    pub scales: [u8; SCALES_BYTES],
    /// The fifth bits: byte l, bit k is that of weight 32 k + l.
    pub high: [u8; 32],
    /// Four low bits, two weights per byte, 32 apart.
    pub quants: [u8; 128],
}

const _: () = assert!(size_of::<Block>() == 176);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "Q5_K",
    gguf_id: 13,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([
        ("d", 2),
        ("dmin", 2),
        ("scales", SCALES_BYTES),
        ("high", 32),
        ("quants", 128),
    ]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.036,
    holds_zero: false,
};

const SWEEP: Sweep = Sweep { first: 30.0, last: 32.5, count: 4 };

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let (d, dmin) = (f16_value(block.d), f16_value(block.dmin));
    let (scales, mins) = scales_mins(&block.scales);
    for (i, out) in out.iter_mut().enumerate() {
        let high = block.high[i % 32] >> (i / 32) & 1;
        let q = q4_k::code(&block.quants, i) | high << 4;
        *out = d * f32::from(scales[i / 32]) * f32::from(q) - dmin * f32::from(mins[i / 32]);
    }
}

/// Chooses the scales and minimums that minimize the error; see `super_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let lines = super_block::lines::<32, 8>(values, importance, 31.0, 63.0, SWEEP);
    let codes = lines.codes.as_flattened();
    let mut high = [0; 32];
    for (i, code) in codes.iter().enumerate() {
        high[i % 32] |= code >> 4 << (i / 32);
    }
    Block {
        d: lines.d,
        dmin: lines.dmin,
        scales: pack_scales_mins(&lines.scales, &lines.mins),
        high,
        quants: q4_k::pack(codes),
    }
}
