//! Packed activations of GEMM: formats, sizes, packing.

use crate::gemm::quantize;
use crate::level::Level;
use crate::panel::SPAN;
use crate::tile;
#[cfg(target_arch = "x86_64")]
use crate::tile::Shape;

/// The packing of activations `[tokens, cols]` f32 for a product. Products with equal packings share the packed
/// activations.
///
/// Tokens are packed in chunks of a few, each in its own bytes, so chunks may be packed in parallel and in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    pub(crate) format: Format,
    /// The format for fewer than [`TILES_TOKENS`] tokens, if different.
    few: Option<Format>,
    pub(crate) cols: usize,
    /// Maximum tokens per chunk.
    pub(crate) tokens_max: usize,
    /// The level whose code packs.
    pub(crate) level: Level,
}

/// Number of tokens from which tiles pay: a tile is 16 tokens wide regardless of their number, and unpacking for it
/// costs twice as much as for int8 panels.
pub(crate) const TILES_TOKENS: usize = 24;

/// The number format of packed activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    /// f32, `[cols, tokens]`.
    F32,
    /// int8 with one f32 scale per 32 columns: |x - x'| <= max|x| / 254 within each.
    Int8x32,
    /// int8 with one f32 scale per 256 columns.
    Int8x256,
    /// `Int8x256` with 16-bit sums, for tiles that apply the weights' scales as integers.
    #[cfg(target_arch = "x86_64")]
    Int8x256Pairs,
    /// Tiles of 32 columns x 16 tokens in bf16: |x - x'| <= |x| / 256; with a second plane, which holds the
    /// residuals, |x| / 65536.
    #[cfg(target_arch = "x86_64")]
    Tiles { planes: usize },
}

impl Packing {
    /// The packing for this number of tokens.
    pub(crate) fn at(self, tokens: usize) -> Packing {
        match self.few {
            Some(few) if tokens < TILES_TOKENS => Packing::new(few, self.cols, self.level),
            _ => Packing { few: None, ..self },
        }
    }

    /// Number of chunks to call [`Packing::pack`] for.
    pub fn chunks(self, tokens: usize) -> usize {
        tokens.div_ceil(self.at(tokens).tokens_max)
    }

    /// Bytes per chunk: a multiple of 64.
    pub fn chunk_bytes(self, tokens: usize) -> usize {
        let per_token = match self.at(tokens).format {
            Format::F32 => 4 * self.cols,
            #[cfg(target_arch = "x86_64")]
            Format::Tiles { planes } => planes * self.cols.div_ceil(32) * 64,
            format => Block::bytes_per_token(format, self.cols),
        };
        (per_token * self.chunk_tokens(tokens)).next_multiple_of(64)
    }

    /// Bytes of all chunks, which are contiguous.
    pub fn bytes(self, tokens: usize) -> usize {
        self.chunks(tokens) * self.chunk_bytes(tokens)
    }

    /// Tokens of every chunk but the last, which may have fewer: about equal numbers, or whole tiles.
    pub(crate) fn chunk_tokens(self, tokens: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if let Format::Tiles { .. } = self.at(tokens).format {
            return self.tokens_max;
        }
        tokens.div_ceil(self.chunks(tokens).max(1))
    }

    /// The token ranges of all chunks in order.
    pub(crate) fn chunk_ranges(
        self,
        tokens: usize,
    ) -> impl Iterator<Item = std::ops::Range<usize>> {
        let width = self.chunk_tokens(tokens);
        (0..tokens).step_by(width.max(1)).map(move |first| first..(first + width).min(tokens))
    }

    /// The token range of a chunk.
    pub(crate) fn chunk_range(self, chunk: usize, tokens: usize) -> std::ops::Range<usize> {
        let width = self.chunk_tokens(tokens);
        (chunk * width).min(tokens)..((chunk + 1) * width).min(tokens)
    }

    /// Packs one chunk of the activations `x` `[tokens, cols]` into its [`Packing::chunk_bytes`], which are at `chunk
    /// * chunk_bytes` of the whole. Chunks should start at multiples of 64 bytes, and must start at multiples of 4.
    ///
    /// A NaN or infinity among a token's activations makes its results NaN or infinite.
    ///
    /// # Panics
    /// If `x` or `out` has a wrong length, or `out` is misaligned.
    pub fn pack(self, chunk: usize, x: &[f32], tokens: usize, out: &mut [u8]) {
        assert_eq!(x.len(), tokens * self.cols, "activations are [tokens, cols]");
        let range = self.chunk_range(chunk, tokens);
        self.pack_rows(&x[range.start * self.cols..range.end * self.cols], tokens, out);
    }

    /// Packs a chunk given only its rows, one of the chunks of `tokens` tokens.
    pub(crate) fn pack_rows(self, x: &[f32], tokens: usize, out: &mut [u8]) {
        assert_eq!(out.len(), self.chunk_bytes(tokens), "one chunk at a time");
        let count = x.len() / self.cols.max(1);
        if count == 0 {
            return;
        }
        match self.at(tokens).format {
            Format::F32 => {
                let out = bytemuck::cast_slice_mut::<u8, f32>(out);
                for (token, x) in x.chunks_exact(self.cols).enumerate() {
                    for (out, x) in out.chunks_exact_mut(count).zip(x) {
                        out[token] = *x;
                    }
                }
            }
            #[cfg(target_arch = "x86_64")]
            Format::Tiles { planes } => {
                let tiles = bytemuck::cast_slice_mut(out);
                let (tiles, rests) = tiles.split_at_mut(tiles.len() / planes);
                // SAFETY: products are tiled only where level AMX is available.
                unsafe { tile::amx::pack(x, self.cols, tiles, rests) };
            }
            format => quantize::pack(self.level, format, x, self.cols, out),
        }
    }
}

/// Packed activations and their number of tokens.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    /// All chunks, contiguous.
    pub data: &'a [u8],
    /// Number of tokens.
    pub tokens: usize,
}

/// At most 256 columns of a chunk in int8, in contiguous sections (n tokens, g groups):
///
/// ```text
/// quants       [cols / 4, n, 4] i8
/// sums         [g, n] i32          -128 · sum of quants;  g = 32 columns (Int8x32), 16 (Int8x256)
/// float sums   [cols / 32, n] f32  sum of quants          (Int8x256)
/// scales       [g, n] f32 (Int8x32), [n] f32 (Int8x256)
/// ```
///
/// In `Int8x256Pairs` the sums of two groups are adjacent, of 16 columns and then of 32:
///
/// ```text
/// quants       [64, n, 4] i8
/// sums of 16   [8, n, 2] i16
/// sums of 32   [4, n, 2] i16
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
            Format::Int8x256 => cols + cols / 16 * 4 + cols / 32 * 4 + cols / 256 * 4,
            #[cfg(target_arch = "x86_64")]
            Format::Int8x256Pairs => cols + cols / 16 * 2 + cols / 32 * 2 + cols / 256 * 4,
            _ => cols + cols / 32 * 8,
        }
    }

    /// The block of the columns from `col` on in a chunk of `tokens` tokens.
    #[inline]
    pub fn of(packing: Packing, chunk: &'a [u8], tokens: usize, col: usize) -> Block<'a> {
        let cols = (packing.cols - col).min(SPAN);
        let start = tokens * Block::bytes_per_token(packing.format, col);
        let len = tokens * Block::bytes_per_token(packing.format, cols);
        Block { bytes: &chunk[start..start + len], format: packing.format, cols, tokens }
    }

    /// Offset of each section in bytes: sums, float sums (or sums of 32), scales.
    #[inline]
    pub fn offsets(&self) -> [usize; 3] {
        let n = self.tokens;
        let sums = self.cols * n;
        match self.format {
            Format::Int8x256 => [sums, sums + 64 * n, sums + 96 * n],
            #[cfg(target_arch = "x86_64")]
            Format::Int8x256Pairs => [sums, sums + 32 * n, sums + 48 * n],
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

    /// The activations' sums in pairs, of groups of 16 or 32 columns; only in `Int8x256Pairs`.
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

    /// The activations' sums per 32; only in `Int8x256`.
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

#[cfg(target_arch = "x86_64")]
impl Parts {
    /// Initial values of the integer sums of a group, per token: zero if not signed.
    ///
    /// # Safety
    /// The sections are those of a block of N tokens in the shape's format that has this group.
    #[inline(always)]
    pub unsafe fn starts<S: Shape, const N: usize>(&self, group: usize) -> [i32; N] {
        let mut starts = [0; N];
        if S::SIGNED {
            for (t, start) in starts.iter_mut().enumerate() {
                for sum in 0..S::SUMS {
                    // SAFETY: a block has `SUMS` sums for each of its groups and tokens.
                    *start += unsafe { *self.sums.add((group * S::SUMS + sum) * N + t) };
                }
            }
        }
        starts
    }
}

impl Packing {
    /// This packing with another format for few tokens.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn with_few(self, few: Option<Format>) -> Packing {
        Packing { few, ..self }
    }

    pub(crate) fn new(format: Format, cols: usize, level: Level) -> Packing {
        let tokens_max = match format {
            #[cfg(target_arch = "x86_64")]
            Format::Tiles { .. } => 16,
            Format::F32 => tile::float_tokens_max(level),
            #[cfg(target_arch = "x86_64")]
            Format::Int8x256Pairs => tile::avx2::TOKENS_PAIRS,
            _ => tile::tokens_max(level),
        };
        Packing { format, few: None, cols, tokens_max, level }
    }
}
