//! Flash attention: sweeps one tile of queries over the pages of one key-value head with an online softmax.
//!
//! **The idea.** All query heads of a key-value head and all tokens of the tile are rows of one small matrix
//! `[rows, head_dim]`. For each page: scores `[rows, 32]` = queries x keys, then weights
//! `exp(score - largest so far)`, then `output [rows, head_dim]` = output x correction + weights x values
//! (Milakov and Gimelshein 2018; Dao et al. 2022). Pages store keys and values as the right-hand matrices
//! of these two products.
//!
//! **Deviations.** Few rows (decode) read f16 and Q8_0 directly from the page and convert in registers; other types, and many rows,
//! convert a page once to f32 scratch, except f16 at AVX2, where conversion and multiplication overlap. Masks are
//! applied only in pages that are not fully visible to all rows. While keys are used, the page's values are
//! prefetched line by line, and with the values the next page's keys: hardware prefetchers alone are too late, and
//! prefetching a whole page ahead would overflow the first-level cache. Where values are the first elements of the keys,
//! a page is converted once, and its values are transposed: all query heads of a latent cache share this.
//!
//! **Price.** Levels differ in the last bits, because they sum in different orders. Sums are f32.

use bilayer_graph::{PAGE_TOKENS, Window};
use bilayer_quant::cache::BLOCK;

use super::unpack::{UnpackKeys, UnpackValues, transpose, unpack_f16};
use crate::cache::{Panel, Stored};
use crate::lanes::{Kernel, Lanes};
use crate::math;
use crate::ops::products::{Ahead, F16, F32, Mix, Product, Q8Keys, Q8Values, Score, Source, step};
use crate::plan::first_seen;

/// Lanes in which a row's weights are summed: those of the widest vectors.
pub(crate) const WEIGHT_LANES: usize = 16;

/// Keys and values of a page; the latter may be in the keys.
pub(crate) type Page<'p> = (Panel<'p>, Option<Panel<'p>>);

/// What scores gain by the distance of query and key, for the query heads of one key-value head.
#[derive(Clone, Copy)]
pub(crate) enum Bias<'a> {
    /// `[group]`: what they lose per position.
    Slopes(&'a [f32]),
    /// `[group, 2 * reach + 1]`: the biases of keys from `reach` positions before the query to as many after it. The
    /// outermost 32 of either side are equal, and those beyond as well.
    Table(&'a [f32]),
}

/// The operands of one tile; all slices are in the thread's scratch.
pub(crate) struct Sweep<'a, 'p, P: Fn(usize) -> Page<'p>> {
    /// A page of the span's table.
    pub(crate) page: P,
    pub(crate) first_page: usize,
    pub(crate) end_page: usize,
    /// Position of the first token.
    pub(crate) position: usize,
    /// Rows per token: query heads of this key-value head.
    pub(crate) group: usize,
    /// Which earlier positions a token attends to, and how many later ones, within `begin..end`.
    pub(crate) window: Option<Window>,
    pub(crate) ahead: usize,
    pub(crate) begin: usize,
    pub(crate) end: usize,
    pub(crate) softcap: Option<f32>,
    /// What scores gain by the distance of query and key.
    pub(crate) bias: Option<Bias<'a>>,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) value_stride: usize,
    /// `[rows, head_dim]`, scaled; row `t * group + g` is head `g` of token `t`.
    pub(crate) queries: &'a [f32],
    /// `[rows, value_stride]`: the weighted sums of values, before normalization.
    pub(crate) sums: &'a mut [f32],
    /// `[rows]`: the largest score so far.
    pub(crate) largest: &'a mut [f32],
    /// `[rows, WEIGHT_LANES]`: sums of weights so far, one per lane.
    pub(crate) weight: &'a mut [f32],
    /// `[rows, 32]`: scores, then weights of a page.
    pub(crate) scores: &'a mut [f32],
    /// `[head_dim, 32]` and `[32, value_stride]`: a page as f32.
    pub(crate) keys: &'a mut [f32],
    pub(crate) values: &'a mut [f32],
}

impl<'p, P: Fn(usize) -> Page<'p>> Kernel for Sweep<'_, 'p, P> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let rows = self.largest.len();
        assert_eq!(self.queries.len(), rows * self.head_dim);
        assert_eq!(self.sums.len(), rows * self.value_stride);
        assert_eq!(self.scores.len(), rows * PAGE_TOKENS);
        assert_eq!(self.weight.len(), rows * WEIGHT_LANES);
        assert_eq!(self.keys.len(), self.head_dim * PAGE_TOKENS);
        assert_eq!(self.values.len(), self.value_stride * PAGE_TOKENS);
        assert!(self.value_stride.is_multiple_of(16) && self.value_stride >= self.value_dim);
        self.sums.fill(0.0);
        self.largest.fill(f32::MIN);
        self.weight.fill(0.0);
        // Once for all pages: divisions take as long as the sums of a row.
        let step = step::<L>(rows);
        let mut current = (self.page)(self.first_page);
        for page in self.first_page..self.end_page {
            let next = if page + 1 < self.end_page { (self.page)(page + 1) } else { current };
            match current {
                (keys, Some(values)) => self.apart(l, step, page, [keys, values], next.0),
                (keys, None) => self.in_keys(l, step, page, keys, next.0),
            }
            current = next;
        }
    }
}

impl<'p, P: Fn(usize) -> Page<'p>> Sweep<'_, 'p, P> {
    /// A page of keys and values, `step` rows at a time.
    #[inline(always)]
    fn apart<L: Lanes>(
        &mut self,
        l: L,
        step: usize,
        page: usize,
        [keys, values]: [Panel<'p>; 2],
        next: Panel<'p>,
    ) {
        let rows = self.largest.len();
        let (direct, direct_q8) = (rows <= L::DIRECT_ROWS, rows <= L::TILE_ROWS);
        let stride = self.value_stride;
        let whole = stride.is_multiple_of(BLOCK);
        let queries = Queries { rows: self.queries, dim: self.head_dim, step };
        let scores = &mut *self.scores;
        let ahead = Ahead::of(values);
        match keys.stored {
            Stored::F32 => score(l, queries, F32(keys.f32()), scores, ahead),
            Stored::F16 if direct => score(l, queries, F16(keys.halves()), scores, ahead),
            Stored::Blocks(coding) if coding.bits == 8 && direct_q8 => {
                let (quants, scales) = keys.blocks(coding).bytes();
                score(l, queries, Q8Keys(quants, scales), scores, ahead);
            }
            _ => {
                l.call_transform(UnpackKeys(keys), self.keys);
                score(l, queries, F32(self.keys), scores, ahead);
            }
        }
        let seen = self.weigh(l, page);
        let ahead = Ahead::of(next);
        let (scores, sums) = (&*self.scores, Sums { rows: &mut *self.sums, stride, step, seen });
        match values.stored {
            Stored::F32 => mix(l, scores, F32(values.f32()), sums, ahead),
            Stored::F16 if direct => mix(l, scores, F16(values.halves()), sums, ahead),
            Stored::Blocks(coding) if coding.bits == 8 && direct_q8 && whole => {
                let (quants, scales_of) = values.blocks(coding).bytes();
                unpack_f16(l, scales_of, &mut self.values[..scales_of.len()]);
                let source = Q8Values(quants, self.values, stride / 32);
                mix(l, scores, source, sums, ahead);
            }
            _ => {
                l.call_transform(UnpackValues(values, stride), self.values);
                mix(l, scores, F32(self.values), sums, ahead);
            }
        }
    }

    /// A page of keys that begin with their values, `step` rows at a time.
    #[inline(always)]
    fn in_keys<L: Lanes>(
        &mut self,
        l: L,
        step: usize,
        page: usize,
        keys: Panel<'p>,
        next: Panel<'p>,
    ) {
        l.call_transform(UnpackKeys(keys), self.keys);
        let queries = Queries { rows: self.queries, dim: self.head_dim, step };
        score(l, queries, F32(self.keys), self.scores, Ahead::of(next));
        let seen = self.weigh(l, page);
        transpose(self.keys, self.value_dim, self.value_stride, self.values);
        let sums = Sums { rows: &mut *self.sums, stride: self.value_stride, step, seen };
        mix(l, self.scores, F32(self.values), sums, Ahead::of(next).of_rows_from(1));
    }

    /// Converts scores to weights: softcap, biases, mask, maximum, exponentials. Returns which tokens of the page any row
    /// attends to, so that the contents of the others (perhaps NaN) are never multiplied, not even by 0.
    #[inline(always)]
    fn weigh<L: Lanes>(&mut self, l: L, page: usize) -> (usize, usize) {
        let first = page * PAGE_TOKENS;
        let (mut seen_from, mut seen_to) = (PAGE_TOKENS, 0);
        let tokens = self.scores.chunks_mut(self.group * PAGE_TOKENS).enumerate();
        for (token, scores) in tokens {
            let position = self.position + token;
            let begin = first_seen(self.window, position).max(self.begin);
            let end = (position + 1).saturating_add(self.ahead).min(self.end);
            let to = end.saturating_sub(first).min(PAGE_TOKENS);
            let from = begin.saturating_sub(first).min(to);
            seen_from = seen_from.min(from);
            seen_to = seen_to.max(to);
            for (head, scores) in scores.chunks_exact_mut(PAGE_TOKENS).enumerate() {
                if let Some(cap) = self.softcap {
                    cap_scores(l, cap, scores);
                }
                let before = position as isize - first as isize;
                match self.bias {
                    Some(Bias::Slopes(slopes)) => {
                        lower_scores(l, slopes[head], before as f32, scores);
                    }
                    Some(Bias::Table(table)) => {
                        let len = table.len() / self.group;
                        add_biases(l, &table[head * len..][..len], before, scores);
                    }
                    None => {}
                }
                if to - from < PAGE_TOKENS {
                    scores[..from].fill(f32::NEG_INFINITY);
                    scores[to..].fill(f32::NEG_INFINITY);
                }
                let row = token * self.group + head;
                let most = largest(l, scores);
                if l.any_above(most, self.largest[row]) {
                    let largest = l.largest(most);
                    let correction = (self.largest[row] - largest).exp();
                    self.largest[row] = largest;
                    scale(l, correction, &mut self.weight[row * WEIGHT_LANES..][..WEIGHT_LANES]);
                    let sums = &mut self.sums[row * self.value_stride..][..self.value_stride];
                    scale(l, correction, sums);
                }
            }
        }
        // A separate loop, so that rows do not wait for each other's maximum.
        let rows = self.scores.chunks_exact_mut(PAGE_TOKENS);
        let weights = self.weight.chunks_exact_mut(WEIGHT_LANES);
        for ((scores, &largest), weight) in rows.zip(&*self.largest).zip(weights) {
            weigh_row(l, scores, largest, weight);
        }
        (seen_from.min(seen_to), seen_to)
    }
}

/// Queries `[rows, dim]`, of which `step` are multiplied at a time.
#[derive(Clone, Copy)]
struct Queries<'a> {
    rows: &'a [f32],
    dim: usize,
    step: usize,
}

/// `scores [rows, 32] = queries x keys`.
#[inline(always)]
fn score<L: Lanes, S: Source>(
    l: L,
    queries: Queries<'_>,
    keys: S,
    scores: &mut [f32],
    ahead: Ahead,
) {
    let Queries { rows: queries, dim, step } = queries;
    let (mut row, rows) = (0, scores.len() / PAGE_TOKENS);
    while row < rows {
        let end = rows.min(row + step);
        l.call(Multiply(Score {
            left: &queries[row * dim..end * dim],
            right: keys,
            dim,
            out: &mut scores[row * PAGE_TOKENS..end * PAGE_TOKENS],
            ahead: ahead.of_rows_from(row),
        }));
        row = end;
    }
}

/// The sums of values, `[rows, stride]`, of which `step` are added to at a time, and the tokens of a page that add to them.
struct Sums<'a> {
    rows: &'a mut [f32],
    stride: usize,
    step: usize,
    seen: (usize, usize),
}

/// `sums += weights [rows, 32] x values`; the corrections were applied by [`Sweep::weigh`].
#[inline(always)]
fn mix<L: Lanes, S: Source>(l: L, weights: &[f32], values: S, sums: Sums<'_>, ahead: Ahead) {
    let Sums { rows: sums, stride, step, seen: (from, to) } = sums;
    let (mut row, rows) = (0, weights.len() / PAGE_TOKENS);
    while row < rows {
        let end = rows.min(row + step);
        let product: Mix<'_, S> = Mix {
            rows: end - row,
            left: &weights[row * PAGE_TOKENS..end * PAGE_TOKENS],
            right: values,
            from,
            to,
            stride,
            right_stride: stride,
            out: &mut sums[row * stride..end * stride],
            ahead: ahead.of_rows_from(row),
        };
        l.call(Multiply(product));
        row = end;
    }
}

/// A product as a part of a kernel.
struct Multiply<P>(P);

impl<P: Product> Kernel for Multiply<P> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        self.0.run(l);
    }
}

#[inline(always)]
fn cap_scores<L: Lanes>(l: L, cap: f32, scores: &mut [f32]) {
    for chunk in scores.chunks_exact_mut(L::N) {
        let x = l.mul(l.read(chunk), l.splat(1.0 / cap));
        l.write(l.mul(l.splat(cap), math::tanh(l, x)), chunk);
    }
}

/// The positions of a page's tokens within it.
const PLACES: [f32; PAGE_TOKENS] = {
    let mut places = [0.0; PAGE_TOKENS];
    let mut at = 0;
    while at < PAGE_TOKENS {
        places[at] = at as f32;
        at += 1;
    }
    places
};

/// Subtracts `slope * |distance|` from the scores of a page whose first token is `first` positions before the query.
#[inline(always)]
fn lower_scores<L: Lanes>(l: L, slope: f32, first: f32, scores: &mut [f32]) {
    for (scores, places) in scores.chunks_exact_mut(L::N).zip(PLACES.chunks_exact(L::N)) {
        let distance = l.sub(l.splat(first), l.read(places));
        let distance = l.abs(distance);
        l.write(l.fma(l.splat(-slope), distance, l.read(scores)), scores);
    }
}

/// Adds their biases to the scores of a page whose first token is `first` positions before the query.
#[inline(always)]
fn add_biases<L: Lanes>(l: L, biases: &[f32], first: isize, scores: &mut [f32]) {
    let place = (biases.len() / 2) as isize - first;
    let place = place.clamp(0, (biases.len() - PAGE_TOKENS) as isize) as usize;
    let biases = &biases[place..][..PAGE_TOKENS];
    for (scores, biases) in scores.chunks_exact_mut(L::N).zip(biases.chunks_exact(L::N)) {
        l.write(l.add(l.read(scores), l.read(biases)), scores);
    }
}

/// The largest scores, one per lane.
#[inline(always)]
pub(super) fn largest<L: Lanes>(l: L, scores: &[f32]) -> L::F {
    let mut most = l.splat(f32::MIN);
    for chunk in scores.chunks_exact(L::N) {
        most = l.max(most, l.read(chunk));
    }
    most
}

/// Converts scores to weights, `exp(score - largest)`, and adds them to the lanes of `weight`.
#[inline(always)]
pub(super) fn weigh_row<L: Lanes>(l: L, scores: &mut [f32], largest: f32, weight: &mut [f32]) {
    let mut sum = l.read(weight);
    for chunk in scores.chunks_exact_mut(L::N) {
        let x = l.sub(l.read(chunk), l.splat(largest));
        let w = math::exp2_falling(l, l.mul(x, l.splat(std::f32::consts::LOG2_E)));
        l.write(w, chunk);
        sum = l.add(sum, w);
    }
    l.write(sum, weight);
}

#[inline(always)]
pub(super) fn scale<L: Lanes>(l: L, factor: f32, row: &mut [f32]) {
    for chunk in row.chunks_exact_mut(L::N) {
        l.write(l.mul(l.read(chunk), l.splat(factor)), chunk);
    }
}
