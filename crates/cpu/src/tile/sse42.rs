//! The tiles of SSE4.2: 8 rows x up to 4 tokens, a panel in four passes.
//!
//! Quants are two's complement: their magnitudes are multiplied with activations that carry their signs (PSIGNB,
//! PMADDUBSW), and pair sums, at most 2 x 128 x 127, are widened every step.
#![expect(
    clippy::needless_range_loop,
    reason = "t counts tokens and half halves of the rows, in several arrays at once"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use crate::activations::SPAN;
use crate::lanes::sse42::Sse42 as Lanes;
use crate::level::rows::Sse42;
use crate::panel::{Adjust, FloatPanel, Mins, Panel, Quants, ROWS, Span};
use crate::tile::{
    FloatTiles, Product, Shape, Tile, Tiled, Tiles, Tiling, by_form, by_tokens, check_strip,
    few_columns, float, format_of_form, in_order, never, whole_row,
};

/// Maximum tokens per tile.
const TOKENS: usize = 4;

/// Rows per pass.
const PASS_ROWS: usize = 8;

impl Tiled for Sse42 {
    const TILING: Tiling = Tiling {
        names: ["int8 sse42", "f32 sse42"],
        tokens_alone: 0,
        tokens_max: |_| TOKENS,
        format: format_of_form,
        tiles,
        float_tiles: FloatTiles {
            cols: 128,
            interleave: float_interleave,
            tile: float::tile::<Lanes, 1, TOKENS, false>,
        },
        pair_tiles: None,
        row_tiles: whole_row::PORTABLE,
        fill: |_| None,
        fused: |_| None,
        tokens_min: few_columns,
        rounding: never,
        has_matrix_unit: false,
    };
}

fn tiles(quants: &Quants) -> Tiles {
    let tile: Tile = by_form!(quants.form, any_tile);
    Tiles { adjust: Adjust::signed(quants.form, quants.bias), interleave, tile }
}

/// Stores four vectors of four as columns of rows `first..first + 4`: vector c becomes line c.
#[target_feature(enable = "sse4.1")]
#[inline]
fn put(rows: [__m128; 4], first: usize, to: &mut [[f32; ROWS]]) {
    let [mut a, mut b, mut c, mut d] = rows;
    _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
    for (to, column) in to.iter_mut().zip([a, b, c, d]) {
        // SAFETY: four elements are written to a slice of four.
        unsafe { _mm_storeu_ps(to[first..first + 4].as_mut_ptr(), column) };
    }
}

/// See [`crate::tile::Interleave`].
#[target_feature(enable = "ssse3,sse4.1")]
fn interleave(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel) {
    let bias = _mm_set1_epi8(adjust.quants as i8);
    for (four, spans) in spans.as_chunks::<4>().0.iter().enumerate() {
        let first = first + 4 * four;
        let lines: &mut [[f32; ROWS]] = bytemuck::cast_slice_mut(&mut panel.quants);
        for (part, lines) in lines.chunks_exact_mut(4).enumerate() {
            let rows = spans.each_ref().map(|span| {
                let from = &span.quants.as_chunks::<16>().0[part];
                // SAFETY: 16 bytes are read from a reference to 16.
                let quants = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
                _mm_castsi128_ps(_mm_add_epi8(quants, bias))
            });
            put(rows, first, lines);
        }
        for (row, span) in spans.iter().enumerate() {
            for group in 0..16 {
                panel.scales[group][first + row] = span.unit * span.scales[group];
                if let Mins::Times(factor) = adjust.mins {
                    panel.mins[group][first + row] = span.min_unit * span.mins[group] * factor;
                }
            }
        }
    }
}

/// See [`Tile`].
#[target_feature(enable = "ssse3,sse4.1")]
fn any_tile<S: Shape>(product: Product<'_>, strip: &mut [f32]) {
    product.ahead.fetch();
    for first in (0..ROWS).step_by(PASS_ROWS) {
        let strip = &mut strip[first..];
        by_tokens!(product.block.tokens, N up to TOKENS => tile::<S, N>(product, first, strip))
    }
}

/// Rows `first..first + 8` of a panel; `N` = tokens of the block.
#[target_feature(enable = "ssse3,sse4.1")]
fn tile<S: Shape, const N: usize>(product: Product<'_>, first: usize, strip: &mut [f32]) {
    let Product { panel, block, stride, .. } = product;
    let steps = block.cols / 4;
    let parts = block.parts();
    assert!(block.tokens == N && steps <= 64 && first + PASS_ROWS <= ROWS);
    check_strip(strip, stride, N, PASS_ROWS);
    let (strip, mut acc) = (strip.as_mut_ptr(), [[_mm_setzero_ps(); 2]; N]);
    for group in 0..steps / S::STEPS {
        let w = panel.scales[group][first..first + PASS_ROWS].as_ptr();
        let m = panel.mins[group][first..first + PASS_ROWS].as_ptr();
        // SAFETY: the parts hold `steps` x N quants and, for each group x N, what its shape reads; the panel holds 64
        // steps of 32 x 4 quants, of which each group reads `S::STEPS`.
        unsafe {
            let step = group * S::STEPS;
            let quants = panel.quants.as_ptr().cast::<u8>().add(step * 4 * ROWS + 4 * first);
            let dots = dots::<N>(S::STEPS, quants, parts.quants.add(step * N));
            for t in 0..N {
                let index = group * N + t;
                let scale = if S::PER_256 { 1.0 } else { *parts.scales.add(index) };
                let sum = match (S::SIGNED, S::FLOAT_SUMS) {
                    (true, _) => 0.0,
                    (false, true) => *parts.float_sums.add(index),
                    (false, false) => *parts.sums.add(index) as f32 * scale,
                };
                for half in 0..2 {
                    let dot = _mm_mul_ps(_mm_cvtepi32_ps(dots[t][half]), _mm_set1_ps(scale));
                    let w = _mm_loadu_ps(w.add(4 * half));
                    let out = &mut acc[t][half];
                    *out = _mm_add_ps(_mm_mul_ps(dot, w), *out);
                    if !S::SIGNED {
                        let m = _mm_loadu_ps(m.add(4 * half));
                        *out = _mm_add_ps(_mm_mul_ps(_mm_set1_ps(sum), m), *out);
                    }
                }
            }
        }
    }
    for t in 0..N {
        for half in 0..2 {
            // SAFETY: the strip was checked, the scales of `PER_256` are N.
            unsafe {
                let to = strip.add(t * stride + 4 * half);
                let scale = _mm_set1_ps(if S::PER_256 { *parts.scales.add(t) } else { 1.0 });
                let sum = _mm_add_ps(_mm_mul_ps(acc[t][half], scale), _mm_loadu_ps(to));
                _mm_storeu_ps(to, sum);
            }
        }
    }
}

/// The integer sums of one group.
///
/// # Safety
/// The pointers are followed by `steps` x 32 x 4 quants, except for the rows after the eighth of the last step, and
/// `steps` x N x 4 activations.
#[target_feature(enable = "ssse3,sse4.1")]
#[inline]
unsafe fn dots<const N: usize>(
    steps: usize,
    mut quants: *const u8,
    mut x: *const i32,
) -> [[__m128i; 2]; N] {
    let ones = _mm_set1_epi16(1);
    let mut dots = [[_mm_setzero_si128(); 2]; N];
    for _ in 0..steps {
        (quants, x) = in_order(quants, x);
        // SAFETY: the caller guarantees `steps` of them.
        let w = unsafe {
            let from = quants.cast::<__m128i>();
            [_mm_loadu_si128(from), _mm_loadu_si128(from.add(1))]
        };
        for t in 0..N {
            // SAFETY: as above; activations are aligned to 4 bytes.
            let x = _mm_set1_epi32(unsafe { *x.add(t) });
            for half in 0..2 {
                let signed = _mm_sign_epi8(x, w[half]);
                let pairs = _mm_maddubs_epi16(_mm_abs_epi8(w[half]), signed);
                dots[t][half] = _mm_add_epi32(dots[t][half], _mm_madd_epi16(pairs, ones));
            }
        }
        (quants, x) = (quants.wrapping_add(4 * ROWS), x.wrapping_add(N));
    }
    dots
}

/// See [`crate::tile::FloatInterleave`].
#[target_feature(enable = "sse4.1")]
fn float_interleave(
    rows: &[[f32; SPAN]],
    cols: Range<usize>,
    first: usize,
    panel: &mut FloatPanel,
) {
    // Whole multiples of four columns: a span extends beyond the range, and the panel has space.
    let end = cols.start + cols.len().next_multiple_of(4);
    for (four, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
        for (part, lines) in panel[..end - cols.start].chunks_exact_mut(4).enumerate() {
            let values = rows.each_ref().map(|row| {
                let from = &row[cols.start + 4 * part..][..4];
                // SAFETY: the slice has four elements.
                unsafe { _mm_loadu_ps(from.as_ptr()) }
            });
            put(values, first + 4 * four, lines);
        }
    }
}
