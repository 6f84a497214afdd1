//! The layout of a layer's KV cache (shaders/parts/cache.wgsl) and copies of pages.

use std::ops::Range;

use bilayer_graph::PAGE_TOKENS;
use bilayer_quant::{Type, q8_0};
use bytemuck::{Pod, Zeroable};
use half::f16;
use minijinja::{Value, context};

use super::bindings::{kernel, numbered};
use super::team::APART;
use crate::caps::Caps;
use crate::kernel::Source;

/// The type of stored keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// f32; head dimensions are multiples of 4.
    F32,
    /// f16; head dimensions are multiples of 4.
    F16,
    /// Bytes with an f16 scale per 32; head dimensions are multiples of 32.
    Q8_0,
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
        let known = [
            (Type::F32, CacheType::F32, 4),
            (Type::F16, CacheType::F16, 4),
            (Type::Q8_0, CacheType::Q8_0, 32),
        ];
        let (_, known, multiple) = known.into_iter().find(|(known, ..)| *known == ty)?;
        head_dim.is_multiple_of(multiple).then_some(known)
    }

    /// Its name in the shaders.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Q8_0 => "q8_0",
        }
    }

    /// Elements per chunk of sixteen bytes.
    pub fn chunk_elements(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::F16 => 8,
            CacheType::Q8_0 => 16,
        }
    }

    /// Chunks per head of one token.
    pub fn chunks(self, head_dim: usize) -> usize {
        head_dim.div_ceil(self.chunk_elements())
    }

    /// Words of scales per head of one token.
    fn scale_words(self, head_dim: usize) -> usize {
        if self == CacheType::Q8_0 { head_dim.div_ceil(64) } else { 0 }
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
        self.kv_heads * PAGE_TOKENS * self.ty.scale_words(self.head_dim)
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

    /// Index of a token's chunk of a head within its page, and of the word of its scales.
    fn places(&self, half: Half, head: usize, token: usize, chunk: usize) -> (usize, usize) {
        let chunks = self.ty.chunks(self.head_dim);
        let words = self.ty.scale_words(self.head_dim);
        let word = chunk * self.ty.chunk_elements() / 64;
        match half {
            Half::Keys => (
                (head * chunks + chunk) * PAGE_TOKENS + token,
                (head * words + word) * PAGE_TOKENS + token,
            ),
            Half::Values => (
                (head * PAGE_TOKENS + token) * chunks + chunk,
                (head * PAGE_TOKENS + token) * words + word,
            ),
        }
    }

    /// Decodes a page `[PAGE_TOKENS, kv_heads * head_dim]` from its bytes, chunks and then scales.
    pub fn decode(&self, half: Half, bytes: &[u8], out: &mut [f32]) {
        let (chunks, scales) = bytes.split_at(16 * self.page_chunks());
        self.elements(half, |element, at, scale| {
            out[element] = match self.ty {
                CacheType::F32 => {
                    f32::from_le_bytes(chunks[4 * at..][..4].try_into().expect("four bytes"))
                }
                CacheType::F16 => f16_at(chunks, 2 * at),
                CacheType::Q8_0 => f32::from(chunks[at] as i8) * f16_at(scales, 2 * scale),
            };
        });
    }

    /// Encodes the bytes of a page, chunks and then scales, as read by [`CacheLayout::decode`].
    pub fn encode(&self, half: Half, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; 16 * self.page_chunks() + 4 * self.page_scales()];
        let (chunks, scales) = bytes.split_at_mut(16 * self.page_chunks());
        let mut block = None;
        self.elements(half, |element, at, scale| match self.ty {
            CacheType::F32 => {
                chunks[4 * at..][..4].copy_from_slice(&values[element].to_le_bytes());
            }
            CacheType::F16 => {
                let bits = f16::from_f32(values[element]).to_bits();
                chunks[2 * at..][..2].copy_from_slice(&bits.to_le_bytes());
            }
            CacheType::Q8_0 => {
                let first = element / 32 * 32;
                let (_, quantized) = match block {
                    Some((known, quantized)) if known == first => (known, quantized),
                    _ => {
                        let run: &[f32; 32] =
                            values[first..][..32].try_into().expect("heads of 32s");
                        let quantized = q8_0::quantize(run);
                        scales[2 * scale..][..2].copy_from_slice(&quantized.d.to_le_bytes());
                        *block.insert((first, quantized))
                    }
                };
                chunks[at] = quantized.quants[element - first] as u8;
            }
        });
        bytes
    }

    /// Calls `each` for every element of a page: its index in `[PAGE_TOKENS, kv_heads * head_dim]`, in the chunks'
    /// elements and in the scales.
    fn elements(&self, half: Half, mut each: impl FnMut(usize, usize, usize)) {
        let in_chunk = self.ty.chunk_elements();
        for token in 0..PAGE_TOKENS {
            for head in 0..self.kv_heads {
                for i in 0..self.head_dim {
                    let (chunk, word) = self.places(half, head, token, i / in_chunk);
                    let element = (token * self.kv_heads + head) * self.head_dim + i;
                    each(element, chunk * in_chunk + i % in_chunk, 2 * word + i % 64 / 32);
                }
            }
        }
    }
}

fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The template variables of parts/cache.wgsl for these types, where heads of keys and of values have so many elements.
/// Without a type of values, they are the first elements of the keys.
pub(crate) fn cache_context(
    key: CacheType,
    value: Option<CacheType>,
    [head_dim, value_dim]: [usize; 2],
) -> Value {
    let in_keys = value.is_none();
    let value = value.unwrap_or(key);
    context! {
        in_keys,
        key => key.name(),
        value => value.name(),
        key_chunks => key.chunks(head_dim),
        value_chunks => value.chunks(value_dim),
        key_quads => key.chunk_elements() / 4,
        value_quads => value.chunk_elements() / 4,
        scale_words => CacheType::Q8_0.scale_words(head_dim),
    }
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
    use super::{CacheType, cache_bytes};

    #[test]
    fn sizes_follow_the_types() {
        // 3 pages of 32 tokens of 2 heads.
        assert_eq!(cache_bytes(CacheType::F32, 2, 64, 3), 3 * 32 * 2 * 256);
        assert_eq!(cache_bytes(CacheType::F16, 2, 64, 3), 3 * 32 * 2 * 128);
        assert_eq!(cache_bytes(CacheType::Q8_0, 2, 64, 3), 3 * 32 * 2 * 68);
        // Heads that do not fill their last chunk or word are padded.
        assert_eq!(cache_bytes(CacheType::F16, 1, 12, 1), 32 * 32);
        assert_eq!(cache_bytes(CacheType::Q8_0, 1, 96, 1), 32 * (96 + 8));
    }
}
