//! Reads header, metadata and tensor directory of one file, and checks them against its length.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | keys u64
//! keys    x { name | value type u32 | value }           string = length u64 | bytes
//! tensors x { name | dimensions u32 | ne u64 each | type u32 | offset u64 }
//! padding to the alignment | data: each tensor at its offset from here
//! ```
//! Source: docs/gguf.md of the ggml project. Version 2 has the same layout; version 1 had 32-bit
//! lengths and is refused.

use std::collections::HashSet;

use bilayer_quant as quant;
use bilayer_quant::private::KEY;

use crate::cursor::Cursor;
use crate::value::{Array, Strings, Value, ValueType};
use crate::{Error, Metadata, TensorLayout, limits, names};

/// The parsed contents of one file.
pub(crate) struct Parsed {
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<(String, TensorLayout)>,
}

/// A row of the directory as stored; its offset counts from the start of the data.
struct Entry {
    name: String,
    ty: quant::Type,
    /// `[.., rows, cols]`.
    shape: Vec<u64>,
    offset: u64,
}

/// Bytes of the smallest entry: a name of one byte, and a value of one byte.
const KEY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Bytes of the smallest entry: a name of one byte, and one dimension.
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Reads all of `file` but the tensors' data.
pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Parsed, Error> {
    let mut cursor = Cursor::new(file, bytes);
    let version = version(&mut cursor)?;
    let tensors: u64 = cursor.number(format_args!("field tensor count"))?;
    let keys: u64 = cursor.number(format_args!("field key count"))?;
    let keys =
        cursor.check_count(keys, KEY_BYTES_MIN, limits::KEYS, format_args!("field key count"))?;
    let field = format_args!("field tensor count");
    cursor.check_count(tensors, TENSOR_BYTES_MIN, limits::TENSORS, field)?;

    let metadata = metadata(&mut cursor, keys)?;
    let alignment = u64::from(metadata.alignment()?);
    // The keys consumed part of the file, so the count is checked against the rest again.
    let tensors = cursor.check_count(tensors, TENSOR_BYTES_MIN, limits::TENSORS, field)?;
    let mut entries = Vec::with_capacity(tensors);
    for number in 0..tensors {
        entries.push(entry(&mut cursor, number, &metadata)?);
    }
    let tensors = place(&cursor, entries, alignment, bytes.len() as u64)?;
    Ok(Parsed { version, metadata, tensors })
}

fn version(cursor: &mut Cursor<'_>) -> Result<u32, Error> {
    let magic = cursor.take(4, format_args!("field magic"))?;
    if magic != b"GGUF" {
        let found = format!("\"{}\" ({magic:02x?})", magic.escape_ascii());
        return Err(Error::Magic { file: cursor.file.into(), found });
    }
    let found: u32 = cursor.number(format_args!("field version"))?;
    match found {
        2 | 3 => Ok(found),
        // Small numbers in the other byte order; the magic is four bytes in either.
        _ if found != 0 && found & 0xffff == 0 => {
            Err(Error::BigEndian { file: cursor.file.into(), found })
        }
        _ => Err(Error::Version { file: cursor.file.into(), found }),
    }
}

fn metadata(cursor: &mut Cursor<'_>, keys: usize) -> Result<Metadata, Error> {
    let mut metadata = Metadata::with_capacity(cursor.file, keys);
    for number in 0..keys {
        let key = cursor.string(format_args!("name of key {number}"))?;
        names::check_key(cursor.file, &key)?;
        if metadata.get(&key).is_some() {
            let field = format!("key {}", names::shown(&key));
            return Err(Error::Duplicate { file: cursor.file.into(), field, place: String::new() });
        }
        let value = value(cursor, &key)?;
        metadata.set(&key, value);
    }
    Ok(metadata)
}

/// Reads the type of the next value or array.
fn kind(cursor: &mut Cursor<'_>, what: &str, key: &str) -> Result<ValueType, Error> {
    let id: u32 = cursor.number(format_args!("{what} of key {key}"))?;
    ValueType::by_id(id).ok_or_else(|| {
        let field = format_args!("{what} of key {key}");
        cursor.invalid(field, "a type number from 0 to 12", id.to_string())
    })
}

fn value(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, Error> {
    let kind = kind(cursor, "value type", key)?;
    let field = format_args!("value of key {key}");
    Ok(match kind {
        ValueType::U8 => Value::U8(cursor.number(field)?),
        ValueType::I8 => Value::I8(cursor.number(field)?),
        ValueType::U16 => Value::U16(cursor.number(field)?),
        ValueType::I16 => Value::I16(cursor.number(field)?),
        ValueType::U32 => Value::U32(cursor.number(field)?),
        ValueType::I32 => Value::I32(cursor.number(field)?),
        ValueType::F32 => Value::F32(cursor.number(field)?),
        ValueType::Bool => Value::Bool(bools(cursor, 1, key)?[0]),
        ValueType::String => Value::String(cursor.string(field)?),
        ValueType::Array => Value::Array(array(cursor, key)?),
        ValueType::U64 => Value::U64(cursor.number(field)?),
        ValueType::I64 => Value::I64(cursor.number(field)?),
        ValueType::F64 => Value::F64(cursor.number(field)?),
    })
}

fn array(cursor: &mut Cursor<'_>, key: &str) -> Result<Array, Error> {
    let kind = kind(cursor, "element type", key)?;
    let count: u64 = cursor.number(format_args!("element count of key {key}"))?;
    let field = format_args!("elements of key {key}");
    Ok(match kind {
        ValueType::U8 => Array::U8(cursor.numbers(count, field)?),
        ValueType::I8 => Array::I8(cursor.numbers(count, field)?),
        ValueType::U16 => Array::U16(cursor.numbers(count, field)?),
        ValueType::I16 => Array::I16(cursor.numbers(count, field)?),
        ValueType::U32 => Array::U32(cursor.numbers(count, field)?),
        ValueType::I32 => Array::I32(cursor.numbers(count, field)?),
        ValueType::F32 => Array::F32(cursor.numbers(count, field)?),
        ValueType::Bool => Array::Bool(bools(cursor, count, key)?),
        ValueType::String => Array::String(strings(cursor, count, key)?),
        ValueType::U64 => Array::U64(cursor.numbers(count, field)?),
        ValueType::I64 => Array::I64(cursor.numbers(count, field)?),
        ValueType::F64 => Array::F64(cursor.numbers(count, field)?),
        // No model uses nested arrays, and a recursive reader could be made to overflow its stack.
        ValueType::Array => {
            let field = format_args!("element type of key {key}");
            return Err(cursor.invalid(field, "a flat array", "an array of arrays".into()));
        }
    })
}

fn bools(cursor: &mut Cursor<'_>, count: u64, key: &str) -> Result<Vec<bool>, Error> {
    let bytes: Vec<u8> = cursor.numbers(count, format_args!("value of key {key}"))?;
    if let Some(odd) = bytes.iter().find(|&&byte| byte > 1) {
        let field = format_args!("value of key {key}");
        return Err(cursor.invalid(field, "a bool of 0 or 1", odd.to_string()));
    }
    Ok(bytes.into_iter().map(|byte| byte == 1).collect())
}

fn strings(cursor: &mut Cursor<'_>, count: u64, key: &str) -> Result<Strings, Error> {
    let field = format_args!("elements of key {key}");
    let count = cursor.check_count(count, 8, limits::ARRAY_ELEMENTS, field)?;
    let mut text = Vec::new();
    let mut ends = Vec::with_capacity(count);
    for index in 0..count {
        let field = format_args!("string {index} of key {key}");
        text.extend_from_slice(cursor.string_bytes(field)?);
        ends.push(text.len());
    }
    Strings::from_parts(text, ends).map_err(|(index, at, byte)| {
        cursor.not_utf8(at, byte, format_args!("string {index} of key {key}"))
    })
}

fn entry(cursor: &mut Cursor<'_>, number: usize, metadata: &Metadata) -> Result<Entry, Error> {
    let name = cursor.string(format_args!("name of tensor {number}"))?;
    names::check_tensor(cursor.file, &name)?;
    let dimensions: u32 = cursor.number(format_args!("dimension count of tensor {name}"))?;
    if dimensions == 0 || dimensions > limits::DIMENSIONS {
        let field = format_args!("dimension count of tensor {name}");
        return Err(cursor.invalid(field, "1 to 4 dimensions", dimensions.to_string()));
    }
    let field = format_args!("shape of tensor {name}");
    let mut shape: Vec<u64> = cursor.numbers(dimensions.into(), field)?;
    shape.reverse();
    let id: u32 = cursor.number(format_args!("type of tensor {name}"))?;
    let offset: u64 = cursor.number(format_args!("offset of tensor {name}"))?;
    match quant::by_id(id) {
        Ok(ty) => Ok(Entry { name, ty, shape, offset }),
        Err(source) => Err(match listed(metadata, id) {
            Some(ty) => Error::PrivateType { file: cursor.file.into(), tensor: name, ty, id },
            None => Error::Quant { file: cursor.file.into(), tensor: name, source },
        }),
    }
}

/// The name that the file gives a type outside of GGUF.
fn listed(metadata: &Metadata, id: u32) -> Option<String> {
    let Some(Value::Array(Array::String(types))) = metadata.get(KEY) else { return None };
    let prefix = format!("{id}=");
    types.iter().find_map(|line| line.strip_prefix(&prefix)).map(names::shown)
}

/// Converts offsets within the data to validated byte ranges of the file.
fn place(
    cursor: &Cursor<'_>,
    entries: Vec<Entry>,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<(String, TensorLayout)>, Error> {
    let file = cursor.file;
    // The position is within the file, so this cannot overflow.
    let data = cursor.at().next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(entries.len());
    for Entry { name, ty, shape, offset } in entries {
        if !offset.is_multiple_of(alignment) {
            let field = format_args!("offset of tensor {name}");
            return Err(cursor.invalid(field, "a multiple of the alignment", offset.to_string()));
        }
        let layout = TensorLayout::new(file, &name, ty, &shape, data.saturating_add(offset))?;
        let left = file_bytes.saturating_sub(layout.offset());
        if layout.len_bytes() > left {
            return Err(Error::Truncated {
                file: file.into(),
                field: format!("data of tensor {name}"),
                offset: layout.offset(),
                needs: layout.len_bytes(),
                left,
            });
        }
        tensors.push((name, layout));
    }
    check_apart(file, &tensors)?;
    Ok(tensors)
}

/// Refuses duplicate names and overlapping data.
fn check_apart(file: &str, tensors: &[(String, TensorLayout)]) -> Result<(), Error> {
    let mut seen = HashSet::with_capacity(tensors.len());
    if let Some((name, _)) = tensors.iter().find(|(name, _)| !seen.insert(name.as_str())) {
        let field = format!("tensor {name}");
        return Err(Error::Duplicate { file: file.into(), field, place: String::new() });
    }
    let mut by_offset: Vec<_> = tensors.iter().collect();
    by_offset.sort_by_key(|(_, layout)| layout.offset());
    for pair in by_offset.windows(2) {
        let [(other, before), (tensor, layout)] = pair else { continue };
        let end = before.offset() + before.len_bytes();
        if end > layout.offset() {
            return Err(Error::Overlap {
                file: file.into(),
                tensor: tensor.clone(),
                other: other.clone(),
                end,
                offset: layout.offset(),
            });
        }
    }
    Ok(())
}
