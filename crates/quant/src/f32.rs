//! F32: single precision, stored unchanged.

use crate::{Descriptor, Plane};

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "F32",
    gguf_id: 0,
    block_weights: 1,
    block_bytes: 4,
    row_header_bytes: 0,
    planes: &Plane::split([("value", 4)]),
    quantize: Some(|values, _, bytes| bytes.copy_from_slice(bytemuck::cast_slice(values))),
    dequantize: |bytes, values| bytemuck::cast_slice_mut::<f32, u8>(values).copy_from_slice(bytes),
    error_max: 0.0,
    holds_zero: true,
};
