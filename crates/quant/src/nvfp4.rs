//! NVFP4: 64 weights of 4-bit floats (E2M1), an 8-bit float scale every 16; 4.5 bits per weight.
//!
//! ```text
//! byte  0                4                          36
//!       [ scales: 4 × UE4M3 ][ quants: 32 bytes        ]
//!       quants[8 p + l] = q[16 p + 8 + l] << 4 | q[16 p + l]        p < 4, l < 8
//!       weight i        = scales[p] / 2 · CODEBOOK[q]               p = i / 16
//! ```
//!
//! The codebook is MXFP4's, doubled E2M1. If a checkpoint has a tensor-wide f32 scale, it is a separate tensor. Without one,
//! scales below 2^-6 have few bits, and weights below 2^-11 become 0.

use bytemuck::{Pod, Zeroable};

use crate::blocks;
use crate::mxfp4::{CODEBOOK, MIDPOINTS};
use crate::search;
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
    row_header_bytes: 0,
    planes: &Plane::split([("scales", 4), ("quants", 32)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.088,
};

/// Half the value of an unsigned E4M3 float (bias 7); the NaN code 0x7f counts as 0. The sign bit
/// is ignored.
#[inline]
#[must_use]
pub const fn half_scale(bits: u8) -> f32 {
    let (exponent, mantissa) = (bits >> 3 & 15, (bits & 7) as f32);
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa / 1024.0,
        // 2^(exponent - 8), whose exponent field has a bias of 127.
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((exponent as u32 + 119) << 23),
    }
}

/// The 64 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 64]) {
    for (i, out) in out.iter_mut().enumerate() {
        let q = block.quants[i / 16 * 8 + i % 8] >> (i / 8 % 2 * 4) & 15;
        *out = half_scale(block.scales[i / 16]) * f32::from(CODEBOOK[usize::from(q)]);
    }
}

/// The largest finite scale, 448.
const SCALE_LARGEST: u8 = 0x7e;

/// Scales tried: this many codes below and above the one that makes the largest magnitude 6.
const AROUND: u8 = 4;

/// Chooses the scales that minimize the error.
#[must_use]
pub fn quantize(values: &[f32; 64], importance: Option<&[f32; 64]>) -> Block {
    let mut block = Block { scales: [0; 4], quants: [0; 32] };
    let weights = search::weights(values, importance);
    for (p, (x, weights)) in
        values.as_chunks::<16>().0.iter().zip(weights.as_chunks().0).enumerate()
    {
        let middle = scale_bits(search::peak(x).abs() / 6.0);
        let scale = best(x, weights, middle);
        block.scales[p] = scale;
        for (l, x) in x.iter().enumerate() {
            let code = nearest(*x, half_scale(scale)) as u8;
            block.quants[p * 8 + l % 8] |= code << (l / 8 * 4);
        }
    }
    block
}

/// The scale around `middle` that minimizes the error.
fn best(x: &[f32; 16], weights: &[f32; 16], middle: u8) -> u8 {
    let loss = |bits: u8| {
        let scale = half_scale(bits);
        let error = |x: f32| x - scale * f32::from(CODEBOOK[nearest(x, scale)]);
        x.iter().zip(weights).map(|(x, w)| w * error(*x) * error(*x)).sum::<f32>()
    };
    let (mut best, mut least) = (middle, f32::INFINITY);
    for bits in middle.saturating_sub(AROUND)..=(middle + AROUND).min(SCALE_LARGEST) {
        let loss = loss(bits);
        (best, least) = if loss < least { (bits, loss) } else { (best, least) };
    }
    best
}

/// The nearest unsigned E4M3, halves up; larger values become 448.
fn scale_bits(value: f32) -> u8 {
    let smallest_normal = 2f32.powi(-6);
    if value < smallest_normal {
        return (value * 512.0 + 0.5) as u8;
    }
    // Exponent and three bits of the mantissa, rounded at the fourth, with the bias of 127 made one of 7.
    let bits = (value.min(448.0).to_bits() + (1 << 19)) >> 20;
    ((bits - (120 << 3)) as u8).min(SCALE_LARGEST)
}

/// The code with the nearest value, ties toward zero.
#[inline]
fn nearest(x: f32, scale: f32) -> usize {
    // A scale and a midpoint have few bits, so products are exact.
    let code: usize =
        MIDPOINTS.iter().map(|m| usize::from(scale > 0.0 && x.abs() > m * scale)).sum();
    if x < 0.0 && code > 0 { code + 8 } else { code }
}
