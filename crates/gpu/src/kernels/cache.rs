//! The layout of a layer's cache (shaders/parts/cache.wgsl) and the copies of pages.

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

/// How keys or values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// As they are; heads of a multiple of 4.
    F32,
    /// As half floats; heads of a multiple of 4.
    F16,
    /// As bytes with an f16 scale for 32 of them; heads of a multiple of 32.
    Q8_0,
}

/// One buffer of keys or of values: chunks of sixteen bytes, then the scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheLayout {
    /// How elements are stored.
    pub ty: CacheType,
    /// Heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Pages.
    pub pages: usize,
}

impl CacheType {
    /// The type if it can hold heads of `head_dim`.
    pub fn of(ty: Type, head_dim: usize) -> Option<CacheType> {
        let known = [
            (Type::F32, CacheType::F32, 4),
            (Type::F16, CacheType::F16, 4),
            (Type::Q8_0, CacheType::Q8_0, 32),
        ];
        let (_, known, multiple) = known.into_iter().find(|(known, ..)| *known == ty)?;
        head_dim.is_multiple_of(multiple).then_some(known)
    }

    /// What the shaders know it as.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Q8_0 => "q8_0",
        }
    }

    /// Elements of a chunk of sixteen bytes.
    pub fn chunk_elements(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::F16 => 8,
            CacheType::Q8_0 => 16,
        }
    }

    /// Chunks of a head of one token.
    pub fn chunks(self, head_dim: usize) -> usize {
        head_dim.div_ceil(self.chunk_elements())
    }

    /// u32 of scales of a head of one token.
    fn scale_words(self, head_dim: usize) -> usize {
        if self == CacheType::Q8_0 { head_dim.div_ceil(64) } else { 0 }
    }
}

/// Bytes of a layer's keys or of its values.
pub fn cache_bytes(ty: CacheType, kv_heads: usize, head_dim: usize, pages: usize) -> u64 {
    CacheLayout { ty, kv_heads, head_dim, pages }.bytes()
}

impl CacheLayout {
    /// Chunks of a page.
    fn page_chunks(&self) -> usize {
        self.kv_heads * PAGE_TOKENS * self.ty.chunks(self.head_dim)
    }

    /// u32 of scales of a page; a multiple of 32.
    fn page_scales(&self) -> usize {
        self.kv_heads * PAGE_TOKENS * self.ty.scale_words(self.head_dim)
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        self.pages as u64 * (16 * self.page_chunks() as u64 + 4 * self.page_scales() as u64)
    }

    /// Where the scales begin, in u32: `key_scales` and `value_scales` of the kernels that read or write the cache.
    pub fn scales_at(&self) -> u32 {
        (4 * self.pages * self.page_chunks()) as u32
    }

    /// The uniform of the kernel that copies pages of this buffer; `copies_at` is the list's place in the step buffer.
    pub fn copy_params(&self, copies_at: u32) -> CopyPagesParams {
        CopyPagesParams {
            chunks: self.page_chunks() as u32,
            scales: (self.page_scales() / 4) as u32,
            scales_at: self.scales_at() / 4,
            copies_at,
        }
    }

    /// A thread for each sixteen bytes of a page.
    pub fn copy_grid(&self) -> [u32; 3] {
        [((self.page_chunks() + self.page_scales() / 4) as u32).div_ceil(APART), 1, 1]
    }
}

/// Which of a cache's two buffers: they differ in which elements neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// `[page][head][chunk][token]`.
    Keys,
    /// `[page][head][token][chunk]`.
    Values,
}

impl CacheLayout {
    /// Where a page's chunks lie in the buffer, bytes.
    pub fn page_range(&self, page: u32) -> Range<u64> {
        let bytes = 16 * self.page_chunks() as u64;
        u64::from(page) * bytes..(u64::from(page) + 1) * bytes
    }

    /// Where its scales lie.
    pub fn scales_range(&self, page: u32) -> Range<u64> {
        let (first, bytes) = (4 * u64::from(self.scales_at()), 4 * self.page_scales() as u64);
        first + u64::from(page) * bytes..first + (u64::from(page) + 1) * bytes
    }

    /// The place of a token's chunk of a head within its page, and of the word of its scales.
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

    /// A page `[PAGE_TOKENS, kv_heads * head_dim]` from its bytes, chunks and then scales.
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

    /// The bytes of a page, chunks and then scales, that [`CacheLayout::decode`] reads.
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

    /// Calls `each` with every element of a page: its place in `[PAGE_TOKENS, kv_heads * head_dim]`, in the elements
    /// of the chunks and in the scales.
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

/// What parts/cache.wgsl wants to know of keys and values of these types.
pub(crate) fn cache_context(key: CacheType, value: CacheType, head_dim: usize) -> Value {
    context! {
        key => key.name(),
        value => value.name(),
        key_chunks => key.chunks(head_dim),
        value_chunks => value.chunks(head_dim),
        key_quads => key.chunk_elements() / 4,
        value_quads => value.chunk_elements() / 4,
        scale_words => CacheType::Q8_0.scale_words(head_dim),
    }
}

/// The only text. Bindings, in order: `step`, `cache` (written). Runs before the others of a step with copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyPagesKey;

/// The uniform, made by [`CacheLayout::copy_params`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct CopyPagesParams {
    /// Chunks of a page.
    pub chunks: u32,
    /// Sixteens of bytes of a page's scales.
    pub scales: u32,
    /// Where the scales begin, in sixteens of bytes.
    pub scales_at: u32,
    /// Place of the list `(from, to)` in the step buffer.
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
