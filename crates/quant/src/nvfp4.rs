//! NVFP4: 64 weights of 4-bit floats (E2M1), an 8-bit float scale every 16; 4.5 bits per weight.
//!
//! ```text
//! byte  0                4                          36
//!       [ scales: 4 × UE4M3 ][ quants: 32 bytes        ]
//!       quants[8 p + l] = q[16 p + 8 + l] << 4 | q[16 p + l]        p < 4, l < 8
//!       weight i        = scales[p] / 2 · CODEBOOK[q]               p = i / 16
//! ```
//!
//! The codebook is MXFP4's, doubled E2M1. If a checkpoint has a tensor-wide f32 scale, it is a separate tensor.

use bytemuck::{Pod, Zeroable};

use crate::blocks;
use crate::mxfp4::CODEBOOK;
use crate::{Descriptor, Plane};

/// One block of 64 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// Per 16 weights: a scale as unsigned E4M3.
    pub scales: [u8; 4],
    /// Two weights per byte, 8 apart.
    pub quants: [u8; 32],
}

const _: () = assert!(size_of::<Block>() == 36);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "NVFP4",
    gguf_id: 40,
    block_weights: 64,
    block_bytes: size_of::<Block>(),
    planes: &Plane::split([("scales", 4), ("quants", 32)]),
    quantize: None,
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: f32::INFINITY,
};

/// Half the value of an unsigned E4M3 float (bias 7); the NaN code 0x7f counts as 0. The sign bit
/// is ignored.
#[inline]
#[must_use]
pub fn half_scale(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa * 2f32.powi(-10),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8),
    }
}

/// The 64 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 64]) {
    for (i, out) in out.iter_mut().enumerate() {
        let q = block.quants[i / 16 * 8 + i % 8] >> (i / 8 % 2 * 4) & 15;
        *out = half_scale(block.scales[i / 16]) * f32::from(CODEBOOK[usize::from(q)]);
    }
}
