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
use crate::mxfp4::{CODEBOOK, nearest};
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
    holds_zero: true,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{costs, values};

    #[test]
    fn scales_are_unsigned_floats_of_three_bits() {
        for bits in 0..0x7fu8 {
            let (exponent, mantissa) = (i32::from(bits >> 3), f64::from(bits & 7));
            let value = match exponent {
                0 => mantissa / 8.0 * (-6f64).exp2(),
                _ => (1.0 + mantissa / 8.0) * f64::from(exponent - 7).exp2(),
            };
            assert_eq!(f64::from(half_scale(bits)), value / 2.0, "{bits:#x}");
            assert_eq!(half_scale(bits | 0x80), half_scale(bits), "the sign is ignored");
        }
        assert_eq!(half_scale(0x7f), 0.0);
        assert_eq!(half_scale(SCALE_LARGEST), 224.0);
    }

    #[test]
    fn a_value_becomes_the_nearest_scale() {
        let scale = |bits: u8| f64::from(2.0 * half_scale(bits));
        for bits in 0..SCALE_LARGEST {
            let (low, high) = (scale(bits), scale(bits + 1));
            for (part, expected) in [(0.0, bits), (0.49, bits), (0.5, bits + 1), (0.51, bits + 1)] {
                let value = (low + part * (high - low)) as f32;
                assert_eq!(scale_bits(value), expected, "{value}");
            }
        }
        for large in [448.0, 460.0, 470.0, 1e9, f32::MAX] {
            assert_eq!(scale_bits(large), SCALE_LARGEST, "{large}");
        }
    }

    #[test]
    fn parts_have_the_scale_of_least_error_near_that_of_the_peak() {
        for seed in 0..8 {
            let size = [1.0, 0.01, 300.0, 0.1][seed as usize % 4];
            let x = values::<64>(seed).map(|x| x * size);
            let importance = costs::<64>(seed + 100);
            let w = search::weights(&x, Some(&importance));
            let block = quantize(&x, Some(&importance));
            let mut back = [0.0; 64];
            dequantize(&block, &mut back);
            for part in 0..4 {
                let range = 16 * part..16 * part + 16;
                // The least error at a scale.
                let least = |bits: u8| -> f64 {
                    let error = |x: f32| {
                        let levels = CODEBOOK.map(|level| half_scale(bits) * f32::from(level));
                        levels
                            .map(|level| f64::from(x - level).powi(2))
                            .into_iter()
                            .reduce(f64::min)
                    };
                    let errors = x[range.clone()].iter().map(|x| error(*x).expect("levels"));
                    errors.zip(&w[range.clone()]).map(|(error, w)| error * f64::from(*w)).sum()
                };
                let peak = x[range.clone()].iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
                let off = |bits: &u8| (2.0 * half_scale(*bits) - peak / 6.0).abs();
                let codes = (0..=SCALE_LARGEST).min_by(|a, b| off(a).total_cmp(&off(b)));
                let middle = codes.expect("scales");
                let around = middle.saturating_sub(4)..=(middle + 4).min(SCALE_LARGEST);
                let least = around.map(least).fold(f64::INFINITY, f64::min);
                let error = |i: usize| f64::from(w[i]) * f64::from(x[i] - back[i]).powi(2);
                let found: f64 = range.clone().map(error).sum();
                assert!(found <= 1.00001 * least, "row {seed}, part {part}: {found} {least}");
            }
        }
    }
}
