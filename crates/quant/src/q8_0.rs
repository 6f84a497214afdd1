//! Q8_0: 32 weights of 8 bits and one scale; 8.5 bits per weight.
//!
//! ```text
//! byte  0        2                          34
//!       [ d: f16 ][ quants: 32 × i8          ]     weight = d · q
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, Rule, f16_bits, f16_value};
use crate::lanes::{byte, reciprocal, round_away};
use crate::search;
use crate::{Descriptor, Grid, Plane};

/// One block of 32 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The scale, f16 bits.
    pub d: u16,
    /// One weight per byte.
    pub quants: [i8; 32],
}

const _: () = assert!(size_of::<Block>() == 34);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "Q8_0",
    gguf_id: 8,
    block_weights: 32,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("quants", 32)]),
    quantize: Some(|values, _, bytes| blocks::by_rule::<Block, 32>(values, bytes)),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.0056,
    holds_zero: true,
};

/// The 32 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 32]) {
    let d = f16_value(block.d);
    for (out, q) in out.iter_mut().zip(block.quants) {
        *out = d * f32::from(q);
    }
}

/// The format's fixed rule: the largest magnitude becomes ±127, and the rest are rounded (halves away from zero).
/// Values are finite.
#[inline(always)]
#[must_use]
pub fn quantize(values: &[f32; 32]) -> Block {
    let d = search::peak(values).abs() / 127.0;
    let inverse = reciprocal(d);
    let mut quants = [0; 32];
    for (quant, x) in quants.iter_mut().zip(values) {
        *quant = byte(round_away(x * inverse)).cast_signed();
    }
    Block { d: f16_bits(d), quants }
}

impl Rule<32> for Block {
    #[inline(always)]
    fn by_rule(values: &[f32; 32]) -> Block {
        quantize(values)
    }
}

/// The grid of a block.
pub(crate) const GRID: Grid = Grid {
    block: Some(32),
    codes: [-127.0, 127.0],
    scale: |values| f16_value(quantize(values.as_array().expect("a block")).d),
    write: |values, scale, bytes| {
        // Zero over zero is NaN, which the cast makes 0.
        let quants = std::array::from_fn(|i| (values[i] / scale).round() as i8);
        bytes.copy_from_slice(bytemuck::bytes_of(&Block { d: f16_bits(scale), quants }));
    },
};
