//! [`Op::Attend`](bilayer_graph::Op::Attend) after the append: attention over the paged KV cache, in parts that are
//! merged.

use bilayer_graph::PAGE_TOKENS;
use bytemuck::{Pod, Zeroable};
use minijinja::context;
use minijinja::value::merge_maps;

use super::bindings::{kernel, numbered};
use super::cache::{CacheType, cache_context};
use super::team::{APART, Team};
use super::view::{View, pieces};
use crate::caps::Caps;
use crate::kernel::Source;

/// Maximum floats of accumulators per thread: half of the available registers, so that enough workgroups run at once.
const SUMS_MAX: usize = 96;

/// Loads of values that a thread has in flight at once.
const VALUES_UNROLLED: usize = 4;

/// Maximum query vectors per workgroup.
const QUERIES_MAX: u32 = 8;

/// Which text of attend/split. Bindings, in order: `step`, `q`, `keys`, `values` unless they are in the keys, `vectors` if
/// there are sinks, `out` (written), `parts` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SplitKey {
    /// Elements of a head of queries and keys, a multiple of 4.
    pub head_dim: u32,
    /// Elements of a head of values, a multiple of 4.
    pub value_dim: u32,
    /// Query heads per workgroup, all of one key-value head.
    pub heads_tile: u32,
    /// Maximum tokens per tile.
    pub tile_rows: u32,
    /// Type of stored keys.
    pub key: CacheType,
    /// Type of stored values; `None` if they are the first elements of the keys.
    pub value: Option<CacheType>,
    /// Whether scores are capped.
    pub softcap: bool,
    /// There are sinks.
    pub sinks: bool,
    /// Whether attention is bidirectional; tiles then contain the bounds of their sequence.
    pub both_ways: bool,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct SplitParams {
    /// `[T, heads * head_dim]`.
    pub q: View,
    /// `[T, heads * value_dim]`.
    pub out: View,
    /// Place of `tiles` in the step buffer.
    pub tiles_at: u32,
    /// Place of `pages` in the step buffer.
    pub pages_at: u32,
    /// Words per tile.
    pub tile_words: u32,
    /// Query heads.
    pub heads: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// Query heads per key-value head.
    pub group: u32,
    /// Number of tokens that a token attends to, including itself, per side if bidirectional; `u32::MAX` for all.
    pub window: u32,
    /// [`CacheLayout::scales_at`](super::cache::CacheLayout::scales_at) of the keys.
    pub key_scales: u32,
    /// [`CacheLayout::scales_at`](super::cache::CacheLayout::scales_at) of the values.
    pub value_scales: u32,
    /// Place of the sinks `[heads]` in `vectors`, in floats.
    pub sinks: u32,
    /// Factor on the scores.
    pub scale: f32,
    /// Bound of the scores, if capped.
    pub softcap: f32,
    /// Positions of a chunk, to which causal attention is confined; `u32::MAX` for no chunks.
    pub chunk: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: [u32; 3],
}

impl SplitKey {
    /// The largest tile that fits the registers: sets `heads_tile` and `tile_rows`, up to `rows` tokens.
    ///
    /// `group` is the number of query heads per key-value head. `rows` 1 gives the decode kernel.
    #[must_use]
    pub fn tiled(self, caps: &Caps, group: u32, rows: u32) -> SplitKey {
        let threads = caps.lanes() as usize;
        let chunks = self.values().chunks(self.value_dim as usize);
        let sums = chunks.div_ceil(threads) * self.values().chunk_elements();
        let most = ((SUMS_MAX / sums) as u32).clamp(1, QUERIES_MAX);
        // All workgroups of a group are equal: 9 heads are split as 5 and 4 rather than 8 and 1.
        let heads_tile = group.div_ceil(group.div_ceil(most));
        let tile_rows = (most / heads_tile).clamp(1, rows);
        SplitKey { heads_tile, tile_rows, ..self }
    }

    /// Type of the values, wherever they are.
    fn values(&self) -> CacheType {
        self.value.unwrap_or(self.key)
    }

    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let team = Team::small(caps);
        let (head_dim, value_dim) = (self.head_dim as usize, self.value_dim as usize);
        let chunks = self.values().chunks(value_dim);
        // Lanes that share a token's value, and tokens whose values are read at once.
        let token_lanes = chunks.next_power_of_two().min(team.threads as usize);
        let token_groups = team.threads as usize / token_lanes;
        // A block has `token_lanes` rounds of tokens. A software adapter gains nothing, its loads do not overlap.
        let unroll = match token_lanes.is_multiple_of(VALUES_UNROLLED) && !caps.software {
            true => VALUES_UNROLLED,
            false => 1,
        };
        let folds: Vec<usize> = std::iter::successors(Some(token_lanes), |far| Some(2 * far))
            .take_while(|far| *far < team.threads as usize)
            .collect();
        let at = numbered(&[
            ("step", true),
            ("q", true),
            ("keys", true),
            ("values", self.value.is_some()),
            ("vectors", self.sinks),
            ("out", true),
            ("parts", true),
        ]);
        let context = context! {
            at, token_lanes, token_groups, folds, unroll,
            quads => head_dim / 4,
            out_quads => value_dim / 4,
            heads_tile => self.heads_tile,
            tile_rows => self.tile_rows,
            queries => self.heads_tile * self.tile_rows,
            own => chunks.div_ceil(token_lanes),
            softcap => self.softcap,
            both_ways => self.both_ways,
            ..merge_maps([cache_context(self.key, self.value, [head_dim, value_dim]), team.context()])
        };
        kernel(self.name(team), "attend/split", context, team.threads)
    }

    fn name(&self, team: Team) -> String {
        format!(
            "attend/split d{} {}x{} {} {}{}{}{} {}",
            self.head_dim,
            self.heads_tile,
            self.tile_rows,
            self.key.name(),
            match self.value {
                Some(value) => value.name().to_owned(),
                None => format!("first {}", self.value_dim),
            },
            if self.softcap { " softcap" } else { "" },
            if self.sinks { " sinks" } else { "" },
            if self.both_ways { " both ways" } else { "" },
            team.name()
        )
    }

    /// One workgroup per tile, part of the heads, and part of the keys. `group` as in [`SplitParams`].
    pub fn grid(&self, tiles: u32, kv_heads: u32, group: u32, splits: u32) -> [u32; 3] {
        [tiles, kv_heads * group.div_ceil(self.heads_tile), splits]
    }
}

/// The number of parts to split the keys into, so that about `wanted` workgroups run: `groups` is the number of
/// workgroups per part, `tokens` the keys of the longest sequence, `splits_max` the capacity of the parts' buffer.
pub fn splits(groups: u32, tokens: u32, wanted: u32, splits_max: u32) -> u32 {
    let pages = tokens.div_ceil(PAGE_TOKENS as u32).max(1);
    // Merging a part of less than two pages costs more than it saves.
    wanted.div_ceil(groups.max(1)).min(pages.div_ceil(2)).clamp(1, splits_max.max(1))
}

/// Bytes of the partial results; `rows` counts each part of each token.
pub fn parts_bytes(rows: usize, heads: usize, value_dim: usize) -> u64 {
    16 * (rows * heads) as u64 * (value_dim / 4 + 1) as u64
}

/// Which text of attend/merge. Bindings, in order: `step`, `parts`, `vectors` if there are sinks, `out` (written) if
/// floats are wanted, `xq` and `xs` (written) if quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MergeKey {
    /// Elements of a head of values.
    pub head_dim: u32,
    /// There are sinks.
    pub sinks: bool,
    /// The result is wanted as floats.
    pub floats: bool,
    /// The result is wanted as quantized activations.
    pub quantized: bool,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct MergeParams {
    /// `[T, heads * head_dim]`, if floats are wanted.
    pub out: View,
    /// `heads * head_dim`.
    pub width: u32,
    /// Place of the sinks `[heads]` in `vectors`, in floats.
    pub sinks: u32,
}

impl MergeKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let MergeKey { head_dim, sinks, floats, quantized } = *self;
        let at = numbered(&[
            ("step", true),
            ("parts", true),
            ("vectors", sinks),
            ("out", floats),
            ("xq", quantized),
            ("xs", quantized),
        ]);
        let name = format!(
            "attend/merge d{head_dim}{}{}{}",
            if sinks { " sinks" } else { "" },
            if floats { " f32" } else { "" },
            if quantized { " q8" } else { "" }
        );
        let context = context! { at, quads => head_dim / 4, threads => APART };
        kernel(name, "attend/merge", context, APART)
    }

    /// A thread a piece of sixteen.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(pieces(width) as u32).div_ceil(APART), rows, 1]
    }
}
