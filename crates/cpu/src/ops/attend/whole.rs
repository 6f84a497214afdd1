//! Attention among the tokens of whole texts, with scores from eight-bit queries and keys.
//!
//! **The idea.** 32 keys of a head are a panel of [`crate::tile::whole_row`], rows with one scale each, and queries are its
//! activations, with outliers apart: scores are exact integer sums, scaled once. Nothing is kept for a later step, so values
//! are read where their product has left them, and the scores of up to [`KEYS`] keys are all there before the softmax, which
//! is then one pass for the maximum and one for the exponentials.
//!
//! **Price.** Keys of all heads are quantized and brought into panels first. Weights and values stay f32: weights that are
//! small beside the largest would be lost in eight bits, and many such may be most of the sum.

use std::ops::Range;
use std::sync::Arc;

use bilayer_graph::PAGE_TOKENS;

use super::Shape;
use super::tile::{WEIGHT_LANES, largest, scale, weigh_row};
use crate::activations::{Format, KeyRows, PackedRows, Zero, pack_rows, quantize_rows};
use crate::cache::Cache;
use crate::gemm::{Packing, WholeRow};
use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};
use crate::memory::lines;
use crate::ops::products::{Ahead, F32, Mix, Product, step};
use crate::panel::ROWS;
use crate::plan::Tile;
use crate::stage::{Buffer, Context, Scratch, Stage};
use crate::state::State;
use crate::stream::{self, PanelRows};
use crate::tile::Tiling;
use crate::tile::whole_row::{PanelMut, RowProduct, RowScales, Step};

/// Keys whose scores are kept.
const KEYS: usize = 256;

/// Bytes of the integers, and of the scales, of a panel after its steps.
const TAIL_BYTES: usize = 4 * PAGE_TOKENS;

/// Whether the level multiplies queries and keys in eight bits, and heads have whole blocks.
pub(crate) fn serves(level: Level, head_dim: usize) -> bool {
    Tiling::of(level).row_tiles.beats_floats && head_dim.is_multiple_of(32)
}

/// Brings keys into panels, in the place of a page's keys.
pub(crate) struct Keys {
    pub(crate) shape: Shape,
    pub(crate) cache: Arc<Cache>,
    pub(crate) k: Buffer,
}

impl Stage for Keys {
    /// Each chunk is the keys of a page.
    fn chunks(&self, state: &State) -> usize {
        state.runs.len()
    }

    fn writes(&self, _: &State) -> Vec<Range<usize>> {
        Vec::new()
    }

    fn scratch_bytes(&self) -> usize {
        lines(PAGE_TOKENS * self.shape.head_dim)
    }

    fn run(&self, mut context: Context<'_>, chunk: usize) {
        let Shape { kv_heads, head_dim: dim, .. } = self.shape;
        let run = context.state.runs[chunk];
        let scratch = std::mem::take(&mut context.scratch);
        let end = run.slot + run.rows;
        scratch[..run.slot * dim].fill(0);
        let k = self.k.get(&context, run.row..run.row + run.rows);
        let kernels = WholeRow::of(context.level);
        for head in 0..kv_heads {
            // SAFETY: each chunk has a page of its own; no thread reads in this stage.
            let block = unsafe { self.cache.block_mut(run.page, head) };
            let (steps, tail) = block.split_at_mut(PAGE_TOKENS * dim);
            let (negative, tail) = tail.split_at_mut(TAIL_BYTES);
            let scales = bytemuck::cast_slice_mut::<u8, f32>(&mut tail[..TAIL_BYTES]);
            let scales = &mut scales[run.slot..end];
            let rows = KeyRows { x: &k[head * dim..], stride: kv_heads * dim, cols: dim };
            quantize_rows(context.level, rows, scales, &mut scratch[run.slot * dim..end * dim]);
            scales.iter_mut().for_each(|scale| *scale *= self.shape.scale);
            let negative = bytemuck::cast_slice_mut(negative).first_chunk_mut().expect("a page");
            for first in (0..end).step_by(16) {
                let weights = &scratch[first * dim..end * dim];
                let rows = PanelRows { weights, row_bytes: dim, start: 0, len: dim };
                let steps = bytemuck::cast_slice_mut(&mut *steps);
                let mut panel = PanelMut { steps, negative: &mut *negative };
                kernels.fill(rows, (end - first).min(16), first, &mut panel);
            }
        }
    }
}

/// Sweeps tiles of queries over the keys and values of their text.
pub(crate) struct Sweep {
    pub(crate) shape: Shape,
    pub(crate) cache: Arc<Cache>,
    pub(crate) q: Buffer,
    pub(crate) v: Buffer,
    pub(crate) out: Buffer,
}

impl Sweep {
    fn packing(&self, level: Level) -> Packing {
        Packing::new(Format::Q8Row, self.shape.head_dim, level)
    }
}

impl Stage for Sweep {
    fn chunks(&self, state: &State) -> usize {
        state.plans[self.shape.plan].tiles.len() * self.shape.kv_heads
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        vec![self.out.region(state)]
    }

    fn scratch_bytes(&self) -> usize {
        let (rows, dim) = (self.shape.reach.tile_tokens, self.shape.head_dim);
        // The columns, sums, scales, zero points and outliers of eight tokens at most are beside each other, also where there
        // are fewer.
        let packed = (rows + 7) * (dim + 128) + 64 * rows;
        packed + 4 * rows * (2 * dim + KEYS + 1 + WEIGHT_LANES) + 6 * 64
    }

    fn run(&self, mut context: Context<'_>, chunk: usize) {
        let shape = &self.shape;
        let (heads, dim) = (shape.kv_heads, shape.head_dim);
        let tile = context.state.plans[shape.plan].tiles[chunk / heads];
        let head = chunk % heads;
        let mut scratch = Scratch::of(std::mem::take(&mut context.scratch));
        let packing = self.packing(context.level);
        let packed = scratch.take(packing.bytes(tile.rows) / 4);
        let queries = scratch.take(tile.rows * dim);
        let scores = scratch.take(tile.rows * KEYS);
        let sums = scratch.take(tile.rows * dim);
        let (most, weight) = (scratch.take(tile.rows), scratch.take(tile.rows * WEIGHT_LANES));
        let of_head = |row: usize| (row * heads + head) * dim..(row * heads + head + 1) * dim;
        for (at, query) in queries.chunks_exact_mut(dim).enumerate() {
            query.copy_from_slice(self.q.elements(&context, of_head(tile.row + at)));
        }
        let packed = bytemuck::cast_slice_mut(packed);
        let chunks = packed.chunks_exact_mut(packing.chunk_bytes(tile.rows));
        for (range, out) in packing.chunk_ranges(tile.rows).zip(chunks) {
            let queries = &queries[range.start * dim..range.end * dim];
            pack_rows(context.level, queries, dim, Zero::Never, out);
        }
        sums.fill(0.0);
        most.fill(f32::MIN);
        weight.fill(0.0);
        let first_row = context.state.spans[tile.span].first_row as usize;
        for first in (tile.begin / PAGE_TOKENS * PAGE_TOKENS..tile.end).step_by(KEYS) {
            let keys = first..(first + KEYS).min(tile.end);
            self.score(&context, (&tile, head), packing, packed, (keys.clone(), &mut *scores));
            let begin = first.max(tile.begin);
            let at = of_head(first_row + begin - tile.begin).start;
            let values = at..at + (keys.end - 1 - begin) * heads * dim + dim;
            let block = Block {
                keys: begin - first..keys.len(),
                values: self.v.elements(&context, values),
                values_stride: heads * dim,
                dim,
                scores: &mut *scores,
                sums: &mut *sums,
                most: &mut *most,
                weight: &mut *weight,
            };
            dispatch(context.level, block);
        }
        for (at, sums) in sums.chunks_exact(dim).enumerate() {
            let weight: f32 = weight[at * WEIGHT_LANES..][..WEIGHT_LANES].iter().sum();
            // SAFETY: each chunk has different rows or another head.
            let out = unsafe { self.out.elements_mut(&context, of_head(tile.row + at)) };
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * (1.0 / weight));
        }
    }
}

impl Sweep {
    /// The scores of a tile's queries with some keys of its text, `[rows, KEYS]`; those of a page's missing keys are
    /// arbitrary.
    fn score(
        &self,
        context: &Context<'_>,
        (tile, head): (&Tile, usize),
        packing: Packing,
        packed: &[u8],
        (keys, scores): (Range<usize>, &mut [f32]),
    ) {
        let dim = self.shape.head_dim;
        let kernels = WholeRow::of(context.level);
        let table = context.state.page_table(&context.state.spans[tile.span]);
        let pages = &table[keys.start / PAGE_TOKENS..keys.end.div_ceil(PAGE_TOKENS)];
        for (at, &page) in pages.iter().enumerate() {
            // SAFETY: the panels were filled by the previous stage, and are only read in this one.
            let (panel, _) = unsafe { self.cache.block(page, head) };
            let (steps, tail) = panel.bytes.split_at(PAGE_TOKENS * dim);
            let tail: &[i32] = bytemuck::cast_slice(tail);
            let (negative, tail) = tail.split_first_chunk().expect("room after the steps");
            let scales: &[f32] = bytemuck::cast_slice(tail);
            let scales = scales.first_chunk().expect("room after the sums");
            let chunks = packed.chunks_exact(packing.chunk_bytes(tile.rows));
            for (range, bytes) in packing.chunk_ranges(tile.rows).zip(chunks) {
                let x = PackedRows::of(bytes, dim, range.len());
                let product = RowProduct {
                    steps: bytemuck::cast_slice::<u8, Step>(steps),
                    negative,
                    x: x.quants,
                    columns: dim,
                    x_ahead: 0,
                    tokens: range.len(),
                    first: Some(x.sums),
                    outliers: x.outliers,
                    zeros: x.zeros,
                    row_sums: &[0; ROWS],
                    col: 0,
                    last: Some(RowScales { weights: scales, x: x.scales }),
                    ahead: stream::Ahead::of(&[]),
                    stride: KEYS,
                };
                let strip = &mut scores[range.start * KEYS + at * PAGE_TOKENS..];
                kernels.tile(product, strip);
            }
        }
    }
}

/// The softmax of some scores, and the sums of values that it weighs.
struct Block<'a> {
    /// Which of the scores are those of keys.
    keys: Range<usize>,
    /// The first `dim` of every `values_stride` elements are a key's value.
    values: &'a [f32],
    values_stride: usize,
    dim: usize,
    /// `[rows, KEYS]`.
    scores: &'a mut [f32],
    /// `[rows, dim]`: the sums so far.
    sums: &'a mut [f32],
    /// `[rows]`: the largest score so far.
    most: &'a mut [f32],
    /// `[rows, WEIGHT_LANES]`: the sums of weights so far, one per lane.
    weight: &'a mut [f32],
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Block { keys, values, values_stride: stride, dim, scores, sums, most, weight } = self;
        let rows = most.len();
        let width = keys.end.next_multiple_of(PAGE_TOKENS);
        assert!(keys.start < keys.end && width <= KEYS && scores.len() == rows * KEYS);
        assert!(sums.len() == rows * dim && dim.is_multiple_of(16));
        assert!(values.len() == (keys.len() - 1) * stride + dim);
        for (row, scores) in scores.chunks_exact_mut(KEYS).enumerate() {
            let scores = &mut scores[..width];
            scores[..keys.start].fill(f32::NEG_INFINITY);
            scores[keys.end..].fill(f32::NEG_INFINITY);
            let largest = l.largest(largest(l, scores)).max(most[row]);
            let weight = &mut weight[row * WEIGHT_LANES..][..WEIGHT_LANES];
            if largest > most[row] && most[row] > f32::MIN {
                let correction = (most[row] - largest).exp();
                scale(l, correction, weight);
                scale(l, correction, &mut sums[row * dim..][..dim]);
            }
            most[row] = largest;
            weigh_row(l, scores, largest, weight);
        }
        let step = step::<L>(rows);
        for row in (0..rows).step_by(step) {
            let end = rows.min(row + step);
            let product: Mix<'_, _, KEYS> = Mix {
                rows: end - row,
                left: &scores[row * KEYS + keys.start..],
                right: F32(values),
                from: 0,
                to: keys.len(),
                stride: dim,
                right_stride: stride,
                out: &mut sums[row * dim..end * dim],
                ahead: Ahead::none(values),
            };
            product.run(l);
        }
    }
}
