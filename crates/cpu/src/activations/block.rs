//! Where quants, sums and scales of packed activations lie, for the tiles that read them.

use std::ops::Range;

use super::{Format, PackedRows};

/// At most 256 columns of a chunk in int8, in contiguous sections (n tokens, g groups):
///
/// ```text
/// quants       [cols / 4, n, 4] i8
/// sums         [g, n] i32          -128 · sum of quants;  g = 32 columns (Q8x32), 16 (Q8x256)
/// float sums   [cols / 32, n] f32  sum of quants          (Q8x256)
/// scales       [g, n] f32 (Q8x32), [n] f32 (Q8x256)
/// ```
///
/// In `Q8x256Pairs` the sums of two groups are adjacent, of 16 columns and then of 32:
///
/// ```text
/// quants       [64, n, 4] i8
/// sums of 16   [8, n, 2] i16
/// sums of 32   [4, n, 2] i16
/// scales       [n] f32
/// ```
///
/// `Q12x256`, where a step of four columns has the even ones and then the odd ones:
///
/// ```text
/// quants       [cols / 4, 2, n, 2] i16
/// scales       [n] f32
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    /// The bytes from the first section on.
    pub bytes: &'a [u8],
    /// One of the int8 formats.
    pub format: Format,
    /// Columns: a multiple of 32, or 256 if there is one scale per 256.
    pub cols: usize,
    /// Tokens of the chunk.
    pub tokens: usize,
}

impl<'a> Block<'a> {
    /// Bytes of a block of `cols` columns, per token.
    pub fn bytes_per_token(format: Format, cols: usize) -> usize {
        match format {
            Format::Q8x256 => cols + cols / 16 * 4 + cols / 32 * 4 + cols / 256 * 4,
            #[cfg(target_arch = "x86_64")]
            Format::Q8x256Pairs => cols + cols / 16 * 2 + cols / 32 * 2 + cols / 256 * 4,
            #[cfg(target_arch = "x86_64")]
            Format::Q12x256 => 2 * cols + cols.div_ceil(256) * 4,
            Format::Q8Row => PackedRows::bytes_per_token(cols),
            _ => cols + cols / 32 * 8,
        }
    }

    /// The block of the columns `cols`, at most [`SPAN`], in a chunk of `tokens` tokens.
    #[inline]
    pub fn of(format: Format, chunk: &'a [u8], tokens: usize, cols: Range<usize>) -> Block<'a> {
        let start = tokens * Block::bytes_per_token(format, cols.start);
        let len = tokens * Block::bytes_per_token(format, cols.len());
        Block { bytes: &chunk[start..start + len], format, cols: cols.len(), tokens }
    }

    /// Offset of each section in bytes: sums, float sums (or sums of 32), scales.
    #[inline]
    pub fn offsets(&self) -> [usize; 3] {
        let n = self.tokens;
        let sums = self.cols * n;
        match self.format {
            Format::Q8x256 => [sums, sums + 64 * n, sums + 96 * n],
            #[cfg(target_arch = "x86_64")]
            Format::Q8x256Pairs => [sums, sums + 32 * n, sums + 48 * n],
            #[cfg(target_arch = "x86_64")]
            Format::Q12x256 => [2 * sums; 3],
            _ => [sums, sums + self.cols / 8 * n, sums + self.cols / 8 * n],
        }
    }

    /// The sections as pointers, all aligned to 4.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn parts(&self) -> Parts {
        Parts {
            quants: bytemuck::cast_slice::<u8, i32>(self.quants()).as_ptr(),
            sums: self.sums().as_ptr(),
            float_sums: self.float_sums().as_ptr(),
            scales: self.scales().as_ptr(),
        }
    }

    /// The activations' sums in pairs, of groups of 16 or 32 columns; only in `Q8x256Pairs`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn pair_sums(&self, group: usize) -> &'a [i32] {
        let [sums, wide_sums, scales] = self.offsets();
        let range = if group == 16 { sums..wide_sums } else { wide_sums..scales };
        bytemuck::cast_slice(&self.bytes[range])
    }

    /// The activations.
    #[inline]
    pub fn quants(&self) -> &'a [u8] {
        &self.bytes[..self.offsets()[0]]
    }

    /// The activations' sums times -128.
    #[inline]
    pub fn sums(&self) -> &'a [i32] {
        let [sums, next, _] = self.offsets();
        bytemuck::cast_slice(&self.bytes[sums..next])
    }

    /// The activations' sums per 32; only in `Q8x256`.
    #[inline]
    pub fn float_sums(&self) -> &'a [f32] {
        let [_, sums, next] = self.offsets();
        bytemuck::cast_slice(&self.bytes[sums..next])
    }

    /// The activations' scales.
    #[inline]
    pub fn scales(&self) -> &'a [f32] {
        bytemuck::cast_slice(&self.bytes[self.offsets()[2]..])
    }
}

/// The sections of a [`Block`] as pointers.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    /// Four activations each.
    pub quants: *const i32,
    pub sums: *const i32,
    pub float_sums: *const f32,
    pub scales: *const f32,
}
