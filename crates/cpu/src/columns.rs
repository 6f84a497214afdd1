//! Activation columns: how one token's activations are laid out for the dot kernels.
//!
//! A matrix product of few tokens quantizes its activations once and then streams all weight rows
//! against them, so whatever the kernels would otherwise repeat per row is laid out here once:
//! the sums that meet minimums and offsets, and scales already spread over the lanes.
//! Every level prepares the same bits.

use bytemuck::{Pod, Zeroable};

use crate::level::Level;

/// How a dot kernel wants its activation columns prepared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// As they are, zeros up to the next multiple of 64 activations.
    F32,
    /// [`Quad32`]s: 8 bits and a scale every 32; zeros up to the next multiple of 128 activations.
    Q8x32,
    /// [`Block256`]s: 8 bits, a scale every 256 and a sum every 16. Whole blocks only.
    Q8x256,
}

/// The alignment of columns, bytes: a cache line, and the widest vector.
pub const COLUMN_ALIGN: usize = 64;

/// Weights in a step of the f32 kernels; F32 columns are padded to whole pairs of it.
pub(crate) const F32_STEP: usize = 32;

/// 256 activations of a [`Format::Q8x256`] column: activation i ≈ `scale · quants[i]`.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Block256 {
    /// Nearest whole multiples of the scale, -127..=127.
    pub quants: [i8; 256],
    /// `scale · Σ quants` of each 16.
    pub sums: [f32; 16],
    /// `Σ quants` of each 16: of the even sixteens, then of the odd ones.
    pub whole_sums: [i16; 16],
    /// The scale, the same in every lane: largest magnitude / 127.
    pub scale: [f32; 8],
}

/// Four blocks of 32 activations of a [`Format::Q8x32`] column, each with its own scale.
///
/// Scales and sums lie as the lanes of the integer dots do once the four blocks' partial dots
/// have been folded into one vector: see [`QUAD_LANES`].
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Quad32 {
    /// Nearest whole multiples of the block's scale, -127..=127.
    pub quants: [i8; 128],
    /// The scale of the block the lane belongs to.
    pub scales: [f32; 16],
    /// A quarter of `scale · Σ quants` of the lane's block: every block has four lanes.
    pub sums: [f32; 16],
}

/// The block of a quad that each of 16 lanes belongs to: what interleaving 64-bit halves makes of
/// [0, 0, 0, 0 | .. | 1, 1, 1, 1 | ..] and [2, 2, 2, 2 | .. | 3, 3, 3, 3 | ..].
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

    /// Prepares one token's activations `x` `[cols]` as one column.
    ///
    /// Rounding is to nearest, ties to even. Activations whose largest magnitude in a block is
    /// below 1e-36 count as zero. A NaN or an infinity makes its whole block's scale NaN or
    /// infinite, so that every dot with the column shows it.
    ///
    /// # Panics
    /// Where `out` is not `column_bytes(cols)` long or not aligned to [`COLUMN_ALIGN`], where
    /// `cols` is not whole blocks of the format (multiples of 32 or 256), and where this processor
    /// lacks `level`.
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
                // SAFETY: `by_level` has checked that this processor runs the level.
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

/// Prepared columns of one format, one after another.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// `count` columns of `Format::column_bytes(cols)` bytes each, aligned to [`COLUMN_ALIGN`].
    pub data: &'a [u8],
    /// Activations in a column.
    pub cols: usize,
    /// Columns.
    pub count: usize,
}

impl<'a> Columns<'a> {
    /// Column `index` as `T`s.
    pub(crate) fn column<T: Pod>(&self, index: usize) -> &'a [T] {
        let bytes = self.data.len() / self.count;
        bytemuck::cast_slice(&self.data[index * bytes..][..bytes])
    }
}

type Fill<T> = unsafe fn(x: &[f32], out: &mut [T]);

/// The same function compiled for no, 256-bit and 512-bit vectors.
struct Clones<T> {
    scalar: Fill<T>,
    #[cfg(target_arch = "x86_64")]
    avx2: Fill<T>,
    #[cfg(target_arch = "x86_64")]
    avx512: Fill<T>,
}

fn by_level<T>(level: Level, clones: &Clones<T>) -> Fill<T> {
    assert!(level.is_available(), "this processor cannot run {level}");
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
    //! The same loops once more, for the compiler to vectorize with wider registers.

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
            // Past the end of the column, blocks are zeros.
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

/// The scale of `x`, and what to multiply with to get multiples of it; zeros if all is (nearly)
/// zero.
///
/// Magnitudes are compared as integers: the bits of positive floats rise with their value, and
/// those of NaN lie above all others, so a NaN becomes the largest magnitude.
#[inline(always)]
fn scale(x: &[f32]) -> (f32, f32) {
    let peak_bits = x.iter().fold(0, |peak, x| peak.max(x.to_bits() & 0x7fff_ffff));
    let peak = f32::from_bits(peak_bits);
    if peak < 1e-36 { (0.0, 0.0) } else { (peak / 127.0, 127.0 / peak) }
}

/// Writes `x · inverse` rounded, and returns the sum of what it wrote.
///
/// Adding 1.5 · 2^23 leaves the nearest whole number in the low bits of the float. What comes of
/// a NaN is some number, which its scale will hide.
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
