//! F16: IEEE half precision.

use half::slice::HalfFloatSliceExt;

use crate::blocks::f16_bits;
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
    quantize: Some(|values, _, bytes| write(values, bytes)),
    dequantize: read,
    error_max: 0.00022,
    holds_zero: true,
};

/// The nearest F16, ties to even; finite values stay finite, a NaN stays a NaN.
#[must_use]
pub fn bits(value: f32) -> u16 {
    if value.is_infinite() { half::f16::from_f32(value).to_bits() } else { f16_bits(value) }
}

#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
fn read(bytes: &[u8], values: &mut [f32]) {
    assert_eq!(bytes.len(), 2 * values.len());
    for (bytes, value) in bytes.as_chunks().0.iter().zip(values) {
        *value = self::value(u16::from_le_bytes(*bytes));
    }
}

/// The value of F16 bits. Unlike `half::f16::to_f32`, which looks for F16C at each call, it compiles to SIMD; a NaN becomes
/// quiet, as with F16C.
#[inline(always)]
fn value(bits: u16) -> f32 {
    const MANTISSA_BITS: u32 = 23;
    /// The difference of the biases, 127 - 15.
    const BIAS: u32 = 112 << MANTISSA_BITS;
    /// 2^-14, the smallest normal number of F16.
    const NORMAL: u32 = BIAS + (1 << MANTISSA_BITS);
    const QUIET: u32 = 1 << (MANTISSA_BITS - 1);
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let normal = magnitude + BIAS;
    // The bits of a subnormal count steps of 2^-24, the last bits of 2^-14.
    let subnormal = f32::from_bits(magnitude + NORMAL) - f32::from_bits(NORMAL);
    let special = normal + BIAS;
    let special = if special > f32::INFINITY.to_bits() { special | QUIET } else { special };
    let value = if magnitude < 1 << MANTISSA_BITS { subnormal.to_bits() } else { normal };
    let value = if magnitude < 31 << MANTISSA_BITS { value } else { special };
    f32::from_bits(sign | value)
}

/// Numbers that are rounded together.
const RUN: usize = 64;

/// Writes the [`bits`] of values.
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
fn write(values: &[f32], bytes: &mut [u8]) {
    assert_eq!(bytes.len(), 2 * values.len());
    let (mut bounded, mut halves) = ([0.0; RUN], [half::f16::ZERO; RUN]);
    for (values, bytes) in values.chunks(RUN).zip(bytes.chunks_mut(2 * RUN)) {
        let (bounded, halves) = (&mut bounded[..values.len()], &mut halves[..values.len()]);
        for (bounded, value) in bounded.iter_mut().zip(values) {
            let held = value.clamp(-65504.0, 65504.0);
            *bounded = if value.is_infinite() { *value } else { held };
        }
        halves.convert_from_f32_slice(bounded);
        bytes.copy_from_slice(bytemuck::cast_slice(halves));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::f16_value;

    #[test]
    fn slices_convert_as_numbers_do() {
        // Miri, which takes microseconds for a number, has one of 61.
        let share = if cfg!(miri) { 61 } else { 1 };
        let all: Vec<u16> = (0..=u16::MAX).step_by(share).collect();
        let bytes: Vec<u8> = all.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let mut values = vec![0.0; all.len()];
        read(&bytes, &mut values);
        for (bits, value) in all.iter().zip(&values) {
            assert_eq!(f16_value(*bits).to_bits(), value.to_bits(), "{bits:#x}");
        }
        // Floats of every exponent, NaN among them, and those around the largest F16.
        let mut between: Vec<f32> = Vec::new();
        for (bits, step) in [(0..=u32::MAX, 8191), (0x4770_0000..=0x4788_0000, 255)] {
            between.extend(bits.step_by(step * share).map(f32::from_bits));
        }
        // Lengths that are no multiple of a run, and any address.
        for len in [1, 3, 63, 64, 65, 127, 4099, between.len()] {
            let values = &between[between.len() - len..];
            let mut bytes = vec![0; 2 * len + 1];
            write(values, &mut bytes[1..]);
            for (value, found) in values.iter().zip(bytes[1..].as_chunks::<2>().0) {
                assert_eq!(u16::from_le_bytes(*found), bits(*value), "{value:e}");
            }
            let mut back = vec![0.0; len];
            read(&bytes[1..], &mut back);
            for (found, value) in bytes[1..].as_chunks::<2>().0.iter().zip(&back) {
                let expected = f16_value(u16::from_le_bytes(*found));
                assert_eq!(value.to_bits(), expected.to_bits());
            }
        }
    }
}
