//! TQ1_0: 256 ternary weights, five to a byte, and one scale; 1.6875 bits per weight.
//!
//! ```text
//! byte  0                  48            52       54
//!       [ quants: 48 bytes ][ rest: 4 bytes ][ d: f16 ]
//!       quants[l]       l < 32: weights l, 32 + l, .. 128 + l
//!       quants[32 + l]  l < 16: weights 160 + l, 176 + l, .. 224 + l
//!       rest[l]         l < 4:  weights 240 + l, 244 + l, 248 + l, 252 + l
//!       weight          = d · (digit - 1)
//! ```
//!
//! A byte is a base-3 fraction, ceil(256 · 0.abcde₃): multiplying by 3ⁿ modulo 256 moves digit n to the front, and
//! multiplying by 3 once more moves it into the carry.

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, GROUP, Rule, f16_value};
use crate::tq2_0::Ternary;
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// Five digits per byte.
    pub quants: [u8; 48],
    /// Four digits per byte.
    pub rest: [u8; 4],
    /// The shared scale, f16 bits.
    pub d: u16,
}

const _: () = assert!(size_of::<Block>() == 54);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "TQ1_0",
    gguf_id: 34,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("quants", 48), ("rest", 4), ("d", 2)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize_by_rule(values, importance, bytes, searched);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.8,
    holds_zero: true,
};

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    let (first, second) = block.quants.split_at(32);
    let runs = [(0, first, 5), (160, second, 5), (240, &block.rest[..], 4)];
    for (start, bytes, digits) in runs {
        for n in 0..digits {
            for (l, byte) in bytes.iter().enumerate() {
                out[start + n * bytes.len() + l] = d * (f32::from(digit(*byte, n)) - 1.0);
            }
        }
    }
}

impl Rule<256> for Block {
    /// The fixed rule: the largest magnitude is the scale.
    #[inline(always)]
    fn by_rule(values: &[f32; 256]) -> Block {
        packed(Ternary::by_rule(values))
    }
}

/// Chooses the scales that minimize the error.
fn searched(
    values: &[[f32; 256]; GROUP],
    importance: Option<&[[f32; 256]; GROUP]>,
) -> [Block; GROUP] {
    Ternary::searched(values, importance).map(packed)
}

#[inline(always)]
fn packed(Ternary { d, digits }: Ternary) -> Block {
    let mut block = Block { quants: [0; 48], rest: [0; 4], d };
    let (first, second) = block.quants.split_at_mut(32);
    let runs = [(0, first, 5), (160, second, 5), (240, &mut block.rest[..], 4)];
    for (start, bytes, count) in runs {
        let step = bytes.len();
        for (l, byte) in bytes.iter_mut().enumerate() {
            let number = (0..5u16).fold(0, |number, n| {
                let is_digit = usize::from(n) < count;
                let digit = if is_digit { digits[start + usize::from(n) * step + l] } else { 0 };
                number * 3 + u16::from(digit)
            });
            // Rounded up, so that the digits of the fraction come back exactly.
            *byte = (number * 256).div_ceil(243) as u8;
        }
    }
    block
}

/// Base-3 digit `n` of a byte, the most significant first.
#[inline]
#[must_use]
pub fn digit(byte: u8, n: usize) -> u8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    ((u16::from(byte.wrapping_mul(POWERS[n])) * 3) >> 8) as u8
}
