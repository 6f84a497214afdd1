//! Packed activations of GEMM: formats, sizes, packing.

#[cfg(target_arch = "x86_64")]
use half::bf16;

use crate::activations::{Block, Format, Lines, pack};
use crate::level::Level;
use crate::tile::Tiling;

/// The packing of activations `[tokens, cols]` f32 for a product. Products with equal packings share the packed
/// activations.
///
/// Tokens are packed in chunks of a few, each in its own bytes, so chunks may be packed in parallel and in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    pub(crate) format: Format,
    /// The format for fewer than a number of tokens, if different.
    few: Option<(usize, Format)>,
    pub(crate) cols: usize,
    /// Maximum tokens per chunk where there are several.
    pub(crate) tokens_max: usize,
    /// Maximum tokens of a chunk that is the only one.
    tokens_alone: usize,
    /// The level whose code packs.
    pub(crate) level: Level,
}

impl Packing {
    /// The packing for this number of tokens.
    pub(crate) fn at(self, tokens: usize) -> Packing {
        match self.few {
            Some((_, few)) if self.is_few(tokens) => Packing::new(few, self.cols, self.level),
            _ => Packing { few: None, ..self },
        }
    }

    /// Number of tokens from which the packing has its own format, if it has another one for fewer.
    pub(crate) fn many(self) -> Option<usize> {
        self.few.map(|(many, _)| many)
    }

    /// Maximum tokens per chunk for any number of tokens.
    pub(crate) fn tokens_most(self) -> usize {
        let few =
            self.few.map_or(0, |(_, few)| Packing::new(few, self.cols, self.level).tokens_alone);
        self.tokens_alone.max(few)
    }

    /// Whether this number of tokens has another format.
    pub(crate) fn is_few(self, tokens: usize) -> bool {
        self.many().is_some_and(|many| tokens < many)
    }

    /// Number of chunks to call [`Packing::pack`] for.
    pub fn chunks(self, tokens: usize) -> usize {
        let packing = self.at(tokens);
        match tokens <= packing.tokens_alone {
            true => tokens.min(1),
            false => tokens.div_ceil(packing.tokens_max),
        }
    }

    /// Bytes per chunk: a multiple of 64.
    pub fn chunk_bytes(self, tokens: usize) -> usize {
        let per_token = match self.at(tokens).format {
            Format::F32 => 4 * self.cols,
            #[cfg(target_arch = "x86_64")]
            Format::Bf16 => 4 * self.cols.div_ceil(2),
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
            return self.at(tokens).tokens_max;
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

    /// All chunks of the activations `x` `[tokens, cols]`, in memory of their own.
    ///
    /// # Panics
    /// If `x` has a wrong length.
    #[must_use]
    pub fn pack_all(self, x: &[f32], tokens: usize) -> PackedChunks {
        let lines = Lines::new(self.bytes(tokens));
        let mut chunks = PackedChunks { packing: self, lines, tokens };
        chunks.pack(x);
        chunks
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
            Format::Bf16 => {
                let out = bytemuck::cast_slice_mut::<u8, [bf16; 2]>(out);
                for (token, x) in x.chunks_exact(self.cols).enumerate() {
                    for (out, x) in out.chunks_exact_mut(count).zip(x.chunks(2)) {
                        let second = x.get(1).copied().unwrap_or_default();
                        out[token] = [x[0], second].map(bf16::from_f32);
                    }
                }
            }
            #[cfg(target_arch = "x86_64")]
            Format::Tiles { planes } => {
                let tiles = bytemuck::cast_slice_mut(out);
                let (tiles, rests) = tiles.split_at_mut(tiles.len() / planes);
                // SAFETY: products are tiled only where level AMX is available.
                unsafe { crate::tile::amx::pack(x, self.cols, tiles, rests) };
            }
            format => pack(self.level, format, x, self.cols, out),
        }
    }
}

/// Packed activations which own their bytes; a program's are in its buffers.
pub struct PackedChunks {
    packing: Packing,
    lines: Lines,
    tokens: usize,
}

impl PackedChunks {
    /// Packs other activations `[tokens, cols]` in place of these.
    ///
    /// # Panics
    /// If `x` has a wrong length.
    pub fn pack(&mut self, x: &[f32]) {
        let chunk_bytes = self.packing.chunk_bytes(self.tokens);
        for (chunk, out) in self.lines.bytes_mut().chunks_exact_mut(chunk_bytes).enumerate() {
            self.packing.pack(chunk, x, self.tokens, out);
        }
    }

    /// The activations, for a kernel.
    #[must_use]
    pub fn get(&self) -> Packed<'_> {
        Packed { data: self.lines.bytes(), tokens: self.tokens }
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

impl Packing {
    /// This packing with another format for fewer than a number of tokens.
    pub(crate) fn with_few(self, few: Option<(usize, Format)>) -> Packing {
        Packing { few, ..self }
    }

    pub(crate) fn new(format: Format, cols: usize, level: Level) -> Packing {
        let tokens_max = match format {
            #[cfg(target_arch = "x86_64")]
            Format::Tiles { .. } => 16,
            Format::Q8Row => Tiling::of(level).row_tiles.tokens_max,
            _ => (Tiling::of(level).tokens_max)(format),
        };
        let tokens_alone = match format {
            Format::Q8x32 | Format::Q8x256 => Tiling::of(level).tokens_alone.max(tokens_max),
            _ => tokens_max,
        };
        Packing { format, few: None, cols, tokens_max, tokens_alone, level }
    }
}
