//! F16: IEEE half precision.

use crate::blocks::{self, f16_bits, f16_value};
use crate::{Descriptor, Plane};

/// Entry in the table of types.
///
/// Finite weights beyond ±65504 are stored as ±65504; infinities and NaN are kept.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "F16",
    gguf_id: 1,
    block_weights: 1,
    block_bytes: 2,
    row_header_bytes: 0,
    planes: &Plane::split([("value", 2)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, |value: &[f32; 1], _| bits(value[0]));
    }),
    dequantize: |bytes, values| {
        blocks::dequantize(bytes, values, |bits: &u16, out| *out = [f16_value(*bits)]);
    },
    error_max: 0.00022,
    holds_zero: true,
};

/// The nearest F16, ties to even; finite values stay finite, a NaN stays a NaN.
#[must_use]
pub fn bits(value: f32) -> u16 {
    if value.is_infinite() { half::f16::from_f32(value).to_bits() } else { f16_bits(value) }
}
