//! IQ4_NL: 32 weights of 4 bits from an uneven codebook and one scale; 4.5 bits per weight.
//!
//! ```text
//! byte  0        2                          18
//!       [ d: f16 ][ quants: 16 bytes        ]
//!       quants[i] = q[i + 16] << 4 | q[i]          weight = d · CODEBOOK[q]
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, GROUP, f16_value};
use crate::q4_0;
use crate::search::{self, ScaleBlock, Sweep};
use crate::{Descriptor, Plane};

/// The sixteen values, denser near zero as gaussian weights are.
pub const CODEBOOK: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// One block of 32 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The scale, f16 bits.
    pub d: u16,
    /// Two weights per byte: weight i in the low, weight 16 + i in the high nibble.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 18);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "IQ4_NL",
    gguf_id: 20,
    block_weights: 32,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("quants", 16)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize_groups(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.078,
    holds_zero: false,
};

/// Search range for the code of the largest weight: slightly beyond or short of the end of the codebook.
pub(crate) const SWEEP: Sweep = Sweep { first: -140.0, last: -110.0, count: 13 };

/// The 32 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 32]) {
    let d = f16_value(block.d);
    for (i, byte) in block.quants.into_iter().enumerate() {
        out[i] = d * f32::from(CODEBOOK[usize::from(byte & 15)]);
        out[16 + i] = d * f32::from(CODEBOOK[usize::from(byte >> 4)]);
    }
}

/// Chooses the scale that minimizes the error.
fn quantize(
    values: &[[f32; 32]; GROUP],
    importance: Option<&[[f32; 32]; GROUP]>,
) -> [Block; GROUP] {
    search::scales(values, importance, nearest, 0.0, SWEEP).map(
        |ScaleBlock { d, codes: values }| Block {
            d,
            quants: q4_0::pack(&values.map(|value| CODES[usize::from(value)])),
        },
    )
}

/// Halfway between each value and the next.
const MIDPOINTS: [f32; 15] = {
    let mut midpoints = [0.0; 15];
    let mut code = 0;
    while code < 15 {
        midpoints[code] = (CODEBOOK[code] as f32 + CODEBOOK[code + 1] as f32) / 2.0;
        code += 1;
    }
    midpoints
};

/// The code of each codebook value, indexed by the value as a byte.
pub(crate) const CODES: [u8; 256] = {
    let mut codes = [0; 256];
    let mut code = 0;
    while code < 16 {
        codes[CODEBOOK[code] as u8 as usize] = code as u8;
        code += 1;
    }
    codes
};

/// The nearest codebook value, as a branch-free sum of steps so that searches vectorize.
#[inline(always)]
pub(crate) fn nearest(v: f32) -> f32 {
    let mut value = f32::from(CODEBOOK[0]);
    for code in 0..15 {
        let step = f32::from(CODEBOOK[code + 1]) - f32::from(CODEBOOK[code]);
        value += if v > MIDPOINTS[code] { step } else { 0.0 };
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quotient_becomes_the_nearest_value_of_the_codebook() {
        for quarter in -600..=600i16 {
            let v = f32::from(quarter) / 4.0;
            let found = nearest(v);
            let off = |level: f32| (level - v).abs();
            let least = CODEBOOK.map(|level| off(f32::from(level))).into_iter().fold(1e9, f32::min);
            assert_eq!(off(found), least, "{v} became {found}");
            assert_eq!(CODEBOOK[usize::from(CODES[usize::from(found as i8 as u8)])], found as i8);
        }
        // Halfway between 1 and 13, and between -10 and 1.
        assert_eq!((nearest(7.0), nearest(-4.5)), (1.0, -10.0));
    }
}
