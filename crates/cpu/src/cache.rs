//! The KV cache of one layer: pages of 32 tokens, laid out for the two matrix products of attention.
//!
//! ```text
//! cache     [NUMA nodes][groups]
//! group     [kv_heads of the node][16 pages] blocks
//! block     [ keys: head_dim x 32 tokens ][ values: 32 tokens x value_stride ]
//! ```
//!
//! Keys are stored transposed, so the scores of 32 tokens are sums of whole vectors times one query element, without
//! horizontal sums. Values are stored by token, so the output is a sum of whole rows times one weight. A head's block
//! is contiguous, and so are its blocks for the pages of a group, which are mostly assigned to one sequence: a sweep
//! then reads one contiguous range, which suits the hardware prefetchers. The last group contains the remaining
//! pages. `value_stride` is `head_dim` rounded up to 16 elements, or to 32 for types in blocks, which run along `head_dim`
//! ([`panel`] draws them). Where values are the first elements of the keys, a block is only its keys.

use bilayer_graph::{CacheInfo, CachePages, Error, Limits, PAGE_TOKENS, PageCopy, host_zeros};
use bilayer_quant::Type;
use bilayer_quant::cache::BLOCK;
use rayon::prelude::*;

use crate::level::Level;
use crate::memory::{Memory, lines};
use place::Place;

mod heads;
mod panel;
mod place;

pub(crate) use heads::Heads;
pub(crate) use panel::{Blocks, Panel, Stored, with_known};

/// Pages of a group.
const GROUP_PAGES: usize = 16;

/// The page layout of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Elements at the start of each key that are its value; then no values are stored.
    values_in_keys: Option<usize>,
    /// Distance between the values of consecutive tokens, in elements.
    value_stride: usize,
    key: Stored,
    value: Stored,
    /// Types of keys and values.
    types: [Type; 2],
    /// Whether keys are stored after the Hadamard transform.
    pub(crate) hadamard_keys: bool,
    key_bytes: usize,
    block_bytes: usize,
}

impl Layout {
    /// # Errors
    /// The type is not supported for caches, or keys are to be transformed and cannot be.
    pub(crate) fn new(info: &CacheInfo, limits: &Limits) -> Result<Layout, Error> {
        let key = Stored::of(limits.key_type)?;
        let value = Stored::of(limits.value_type)?;
        let value_stride = value.value_stride(info.value_dim().next_multiple_of(16));
        let key_bytes = lines(key.bytes(info.head_dim * PAGE_TOKENS));
        let value_bytes = match info.values_in_keys {
            None => lines(value.bytes(value_stride * PAGE_TOKENS)),
            Some(_) => 0,
        };
        Ok(Layout {
            kv_heads: info.kv_heads,
            head_dim: info.head_dim,
            values_in_keys: info.values_in_keys,
            value_stride,
            key,
            value,
            types: [limits.key_type, limits.value_type],
            hadamard_keys: limits.transforms(info, crate::NAME)?,
            key_bytes,
            block_bytes: key_bytes + value_bytes,
        })
    }

    /// Whether the dimensions are those of `info`.
    pub(crate) fn holds(&self, info: &CacheInfo) -> bool {
        (self.kv_heads, self.head_dim, self.values_in_keys) == info.shape()
    }

    /// Names of the types of keys and values, or of the keys that have the values.
    pub(crate) fn name(&self) -> String {
        let [mut key, value] = self.types.map(|ty| ty.name.to_lowercase());
        if self.hadamard_keys {
            key = format!("hadamard {key}");
        }
        if self.values_in_keys.is_some() { key } else { format!("{key}/{value}") }
    }

    fn key_elements(&self) -> usize {
        self.head_dim * PAGE_TOKENS
    }

    fn value_elements(&self) -> usize {
        self.value_stride * PAGE_TOKENS
    }
}

/// The KV cache of one layer.
pub(crate) struct Cache {
    pub(crate) layout: Layout,
    pub(crate) heads: Heads,
    pages: usize,
    memory: Memory,
}

/// Keys and values of consecutive tokens of one head within one page.
pub(crate) struct Tokens<'a> {
    pub(crate) page: u32,
    pub(crate) kv_head: usize,
    /// Index of the first token within the page.
    pub(crate) slot: usize,
    /// `[tokens, head_dim]`.
    pub(crate) keys: &'a [f32],
    /// `[tokens, head_dim]`; empty if values are in the keys.
    pub(crate) values: &'a [f32],
}

impl Cache {
    /// # Errors
    /// Out of memory, or an unsupported type.
    pub(crate) fn new(info: &CacheInfo, limits: &Limits, heads: Heads) -> Result<Cache, Error> {
        let layout = Layout::new(info, limits)?;
        let bytes = (layout.kv_heads * layout.block_bytes).saturating_mul(limits.pages);
        let memory = Memory::new(bytes, "keys and values")?;
        Ok(Cache { layout, heads, pages: limits.pages, memory })
    }

    /// A cache for one step whose contents are not kept.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn scratch(info: &CacheInfo, limits: &Limits) -> Result<Cache, Error> {
        let types = Limits { key_type: Type::F32, value_type: Type::F32, ..*limits };
        let heads = Heads::shared(info.kv_heads);
        Cache::new(info, &Limits { hadamard_keys: false, ..types }, heads)
    }

    /// Size of its pages in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Keys of one head of one page, and values unless they are in the keys.
    ///
    /// # Safety
    /// No thread writes to them while the slices are alive.
    pub(crate) unsafe fn block(&self, page: u32, kv_head: usize) -> (Panel<'_>, Option<Panel<'_>>) {
        let layout = &self.layout;
        let start = self.start(page, kv_head);
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { self.memory.get::<u8>(start, layout.block_bytes) };
        let (keys, values) = bytes.split_at(layout.key_bytes);
        let keys = Panel { stored: layout.key, bytes: keys, elements: layout.key_elements() };
        let elements = layout.value_elements();
        let values = Panel { stored: layout.value, bytes: values, elements };
        (keys, layout.values_in_keys.is_none().then_some(values))
    }

    /// The bytes of one head of one page: keys, then values. They begin at a cache line.
    ///
    /// # Safety
    /// No other thread accesses them meanwhile.
    #[expect(clippy::mut_from_ref, reason = "threads have blocks of their own")]
    pub(crate) unsafe fn block_mut(&self, page: u32, kv_head: usize) -> &mut [u8] {
        let start = self.start(page, kv_head);
        // SAFETY: guaranteed by the caller.
        unsafe { self.memory.get_mut::<u8>(start, self.layout.block_bytes) }
    }

    /// Stores keys and values.
    ///
    /// # Safety
    /// No other thread accesses that head's block meanwhile.
    pub(crate) unsafe fn store(&self, level: Level, tokens: &Tokens<'_>) {
        let layout = &self.layout;
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { self.block_mut(tokens.page, tokens.kv_head) };
        let (key_bytes, value_bytes) = bytes.split_at_mut(layout.key_bytes);
        let dim = layout.head_dim;
        let keys = Place { stored: layout.key, elements: layout.key_elements() };
        let values = Place { stored: layout.value, elements: layout.value_elements() };
        keys.store_keys(level, key_bytes, tokens.slot, (tokens.keys, dim));
        values.store_values(level, value_bytes, tokens.slot, (tokens.values, dim));
    }

    /// Reads keys and values of whole pages as floats.
    ///
    /// # Errors
    /// Out of memory.
    ///
    /// # Safety
    /// No thread writes to the cache meanwhile.
    pub(crate) unsafe fn save(&self, pages: &[u32]) -> Result<CachePages, Error> {
        let Layout { kv_heads, head_dim: dim, value_stride, .. } = self.layout;
        let width = kv_heads * dim;
        let page_elements = PAGE_TOKENS * width;
        let has_values = self.layout.values_in_keys.is_none();
        let mut keys = host_zeros("saved keys", pages.len() * page_elements)?;
        let mut values = host_zeros("saved values", if has_values { keys.len() } else { 0 })?;
        let mut of_values = values.chunks_exact_mut(page_elements);
        let of_pages: Vec<_> = pages
            .iter()
            .zip(keys.chunks_exact_mut(page_elements))
            .map(|(&page, keys)| (page, keys, of_values.next().unwrap_or_default()))
            .collect();
        of_pages.into_par_iter().for_each(|(page, keys, values)| {
            for head in 0..kv_heads {
                // SAFETY: guaranteed by the caller.
                let (key, value) = unsafe { self.block(page, head) };
                for token in 0..PAGE_TOKENS {
                    let to = token * width + head * dim;
                    for (i, to) in keys[to..to + dim].iter_mut().enumerate() {
                        let scale = i / BLOCK * PAGE_TOKENS + token;
                        *to = key.float(i * PAGE_TOKENS + token, scale);
                    }
                    let Some(value) = value else { continue };
                    for (i, to) in values[to..to + dim].iter_mut().enumerate() {
                        let at = token * value_stride + i;
                        *to = value.float(at, at / BLOCK);
                    }
                }
            }
        });
        Ok(CachePages { keys, values })
    }

    /// Stores keys and values of whole pages.
    ///
    /// # Safety
    /// No other thread uses the cache meanwhile.
    pub(crate) unsafe fn restore(&self, level: Level, pages: &[u32], data: &CachePages) {
        let Layout { kv_heads, head_dim: dim, .. } = self.layout;
        let width = kv_heads * dim;
        // Values in keys are empty rows of their own.
        let value = |at: usize| data.values.get(at * dim..(at + 1) * dim).unwrap_or_default();
        let slots =
            || pages.iter().flat_map(|&page| (0..PAGE_TOKENS).map(move |slot| (page, slot)));
        (0..kv_heads).into_par_iter().for_each(|kv_head| {
            let rows = slots().zip(data.keys.chunks_exact(width)).enumerate();
            for (token, ((page, slot), keys)) in rows {
                let keys = &keys[kv_head * dim..][..dim];
                let values = value(token * kv_heads + kv_head);
                // SAFETY: guaranteed by the caller; each thread has heads of its own.
                unsafe { self.store(level, &Tokens { page, kv_head, slot, keys, values }) };
            }
        });
    }

    /// Copies pages, one after another.
    ///
    /// # Safety
    /// No other thread uses the cache meanwhile.
    pub(crate) unsafe fn copy(&self, copies: &[PageCopy]) {
        let bytes = self.layout.block_bytes;
        for copy in copies.iter().filter(|copy| copy.from != copy.to) {
            for head in 0..self.layout.kv_heads {
                // SAFETY: the pages differ, and the caller guarantees exclusive use.
                unsafe {
                    let from = self.memory.get::<u8>(self.start(copy.from, head), bytes);
                    let to = self.memory.get_mut::<u8>(self.start(copy.to, head), bytes);
                    to.copy_from_slice(from);
                }
            }
        }
    }

    /// Offset of a block, bytes.
    fn start(&self, page: u32, kv_head: usize) -> usize {
        let page = page as usize;
        assert!(page < self.pages && kv_head < self.layout.kv_heads);
        block_index(page, self.pages, kv_head, &self.heads) * self.layout.block_bytes
    }
}

/// Index of a block.
fn block_index(page: usize, pages: usize, kv_head: usize, heads: &Heads) -> usize {
    let heads = heads.beside(kv_head);
    let first = page / GROUP_PAGES * GROUP_PAGES;
    let group = (pages - first).min(GROUP_PAGES);
    heads.start * pages + first * heads.len() + (kv_head - heads.start) * group + (page - first)
}

#[cfg(test)]
mod tests {
    use super::{Heads, block_index};
    use crate::host::Topology;
    use crate::numa::{Nodes, Numa};

    #[test]
    fn each_block_has_a_place_of_its_own_and_a_heads_pages_follow_one_another() {
        let (pages, count) = (37, 3);
        let nodes = Nodes::new(Numa::Simulate(2), &Topology::default(), 3);
        for heads in [Heads::shared(count), Heads::divided(count, &nodes)] {
            let blocks = (0..pages).flat_map(|page| (0..count).map(move |head| (page, head)));
            let index = |(page, head)| block_index(page, pages, head, &heads);
            let mut places: Vec<_> = blocks.map(index).collect();
            assert_eq!(index((15, 2)), index((0, 2)) + 15, "the last page of the first group");
            let before: Vec<usize> = (0..pages).map(|page| index((page, 0))).collect();
            let is_apart = before.iter().all(|&at| at < index((0, 2)));
            assert_eq!(is_apart, heads != Heads::shared(count), "a node's heads lie together");
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count * pages));
        }
    }
}
