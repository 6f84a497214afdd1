//! I8, I16, I32, I64, F64: plain numbers, which can be sized and read but are never used for weights.
//!
//! Files use them for tables and indices. Reading converts to the nearest `f32`.

use bytemuck::AnyBitPattern;

use crate::blocks;
use crate::{Dequantize, Descriptor, Plane};

/// 8-bit integers.
pub static I8: Descriptor = plain("I8", 24, &Plane::split([("value", 1)]), |bytes, out| {
    read(bytes, out, |v: i8| f32::from(v))
});
/// 16-bit integers.
pub static I16: Descriptor = plain("I16", 25, &Plane::split([("value", 2)]), |bytes, out| {
    read(bytes, out, |v: i16| f32::from(v));
});
/// 32-bit integers.
pub static I32: Descriptor = plain("I32", 26, &Plane::split([("value", 4)]), |bytes, out| {
    read(bytes, out, |v: i32| v as f32)
});
/// 64-bit integers.
pub static I64: Descriptor = plain("I64", 27, &Plane::split([("value", 8)]), |bytes, out| {
    read(bytes, out, |v: i64| v as f32)
});
/// Double precision.
pub static F64: Descriptor = plain("F64", 28, &Plane::split([("value", 8)]), |bytes, out| {
    read(bytes, out, |v: f64| v as f32)
});

const fn plain(
    name: &'static str,
    gguf_id: u32,
    planes: &'static [Plane; 1],
    dequantize: Dequantize,
) -> Descriptor {
    Descriptor {
        name,
        gguf_id,
        block_weights: 1,
        block_bytes: planes[0].len,
        row_header_bytes: 0,
        planes,
        quantize: None,
        dequantize,
        error_max: f32::INFINITY,
        holds_zero: true,
    }
}

fn read<T: AnyBitPattern>(bytes: &[u8], out: &mut [f32], nearest: impl Fn(T) -> f32) {
    blocks::dequantize(bytes, out, |number: &T, out: &mut [f32; 1]| *out = [nearest(*number)]);
}
