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
    holds_zero: true,
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
const MIDPOINTS: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];

/// The code with the nearest value of the codebook at a scale, ties toward zero; 0 if the scale is 0. Scales have so few
/// bits that their products with midpoints are exact.
#[inline]
pub(crate) fn nearest(x: f32, scale: f32) -> usize {
    let code: usize =
        MIDPOINTS.iter().map(|m| usize::from(scale > 0.0 && x.abs() > m * scale)).sum();
    if x < 0.0 && code > 0 { code + 8 } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{costs, values};

    #[test]
    fn codes_are_the_nearest_ones_halves_toward_zero() {
        let cases = [
            (0.5, 0),
            (0.51, 1),
            (-0.5, 0),
            (-0.51, 9),
            (2.5, 2),
            (5.0, 4),
            (5.1, 5),
            (-7.1, 14),
            (10.0, 6),
            (10.1, 7),
            (1e9, 7),
            (-1e9, 15),
            (0.0, 0),
        ];
        for (x, code) in cases {
            assert_eq!(nearest(x, 1.0), code, "{x}");
            assert_eq!(nearest(8.0 * x, 8.0), code, "{x} at a scale");
            assert_eq!(nearest(0.25 * x, 0.25), code, "{x} at a scale");
            assert_eq!(nearest(x, 0.0), 0, "{x} without a scale");
        }
    }

    #[test]
    fn exponents_halve_a_power_of_two() {
        for e in 0..=252u8 {
            let expected = f64::from(i32::from(e) - 128).exp2();
            assert_eq!(f64::from(half_scale(e)), expected, "{e}");
        }
    }

    #[test]
    fn importance_chooses_the_exponent_of_least_error() {
        let mut chosen = [0; 3];
        for seed in 0..24 {
            let (x, importance) = (values::<32>(seed), costs::<32>(seed + 100));
            let w = search::weights(&x, Some(&importance));
            let (fixed, block) = (quantize(&x, None), quantize(&x, Some(&importance)));
            chosen[usize::from(1 + block.e - fixed.e)] += 1;
            let error = |e: u8| -> f64 {
                let levels = CODEBOOK.map(|level| half_scale(e) * f32::from(level));
                let near = |x: f32| {
                    let squares = levels.map(|level| f64::from(x - level).powi(2));
                    squares.into_iter().fold(f64::INFINITY, f64::min)
                };
                x.iter().zip(&w).map(|(x, w)| f64::from(*w) * near(*x)).sum()
            };
            let least = (0..=252).map(error).fold(f64::INFINITY, f64::min);
            let mut back = [0.0; 32];
            dequantize(&block, &mut back);
            let found: f64 =
                (0..32).map(|i| f64::from(w[i]) * f64::from(x[i] - back[i]).powi(2)).sum();
            assert!(found <= 1.00001 * least, "row {seed}: {found} {least}");
        }
        assert!(chosen[1] > 0 && chosen[0] + chosen[2] > 0, "{chosen:?}: both rules are seen");
    }
}
