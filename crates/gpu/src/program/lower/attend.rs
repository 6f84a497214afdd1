//! Attention: RoPE and append in one dispatch, then the keys in parts, then the merge of the parts.

use bilayer_graph::fuse::QkInput;
use bilayer_graph::{
    Attend, DistanceBias, Error as GraphError, Limits, Op, OpKind, Rows, Segment, Values, Window,
};
use bilayer_quant::Type;

use super::super::draft::{
    Counts, DraftChoice, DraftDispatch, DraftStage, Grid, Operand, View, always,
};
use super::{Holdings, Lowering, dispatch};
use crate::caps::Caps;
use crate::kernels::attend::{
    Bias, MergeKey, MergeParams, Piece, SplitKey, SplitParams, levels, parts_bytes,
};
use crate::kernels::cache::{CacheLayout, CacheType, CopyPagesKey};
use crate::kernels::rope::{RopeKey, RopeParams, turns};

/// Steps of more rows do not split the keys: there are enough workgroups.
const SPLIT_ROWS_MAX: usize = 16;

/// The variant of the kernel that processes the keys.
fn split_key(attend: &Attend, limits: &Limits) -> Option<SplitKey> {
    let [key, value] = match attend.cache {
        Some(_) => [limits.key_type, limits.value_type],
        None => [Type::F32; 2],
    };
    let key = CacheType::of(key, attend.head_dim)?;
    Some(SplitKey {
        head_dim: attend.head_dim as u32,
        value_dim: attend.value_dim() as u32,
        heads_tile: 1,
        tile_rows: 1,
        key,
        value: match attend.v {
            Values::Beside(_) => Some(CacheType::of(value, attend.head_dim)?),
            Values::InKeys(_) => None,
        },
        softcap: attend.softcap.is_some(),
        sinks: attend.sinks.is_some(),
        bias: attend.bias.as_ref().map(|bias| match bias {
            DistanceBias::Slopes(_) => Bias::Slopes,
            DistanceBias::Buckets(buckets) => Bias::Table { reach: buckets.distance_max },
        }),
        both_ways: attend.cache.is_none(),
        coop: None,
    })
}

/// The layout and location of an attention's keys, and of its values unless they are in the keys.
struct Pages {
    keys: (CacheLayout, Operand),
    values: Option<(CacheLayout, Operand)>,
}

impl Pages {
    /// Both, as operands.
    fn operands(&self) -> impl Iterator<Item = Operand> + '_ {
        [Some(&self.keys), self.values.as_ref()].into_iter().flatten().map(|(_, side)| *side)
    }

    /// The offset of the values' scales.
    fn value_scales(&self) -> u32 {
        self.values.as_ref().map_or(0, |(layout, _)| layout.scales_at())
    }
}

fn group(attend: &Attend) -> u32 {
    (attend.heads / attend.kv_heads) as u32
}

/// Rows per tile for spans of many rows: the minimum over the segment's attentions.
pub(super) fn tile_rows(segment: &Segment<'_>, limits: &Limits, caps: &Caps) -> u32 {
    let nodes = segment.graph.nodes[segment.nodes.clone()].iter();
    let rows = nodes.filter_map(|node| match &node.op {
        Op::Attend(attend) => {
            let key = split_key(attend, limits)?;
            Some(key.many(caps, group(attend)).tile_rows)
        }
        _ => None,
    });
    rows.min().unwrap_or(1)
}

/// Row capacity of the parts of split attention.
pub(super) fn split_rows(limits: &Limits) -> usize {
    limits.tokens.min(SPLIT_ROWS_MAX.max(limits.sequences))
}

/// The workgroups of a tile of one row without splits, and the pages for which a part of the keys is worth merging.
pub(super) fn of_tile(attend: &Attend, limits: &Limits, holdings: &Holdings<'_>) -> (u32, u32) {
    let (kv_heads, group) = (attend.kv_heads as u32, group(attend));
    let key = split_key(attend, limits).map(|key| key.tiled(holdings.caps, group, 1));
    let groups = key.map_or(kv_heads, |key| key.groups(kv_heads, group));
    let cache = attend.cache.and_then(|id| holdings.caches.get(&id));
    let page = cache.map(|cache| {
        let sides = [Some(&cache.keys), cache.values.as_ref()].into_iter().flatten();
        sides.map(|side| side.layout.bytes()).sum::<u64>() / cache.pages.max(1) as u64
    });
    let part = parts_bytes(1, attend.heads, attend.value_dim());
    (groups, page.map_or(1, |page| least_pages(part, page)))
}

/// The pages of which the keys and values are no fewer bytes than the `part` that is written for them.
fn least_pages(part: u64, page: u64) -> u32 {
    part.div_ceil(page.max(1)) as u32
}

/// Whether a choice applies.
type Condition = fn(&Counts, u32) -> bool;

/// Applies if no sequence is longer than `bound`.
fn upto(counts: &Counts, bound: u32) -> bool {
    counts.longest <= bound
}

/// Applies if also every tile has one row.
fn untiled_upto(counts: &Counts, bound: u32) -> bool {
    counts.tile_rows == 1 && upto(counts, bound)
}

/// Workgroups of a single query vector that run at once, and the longest sequences for which they do: keys and values are read
/// once for each query head then, all but the first time from the GPU's cache.
const NARROW_GROUPS: u32 = 2048;
const NARROW_KEYS: u32 = 4 << 10;

/// Applies if every tile has one row, tiles and parts are few, and no sequence is long.
fn few(counts: &Counts, bound: u32) -> bool {
    untiled_upto(counts, NARROW_KEYS) && counts.tiles * counts.splits <= bound
}

/// A way to go through the keys.
struct Way {
    key: SplitKey,
    /// What a dispatch has of the whole.
    piece: Piece,
    whole: Piece,
    /// When it applies.
    when: Condition,
    bound: u32,
}

impl Lowering<'_> {
    /// Copies pages, before anything reads them.
    pub(super) fn copy_pages(&mut self, segment: &Segment<'_>) {
        let copies_at = self.words.layout().copies;
        let mut dispatches = Vec::new();
        for node in &segment.graph.nodes[segment.nodes.clone()] {
            let Op::Attend(Attend { cache: Some(id), .. }) = &node.op else { continue };
            let cache = &self.holdings.caches[id];
            let values = cache.values.as_ref().map(|side| (side.layout, Operand::Values(*id)));
            let sides = [Some((cache.keys.layout, Operand::Keys(*id))), values];
            for (layout, operand) in sides.into_iter().flatten() {
                let groups = layout.copy_grid();
                let grid =
                    Grid::new(
                        Rows::Tokens,
                        0,
                        move |counts, _| {
                            if counts.copies > 0 { groups } else { [0; 3] }
                        },
                    );
                let source = CopyPagesKey.source(self.caps);
                let operands = vec![Operand::Step, operand];
                dispatches.push(dispatch(source, &layout.copy_params(copies_at), operands, grid));
            }
        }
        if !dispatches.is_empty() {
            let choices = vec![DraftChoice { when: always, bound: 0, dispatches }];
            let name = "copy_pages".to_owned();
            self.stages.push(DraftStage { nodes: Vec::new(), name, choices, makes: None });
        }
    }

    /// Lowers an attention: what precedes the keys, and the keys.
    pub(super) fn attend(
        &mut self,
        node: usize,
        q: &QkInput,
        k: &QkInput,
    ) -> Result<(), GraphError> {
        let Op::Attend(attend) = self.op(node) else { unreachable!("an attend node") };
        let pages = self.pages(attend)?;
        let queries = self.turn_and_append(node, attend, (q, k), &pages)?;
        self.go_through(node, attend, queries, &pages)
    }

    /// The pages of the op's cache; without a cache, temporary memory.
    fn pages(&mut self, attend: &Attend) -> Result<Pages, GraphError> {
        if let Some(id) = attend.cache {
            let cache = &self.holdings.caches[&id];
            let values = cache.values.as_ref().map(|side| (side.layout, Operand::Values(id)));
            return Ok(Pages { keys: (cache.keys.layout, Operand::Keys(id)), values });
        }
        let Some(ty) = CacheType::of(Type::F32, attend.head_dim) else {
            return Err(self.unsupported(OpKind::Attend, "heads of such a length"));
        };
        let (kv_heads, head_dim, pages) = (attend.kv_heads, attend.head_dim, self.limits.pages);
        let layout = CacheLayout { ty, kv_heads, head_dim, pages };
        if layout.bytes() > self.caps.max_binding {
            return Err(self.unsupported(OpKind::Attend, "so many tokens in a step"));
        }
        let [keys, values] = [0; 2].map(|_| (layout, Operand::Buffer(self.buffer(layout.bytes()))));
        Ok(Pages { keys, values: Some(values) })
    }

    /// Rotates queries and keys and appends keys and values. Returns the location of the queries.
    fn turn_and_append(
        &mut self,
        node: usize,
        attend: &Attend,
        (q, k): (&QkInput, &QkInput),
        pages: &Pages,
    ) -> Result<View, GraphError> {
        let same = q.rope.map(|n| self.rope_of(n)) == k.rope.map(|n| self.rope_of(n));
        if !same {
            return Err(
                self.unsupported(OpKind::Attend, "queries and keys that rotate differently")
            );
        }
        let rope = q.rope.map(|n| self.rope_of(n));
        let from = self.view(q.input);
        let hadamard = self.limits.hadamard_keys && attend.cache.is_some();
        let query = q.is_some() || hadamard;
        let queries = match query {
            false => from,
            true => self.queries(attend),
        };
        let (keys, values) = (self.view(k.input), attend.v.beside().map(|v| self.view(v)));
        let (q_gain, k_gain) = (self.gain(q.norm), self.gain(k.norm));
        let table = rope.as_ref().map_or(0, |rope| {
            let factors = rope.factors.and_then(|id| self.holdings.weights.vector(id));
            self.constants(turns(&rope.frequencies, factors))
        });
        let split = RopeKey {
            head_dim: attend.head_dim as u32,
            query,
            append: Some((pages.keys.0.ty, pages.values.as_ref().map(|(layout, _)| layout.ty))),
            norm_q: q.norm.is_some(),
            norm_k: k.norm.is_some(),
            rotate: rope.as_ref().map(|r| (r.pairs, 2 * r.frequencies.len() as u32)),
            hadamard,
        };
        let params = RopeParams {
            q: from.of(),
            q_out: queries.of(),
            k: keys.of(),
            v: values.map(|view| view.of()).unwrap_or_default(),
            rows_at: self.words.layout().rows,
            pages_at: self.words.layout().pages,
            turns: table,
            q_gain: q_gain.0,
            k_gain: k_gain.0,
            heads: attend.heads as u32,
            kv_heads: attend.kv_heads as u32,
            eps: q_gain.1.max(k_gain.1),
            magnitude: rope.as_ref().map_or(1.0, |rope| rope.magnitude),
            key_scales: pages.keys.0.scales_at(),
            value_scales: pages.value_scales(),
            zero: 0,
        };
        let mut operands = vec![Operand::Step];
        if rope.is_some() || q.norm.is_some() || k.norm.is_some() {
            operands.push(Operand::Vectors);
        }
        if query {
            operands.extend([Operand::Buffer(from.buffer), Operand::Buffer(queries.buffer)]);
        }
        let sources = [Some(keys), values].into_iter().flatten();
        operands.extend(sources.map(|view| Operand::Buffer(view.buffer)));
        operands.extend(pages.operands());
        let (heads, kv_heads) = (attend.heads as u32, attend.kv_heads as u32);
        let operations = 8 * u64::from(from.width + keys.width);
        let grid =
            Grid::new(Rows::Tokens, operations, move |_, rows| split.grid(rows, heads, kv_heads));
        let nodes: Vec<usize> =
            [q.norm, q.rope, k.norm, k.rope].into_iter().flatten().chain([node]).collect();
        self.stage(&nodes, None, dispatch(split.source(self.caps), &params, operands, grid));
        Ok(queries)
    }

    /// A buffer for queries that are not used as they are.
    fn queries(&mut self, attend: &Attend) -> View {
        let width = (attend.heads * attend.head_dim) as u32;
        let buffer = self.buffer(self.limits.tokens as u64 * u64::from(width) * 4);
        View { buffer, offset: 0, stride: width, width, rows: Rows::Tokens }
    }

    fn rope_of(&self, node: usize) -> bilayer_graph::Rope {
        match self.op(node) {
            Op::Rope { rope, .. } => rope.clone(),
            _ => unreachable!("a rotation"),
        }
    }

    /// Offset of a head norm's gain, and its epsilon.
    fn gain(&mut self, norm: Option<usize>) -> (u32, f32) {
        match norm.map(|node| self.op(node)) {
            Some(Op::HeadNorm { gain: Some(gain), eps, .. }) => (self.vector(*gain), *eps),
            _ => (0, 0.0),
        }
    }

    /// The kernel that merges the parts of attention, and what it reads and writes.
    fn merging(&mut self, attend: &Attend, parts: usize) -> (MergeKey, Vec<Operand>) {
        let wanted = self.wanted(attend.out);
        let key = MergeKey {
            head_dim: attend.value_dim() as u32,
            sinks: attend.sinks.is_some(),
            floats: wanted.floats,
            quantized: wanted.quantized,
        };
        let mut merged = vec![Operand::Step, Operand::Buffer(parts)];
        merged.extend(attend.sinks.map(|_| Operand::Vectors));
        merged.extend(wanted.floats.then_some(Operand::Buffer(self.view(attend.out).buffer)));
        if wanted.quantized {
            let quantized = self.quantized(attend.out);
            merged.extend([quantized.q, quantized.s].map(Operand::Buffer));
            self.merged.insert(attend.out);
        }
        (key, merged)
    }

    /// Scores, weights and sums over the cache.
    fn go_through(
        &mut self,
        node: usize,
        attend: &Attend,
        queries: View,
        pages: &Pages,
    ) -> Result<(), GraphError> {
        let Some(base) = split_key(attend, self.limits) else {
            return Err(self.unsupported(OpKind::Attend, "a cache of this type"));
        };
        let out = self.view(attend.out);
        let group = group(attend);
        let rows = self.words.split_rows(self.limits);
        let parts = parts_bytes(rows, attend.heads, attend.value_dim());
        let parts = self.buffer(parts.max(16));
        let sinks = attend.sinks.map_or(0, |id| 4 * self.vector(id));
        let bias = self.biases(attend);
        let params =
            SplitParams { bias, ..self.split_params(attend, [queries, out], pages, sinks) };
        let mut operands = vec![Operand::Step, Operand::Buffer(queries.buffer)];
        operands.extend(pages.operands());
        operands.extend(base.has_vectors().then_some(Operand::Vectors));
        operands.extend([Operand::Buffer(out.buffer), Operand::Buffer(parts)]);
        let (merge, merged) = self.merging(attend, parts);
        let mut choices = Vec::new();
        let single = base.tiled(self.caps, group, 1);
        for way in self.attend_ways(attend, base, single) {
            let Way { key, piece, whole, when, bound } = way;
            let mut dispatches = Vec::new();
            for [first_tile, first_group] in piece.firsts(whole) {
                let grid =
                    self.piece_grid((attend, key), (piece, whole), [first_tile, first_group]);
                let params = SplitParams { first_tile, first_group, ..params };
                let source = key.source(self.caps);
                dispatches.push(dispatch(source, &params, operands.clone(), grid));
            }
            dispatches.push(self.merge(merge, out, (sinks, &merged)));
            choices.push(DraftChoice { when, bound, dispatches });
        }
        let name = single.source(self.caps).name;
        self.push(&[node], name, Some(attend.out), choices);
        Ok(())
    }

    /// The ways to go through the keys; the first that applies is taken. `single` is the kernel for tiles of one row.
    fn attend_ways(&self, attend: &Attend, base: SplitKey, single: SplitKey) -> Vec<Way> {
        let (kv_heads, group) = (attend.kv_heads as u32, group(attend));
        let many = base.many(self.caps, group);
        let tokens = self.limits.tokens as u32;
        let tiled = tokens.div_ceil(self.words.tile_rows()) + self.limits.sequences as u32;
        let mut ways = Vec::new();
        if !self.caps.software && single.heads_tile > 1 {
            // All query heads of a tile in one workgroup would leave most of the GPU idle.
            let key = base.narrow();
            let groups = key.groups(kv_heads, group);
            let bound = NARROW_GROUPS / groups;
            let whole = Piece { tiles: bound.min(tokens), groups };
            ways.extend((bound > 0).then_some(Way { key, piece: whole, whole, when: few, bound }));
        }
        let kinds: [(SplitKey, u32, Condition); 2] =
            [(single, tokens, untiled_upto), (many, tiled.min(tokens), upto)];
        for (key, tiles, when) in kinds {
            let whole = Piece { tiles, groups: key.groups(kv_heads, group) };
            let pieces = self.pieces(attend, key, whole).into_iter();
            ways.extend(pieces.map(|(piece, bound)| Way { key, piece, whole, when, bound }));
        }
        ways
    }

    /// Place of what scores gain by the distance of query and key, in floats.
    fn biases(&mut self, attend: &Attend) -> u32 {
        let biases = match &attend.bias {
            Some(DistanceBias::Slopes(slopes)) => slopes.to_vec(),
            Some(DistanceBias::Buckets(buckets)) => {
                let table = self.holdings.weights.vector(buckets.table).unwrap_or_default();
                buckets.by_distance(table, buckets.distance_max as usize)
            }
            None => return 0,
        };
        4 * self.constants(biases.into_iter().map(f32::to_bits).collect())
    }

    /// The uniform of a whole dispatch.
    fn split_params(
        &self,
        attend: &Attend,
        [queries, out]: [View; 2],
        pages: &Pages,
        sinks: u32,
    ) -> SplitParams {
        SplitParams {
            q: queries.of(),
            out: out.of(),
            tiles_at: self.words.layout().tiles,
            pages_at: self.words.layout().pages,
            tile_words: self.words.layout().tile_words,
            heads: attend.heads as u32,
            kv_heads: attend.kv_heads as u32,
            group: group(attend),
            window: match attend.window {
                Some(Window::Last(tokens)) => tokens,
                Some(Window::Chunk(_)) | None => u32::MAX,
            },
            key_scales: pages.keys.0.scales_at(),
            value_scales: pages.value_scales(),
            sinks,
            scale: attend.scale,
            softcap: attend.softcap.unwrap_or(0.0),
            chunk: match attend.window {
                Some(Window::Chunk(tokens)) => tokens,
                Some(Window::Last(_)) | None => u32::MAX,
            },
            ..SplitParams::default()
        }
    }

    /// How attention of a kind is divided: pieces that take no longer than a dispatch shall, and up to how many keys.
    fn pieces(&self, attend: &Attend, key: SplitKey, whole: Piece) -> Vec<(Piece, u32)> {
        let most = self.holdings.rates.attention.of(&key) * super::DISPATCH_SECONDS;
        let seen = self.keys_max(attend);
        let per_key = key.group_operations(1) * u64::from(whole.tiles * whole.groups);
        let levels = levels(per_key, most, seen);
        let last = levels.len() - 1;
        let of = |(at, keys): (usize, u32)| {
            let piece = Piece::of(key.group_operations(keys), most, whole);
            (piece, if at == last { u32::MAX } else { keys })
        };
        levels.into_iter().enumerate().map(of).collect()
    }

    /// The grid of a piece.
    fn piece_grid(
        &self,
        (attend, key): (&Attend, SplitKey),
        (piece, whole): (Piece, Piece),
        [first_tile, first_group]: [u32; 2],
    ) -> Grid {
        let groups = piece.groups.min(whole.groups - first_group);
        let grid = Grid::new(Rows::Tokens, 0, move |counts, _| {
            let tiles = counts.tiles.saturating_sub(first_tile).min(piece.tiles);
            if tiles == 0 { [0; 3] } else { [tiles, groups, counts.splits] }
        });
        // As many operations of products as take the same time.
        let slower = self.holdings.rates.slower(&key);
        let key_operations = (slower * key.group_operations(1) as f64).ceil() as u64;
        Grid { key_operations, keys_max: self.keys_max(attend), ..grid }
    }

    /// The most keys that a query sees.
    fn keys_max(&self, attend: &Attend) -> u32 {
        let longest = (self.limits.pages * bilayer_graph::PAGE_TOKENS) as u32;
        match attend.window {
            Some(Window::Last(tokens) | Window::Chunk(tokens)) => longest.min(tokens),
            None => longest,
        }
    }

    /// Merges parts of the keys, if there are several, with the sinks at that place.
    fn merge(
        &self,
        key: MergeKey,
        out: View,
        (sinks, operands): (u32, &[Operand]),
    ) -> DraftDispatch {
        let params = MergeParams { out: out.of(), width: out.width, sinks };
        let groups = MergeKey::groups(self.caps, out.width as usize);
        let grid = Grid::new(Rows::Tokens, 4 * u64::from(out.width), move |counts, rows| {
            if counts.splits > 1 { [groups, rows, 1] } else { [0; 3] }
        });
        dispatch(key.source(self.caps), &params, operands.to_vec(), grid)
    }
}

#[cfg(test)]
mod tests {
    use bilayer_graph::PAGE_TOKENS;

    use super::{least_pages, parts_bytes};

    #[test]
    fn no_more_is_written_for_a_part_than_is_read() {
        // In F16: eight heads of 128 elements with their values, and the latent keys of DeepSeek V3.
        let [grouped, latent] = [2 * 8 * 128, 576].map(|width| 2 * width * PAGE_TOKENS as u64);
        assert_eq!(least_pages(parts_bytes(1, 64, 128), grouped), 1);
        let part = parts_bytes(1, 128, 512);
        let least = least_pages(part, latent);
        assert_eq!(least, 8);
        assert!(u64::from(least) * latent >= part && u64::from(least - 1) * latent < part);
    }
}
