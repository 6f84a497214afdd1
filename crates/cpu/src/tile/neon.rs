//! The integer tiles of NEON: 16 rows x up to 6 tokens, a panel in two passes.
//!
//! All three levels share the sweep over the groups and everything after the integer sums; a level defines its
//! multiplication and the layout of its sums in vectors ([`Products`]). Quants are two's complement, because NEON
//! multiplies signed bytes.
//!
//! This file also contains the level without dot products: 16-bit products of four rows' four columns, of which as
//! many steps as the largest quant allows are added in 16 bits before widening. Two tokens at a time keep their 16
//! sums and four weights in the 32 registers.

use crate::neon::intrinsics::*;
use std::ops::Range;

use crate::activations::SPAN;
use crate::lanes::arm::Neon as Lanes;
use crate::level::rows::Neon;
use crate::neon::{load, load_floats, store_floats};
use crate::panel::neon::{columns, transpose};
use crate::panel::{Adjust, FloatPanel, Mins, Panel, Quants, ROWS, Span};
use crate::tile::whole_row::{RowProduct, RowScales, RowTile, RowTiles, fill};
use crate::tile::{
    FloatTiles, Product, Shape, Tile, Tiled, Tiles, Tiling, by_form, by_tokens, check_strip,
    few_columns, float, format_of_form, in_order, never,
};

/// Maximum tokens per tile.
pub(super) const TOKENS: usize = 6;

/// Rows per pass.
pub(super) const PASS_ROWS: usize = 16;

/// A level's products of 16 rows with a unit of tokens, whose sums take `V` vectors.
pub(super) trait Products<const V: usize>: Copy {
    /// Tokens per unit: 1 or 2.
    const TOKENS: usize;
    /// Adjacent columns of a row in the panel.
    const COLUMNS: usize;

    /// The integer sums of `steps` times four columns, for each of `U` units.
    ///
    /// # Safety
    /// `quants` points to the panel's first step and row, `x` to the activations of `n` tokens from the first step
    /// on, followed by four more bytes; `U` units are as many as `n` tokens need.
    unsafe fn dots<const U: usize>(
        self,
        steps: usize,
        quants: *const i8,
        x: *const i32,
        n: usize,
    ) -> [[int32x4_t; V]; U];

    /// Per-row numbers in the layout of the sums.
    fn rows(self, values: &[f32; PASS_ROWS]) -> [float32x4_t; V];

    /// Per-token numbers of a unit in the layout of the sums.
    fn tokens(self, value: impl Fn(usize) -> f32) -> float32x4_t;

    /// The sums of token `token` of a unit in row order.
    fn of_token(self, sums: &[float32x4_t; V], token: usize) -> [float32x4_t; 4];
}

/// See [`Tile`].
#[inline(always)]
pub(super) fn passes<P: Products<V>, S: Shape, const V: usize>(
    p: P,
    product: Product<'_>,
    strip: &mut [f32],
) {
    product.ahead.fetch();
    for first in [0, PASS_ROWS] {
        let (pass, strip) = (Pass { product, first }, &mut strip[first..]);
        let units = product.block.tokens.div_ceil(P::TOKENS);
        by_tokens!(units, U up to TOKENS / P::TOKENS => pass.run::<P, S, V, U>(p, strip));
    }
}

/// The kernels of rows with one scale, with a level's tile, for which `COLUMNS` columns of a row are beside each other.
pub(super) const fn row_tiles<const COLUMNS: usize>(tile: RowTile) -> RowTiles {
    RowTiles { tokens_max: TOKENS, fill: fill::<false, COLUMNS>, tile, beats_floats: false }
}

/// See [`RowTile`].
#[inline(always)]
pub(super) fn row_passes<P: Products<V>, const V: usize, const COLUMNS: usize>(
    p: P,
    mut product: RowProduct<'_>,
    strip: &mut [f32],
) {
    const { assert!(COLUMNS == P::COLUMNS) };
    product.fetch();
    check_strip(strip, product.stride, product.tokens, ROWS);
    if product.has_outliers() {
        product.add_outliers::<false, COLUMNS>(strip);
        // The sums have begun.
        product.first = None;
    }
    for first in [0, PASS_ROWS] {
        let (units, strip) = (product.tokens.div_ceil(P::TOKENS), &mut strip[first..]);
        by_tokens!(units, U up to TOKENS / P::TOKENS => row_pass::<P, V, U>(p, product, first, strip));
    }
}

/// Rows `first..first + 16` of a product of rows with one scale.
#[inline(always)]
fn row_pass<P: Products<V>, const V: usize, const U: usize>(
    p: P,
    product: RowProduct<'_>,
    first: usize,
    strip: &mut [f32],
) {
    let (steps, n, x) = (product.count(), product.tokens, product.x.as_ptr().cast::<i32>());
    assert!(first <= PASS_ROWS && n.div_ceil(P::TOKENS) == U && x.is_aligned());
    // SAFETY: `count` has checked that the panel and the activations have as many, and four bytes after them.
    let dots = unsafe {
        let quants = product.steps.as_ptr().cast::<i8>().add(P::COLUMNS * first);
        p.dots::<U>(steps, quants, x, n)
    };
    for t in 0..n {
        let found = dots[t / P::TOKENS].map(vreinterpretq_f32_s32);
        let found = p.of_token(&found, t % P::TOKENS);
        let out = strip[t * product.stride..].as_chunks_mut::<4>().0;
        for (four, (out, found)) in out.iter_mut().zip(found).enumerate() {
            let mut sum = vreinterpretq_s32_f32(found);
            if product.first.is_none() {
                sum = vaddq_s32(sum, vreinterpretq_s32_f32(load_floats(out)));
            }
            let value = match product.last {
                None => vreinterpretq_f32_s32(sum),
                Some(RowScales { weights, x }) => {
                    let d = load_floats(&weights.as_chunks().0[first / 4 + four]);
                    vmulq_f32(vcvtq_f32_s32(sum), vmulq_n_f32(d, x[t]))
                }
            };
            store_floats(out, value);
        }
    }
}

/// Rows `first..first + 16` of a product.
struct Pass<'a> {
    product: Product<'a>,
    first: usize,
}

impl Pass<'_> {
    #[inline(always)]
    fn run<P: Products<V>, S: Shape, const V: usize, const U: usize>(
        self,
        p: P,
        strip: &mut [f32],
    ) {
        let Pass { product: Product { panel, block, stride, .. }, first } = self;
        let (steps, n) = (block.cols / 4, block.tokens);
        assert!(steps <= 64 && first <= PASS_ROWS && n.div_ceil(P::TOKENS) == U);
        check_strip(strip, stride, n, PASS_ROWS);
        let (sums, float_sums, scales) = (block.sums(), block.float_sums(), block.scales());
        let of_rows = |lines: &[f32; ROWS]| p.rows(lines[first..].first_chunk().expect("16 rows"));
        let mut acc = [[vdupq_n_f32(0.0); V]; U];
        for group in 0..steps / S::STEPS {
            // The value for a unit's absent token is arbitrary, since its sums are discarded.
            let place = |u: usize, t: usize| group * n + (u * P::TOKENS + t).min(n - 1);
            let scale = |at: usize| if S::PER_256 { 1.0 } else { scales[at] };
            let step = group * S::STEPS;
            // SAFETY: the panel has 64 steps of 32 x 4 quants, the block `steps` x n x 4 activations, and sums after them.
            let dots = unsafe {
                let quants = panel.quants.as_ptr().cast::<i8>().add(step * 4 * ROWS);
                let x = block.bytes.as_ptr().cast::<i32>().add(step * n);
                p.dots::<U>(S::STEPS, quants.add(P::COLUMNS * first), x, n)
            };
            let w = of_rows(&panel.scales[group]);
            for u in 0..U {
                let scale = p.tokens(|t| scale(place(u, t)));
                for v in 0..V {
                    let mut dot = vcvtq_f32_s32(dots[u][v]);
                    if !S::PER_256 {
                        dot = vmulq_f32(dot, scale);
                    }
                    acc[u][v] = vfmaq_f32(acc[u][v], dot, w[v]);
                }
            }
            if S::SIGNED {
                continue;
            }
            let m = of_rows(&panel.mins[group]);
            for (u, acc) in acc.iter_mut().enumerate() {
                let sum = p.tokens(|t| {
                    let at = place(u, t);
                    if S::FLOAT_SUMS { float_sums[at] } else { sums[at] as f32 * scale(at) }
                });
                for (acc, m) in acc.iter_mut().zip(m) {
                    *acc = vfmaq_f32(*acc, sum, m);
                }
            }
        }
        for t in 0..n {
            let scale = if S::PER_256 { scales[t] } else { 1.0 };
            let found = p.of_token(&acc[t / P::TOKENS], t % P::TOKENS);
            let out = strip[t * stride..].as_chunks_mut::<4>().0;
            for (out, found) in out.iter_mut().zip(found) {
                let sum = vfmaq_n_f32(load_floats(out), found, scale);
                store_floats(out, sum);
            }
        }
    }
}

impl Tiled for Neon {
    const TILING: Tiling = Tiling {
        names: ["int8 neon", "f32 neon"],
        tokens_alone: 0,
        tokens_max: |_| TOKENS,
        format: format_of_form,
        tiles,
        float_tiles: FloatTiles {
            cols: 128,
            interleave: interleave_floats,
            tile: float::tile::<Lanes, 2, TOKENS, false>,
        },
        pair_tiles: None,
        row_tiles: row_tiles::<4>(row_tile),
        fill: |_| None,
        fused: |_| None,
        tokens_min: few_columns,
        rounding: never,
        has_matrix_unit: false,
    };
}

fn tiles(quants: &Quants) -> Tiles {
    // The lanes of two products of magnitude `most` and 127 are added in pairs: a chain of steps fits 16 bits if 2 ·
    // chain · most · 127 does.
    let most = quants.bias.max(quants.highest - quants.bias);
    let tile: Tile = match 32767 / (254 * u32::from(most)) {
        8.. => by_form!(quants.form, tile_8),
        4.. => by_form!(quants.form, tile_4),
        _ => by_form!(quants.form, tile_1),
    };
    Tiles { adjust: Adjust::signed(quants.form, quants.bias), interleave, tile }
}

fn tile_8<S: Shape>(product: Product<'_>, strip: &mut [f32]) {
    tile::<S>(8, product, strip);
}

fn tile_4<S: Shape>(product: Product<'_>, strip: &mut [f32]) {
    tile::<S>(4, product, strip);
}

fn tile_1<S: Shape>(product: Product<'_>, strip: &mut [f32]) {
    tile::<S>(1, product, strip);
}

/// See [`Tile`]; sums of `chain` steps fit 16 bits.
fn tile<S: Shape>(chain: usize, product: Product<'_>, strip: &mut [f32]) {
    passes::<_, S, 4>(Plain { chain: chain.min(S::STEPS) }, product, strip);
}

/// See [`RowTile`]; the sums of two products, of 128 and 127 at most, fit 16 bits.
fn row_tile(product: RowProduct<'_>, strip: &mut [f32]) {
    row_passes::<_, 4, 4>(Plain { chain: 1 }, product, strip);
}

/// 16-bit products in chains of steps; a vector holds four rows of one token.
#[derive(Clone, Copy)]
struct Plain {
    /// Chain length; divides the steps of every group.
    chain: usize,
}

impl Plain {
    /// The sums of T tokens from `x` on.
    ///
    /// # Safety
    /// Those of [`Products::dots`].
    #[inline(always)]
    unsafe fn some<const T: usize>(
        self,
        steps: usize,
        mut quants: *const i8,
        mut x: *const i32,
        n: usize,
    ) -> [[int32x4_t; 4]; T] {
        let mut dots = [[vdupq_n_s32(0); 4]; T];
        for _ in 0..steps / self.chain {
            let mut low = [[vdupq_n_s16(0); 4]; T];
            let mut high = low;
            for _ in 0..self.chain {
                (quants, x) = in_order(quants, x);
                for v in 0..4 {
                    // SAFETY: a step has 16 rows of four quants and n times four activations.
                    let w = unsafe { vld1q_s8(quants.add(16 * v)) };
                    for t in 0..T {
                        // SAFETY: as above.
                        let x = vreinterpretq_s8_s32(unsafe { vld1q_dup_s32(x.add(t)) });
                        low[t][v] = vmlal_s8(low[t][v], vget_low_s8(w), vget_low_s8(x));
                        high[t][v] = vmlal_high_s8(high[t][v], w, x);
                    }
                }
                (quants, x) = (quants.wrapping_add(4 * ROWS), x.wrapping_add(n));
            }
            for t in 0..T {
                for v in 0..4 {
                    let pairs = vpaddq_s16(low[t][v], high[t][v]);
                    dots[t][v] = vpadalq_s16(dots[t][v], pairs);
                }
            }
        }
        dots
    }
}

impl Products<4> for Plain {
    const TOKENS: usize = 1;
    const COLUMNS: usize = 4;

    #[inline(always)]
    unsafe fn dots<const U: usize>(
        self,
        steps: usize,
        quants: *const i8,
        x: *const i32,
        n: usize,
    ) -> [[int32x4_t; 4]; U] {
        let mut dots = [[vdupq_n_s32(0); 4]; U];
        let (pairs, last) = dots.as_chunks_mut::<2>();
        for (pair, dots) in pairs.iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller for U tokens.
            *dots = unsafe { self.some(steps, quants, x.add(2 * pair), n) };
        }
        if let [last] = last {
            // SAFETY: as above.
            [*last] = unsafe { self.some(steps, quants, x.add(U - 1), n) };
        }
        dots
    }

    #[inline(always)]
    fn rows(self, values: &[f32; PASS_ROWS]) -> [float32x4_t; 4] {
        in_rows(values)
    }

    #[inline(always)]
    fn tokens(self, value: impl Fn(usize) -> f32) -> float32x4_t {
        vdupq_n_f32(value(0))
    }

    #[inline(always)]
    fn of_token(self, sums: &[float32x4_t; 4], _token: usize) -> [float32x4_t; 4] {
        *sums
    }
}

/// Four rows per vector.
#[inline(always)]
pub(super) fn in_rows(values: &[f32; PASS_ROWS]) -> [float32x4_t; 4] {
    let values = values.as_chunks().0;
    std::array::from_fn(|v| load_floats(&values[v]))
}

/// See [`crate::tile::Interleave`].
pub(super) fn interleave(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel) {
    let bias = vdupq_n_u8(adjust.quants);
    for (four, spans) in spans.as_chunks::<4>().0.iter().enumerate() {
        let first = first + 4 * four;
        for part in 0..16 {
            let rows = spans.each_ref().map(|span| {
                let quants = load(&span.quants.as_chunks().0[part]);
                vreinterpretq_f32_u8(vaddq_u8(quants, bias))
            });
            for (step, value) in transpose(rows).into_iter().enumerate() {
                let to = &mut panel.quants[4 * part + step][first..first + 4];
                // SAFETY: four rows of four bytes are written, as many as the slice has.
                unsafe { vst1q_u8(to.as_mut_ptr().cast(), vreinterpretq_u8_f32(value)) };
            }
        }
    }
    lines(spans, first, adjust.mins, panel);
}

/// See [`crate::tile::FloatInterleave`].
fn interleave_floats(
    rows: &[[f32; SPAN]],
    cols: Range<usize>,
    first: usize,
    panel: &mut FloatPanel,
) {
    // Whole multiples of four columns: a span extends beyond the range, and the panel has space.
    let end = cols.start + cols.len().next_multiple_of(4);
    for (four, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
        let rows = rows.each_ref().map(|row| &row[cols.start..end]);
        columns(rows.map(|row| (row, 1.0)), first + 4 * four, &mut panel[..end - cols.start]);
    }
}

/// Writes 16 rows' scales and minimums into the panel.
pub(super) fn lines(spans: &[Span; 16], first: usize, mins: Mins, panel: &mut Panel) {
    for (four, spans) in spans.as_chunks::<4>().0.iter().enumerate() {
        let first = first + 4 * four;
        let scales = spans.each_ref().map(|span| (&span.scales[..], span.unit));
        columns(scales, first, &mut panel.scales);
        match mins {
            Mins::None => {}
            Mins::Times(factor) => {
                let mins = spans.each_ref().map(|span| (&span.mins[..], span.min_unit * factor));
                columns(mins, first, &mut panel.mins);
            }
        }
    }
}
