//! Attention over paged keys and values, cached or of this step alone: store, sweep, merge.
//!
//! Three stages. [`Store`] transforms queries and keys and writes keys and values to their pages. [`Sweep`] runs the
//! plan's tiles, one chunk per tile and key-value head. [`Join`] merges the partial results of rows whose pages were
//! split into several tiles, in page order.

use std::ops::Range;
use std::sync::Arc;

use bilayer_graph::{Buckets, PAGE_TOKENS, Pairs};

use crate::cache::{Cache, Tokens};
use crate::memory::lines;
use crate::numa::Nodes;
use crate::ops::rms_norm::rms_norm;
use crate::ops::rope;
use crate::plan::{Reach, Tile};
use crate::stage::{Buffer, Context, Scratch, Stage};
use crate::state::State;
use tile::WEIGHT_LANES;

mod hadamard;
mod tile;
mod unpack;
pub(crate) mod whole;

/// Target number of query rows per tile: enough to amortize the conversion of each page.
const TILE_ROWS: usize = 64;

/// Tokens per tile, given the query heads per key-value head.
pub(crate) fn tile_tokens(group: usize) -> usize {
    (TILE_ROWS / group).clamp(1, PAGE_TOKENS)
}

/// The shape of one attention op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) scale: f32,
    pub(crate) reach: Reach,
    pub(crate) softcap: Option<f32>,
    /// The plan in [`State::plans`].
    pub(crate) plan: usize,
}

impl Shape {
    /// Query heads per key-value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Elements per row of sums: `value_dim` rounded up to whole vectors.
    fn stride(&self) -> usize {
        self.value_dim.next_multiple_of(16)
    }

    /// Elements of one token's partial results: per head the sums, the largest score, and the weight.
    fn part_len(&self) -> usize {
        self.heads * (self.stride() + 2)
    }

    /// Bytes for the partial results of `parts` tokens.
    pub(crate) fn parts_bytes(&self, parts: usize) -> usize {
        4 * parts * self.part_len()
    }
}

/// The transformation of queries or keys before use: head norm, RoPE, then the Hadamard transform.
#[derive(Clone, Default)]
pub(crate) struct QkTransform {
    pub(crate) norm: Option<(Arc<[f32]>, f32)>,
    pub(crate) rope: Option<(Pairs, Buffer)>,
    pub(crate) hadamard: bool,
}

impl QkTransform {
    /// Transforms a row's heads, `[heads, head_dim]`, to `out`.
    fn apply(&self, context: &Context<'_>, row: usize, dim: usize, x: &[f32], out: &mut [f32]) {
        match &self.norm {
            Some((gain, eps)) => {
                for (x, out) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
                    rms_norm(context.level, Some(gain), *eps, x, out);
                }
            }
            None => out.copy_from_slice(x),
        }
        if let Some((pairs, table)) = self.rope {
            let table = table.get(context, row..row + 1);
            rope::turn(context.level, pairs, table, dim, out);
        }
        if self.hadamard {
            hadamard::hadamard(context.level, out);
        }
    }
}

/// Performs the step's page copies in all caches of the program, before anything else.
pub(crate) struct Copy {
    pub(crate) caches: Vec<Arc<Cache>>,
}

impl Stage for Copy {
    fn chunks(&self, state: &State) -> usize {
        if state.copies.is_empty() { 0 } else { self.caches.len() }
    }

    fn writes(&self, _: &State) -> Vec<Range<usize>> {
        Vec::new()
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        // SAFETY: each chunk has a cache of its own.
        unsafe { self.caches[chunk].copy(&context.state.copies) };
    }
}

/// Writes keys and values, and transformed queries.
pub(crate) struct Store {
    pub(crate) shape: Shape,
    pub(crate) cache: Arc<Cache>,
    pub(crate) q: Buffer,
    pub(crate) k: Buffer,
    /// `None` if values are in the keys.
    pub(crate) v: Option<Buffer>,
    pub(crate) q_turn: QkTransform,
    pub(crate) k_turn: QkTransform,
    /// Destination of transformed queries; `None` if they are used unchanged.
    pub(crate) turned: Option<Buffer>,
}

impl Stage for Store {
    /// Each chunk is a key-value head of a run of tokens within one page.
    fn chunks(&self, state: &State) -> usize {
        self.cache.heads.chunks(state.runs.len())
    }

    fn end(&self, state: &State, nodes: &Nodes, node: usize) -> usize {
        self.cache.heads.end(state.runs.len(), nodes, node)
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        self.turned.iter().map(|turned| turned.region(state)).collect()
    }

    fn scratch_bytes(&self) -> usize {
        2 * lines(4 * PAGE_TOKENS * self.shape.head_dim)
    }

    fn run(&self, mut context: Context<'_>, chunk: usize) {
        let Shape { kv_heads, head_dim: dim, .. } = self.shape;
        let runs = &context.state.runs;
        let (run, head) = self.cache.heads.chunk(runs.len(), chunk);
        let run = runs[run];
        #[cfg(debug_assertions)]
        self.cache.heads.check(head);
        let scratch = std::mem::take(&mut context.scratch);
        let (keys, values) =
            bytemuck::cast_slice_mut::<u8, f32>(scratch).split_at_mut(PAGE_TOKENS * dim);
        let keys = &mut keys[..run.rows * dim];
        let values = &mut values[..self.v.map_or(0, |_| run.rows * dim)];
        for (at, key) in keys.chunks_exact_mut(dim).enumerate() {
            let row = run.row + at;
            let first = (row * kv_heads + head) * dim;
            let k = self.k.elements(&context, first..first + dim);
            self.k_turn.apply(&context, row, dim, k, key);
            if let Some(v) = self.v {
                let v = v.elements(&context, first..first + dim);
                values[at * dim..][..dim].copy_from_slice(v);
            }
            if let Some(turned) = self.turned {
                let group = self.shape.group() * dim;
                let first = (row * kv_heads + head) * group;
                let q = self.q.elements(&context, first..first + group);
                // SAFETY: each chunk transforms different heads or rows.
                let out = unsafe { turned.elements_mut(&context, first..first + group) };
                self.q_turn.apply(&context, row, dim, q, out);
            }
        }
        // SAFETY: each chunk stores to a different page or head; no thread reads in this stage.
        unsafe {
            let tokens = Tokens { page: run.page, kv_head: head, slot: run.slot, keys, values };
            self.cache.store(context.level, &tokens);
        }
    }
}

/// Sweeps tiles of queries over pages.
pub(crate) struct Sweep {
    pub(crate) shape: Shape,
    pub(crate) cache: Arc<Cache>,
    pub(crate) q: Buffer,
    pub(crate) out: Buffer,
    /// `[parts, part_len]`.
    pub(crate) parts_offset: usize,
    /// `[heads]`: attention sinks, an extra logit per head without a value.
    pub(crate) sinks: Option<Arc<[f32]>>,
    /// What scores gain by the distance of query and key.
    pub(crate) bias: Option<Bias>,
}

/// [`tile::Bias`] of all heads.
#[derive(Clone)]
pub(crate) enum Bias {
    /// `[heads]`.
    Slopes(Arc<[f32]>),
    /// `[heads, 2 * reach + 1]`.
    Table(Arc<[f32]>),
}

impl Bias {
    /// By buckets, whose table is `[count, heads]`.
    pub(crate) fn of_buckets(buckets: &Buckets, table: &[f32]) -> Self {
        // A page's worth more on either side, so that any page reads consecutive biases.
        let reach = buckets.distance_max as usize + PAGE_TOKENS - 1;
        Bias::Table(buckets.by_distance(table, reach).into())
    }

    /// Of the heads of a key-value head, one of `kv_heads`.
    fn of_group(&self, kv_head: usize, kv_heads: usize) -> tile::Bias<'_> {
        let part = |all: &'_ Arc<[f32]>| {
            let len = all.len() / kv_heads;
            kv_head * len..(kv_head + 1) * len
        };
        match self {
            Bias::Slopes(all) => tile::Bias::Slopes(&all[part(all)]),
            Bias::Table(all) => tile::Bias::Table(&all[part(all)]),
        }
    }
}

impl Stage for Sweep {
    fn chunks(&self, state: &State) -> usize {
        self.cache.heads.chunks(state.plans[self.shape.plan].tiles.len())
    }

    fn end(&self, state: &State, nodes: &Nodes, node: usize) -> usize {
        self.cache.heads.end(state.plans[self.shape.plan].tiles.len(), nodes, node)
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        let parts = self.shape.parts_bytes(state.plans[self.shape.plan].parts_max());
        vec![self.out.region(state), self.parts_offset..self.parts_offset + parts]
    }

    fn scratch_bytes(&self) -> usize {
        let rows = self.shape.reach.tile_tokens * self.shape.group();
        let (dim, stride) = (self.shape.head_dim, self.shape.stride());
        let page = PAGE_TOKENS * (dim + stride);
        4 * (rows * (dim + stride + PAGE_TOKENS + 1 + WEIGHT_LANES) + page) + 7 * 64
    }

    fn run(&self, mut context: Context<'_>, chunk: usize) {
        let shape = &self.shape;
        let (group, dim, stride) = (shape.group(), shape.head_dim, shape.stride());
        let tiles = &context.state.plans[shape.plan].tiles;
        let (tile, kv_head) = self.cache.heads.chunk(tiles.len(), chunk);
        let tile = tiles[tile];
        #[cfg(debug_assertions)]
        self.cache.heads.check(kv_head);
        let rows = tile.rows * group;
        let mut scratch = Scratch::of(std::mem::take(&mut context.scratch));
        let queries = scratch.take(rows * dim);
        let sums = scratch.take(rows * stride);
        let (largest, weight) = (scratch.take(rows), scratch.take(rows * WEIGHT_LANES));
        for (at, queries) in queries.chunks_exact_mut(group * dim).enumerate() {
            let first = ((tile.row + at) * shape.kv_heads + kv_head) * group * dim;
            let q = self.q.elements(&context, first..first + group * dim);
            for (to, q) in queries.iter_mut().zip(q) {
                *to = q * shape.scale;
            }
        }
        let span = &context.state.spans[tile.span];
        let table = context.state.page_table(span);
        let sweep = tile::Sweep {
            // SAFETY: keys and values were stored by the previous stage, and are only read in this one.
            page: |page: usize| unsafe { self.cache.block(table[page], kv_head) },
            first_page: tile.first_page,
            end_page: tile.end_page,
            position: tile.position,
            group,
            window: shape.reach.window,
            ahead: shape.reach.ahead(),
            begin: tile.begin,
            end: tile.end,
            softcap: shape.softcap,
            bias: self.bias.as_ref().map(|bias| bias.of_group(kv_head, shape.kv_heads)),
            head_dim: dim,
            value_dim: shape.value_dim,
            value_stride: stride,
            queries,
            sums: &mut *sums,
            largest: &mut *largest,
            weight: &mut *weight,
            scores: scratch.take(rows * PAGE_TOKENS),
            keys: scratch.take(PAGE_TOKENS * dim),
            values: scratch.take(PAGE_TOKENS * stride),
        };
        crate::level::dispatch(context.level, sweep);
        for row in 0..rows {
            let part = Partial {
                sums: &sums[row * stride..][..stride],
                largest: largest[row],
                weight: weight[row * WEIGHT_LANES..][..WEIGHT_LANES].iter().sum(),
            };
            self.put(&context, &tile, row / group, kv_head * group + row % group, &part);
        }
    }
}

impl Sweep {
    /// Stores one row's result: the final one, or a partial one to be joined.
    fn put(
        &self,
        context: &Context<'_>,
        tile: &Tile,
        token: usize,
        head: usize,
        part: &Partial<'_>,
    ) {
        let shape = &self.shape;
        let (offset, len) = match tile.part {
            Some(first) => {
                let at = part_at(shape, first + token, head);
                (self.parts_offset + 4 * at, shape.stride() + 2)
            }
            None => {
                let at = ((tile.row + token) * shape.heads + head) * shape.value_dim;
                (self.out.offset + 4 * at, shape.value_dim)
            }
        };
        // SAFETY: each tile, token and head writes a different place.
        let place = unsafe { context.write::<f32>(offset, len) };
        if tile.part.is_some() {
            place[..shape.stride()].copy_from_slice(part.sums);
            place[shape.stride()..].copy_from_slice(&[part.largest, part.weight]);
        } else {
            let sink = self.sinks.as_ref().map(|sinks| sinks[head]);
            finish(std::slice::from_ref(part).iter().copied(), sink, place);
        }
    }
}

/// Joins the partial results of the rows that have several.
pub(crate) struct Join {
    pub(crate) shape: Shape,
    pub(crate) out: Buffer,
    pub(crate) parts_offset: usize,
    pub(crate) sinks: Option<Arc<[f32]>>,
}

impl Stage for Join {
    fn chunks(&self, state: &State) -> usize {
        state.plans[self.shape.plan].merges.len() * self.shape.kv_heads
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        vec![self.out.region(state)]
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let shape = &self.shape;
        let merge = context.state.plans[shape.plan].merges[chunk / shape.kv_heads];
        let first_head = chunk % shape.kv_heads * shape.group();
        for head in first_head..first_head + shape.group() {
            let parts = (0..merge.count).map(|at| {
                let at = part_at(shape, merge.part + at * merge.stride, head);
                let part: &[f32] = context.read(self.parts_offset + 4 * at, shape.stride() + 2);
                let (sums, rest) = part.split_at(shape.stride());
                Partial { sums, largest: rest[0], weight: rest[1] }
            });
            let first = (merge.row * shape.heads + head) * shape.value_dim;
            // SAFETY: each chunk writes different heads or rows.
            let out = unsafe { self.out.elements_mut(&context, first..first + shape.value_dim) };
            finish(parts, self.sinks.as_ref().map(|sinks| sinks[head]), out);
        }
    }
}

/// Offset of a head's partial results, in elements.
fn part_at(shape: &Shape, part: usize, head: usize) -> usize {
    part * shape.part_len() + head * (shape.stride() + 2)
}

/// The partial result of a sweep over some of a row's pages.
#[derive(Clone, Copy)]
struct Partial<'a> {
    /// The sum of values, each times `exp(score - largest)`.
    sums: &'a [f32],
    largest: f32,
    /// The sum of the weights.
    weight: f32,
}

/// The softmax's weighted mean over all parts to `out [value_dim]`; a sink adds only to the denominator.
fn finish<'p>(
    parts: impl Iterator<Item = Partial<'p>> + Clone,
    sink: Option<f32>,
    out: &mut [f32],
) {
    let largest = parts.clone().map(|part| part.largest).fold(f32::MIN, f32::max);
    let largest = sink.map_or(largest, |sink| largest.max(sink));
    let mut weight = sink.map_or(0.0, |sink| (sink - largest).exp());
    for part in parts.clone() {
        weight += part.weight * (part.largest - largest).exp();
    }
    out.fill(0.0);
    for part in parts {
        let factor = (part.largest - largest).exp() / weight;
        for (out, sum) in out.iter_mut().zip(part.sums) {
            *out += factor * sum;
        }
    }
}
