//! Activations prepared for the dot kernels: one column per token, quantized once per op.
//!
//! A matrix product of few tokens quantizes its activations once and then streams all weight rows against them, so
//! everything the kernels would otherwise recompute per row is stored here: the sums needed for minimums and offsets,
//! and scales already spread over the lanes. All levels produce identical bits.

use bytemuck::{Pod, Zeroable};

use crate::level::Level;

/// The activation format of a dot kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// f32, padded with zeros to a multiple of 64 activations.
    F32,
    /// [`Quad32`]s: 8 bits and one scale per 32; padded with zeros to a multiple of 128 activations.
    Q8x32,
    /// [`Block256`]s: 8 bits, one scale per 256 and one sum per 16. Whole blocks only.
    Q8x256,
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
        }
    }

    /// Converts one token's activations `x` `[cols]` to one column.
    ///
    /// Rounding is to nearest, ties to even. Blocks whose largest magnitude is below 1e-36 become zero. A NaN or
    /// infinity makes its block's scale NaN or infinite, so that it propagates to every dot product with the column.
    ///
    /// # Panics
    /// If `out` is not `column_bytes(cols)` long or not aligned to [`COLUMN_ALIGN`], if `cols` is not a whole number
    /// of blocks (multiples of 32 or 256), or if this CPU lacks `level`.
    pub fn prepare(self, level: Level, x: &[f32], out: &mut [u8]) {
        assert_eq!(out.len(), self.column_bytes(x.len()), "bytes of a column");
        match self {
            Format::F32 => {
                let (values, rest) = bytemuck::cast_slice_mut::<u8, f32>(out).split_at_mut(x.len());
                values.copy_from_slice(x);
                rest.fill(0.0);
            }
            Format::Q8x32 => {
                assert!(x.len().is_multiple_of(32), "{} columns are not whole blocks", x.len());
                let fill: Fill<Quad32> = by_level(level, &QUADS);
                // SAFETY: `by_level` has checked that this CPU supports the level.
                unsafe { fill(x, bytemuck::cast_slice_mut(out)) };
            }
            Format::Q8x256 => {
                assert!(x.len().is_multiple_of(256), "{} columns are not whole blocks", x.len());
                let fill: Fill<Block256> = by_level(level, &BLOCKS);
                // SAFETY: as above.
                unsafe { fill(x, bytemuck::cast_slice_mut(out)) };
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

type Fill<T> = unsafe fn(x: &[f32], out: &mut [T]);

/// One function compiled for no, 256-bit and 512-bit vectors.
struct Clones<T> {
    scalar: Fill<T>,
    #[cfg(target_arch = "x86_64")]
    avx2: Fill<T>,
    #[cfg(target_arch = "x86_64")]
    avx512: Fill<T>,
}

fn by_level<T>(level: Level, clones: &Clones<T>) -> Fill<T> {
    assert!(level.is_available(), "this CPU does not support {level}");
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => clones.avx2,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni | Level::Amx => clones.avx512,
        _ => clones.scalar,
    }
}

const QUADS: Clones<Quad32> = Clones {
    scalar: fill_quads,
    #[cfg(target_arch = "x86_64")]
    avx2: x86::fill_quads_avx2,
    #[cfg(target_arch = "x86_64")]
    avx512: x86::fill_quads_avx512,
};

const BLOCKS: Clones<Block256> = Clones {
    scalar: fill_blocks,
    #[cfg(target_arch = "x86_64")]
    avx2: x86::fill_blocks_avx2,
    #[cfg(target_arch = "x86_64")]
    avx512: x86::fill_blocks_avx512,
};

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The loops of the parent module, vectorized by the compiler for wider registers.

    use super::{Block256, Quad32};

    #[target_feature(enable = "avx2")]
    pub fn fill_quads_avx2(x: &[f32], out: &mut [Quad32]) {
        super::fill_quads(x, out);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub fn fill_quads_avx512(x: &[f32], out: &mut [Quad32]) {
        super::fill_quads(x, out);
    }

    #[target_feature(enable = "avx2")]
    pub fn fill_blocks_avx2(x: &[f32], out: &mut [Block256]) {
        super::fill_blocks(x, out);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub fn fill_blocks_avx512(x: &[f32], out: &mut [Block256]) {
        super::fill_blocks(x, out);
    }
}

#[inline(always)]
fn fill_quads(x: &[f32], out: &mut [Quad32]) {
    for (x, quad) in x.chunks(128).zip(out) {
        let (mut scales, mut sums) = ([0.0; 4], [0.0; 4]);
        let (blocks, quants) = (x.as_chunks::<32>().0, quad.quants.as_chunks_mut::<32>().0);
        for (b, quants) in quants.iter_mut().enumerate() {
            // Blocks past the end of the column are zero.
            let Some(x) = blocks.get(b) else {
                quants.fill(0);
                continue;
            };
            let (scale, inverse) = scale(x);
            scales[b] = scale;
            sums[b] = 0.25 * scale * quantize(x, inverse, quants) as f32;
        }
        quad.scales = QUAD_LANES.map(|b| scales[b]);
        quad.sums = QUAD_LANES.map(|b| sums[b]);
    }
}

#[inline(always)]
fn fill_blocks(x: &[f32], out: &mut [Block256]) {
    for (x, block) in x.as_chunks::<256>().0.iter().zip(out) {
        let (scale, inverse) = scale(x);
        quantize(x, inverse, &mut block.quants);
        for (i, quants) in block.quants.as_chunks::<16>().0.iter().enumerate() {
            let sum = quants.iter().map(|q| i32::from(*q)).sum::<i32>();
            block.sums[i] = scale * sum as f32;
            block.whole_sums[i % 2 * 8 + i / 2] = sum as i16;
        }
        block.scale = [scale; 8];
    }
}

/// The scale of `x`, and the factor that converts to multiples of it; zeros if all values are (nearly) zero.
///
/// Magnitudes are compared as integers: the bits of positive floats rise with their value, and those of NaN are above
/// all others, so a NaN becomes the largest magnitude.
#[inline(always)]
fn scale(x: &[f32]) -> (f32, f32) {
    let peak_bits = x.iter().fold(0, |peak, x| peak.max(x.to_bits() & 0x7fff_ffff));
    let peak = f32::from_bits(peak_bits);
    if peak < 1e-36 { (0.0, 0.0) } else { (peak / 127.0, 127.0 / peak) }
}

/// Writes `x · inverse`, rounded, and returns the sum of the results.
///
/// Adding 1.5 · 2^23 leaves the nearest integer in the low bits of the float. A NaN becomes an arbitrary integer,
/// which its scale masks.
#[inline(always)]
fn quantize<const N: usize>(x: &[f32; N], inverse: f32, quants: &mut [i8; N]) -> i32 {
    const ROUND: f32 = 12_582_912.0;
    let rounded =
        x.map(|x| (x * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed());
    *quants = rounded.map(|q| q as i8);
    rounded.iter().fold(0, |sum: i32, q| sum.wrapping_add(*q))
}

#[cfg(test)]
mod tests;
