//! Tensors of matrices that checkpoints store in MXFP4 with exponents beside them, or one by one.

use std::collections::BTreeMap;

use bilayer_quant::Type;

use super::{Done, From, Planned, SourceTensor};
use crate::Error;
use crate::checkpoint::Checkpoint;

/// A tensor of packed matrices and their exponents.
pub(super) fn packed(
    name: String,
    blocks: SourceTensor,
    checkpoint: &Checkpoint,
    (first, step): (usize, usize),
) -> Result<Planned, Error> {
    let other = blocks.name.replace("_blocks", "_scales");
    let Some(stored) = checkpoint.shards.tensors().get(&other) else {
        return Err(blocks.wrong(&format!("its exponents, {other}, are missing")));
    };
    let scales = SourceTensor { name: other, stored: stored.clone() };
    let (shape, exponents) = (&blocks.stored.shape[..], &scales.stored.shape[..]);
    let &[experts, rows, groups, 16] = shape else {
        return Err(
            blocks.wrong(&format!("its shape is {shape:?}, not [experts, rows, groups, 16]"))
        );
    };
    if exponents != [experts, rows, groups] || [experts, rows, groups].contains(&0) {
        return Err(scales.wrong(&format!("its shape is {exponents:?}, of blocks in {shape:?}")));
    }
    if !rows.is_multiple_of(step as u64) {
        return Err(blocks.wrong(&format!("its {rows} rows do not come from {step} in turn")));
    }
    for part in [&blocks, &scales] {
        if !part.stored.is_packed() {
            return Err(part.wrong(&format!("it holds {}, not bytes", part.stored.dtype())));
        }
    }
    let shape = vec![experts, rows / step as u64, 32 * groups];
    let from = From::Packed { blocks, scales, first, step };
    Ok(Planned { name, shape, ty: Type::MXFP4, from })
}

/// A tensor of the parts of all experts or heads.
pub(super) fn stack(name: String, parts: BTreeMap<usize, SourceTensor>) -> Result<Planned, Error> {
    let count = parts.len();
    // Numbers of a map in order: all are there if the last one is their count less one.
    let last = parts.last_key_value().map_or(0, |(last, _)| *last);
    let parts: Vec<SourceTensor> = parts.into_values().collect();
    if last + 1 != count {
        return Err(parts[0].wrong(&format!("{count} tensors are of its kind, numbered to {last}")));
    }
    let (first, float) = (&parts[0], parts[0].float()?);
    for part in &parts {
        if part.stored.shape != first.stored.shape || part.float()? != float {
            return Err(
                part.wrong(&format!("its shape or type is another than that of {}", first.name))
            );
        }
    }
    if !(1..=2).contains(&first.stored.shape.len()) || first.stored.shape.contains(&0) {
        return Err(first.wrong("it is no vector or matrix"));
    }
    let shape = [&[count as u64], &first.stored.shape[..]].concat();
    let from = From::Stored { parts, float, change: Done::Nothing };
    Ok(Planned { name, shape, ty: Type::F32, from })
}
