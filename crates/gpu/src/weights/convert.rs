//! Rows of types without a loader, converted to a dense form.

use bilayer_graph::Weight;
use bilayer_quant::Type;
use half::f16;
use rayon::prelude::*;

/// Converts rows of a type without a loader to `ty`, which is its dense form, F16 or F32.
pub fn convert(weight: &Weight, ty: Type, source: &[u8]) -> Vec<u8> {
    let rows = source.len() / weight.row_bytes();
    if let Some(dense) = weight.ty.dense().filter(|dense| dense.ty == ty) {
        let row_bytes = weight.cols / ty.block_weights * ty.block_bytes;
        let mut wide = vec![0; rows * row_bytes];
        let to = wide.par_chunks_exact_mut(row_bytes);
        to.zip(source.par_chunks_exact(weight.row_bytes()))
            .for_each(|(to, from)| (dense.widen)(from, to));
        return wide;
    }
    let mut values = vec![0.0_f32; rows * weight.cols];
    values
        .par_chunks_exact_mut(weight.cols)
        .zip(source.par_chunks_exact(weight.row_bytes()))
        .for_each(|(to, from)| weight.ty.dequantize(from, to).expect("whole rows of its own type"));
    if ty == Type::F32 {
        return bytemuck::cast_slice(&values).to_vec();
    }
    let limit = f16::MAX.to_f32();
    let half: Vec<u16> =
        values.par_iter().map(|v| f16::from_f32(v.clamp(-limit, limit)).to_bits()).collect();
    bytemuck::cast_slice(&half).to_vec()
}
