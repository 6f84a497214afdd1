//! Which quantization types the shaders read, and how matrices of them lie in device memory.

use bilayer_quant::Type;

use crate::render::template;

/// How a matrix lies in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Each field of the blocks in a plane of its own, rows padded to whole units.
    Split,
    /// As in the file.
    Raw,
}

impl Layout {
    /// The layout of a type: blocks that are whole vectors of sixteen bytes stay as they are.
    pub fn of(ty: Type) -> Layout {
        if ty.block_bytes.is_multiple_of(16) { Layout::Raw } else { Layout::Split }
    }
}

/// Whether there is a loader for the type.
pub fn is_native(ty: Type) -> bool {
    loader(ty).is_some()
}

/// Whether the type's loader gives integers, which the products with quantized activations need.
pub fn is_ints(ty: Type) -> bool {
    loader(ty).is_some_and(|text| text.contains("-> Unit"))
}

/// Whether the pieces of a unit lie 32 weights apart.
pub fn is_strided(ty: Type) -> bool {
    loader(ty).is_some_and(|text| text.contains("(strided)"))
}

/// How many products of two pairs may be added before their sum exceeds sixteen bits: 8, 4 or 2, and 0 where there is
/// nothing to gain. Integers that are never negative and at most 63 have it, by their loader's word.
pub fn pairs(ty: Type) -> u32 {
    let stated = loader(ty).and_then(|text| text.split_once("Integers here are at most "));
    let number =
        stated.and_then(|(_, rest)| rest.split_once('.')).and_then(|(n, _)| n.parse().ok());
    let Some(most) = number.filter(|&most: &u32| most > 0) else { return 0 };
    match 0x7fff / (2 * 127 * most) {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 0,
    }
}

fn loader(ty: Type) -> Option<&'static str> {
    template(&format!("quant/{}", ty.name.to_lowercase()))
}
