//! The types that kernels exist for, and random weights of theirs.

use bilayer_cpu::dot::dot;
use bilayer_cpu::level::Level;
use bilayer_quant::Type;
use half::{bf16, f16};

/// The types with kernels of their own for rows of `cols` weights.
pub fn types(cols: usize) -> impl Iterator<Item = Type> {
    let is_generic = move |ty: &Type| dot(*ty, cols, Level::Scalar).name.starts_with("generic");
    bilayer_quant::all().iter().copied().filter(move |ty| !is_generic(ty))
}

/// Overwrites `bytes` with rows of `cols` random weights with small scales, as many whole rows as there is space for.
pub fn fill(ty: Type, cols: usize, bytes: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in bytes.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    for row in bytes.chunks_exact_mut(ty.row_bytes(cols).expect("whole blocks")) {
        let (header, blocks) = row.split_at_mut(ty.row_header_bytes);
        if let Some(scale) = header.first_chunk_mut() {
            *scale = 0.01f32.to_le_bytes();
        }
        for (index, block) in blocks.chunks_exact_mut(ty.block_bytes).enumerate() {
            fill_block(ty, index, block);
        }
    }
}

/// Replaces the scales of a block, and floats.
fn fill_block(ty: Type, index: usize, block: &mut [u8]) {
    let value = index as f32 % 1000.0 * 0.001;
    match ty.block_bytes {
        4 if ty == Type::F32 => block.copy_from_slice(&value.to_le_bytes()),
        2 if ty == Type::F16 => block.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        2 if ty == Type::BF16 => block.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        _ => {}
    }
    for plane in ty.planes {
        match (plane.name, &mut block[plane.offset..][..plane.len]) {
            ("d" | "dmin" | "m", [low, high]) => {
                [*low, *high] = f16::from_f32(0.01).to_le_bytes();
            }
            ("e", [exponent]) => *exponent = 120,
            _ => {}
        }
    }
}
