//! Encodes header, metadata and directory, the inverse of `parse`.

use crate::cursor::Number;
use crate::value::{Array, Strings, Value};
use crate::{Metadata, TensorLayout, limits};

/// Everything before the data, without padding; `tensors` have offsets from the start of the data.
pub(crate) fn header(metadata: &Metadata, tensors: &[(&str, TensorLayout)]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    3u32.append(&mut out);
    (tensors.len() as u64).append(&mut out);
    (metadata.len() as u64).append(&mut out);
    for (key, value) in metadata.iter() {
        string(key, &mut out);
        (value.kind() as u32).append(&mut out);
        append_value(value, &mut out);
    }
    for (name, layout) in tensors {
        string(name, &mut out);
        // At most limits::DIMENSIONS, by construction of the layout.
        debug_assert!(layout.shape().len() <= limits::DIMENSIONS as usize);
        (layout.shape().len() as u32).append(&mut out);
        layout.shape().iter().rev().for_each(|size| size.append(&mut out));
        layout.ty().gguf_id.append(&mut out);
        layout.offset().append(&mut out);
    }
    out
}

fn string(text: &str, out: &mut Vec<u8>) {
    (text.len() as u64).append(out);
    out.extend_from_slice(text.as_bytes());
}

fn append_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::U8(number) => number.append(out),
        Value::I8(number) => number.append(out),
        Value::U16(number) => number.append(out),
        Value::I16(number) => number.append(out),
        Value::U32(number) => number.append(out),
        Value::I32(number) => number.append(out),
        Value::F32(number) => number.append(out),
        Value::Bool(flag) => out.push(u8::from(*flag)),
        Value::String(text) => string(text, out),
        Value::Array(array) => append_array(array, out),
        Value::U64(number) => number.append(out),
        Value::I64(number) => number.append(out),
        Value::F64(number) => number.append(out),
    }
}

fn append_array(array: &Array, out: &mut Vec<u8>) {
    (array.kind() as u32).append(out);
    (array.len() as u64).append(out);
    match array {
        Array::U8(elements) => out.extend_from_slice(elements),
        Array::I8(elements) => numbers(elements, out),
        Array::U16(elements) => numbers(elements, out),
        Array::I16(elements) => numbers(elements, out),
        Array::U32(elements) => numbers(elements, out),
        Array::I32(elements) => numbers(elements, out),
        Array::F32(elements) => numbers(elements, out),
        Array::Bool(elements) => out.extend(elements.iter().map(|&flag| u8::from(flag))),
        Array::String(elements) => strings(elements, out),
        Array::U64(elements) => numbers(elements, out),
        Array::I64(elements) => numbers(elements, out),
        Array::F64(elements) => numbers(elements, out),
    }
}

fn numbers<N: Number>(elements: &[N], out: &mut Vec<u8>) {
    out.reserve(size_of_val(elements));
    elements.iter().for_each(|element| element.append(out));
}

fn strings(elements: &Strings, out: &mut Vec<u8>) {
    elements.iter().for_each(|element| string(element, out));
}
