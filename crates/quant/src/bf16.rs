//! BF16: the upper half of a single-precision number.

use crate::blocks;
use crate::{Descriptor, Plane};

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "BF16",
    gguf_id: 30,
    block_weights: 1,
    block_bytes: 2,
    row_header_bytes: 0,
    planes: &Plane::split([("value", 2)]),
    quantize: Some(|values, _, bytes| write(values, bytes)),
    dequantize: |bytes, values| {
        blocks::dequantize(bytes, values, |bits: &u16, out| *out = [value(*bits)]);
    },
    error_max: 0.0018,
    holds_zero: true,
};

/// The value of BF16 bits.
#[inline]
#[must_use]
pub fn value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest BF16, ties to even; finite values stay finite, a NaN stays a (quiet) NaN.
#[inline]
#[must_use]
pub fn bits(value: f32) -> u16 {
    const LARGEST: u32 = 0x7f7f;
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    if value.is_infinite() {
        return (bits >> 16) as u16;
    }
    let rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    ((rounded & 0x7fff).min(LARGEST) | rounded & 0x8000) as u16
}

#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
fn write(values: &[f32], bytes: &mut [u8]) {
    assert_eq!(bytes.len(), 2 * values.len());
    for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = bits(*value).to_le_bytes();
    }
}
