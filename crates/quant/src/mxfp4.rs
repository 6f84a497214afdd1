//! MXFP4: 32 weights of 4-bit floats (E2M1) and a power of two; 4.25 bits per weight.
//!
//! ```text
//! byte  0          1                          17
//!       [ e: E8M0  ][ quants: 16 bytes         ]
//!       quants[i] = q[i + 16] << 4 | q[i]     weight = 2^(e - 128) · CODEBOOK[q]
//! ```
//!
//! Source: OCP Microscaling Formats 1.0. The codebook holds doubled E2M1 values, which are integers; the exponent is
//! halved accordingly.

use bytemuck::{Pod, Zeroable};

use crate::blocks;
use crate::q4_0;
use crate::search;
use crate::{Descriptor, Plane};

/// Twice the values of E2M1, by code; codes 0 and 8 are both zero.
pub const CODEBOOK: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// One block of 32 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The exponent, biased by 127.
    pub e: u8,
    /// Two weights per byte: weight i in the low, weight 16 + i in the high nibble.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 17);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "MXFP4",
    gguf_id: 39,
    block_weights: 32,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("e", 1), ("quants", 16)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.125,
};

/// Half the value of an E8M0 exponent, 2^(e - 128); the two smallest are subnormal.
#[inline]
#[must_use]
pub fn half_scale(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// The 32 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 32]) {
    let scale = half_scale(block.e);
    for (i, byte) in block.quants.into_iter().enumerate() {
        out[i] = scale * f32::from(CODEBOOK[usize::from(byte & 15)]);
        out[16 + i] = scale * f32::from(CODEBOOK[usize::from(byte >> 4)]);
    }
}

/// Without importance, the format's fixed rule: the exponent of the largest magnitude, minus two. With importance,
/// that exponent or a neighbour, whichever minimizes the error.
#[must_use]
pub fn quantize(values: &[f32; 32], importance: Option<&[f32; 32]>) -> Block {
    let peak = search::peak(values).abs();
    // The exponent field itself is floor(log2) + 127, without the rounding of a logarithm.
    let fixed = (peak.to_bits() >> 23).saturating_sub(2) as u8;
    let e = match importance {
        None => fixed,
        Some(_) => {
            let weights = search::weights(values, importance);
            let loss = |e: u8| {
                let scale = half_scale(e);
                let error = |x: f32| x - scale * f32::from(CODEBOOK[nearest(x, scale)]);
                values.iter().zip(&weights).map(|(x, w)| w * error(*x) * error(*x)).sum::<f32>()
            };
            let candidates = [fixed, fixed.saturating_sub(1), (fixed + 1).min(252)];
            candidates.into_iter().min_by(|a, b| loss(*a).total_cmp(&loss(*b))).unwrap_or(fixed)
        }
    };
    let scale = half_scale(e);
    let q = values.map(|x| nearest(x, scale) as u8);
    Block { e, quants: q4_0::pack(&q) }
}

/// Halfway between each magnitude and the next.
pub(crate) const MIDPOINTS: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];

/// The code with the nearest value, ties toward zero. Division by a power of two is exact.
#[inline]
fn nearest(x: f32, scale: f32) -> usize {
    let magnitude = x.abs() / scale;
    let code: usize = MIDPOINTS.iter().map(|midpoint| usize::from(magnitude > *midpoint)).sum();
    if x < 0.0 && code > 0 { code + 8 } else { code }
}
