//! Quantized blocks: their types alone, and products with them at every level of the CPU.

use bilayer_cpu::activations::PreparedColumns;
use bilayer_cpu::dot::{Dot, dot};
use bilayer_cpu::gemm::{Gemm, gemm};
use bilayer_cpu::level::Level;
use bilayer_quant::Type;

/// Blocks of any bytes and any floats through every type: sizes hold, and what is finite stays within the type's error.
pub fn quant(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    let types = bilayer_quant::all();
    let ty = types[usize::from(*which) % types.len()];
    let weights = ty.block_weights;
    let Ok(row_bytes) = ty.row_bytes(weights) else { return };
    let mut block = vec![0; row_bytes];
    block.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    let mut values = vec![0.0; weights];
    let _ = ty.dequantize(&block, &mut values);
    let floats =
        rest.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    values.iter_mut().zip(floats).for_each(|(to, from)| *to = from);
    if ty.quantize(&values, None, &mut block).is_ok() {
        let mut back = vec![0.0; weights];
        ty.dequantize(&block, &mut back).expect("what was quantized is a block");
    }
}

/// Rows of weights `[rows, cols]` in their layout, and activations `[tokens, cols]`.
struct Product {
    ty: Type,
    cols: usize,
    weights: Vec<u8>,
    x: Vec<f32>,
}

impl Product {
    /// `[tokens, rows]` by GEMV.
    fn by_dot(&self, dot: Dot, level: Level) -> Vec<f32> {
        let (tokens, rows) = (self.x.len() / self.cols, self.weights.len() / dot.row_bytes());
        let columns = PreparedColumns::new(dot.format, level, &self.x, self.cols);
        let mut out = vec![0.0; tokens * rows];
        dot.run(&self.weights, columns.get(), &mut out);
        out
    }

    /// `[tokens, rows]` by GEMM.
    fn by_gemm(&self, gemm: Gemm, row_bytes: usize) -> Vec<f32> {
        let (tokens, rows) = (self.x.len() / self.cols, self.weights.len() / row_bytes);
        let packed = gemm.packing.pack_all(&self.x, tokens);
        let mut scratch = vec![0; gemm.scratch_bytes(tokens)];
        let mut out = vec![0.0; tokens * rows];
        gemm.run(&self.weights, packed.get(), &mut scratch, &mut out);
        out
    }

    /// How far results may be apart, `[tokens, rows]`: activations have at least seven bits, and sums are f32.
    fn bounds(&self, row_bytes: usize) -> Vec<f32> {
        let mut row = vec![0.0; self.cols];
        let mut sums = Vec::new();
        for bytes in self.weights.chunks_exact(row_bytes) {
            self.ty.dequantize(bytes, &mut row).expect("a whole row");
            sums.push(row.iter().map(|weight| weight.abs()).sum::<f32>());
        }
        let most = |x: &[f32]| x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let bound = |x| sums.iter().map(move |sum| sum * most(x) / 60.0 + 1e-20);
        self.x.chunks_exact(self.cols).flat_map(bound).collect()
    }

    /// The largest sum that the codes of a row could give with a token's activations. Kernels add a number to each code and take
    /// it off the sum again, so a sum of small codes at a large scale has the rounding of a large one, and may leave f32.
    fn reach(&self, row_bytes: usize, place: usize) -> f32 {
        let rows = self.weights.len() / row_bytes;
        let x = &self.x[place / rows * self.cols..][..self.cols];
        let row = &self.weights[place % rows * row_bytes..][..row_bytes];
        let mut largest = 0.0f32;
        let mut values = vec![0.0; self.ty.block_weights];
        for block in row.chunks_exact(self.ty.block_bytes) {
            let mut block = block.to_vec();
            let mut weights = |block: &[u8]| {
                self.ty.dequantize(block, &mut values).expect("a whole block");
                values.clone()
            };
            let usual = weights(&block);
            for at in 0..block.len() {
                for flipped in [0x77, 0x88, 0xff] {
                    block[at] ^= flipped;
                    let found = weights(&block);
                    block[at] ^= flipped;
                    // A byte of codes changes some of the weights.
                    let changed = found.iter().zip(&usual).filter(|(a, b)| a != b);
                    if changed.clone().count() <= usual.len() / 8 {
                        largest = changed.fold(largest, |most, (weight, _)| most.max(weight.abs()));
                    }
                }
            }
        }
        largest * x.iter().map(|x| x.abs()).sum::<f32>()
    }
}

/// Share of the largest sum that rounding may take from a product.
const ROUNDING: f32 = 1.0 / 16384.0;

/// Largest magnitude of weights whose products are compared: sums of more may leave the range of f32 or f16 at one level.
const WEIGHT_MAX: f32 = 1e4;

/// Products at every level of this CPU. Blocks are any bytes, or are made of numbers. Where weights are finite and not huge,
/// every level must be near the scalar one; else nothing but the accesses is checked.
pub fn kernels(data: &[u8]) {
    let Some((&[which, shape, flags], rest)) = data.split_first_chunk() else { return };
    let types = bilayer_quant::all();
    let ty = types[usize::from(which) % types.len()];
    let (rows, tokens) = (1 + usize::from(shape & 3), 1 + usize::from(shape >> 2 & 7));
    let blocks = 1 + usize::from(shape >> 5 & 1);
    // Formats of activations need whole blocks of 256.
    let cols = ty.block_weights.max(256) * blocks;
    let Ok(row_bytes) = ty.row_bytes(cols) else { return };
    let at = |i: usize| rest.get(i % rest.len().max(1)).copied().unwrap_or(0);
    let mut weights: Vec<u8> = (0..rows * row_bytes).map(at).collect();
    // An eighth: the search for codes takes longer than all products.
    if flags & 7 == 1 {
        let values: Vec<f32> =
            (0..rows * cols).map(|i| f32::from(at(i * 5 + 1).cast_signed()) / 50.0).collect();
        if ty.quantize(&values, None, &mut weights).is_err() {
            return;
        }
    }
    let mut row = vec![0.0; cols];
    let is_compared = weights.chunks_exact(row_bytes).all(|bytes| {
        ty.dequantize(bytes, &mut row).expect("a whole row");
        row.iter().all(|weight| weight.abs() <= WEIGHT_MAX)
    });
    let x = (0..tokens * cols).map(|i| f32::from(at(i * 3).cast_signed()) / 16.0).collect();
    let product = Product { ty, cols, weights, x };
    let mut first: Option<[Vec<f32>; 2]> = None;
    for level in Level::available() {
        let found = [
            product.by_dot(dot(ty, cols, level), level),
            product.by_gemm(gemm(ty, cols, level), row_bytes),
        ];
        let expected = &*first.get_or_insert_with(|| found.clone());
        if !is_compared {
            continue;
        }
        let bounds = product.bounds(row_bytes);
        for (found, expected) in found.iter().zip(expected) {
            for (place, ((found, expected), bound)) in
                found.iter().zip(expected).zip(&bounds).enumerate()
            {
                // Bytes of a sparse block may name a place twice, of which decoded weights have one.
                let (off, bound) = ((found - expected).abs(), bound + expected.abs() / 60.0);
                if off <= bound {
                    continue;
                }
                let rounding = product.reach(row_bytes, place) * ROUNDING;
                assert!(
                    off <= bound + rounding || rounding > f32::MAX * ROUNDING / 64.0,
                    "{ty} at {level}: {found}, scalar {expected} +- {bound} + {rounding}"
                );
            }
        }
    }
}
