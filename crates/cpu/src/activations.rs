//! Activations prepared for the dot kernels: one column per token, quantized once per op.
//!
//! A matrix product of few tokens quantizes its activations once and then streams all weight rows against them, so
//! everything the kernels would otherwise recompute per row is stored here: the sums needed for minimums and offsets,
//! and scales already spread over the lanes. All levels produce identical bits.

use bytemuck::{Pod, Zeroable};

use crate::lanes::{Lanes, Transform};
use crate::level::{Level, transform};
use crate::quantizer::BLOCKS;

mod block;
mod columns;
mod interleave;
mod pack;
mod quantize;
mod whole_row;

pub(crate) use block::Block;
#[cfg(target_arch = "x86_64")]
pub(crate) use block::Parts;
pub(crate) use columns::Lines;
pub use columns::PreparedColumns;
pub(crate) use pack::pack;
pub(crate) use whole_row::{
    KeyRows, Outliers, PackedRows, RowColumn, Zero, pack_rows, quantize_rows,
};

use quantize::quantize_32;
pub(crate) use quantize::quantize_256;

/// Columns that one activation scale covers at most, and that a tile multiplies at a time: a K-quant block, or eight
/// blocks of 32.
pub(crate) const SPAN: usize = 256;

/// The number format of activations: of the columns of GEMV ([`Format::prepare`]), and of the packed activations of
/// GEMM ([`Packing`](crate::gemm::Packing)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// f32. Columns are padded with zeros to a multiple of 64 activations; packed `[cols, tokens]`.
    F32,
    /// 8 bits and one scale per 32: |x - x'| <= max|x| / 254 within each. Columns are [`Quad32`]s, padded with zeros to
    /// a multiple of 128 activations.
    Q8x32,
    /// 8 bits, one scale per 256 and one sum per 16. Columns are [`Block256`]s, whole blocks only.
    Q8x256,
    /// 8 bits and one scale per token, with up to eight outliers in 16 bits: |x - x'| <= max|x| / 254, where the maximum is
    /// that of the others, or 1/258 of the largest outlier; less with a zero point, which tokens have most of whose range is
    /// on one side of 0. Multiples of 32 activations; see `activations/whole_row.rs` for the layouts of columns and packed
    /// chunks.
    Q8Row,
    /// [`Format::Q8x256`] with 16-bit sums, for tiles that apply the weights' scales as integers. Packed only.
    #[cfg(target_arch = "x86_64")]
    Q8x256Pairs,
    /// 12 bits, stored as 16, and one scale per 256, or fewer at the end of a row: |x - x'| <= max|x| / 4094. Packed
    /// only.
    #[cfg(target_arch = "x86_64")]
    Q12x256,
    /// bf16: |x - x'| <= |x| / 256. Packed only, `[cols / 2, tokens, 2]`, an odd last column with a zero.
    #[cfg(target_arch = "x86_64")]
    Bf16,
    /// Tiles of 32 columns x 16 tokens in bf16: |x - x'| <= |x| / 256; with a second plane, which holds the
    /// residuals, |x| / 65536. Packed only.
    #[cfg(target_arch = "x86_64")]
    Tiles {
        /// 1 or 2.
        planes: usize,
    },
}

/// The alignment of columns in bytes: a cache line, and the widest vector.
pub const COLUMN_ALIGN: usize = 64;

/// Weights per step of the f32 kernels; F32 columns are padded to whole pairs of steps.
pub(crate) const F32_STEP: usize = 32;

/// 256 activations of a [`Format::Q8x256`] column: activation i ≈ `scale · quants[i]`.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Block256 {
    /// The activations as nearest integer multiples of the scale, -127..=127.
    pub quants: [i8; 256],
    /// `scale · Σ quants` of each 16 activations.
    pub sums: [f32; 16],
    /// `Σ quants` of each 16 activations: the even groups of sixteen, then the odd ones.
    pub whole_sums: [i16; 16],
    /// The scale, repeated in every lane: largest magnitude / 127.
    pub scale: [f32; 8],
}

/// Four blocks of 32 activations of a [`Format::Q8x32`] column, each with its own scale.
///
/// Scales and sums are in the lane order of the integer dot products after the four blocks' partial sums have been
/// folded into one vector: see [`QUAD_LANES`].
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Quad32 {
    /// The activations as nearest integer multiples of the block's scale, -127..=127.
    pub quants: [i8; 128],
    /// The scale of each lane's block.
    pub scales: [f32; 16],
    /// A quarter of `scale · Σ quants` of the lane's block, since every block has four lanes.
    pub sums: [f32; 16],
}

/// The block of a quad for each of 16 lanes: the result of interleaving 64-bit halves of [0, 0, 0, 0 | .. | 1, 1, 1,
/// 1 | ..] and [2, 2, 2, 2 | .. | 3, 3, 3, 3 | ..].
pub const QUAD_LANES: [usize; 16] = [0, 0, 2, 2, 0, 0, 2, 2, 1, 1, 3, 3, 1, 1, 3, 3];

impl Format {
    /// Bytes of one prepared column of `cols` activations; a multiple of [`COLUMN_ALIGN`].
    #[must_use]
    pub fn column_bytes(self, cols: usize) -> usize {
        match self {
            Format::F32 => cols.next_multiple_of(2 * F32_STEP) * size_of::<f32>(),
            Format::Q8x32 => cols.div_ceil(128) * size_of::<Quad32>(),
            Format::Q8x256 => cols.div_ceil(256) * size_of::<Block256>(),
            Format::Q8Row => whole_row::column_bytes(cols),
            #[cfg(target_arch = "x86_64")]
            Format::Q8x256Pairs | Format::Q12x256 | Format::Bf16 | Format::Tiles { .. } => {
                unreachable!("{PACKED_ONLY}")
            }
        }
    }

    /// Converts one token's activations `x` `[cols]` to one column.
    ///
    /// Rounding is to nearest, ties to even. Blocks whose largest magnitude is below 2^-100 become zero. A NaN or
    /// infinity makes its block's scale NaN, so that it propagates to every dot product with the column.
    ///
    /// # Panics
    /// If `out` is not `column_bytes(cols)` long or not aligned to [`COLUMN_ALIGN`], if `cols` is not a whole number
    /// of blocks (multiples of 32 or 256), or if this CPU lacks `level`.
    pub fn prepare(self, level: Level, x: &[f32], out: &mut [u8]) {
        assert!(level.is_available(), "this CPU does not support {level}");
        assert_eq!(out.len(), self.column_bytes(x.len()), "bytes of a column");
        match self {
            Format::F32 => {
                let (values, rest) = bytemuck::cast_slice_mut::<u8, f32>(out).split_at_mut(x.len());
                values.copy_from_slice(x);
                rest.fill(0.0);
            }
            Format::Q8x32 => {
                assert!(x.len().is_multiple_of(32), "{} columns are not whole blocks", x.len());
                transform(level, FillQuads(x), bytemuck::cast_slice_mut(out));
            }
            Format::Q8x256 => {
                assert!(x.len().is_multiple_of(256), "{} columns are not whole blocks", x.len());
                transform(level, FillBlocks(x), bytemuck::cast_slice_mut(out));
            }
            Format::Q8Row => whole_row::prepare(level, x, out),
            #[cfg(target_arch = "x86_64")]
            Format::Q8x256Pairs | Format::Q12x256 | Format::Bf16 | Format::Tiles { .. } => {
                unreachable!("{PACKED_ONLY}")
            }
        }
    }
}

/// Prepared columns of one format, contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Activations<'a> {
    /// `count` columns of `Format::column_bytes(cols)` bytes each, aligned to [`COLUMN_ALIGN`].
    pub data: &'a [u8],
    /// Activations per column.
    pub cols: usize,
    /// Number of columns.
    pub count: usize,
}

impl<'a> Activations<'a> {
    /// Column `index` as `T`s.
    pub(crate) fn column<T: Pod>(&self, index: usize) -> &'a [T] {
        let bytes = self.data.len() / self.count;
        bytemuck::cast_slice(&self.data[index * bytes..][..bytes])
    }
}

#[cfg(target_arch = "x86_64")]
const PACKED_ONLY: &str = "dot kernels have no columns of packed formats";

struct FillQuads<'a>(&'a [f32]);

impl Transform for FillQuads<'_> {
    type Out = [Quad32];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, out: &mut [Quad32]) {
        for (x, quad) in self.0.chunks(BLOCKS).zip(out) {
            // Blocks past the end of the column are zero.
            quad.quants[x.len()..].fill(0);
            let (mut scales, mut sums) = ([0.0; 4], [0.0; 4]);
            quantize_32(l, x, &mut quad.quants[..x.len()], |block, scale, sum| {
                (scales[block], sums[block]) = (scale, 0.25 * scale * sum as f32);
            });
            quad.scales = QUAD_LANES.map(|b| scales[b]);
            quad.sums = QUAD_LANES.map(|b| sums[b]);
        }
    }
}

struct FillBlocks<'a>(&'a [f32]);

impl Transform for FillBlocks<'_> {
    type Out = [Block256];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, out: &mut [Block256]) {
        for (x, block) in self.0.as_chunks::<256>().0.iter().zip(out) {
            let scale = quantize_256(l, x, &mut block.quants);
            for (i, quants) in block.quants.as_chunks::<16>().0.iter().enumerate() {
                let sum = quants.iter().map(|q| i32::from(*q)).sum::<i32>();
                block.sums[i] = scale * sum as f32;
                block.whole_sums[i % 2 * 8 + i / 2] = sum as i16;
            }
            block.scale = [scale; 8];
        }
    }
}

#[cfg(test)]
mod tests;
