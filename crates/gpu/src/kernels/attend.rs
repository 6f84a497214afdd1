//! [`Op::Attend`](bilayer_graph::Op::Attend) after the append: attention over the paged KV cache, in parts that are
//! merged.

use std::collections::BTreeMap;

use bilayer_graph::PAGE_TOKENS;
use bytemuck::{Pod, Zeroable};
use minijinja::context;
use minijinja::value::merge_maps;

use super::bindings::{kernel, numbered};
use super::cache::{CacheType, cache_context};
use super::team::{APART, Team};
use super::view::{View, pieces};
use crate::caps::{Caps, Coop, Input};
use crate::kernel::Source;

/// Maximum floats of accumulators per thread: half of the available registers, so that enough workgroups run at once.
const SUMS_MAX: usize = 96;

/// Loads of values that a thread has in flight at once.
const VALUES_UNROLLED: usize = 4;

/// Loads of chunks of a key that a thread has in flight at once.
const KEYS_UNROLLED: usize = 8;

/// Parts that a thread of attend/merge has in flight at once.
const PARTS_UNROLLED: u32 = 8;

/// Threads of attend/merge for a piece of sixteen elements.
fn merge_share(caps: &Caps) -> u32 {
    if caps.software { 1 } else { 4 }
}

/// Rows per tile for spans of many rows, without cooperative matrices.
const TILE_ROWS: u32 = 8;

/// Maximum query vectors per workgroup.
const QUERIES_MAX: u32 = 8;

/// Query vectors of a workgroup with cooperative matrices: sixteen of each of four subgroups.
const QUERIES_COOP: u32 = 64;
const SUBGROUPS_COOP: u32 = 4;

/// Halves from row to row of what has 32 tokens in workgroup memory: a multiple of eight, and apart in banks.
const PITCH_COOP: u32 = 40;

/// Elements of values in workgroup memory at once.
const SLICE_COOP: u32 = 128;

/// Elements of heads whose results fit the registers.
const HEAD_COOP_MAX: u32 = 256;

/// Which text of attend/split, or of attend/coop with cooperative matrices. Bindings, in order:
/// `step`, `q`, `keys`, `values` unless they are in the keys, `vectors` if there are sinks or biases, `out`
/// (written), `parts` (written).
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
    /// What scores gain by the distance of query and key.
    pub bias: Option<Bias>,
    /// Whether attention is bidirectional; tiles then contain the bounds of their sequence.
    pub both_ways: bool,
    /// The cooperative matrices that compute it, if they do.
    pub coop: Option<Coop>,
}

/// What scores gain by the distance of query and key, from `vectors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bias {
    /// `[heads]`: what they lose per position.
    Slopes,
    /// `[heads, 2 * reach + 1]`: the biases of keys from `reach` positions before the query to as many after it; those
    /// beyond have the outermost.
    Table {
        /// Positions to either side.
        reach: u32,
    },
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
    /// First tile of the dispatch.
    pub first_tile: u32,
    /// First workgroup of each tile, along the grid's y.
    pub first_group: u32,
    /// Place of the [`Bias`]es in `vectors`, in floats.
    pub bias: u32,
}

impl SplitKey {
    /// Causal attention without extras over a cache of a type, with tiles of one head and row.
    pub fn plain(ty: CacheType, head_dim: usize) -> SplitKey {
        SplitKey {
            head_dim: head_dim as u32,
            value_dim: head_dim as u32,
            heads_tile: 1,
            tile_rows: 1,
            key: ty,
            value: Some(ty),
            softcap: false,
            sinks: false,
            bias: None,
            both_ways: false,
            coop: None,
        }
    }

    /// The largest tile that fits the registers: sets `heads_tile` and `tile_rows`, up to `rows` tokens.
    ///
    /// `group` is the number of query heads per key-value head. `rows` 1 gives the decode kernel.
    #[must_use]
    pub fn tiled(self, caps: &Caps, group: u32, rows: u32) -> SplitKey {
        self.of_queries(self.queries_max(caps), group, rows)
    }

    /// The kernel for spans of many rows: with cooperative matrices if they can compute it.
    #[must_use]
    pub fn many(self, caps: &Caps, group: u32) -> SplitKey {
        self.tiled_coop(caps, group).unwrap_or_else(|| self.tiled(caps, group, TILE_ROWS))
    }

    /// The decode kernel with a single query vector per workgroup.
    #[must_use]
    pub fn narrow(self) -> SplitKey {
        self.of_queries(1, 1, 1)
    }

    /// As [`Self::tiled`] with cooperative matrices, if products of many columns are computed with them, and heads and cache
    /// have a form that they can compute.
    #[must_use]
    pub fn tiled_coop(self, caps: &Caps, group: u32) -> Option<SplitKey> {
        let is_used = caps.coop_attends && caps.tile.input == Input::Halves;
        let coop = caps.coop.filter(|_| is_used)?;
        let key = SplitKey { coop: Some(coop), ..self.of_queries(QUERIES_COOP, group, u32::MAX) };
        // Slices of values are whole fragments and chunks, and so are heads then.
        let is_whole = |ty: CacheType| {
            ty.fits_halves() && (self.slice_dims() as usize).is_multiple_of(ty.chunk_elements())
        };
        let fits = (1..=HEAD_COOP_MAX).contains(&self.head_dim)
            && self.head_dim.is_multiple_of(2)
            && self.slice_dims().is_multiple_of(16)
            && self.head_dim == self.value_dim
            && !self.both_ways
            && self.bias.is_none()
            && is_whole(self.key)
            && self.value.is_some_and(is_whole)
            && key.held_bytes() <= caps.workgroup_bytes;
        fits.then_some(key)
    }

    /// Elements of values that are in workgroup memory at once: all, or halves of them.
    fn slice_dims(&self) -> u32 {
        match self.head_dim > SLICE_COOP {
            true => self.head_dim / 2,
            false => self.head_dim,
        }
    }

    /// Halves of workgroup memory for a page of keys, or of values.
    fn turned(&self) -> u32 {
        (32 * (self.head_dim + 8)).max(self.slice_dims() * PITCH_COOP)
    }

    /// Bytes of workgroup memory with cooperative matrices, if queries are held in fragments.
    fn held_bytes(&self) -> u32 {
        2 * (self.turned() + QUERIES_COOP * PITCH_COOP) + 4 * 33 * QUERIES_COOP + 16
    }

    /// Whether queries are held in fragments, for want of workgroup memory.
    fn is_held(&self, caps: &Caps) -> bool {
        self.held_bytes() + 2 * QUERIES_COOP * (self.head_dim + 8) > caps.workgroup_bytes
    }

    /// Maximum query vectors per workgroup whose results fit the registers.
    fn queries_max(&self, caps: &Caps) -> u32 {
        let threads = caps.lanes() as usize;
        let chunks = self.values().chunks(self.value_dim as usize);
        let sums = chunks.div_ceil(threads) * self.values().chunk_elements();
        ((SUMS_MAX / sums) as u32).clamp(1, QUERIES_MAX)
    }

    fn of_queries(self, most: u32, group: u32, rows: u32) -> SplitKey {
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
        if let Some(coop) = self.coop {
            return self.coop_source(coop, caps);
        }
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
        let key_chunks = self.key.chunks(head_dim);
        let key_unroll = match caps.software {
            true => 1,
            false => [KEYS_UNROLLED, 4, 2]
                .into_iter()
                .find(|n| key_chunks.is_multiple_of(*n))
                .unwrap_or(1),
        };
        let folds: Vec<usize> = std::iter::successors(Some(token_lanes), |far| Some(2 * far))
            .take_while(|far| *far < team.threads as usize)
            .collect();
        let at = self.bindings();
        let context = context! {
            at, token_lanes, token_groups, folds, unroll, key_unroll,
            quads => head_dim / 4,
            out_quads => value_dim / 4,
            heads_tile => self.heads_tile,
            tile_rows => self.tile_rows,
            queries => self.heads_tile * self.tile_rows,
            own => chunks.div_ceil(token_lanes),
            softcap => self.softcap,
            sinks => self.sinks,
            slopes => self.bias == Some(Bias::Slopes),
            reach => self.reach(),
            both_ways => self.both_ways,
            ..merge_maps([cache_context(self.key, self.value, [head_dim, value_dim]), team.context()])
        };
        kernel(self.name(team), "attend/split", context, team.threads)
    }

    /// Whether the kernel reads sinks or biases.
    pub fn has_vectors(&self) -> bool {
        self.sinks || self.bias.is_some()
    }

    /// Positions to either side of a query that have biases of their own in a table, if there is one.
    fn reach(&self) -> Option<u32> {
        match self.bias {
            Some(Bias::Table { reach }) => Some(reach),
            Some(Bias::Slopes) | None => None,
        }
    }

    fn bindings(&self) -> BTreeMap<&'static str, u32> {
        numbered(&[
            ("step", true),
            ("q", true),
            ("keys", true),
            ("values", self.value.is_some()),
            ("vectors", self.has_vectors()),
            ("out", true),
            ("parts", true),
        ])
    }

    fn coop_source(&self, coop: Coop, caps: &Caps) -> Source {
        let team = Team { threads: SUBGROUPS_COOP * coop.subgroup, subgroup: coop.subgroup };
        let dims = [self.head_dim, self.value_dim].map(|dim| dim as usize);
        let context = context! {
            at => self.bindings(),
            coop => coop.edge,
            head_dim => self.head_dim,
            quads => self.head_dim / 4,
            out_quads => self.value_dim / 4,
            heads_tile => self.heads_tile,
            softcap => self.softcap,
            sinks => self.sinks,
            both_ways => self.both_ways,
            slice_dims => self.slice_dims(),
            turned => self.turned(),
            held => self.is_held(caps),
            ..merge_maps([cache_context(self.key, self.value, dims), team.context()])
        };
        kernel(self.name(team), "attend/coop", context, team.threads)
    }

    fn name(&self, team: Team) -> String {
        format!(
            "attend/{} d{} {}x{} {} {}{}{}{}{} {}",
            if self.coop.is_some() { "coop" } else { "split" },
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
            match self.bias {
                Some(Bias::Slopes) => " slopes".to_owned(),
                Some(Bias::Table { reach }) => format!(" reach {reach}"),
                None => String::new(),
            },
            if self.both_ways { " both ways" } else { "" },
            team.name()
        )
    }

    /// Workgroups per tile and part of the keys. `group` as in [`SplitParams`].
    pub fn groups(&self, kv_heads: u32, group: u32) -> u32 {
        kv_heads * group.div_ceil(self.heads_tile)
    }

    /// Operations of a workgroup, over all parts of `keys` keys: two for each element of keys and values.
    pub fn group_operations(&self, keys: u32) -> u64 {
        let queries = u64::from(self.heads_tile * self.tile_rows);
        2 * queries * u64::from(self.head_dim + self.value_dim) * u64::from(keys)
    }
}

/// How much attention a dispatch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Tiles, one per x of the grid.
    pub tiles: u32,
    /// Workgroups of each tile, one per y.
    pub groups: u32,
}

/// Maximum dispatches of an attention: each has a uniform and a bind group in every layer.
const PIECES_MAX: u32 = 256;

impl Piece {
    /// The largest piece of at most `most` operations, where a workgroup has so many: whole tiles, or some workgroups of
    /// one. A single workgroup is never divided, and there are no more than `PIECES_MAX` pieces.
    pub fn of(group_operations: u64, most: f64, whole: Piece) -> Piece {
        let fit = (most / group_operations.max(1) as f64) as u32;
        let mut piece = match fit >= whole.groups {
            true => Piece { tiles: (fit / whole.groups).min(whole.tiles), ..whole },
            false => Piece { tiles: 1, groups: fit.max(1) },
        };
        while piece.count(whole) > PIECES_MAX {
            match piece.groups < whole.groups {
                true => piece.groups = (2 * piece.groups).min(whole.groups),
                false => piece.tiles = (2 * piece.tiles).min(whole.tiles),
            }
        }
        piece
    }

    /// Number of pieces.
    pub fn count(&self, whole: Piece) -> u32 {
        whole.tiles.div_ceil(self.tiles) * whole.groups.div_ceil(self.groups)
    }

    /// First tile and first workgroup of each piece.
    pub fn firsts(self, whole: Piece) -> impl Iterator<Item = [u32; 2]> {
        let tiles = (0..whole.tiles).step_by(self.tiles as usize);
        tiles.flat_map(move |tile| {
            (0..whole.groups).step_by(self.groups as usize).map(move |group| [tile, group])
        })
    }
}

/// Numbers of keys in rising order, the last of them all: attention to at most so many keys is divided alike. A whole
/// dispatch has at most `most` operations for the first, and each other is twice the one before.
pub fn levels(operations_per_key: u64, most: f64, keys_max: u32) -> Vec<u32> {
    let first = (most / operations_per_key.max(1) as f64).min(f64::from(u32::MAX)) as u32;
    let first = first.max(PAGE_TOKENS as u32);
    let below = |level: &u32| *level < keys_max;
    let mut levels: Vec<u32> = std::iter::successors(Some(first), |level| level.checked_mul(2))
        .take_while(below)
        .collect();
    levels.push(keys_max);
    levels
}

/// The number of parts to split the keys into, so that about `wanted` workgroups run: `groups` is the number of
/// workgroups per part, `tokens` the keys of the longest sequence, `least` the pages of a part that is worth merging,
/// `splits_max` the capacity of the parts' buffer.
pub fn splits(groups: u32, tokens: u32, wanted: u32, [least, splits_max]: [u32; 2]) -> u32 {
    let pages = tokens.div_ceil(PAGE_TOKENS as u32).max(1);
    wanted.div_ceil(groups.max(1)).min(pages.div_ceil(least)).clamp(1, splits_max.max(1))
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
        let unroll = if caps.software { 1 } else { PARTS_UNROLLED };
        let share = merge_share(caps);
        let context = context! { at, unroll, share, quads => head_dim / 4, threads => APART };
        kernel(name, "attend/merge", context, APART)
    }

    /// Workgroups for a row of `width` elements.
    pub fn groups(caps: &Caps, width: usize) -> u32 {
        (merge_share(caps) * pieces(width) as u32).div_ceil(APART)
    }
}

#[cfg(test)]
mod tests {
    use super::{PIECES_MAX, Piece, SplitKey, levels};
    use crate::kernels::cache::CacheType;

    /// Eight query heads of 128 elements and two tokens per workgroup, with caches of f16.
    fn key() -> SplitKey {
        let f16 = CacheType::of(bilayer_quant::Type::F16, 128).unwrap();
        SplitKey {
            head_dim: 128,
            value_dim: 128,
            heads_tile: 4,
            tile_rows: 2,
            key: f16,
            value: Some(f16),
            softcap: false,
            sinks: false,
            bias: None,
            both_ways: false,
            coop: None,
        }
    }

    #[test]
    fn no_dispatch_of_long_contexts_is_predicted_above_a_tenth_of_a_second() {
        // Attention of an 8B to 128k keys, 512 tokens at a time, on adapters of these rates, an integrated one first.
        let (key, keys) = (key(), 131_072);
        let whole = Piece { tiles: 256, groups: key.groups(8, 4) };
        for (rate, expected) in [(4e11, 220..=256), (4e12, 20..=26), (1e14, 1..=1)] {
            let most = rate * 0.05 / 4.0;
            let group = key.group_operations(keys);
            let piece = Piece::of(group, most, whole);
            let count = piece.count(whole);
            assert!(expected.contains(&count), "{rate}: {count}");
            let operations = group as f64 * f64::from(piece.tiles * piece.groups);
            assert!(operations / (rate / 4.0) < 0.1, "{rate}: {piece:?}");
        }
        // Where a tile is too much, it is divided by heads; the number of dispatches is bounded.
        let piece =
            Piece::of(key.group_operations(keys), 2.0 * key.group_operations(keys) as f64, {
                Piece { tiles: 3, ..whole }
            });
        assert_eq!(piece, Piece { tiles: 1, groups: 2 });
        let bounded = Piece::of(key.group_operations(keys), 1.0, whole);
        assert!(bounded.count(whole) <= PIECES_MAX, "{bounded:?}");
    }

    #[test]
    fn pieces_cover_all_tiles_and_groups_once() {
        for (tiles, groups) in [(1, 1), (7, 3), (256, 8), (512, 40)] {
            let whole = Piece { tiles, groups };
            for most in [1.0, 900.0, 4000.0, 1e9] {
                let piece = Piece::of(100, most, whole);
                let mut seen = vec![0; (tiles * groups) as usize];
                for [tile, group] in piece.firsts(whole) {
                    for tile in tile..(tile + piece.tiles).min(tiles) {
                        for group in group..(group + piece.groups).min(groups) {
                            seen[(tile * groups + group) as usize] += 1;
                        }
                    }
                }
                assert!(seen.iter().all(|&times| times == 1), "{whole:?} {most}");
                assert_eq!(piece.firsts(whole).count(), piece.count(whole) as usize);
            }
        }
    }

    #[test]
    fn short_contexts_are_not_divided_for_the_sake_of_long_ones() {
        // 1000 operations per key, a million at once.
        assert_eq!(levels(1000, 1e6, 500), [500]);
        assert_eq!(levels(1000, 1e6, 5000), [1000, 2000, 4000, 5000]);
        assert_eq!(levels(1, 1e30, u32::MAX), [u32::MAX]);
        assert_eq!(levels(1_000_000, 1.0, 100), [32, 64, 100]);
    }
}
