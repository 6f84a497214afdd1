//! The layout of a layer's KV cache (shaders/parts/cache.wgsl) and copies of pages.

use std::ops::Range;

use bilayer_graph::PAGE_TOKENS;
use bilayer_quant::Type;
use bilayer_quant::cache::{BLOCK, Coded, Coding, Form, Rule, form};
use bytemuck::{Pod, Zeroable};
use minijinja::{Value, context};

use super::bindings::{kernel, numbered};
use super::team::APART;
use crate::caps::Caps;
use crate::kernel::Source;

/// The type of stored keys or values, for heads whose length is a multiple of 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheType {
    ty: Type,
    form: Form,
}

/// One buffer of keys or of values: chunks of sixteen bytes, then the scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheLayout {
    /// Type of elements.
    pub ty: CacheType,
    /// Heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Pages.
    pub pages: usize,
}

impl CacheType {
    /// The cache type, if it supports `head_dim`.
    pub fn of(ty: Type, head_dim: usize) -> Option<CacheType> {
        let form = form(ty)?;
        head_dim.is_multiple_of(4).then_some(CacheType { ty, form })
    }

    /// f32.
    pub const F32: CacheType = CacheType { ty: Type::F32, form: Form::Float };

    /// Whether halves hold its elements about as precisely as it does.
    pub fn fits_halves(self) -> bool {
        self.ty == Type::F16 || self.is_in_blocks()
    }

    /// Whether its elements are in blocks of 32.
    pub fn is_in_blocks(self) -> bool {
        matches!(self.form, Form::Blocks(_))
    }

    /// Its name.
    pub fn name(self) -> String {
        self.ty.name.to_lowercase()
    }

    /// Elements per chunk of sixteen bytes; codes of 5 bits have their fifth bits elsewhere.
    pub fn chunk_elements(self) -> usize {
        match self.form {
            Form::Float => 16 / self.ty.block_bytes,
            Form::Blocks(coding) if coding.bits == 8 => 16,
            Form::Blocks(_) => 32,
        }
    }

    /// Chunks per head of one token.
    pub fn chunks(self, head_dim: usize) -> usize {
        head_dim.div_ceil(self.chunk_elements())
    }

    /// Words of scales per head of one token: two scales, or a scale and a minimum.
    fn scale_words(self, head_dim: usize) -> usize {
        let blocks = head_dim.div_ceil(BLOCK);
        match self.form {
            Form::Float => 0,
            Form::Blocks(coding) if coding.has_minimum() => blocks,
            Form::Blocks(_) => blocks.div_ceil(2),
        }
    }

    /// Words per head of one token: scales, then the fifth bits of each block.
    fn words(self, head_dim: usize) -> usize {
        let fifths = match self.form {
            Form::Blocks(coding) if coding.bits == 5 => head_dim.div_ceil(BLOCK),
            _ => 0,
        };
        self.scale_words(head_dim) + fifths
    }

    /// The variables of the templates for heads of `dim` elements, at the beginning of stored heads of `stored`.
    fn context(self, dim: usize, stored: usize) -> Value {
        let (bits, rule) = match self.form {
            Form::Float => (8 * self.ty.block_bytes, "float"),
            Form::Blocks(coding) => {
                let rule = match coding.rule {
                    Rule::Symmetric => "symmetric",
                    Rule::Signed => "signed",
                    Rule::Range => "range",
                    Rule::Codebook => "codebook",
                };
                (coding.bits, rule)
            }
        };
        context! {
            name => self.name(),
            bits, rule,
            quads => self.chunk_elements() / 4,
            chunks => self.chunks(dim),
            blocks => dim.div_ceil(BLOCK),
            scale_words => self.scale_words(stored),
            words => self.words(stored),
            minimum => rule == "range",
            scaled => !matches!(rule, "float" | "range"),
            padded => self.chunks(dim) * self.chunk_elements() != dim,
        }
    }
}

/// Bytes of a layer's keys or of its values.
pub fn cache_bytes(ty: CacheType, kv_heads: usize, head_dim: usize, pages: usize) -> u64 {
    CacheLayout { ty, kv_heads, head_dim, pages }.bytes()
}

impl CacheLayout {
    /// Chunks per page.
    fn page_chunks(&self) -> usize {
        self.kv_heads * PAGE_TOKENS * self.ty.chunks(self.head_dim)
    }

    /// Words of scales per page; a multiple of 32.
    fn page_scales(&self) -> usize {
        self.kv_heads * PAGE_TOKENS * self.ty.words(self.head_dim)
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        self.pages as u64 * (16 * self.page_chunks() as u64 + 4 * self.page_scales() as u64)
    }

    /// Offset of the scales, in u32: `key_scales` and `value_scales` of the kernels that access the cache.
    pub fn scales_at(&self) -> u32 {
        (4 * self.pages * self.page_chunks()) as u32
    }

    /// The uniform of the kernel that copies pages of this buffer; `copies_at` is the list's offset in the step
    /// buffer.
    pub fn copy_params(&self, copies_at: u32) -> CopyPagesParams {
        CopyPagesParams {
            chunks: self.page_chunks() as u32,
            scales: (self.page_scales() / 4) as u32,
            scales_at: self.scales_at() / 4,
            copies_at,
        }
    }

    /// One thread per sixteen bytes of a page.
    pub fn copy_grid(&self) -> [u32; 3] {
        [((self.page_chunks() + self.page_scales() / 4) as u32).div_ceil(APART), 1, 1]
    }
}

/// One of a cache's two buffers: they differ in the order of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// `[page][head][chunk][token]`.
    Keys,
    /// `[page][head][token][chunk]`.
    Values,
}

impl CacheLayout {
    /// Byte range of a page's chunks in the buffer.
    pub fn page_range(&self, page: u32) -> Range<u64> {
        let bytes = 16 * self.page_chunks() as u64;
        u64::from(page) * bytes..(u64::from(page) + 1) * bytes
    }

    /// Byte range of a page's scales.
    pub fn scales_range(&self, page: u32) -> Range<u64> {
        let (first, bytes) = (4 * u64::from(self.scales_at()), 4 * self.page_scales() as u64);
        first + u64::from(page) * bytes..first + (u64::from(page) + 1) * bytes
    }

    /// Index of a token's chunk of a head within its page.
    fn chunk_at(&self, half: Half, (token, head): (usize, usize), chunk: usize) -> usize {
        let chunks = self.ty.chunks(self.head_dim);
        match half {
            Half::Keys => (head * chunks + chunk) * PAGE_TOKENS + token,
            Half::Values => (head * PAGE_TOKENS + token) * chunks + chunk,
        }
    }

    /// Offset of a token's word of a head within its page, bytes.
    fn word_at(&self, half: Half, (token, head): (usize, usize), word: usize) -> usize {
        let words = self.ty.words(self.head_dim);
        let index = match half {
            Half::Keys => (head * words + word) * PAGE_TOKENS + token,
            Half::Values => (head * PAGE_TOKENS + token) * words + word,
        };
        16 * self.page_chunks() + 4 * index
    }

    /// Offset of the scale of a block, of its minimum if there is one, and of its fifth bits if there are, bytes.
    fn block_at(
        &self,
        half: Half,
        row: (usize, usize),
        block: usize,
        coding: Coding,
    ) -> [usize; 3] {
        let fifths = self.word_at(half, row, self.ty.scale_words(self.head_dim) + block);
        if coding.has_minimum() {
            let scale = self.word_at(half, row, block);
            return [scale, scale + 2, fifths];
        }
        [self.word_at(half, row, block / 2) + 2 * (block % 2), 0, fifths]
    }

    /// Offset of the byte, and shift in it, of element `i` of a block.
    fn code_at(&self, half: Half, row: (usize, usize), block: usize, i: usize) -> (usize, usize) {
        match self.ty.chunk_elements() {
            16 => (16 * self.chunk_at(half, row, 2 * block + i / 16) + i % 16, 0),
            _ => (16 * self.chunk_at(half, row, block) + i % 16, i / 16 * 4),
        }
    }

    /// The rows of a page `[PAGE_TOKENS, kv_heads * head_dim]` by token and head, with their first elements.
    fn rows(&self) -> impl Iterator<Item = ((usize, usize), usize)> {
        let (heads, dim) = (self.kv_heads, self.head_dim);
        let rows = (0..PAGE_TOKENS).flat_map(move |token| (0..heads).map(move |h| (token, h)));
        rows.map(move |(token, head)| ((token, head), (token * heads + head) * dim))
    }

    /// Decodes a page `[PAGE_TOKENS, kv_heads * head_dim]` from its bytes, chunks and then words.
    pub fn decode(&self, half: Half, bytes: &[u8], out: &mut [f32]) {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        for (row, first) in self.rows() {
            let out = &mut out[first..][..self.head_dim];
            let Form::Blocks(coding) = self.ty.form else {
                let size = self.ty.ty.block_bytes;
                for (chunk, out) in out.chunks_mut(self.ty.chunk_elements()).enumerate() {
                    let from = &bytes[16 * self.chunk_at(half, row, chunk)..][..size * out.len()];
                    self.ty.ty.dequantize(from, out).expect("the bytes of as many floats");
                }
                continue;
            };
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let [d, m, fifths] = self.block_at(half, row, block, coding);
                let m = if coding.has_minimum() { u16_at(m) } else { 0 };
                let mut coded = Coded { d: u16_at(d), m, codes: [0; BLOCK] };
                for (i, code) in coded.codes.iter_mut().enumerate().take(out.len()) {
                    let (at, shift) = self.code_at(half, row, block, i);
                    *code = bytes[at] >> shift;
                    if coding.bits < 8 {
                        *code &= 15;
                    }
                    if coding.bits == 5 {
                        *code |= (bytes[fifths + i / 8] >> (i % 8) & 1) << 4;
                    }
                }
                coding.decode(&coded, out);
            }
        }
    }

    /// Encodes the bytes of a page, chunks and then words, as read by [`CacheLayout::decode`].
    pub fn encode(&self, half: Half, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; 16 * self.page_chunks() + 4 * self.page_scales()];
        for (row, first) in self.rows() {
            let values = &values[first..][..self.head_dim];
            let Form::Blocks(coding) = self.ty.form else {
                let size = self.ty.ty.block_bytes;
                for (chunk, values) in values.chunks(self.ty.chunk_elements()).enumerate() {
                    let at = 16 * self.chunk_at(half, row, chunk);
                    let to = &mut bytes[at..][..size * values.len()];
                    if self.ty.ty.quantize(values, None, to).is_err() {
                        // One is not finite; all bits set are a NaN in every float type.
                        to.fill(0xff);
                    }
                }
                continue;
            };
            for (block, values) in values.chunks(BLOCK).enumerate() {
                let coded = coding.encode(values);
                let [d, m, fifths] = self.block_at(half, row, block, coding);
                bytes[d..][..2].copy_from_slice(&coded.d.to_le_bytes());
                if coding.has_minimum() {
                    bytes[m..][..2].copy_from_slice(&coded.m.to_le_bytes());
                }
                for (i, &code) in coded.codes.iter().enumerate().take(values.len()) {
                    let (at, shift) = self.code_at(half, row, block, i);
                    let low = if coding.bits < 8 { code & 15 } else { code };
                    bytes[at] |= low << shift;
                    if coding.bits == 5 {
                        bytes[fifths + i / 8] |= (code >> 4) << (i % 8);
                    }
                }
            }
        }
        bytes
    }
}

/// The template variables of parts/cache.wgsl for these types, where heads of keys and of values have so many elements.
/// Without a type of values, they are the first elements of the keys.
pub(crate) fn cache_context(
    key: CacheType,
    value: Option<CacheType>,
    [head_dim, value_dim]: [usize; 2],
) -> Value {
    let in_keys = value.is_none();
    let value = match value {
        Some(value) => value.context(value_dim, value_dim),
        None => key.context(value_dim, head_dim),
    };
    context! { in_keys, value, key => key.context(head_dim, head_dim) }
}

/// The only variant. Bindings, in order: `step`, `cache` (written). Runs before the others of a step with copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyPagesKey;

/// The uniform, made by [`CacheLayout::copy_params`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct CopyPagesParams {
    /// Chunks per page.
    pub chunks: u32,
    /// A page's scales, in units of sixteen bytes.
    pub scales: u32,
    /// Offset of the scales, in units of sixteen bytes.
    pub scales_at: u32,
    /// Offset of the list `(from, to)` in the step buffer.
    pub copies_at: u32,
}

impl CopyPagesKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let at = numbered(&[("step", true), ("cache", true)]);
        kernel("copy_pages".to_owned(), "copy_pages", context! { at, threads => APART }, APART)
    }
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;
    use bilayer_quant::cache::TYPES;

    use super::{CacheLayout, CacheType, Half, cache_bytes};

    #[test]
    fn sizes_follow_the_types() {
        let bytes =
            |ty, heads, dim, pages| cache_bytes(CacheType::of(ty, dim).unwrap(), heads, dim, pages);
        // 3 pages of 32 tokens of 2 heads.
        assert_eq!(bytes(Type::F32, 2, 64, 3), 3 * 32 * 2 * 256);
        assert_eq!(bytes(Type::F16, 2, 64, 3), 3 * 32 * 2 * 128);
        assert_eq!(bytes(Type::Q8_0, 2, 64, 3), 3 * 32 * 2 * 68);
        assert_eq!(bytes(Type::Q4_0, 2, 64, 3), 3 * 32 * 2 * 36);
        assert_eq!(bytes(Type::Q5_1, 2, 64, 3), 3 * 32 * 2 * 48);
        // Heads that do not fill their last chunk or word are padded.
        assert_eq!(bytes(Type::F16, 1, 12, 1), 32 * 32);
        assert_eq!(bytes(Type::Q8_0, 1, 96, 1), 32 * (96 + 8));
        assert_eq!(bytes(Type::Q5_0, 1, 40, 1), 32 * (32 + 4 + 8));
    }

    #[test]
    fn a_page_of_every_type_is_read_as_it_was_written() {
        for &(ty, _) in &TYPES {
            for (head_dim, half) in [(64, Half::Keys), (44, Half::Values), (44, Half::Keys)] {
                let layout = CacheLayout {
                    ty: CacheType::of(ty, head_dim).unwrap(),
                    kv_heads: 2,
                    head_dim,
                    pages: 1,
                };
                let values: Vec<f32> =
                    (0..64 * head_dim).map(|i| ((i * i) as f32 * 0.37).sin()).collect();
                let mut once = vec![0.0; values.len()];
                layout.decode(half, &layout.encode(half, &values), &mut once);
                let worst =
                    values.iter().zip(&once).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 0.14, "{ty}: {worst}");
                let mut twice = vec![0.0; values.len()];
                layout.decode(half, &layout.encode(half, &once), &mut twice);
                assert_eq!(once, twice, "{ty}");
            }
        }
    }
}
