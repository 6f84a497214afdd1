//! The integer tile at 512 bits: 32 rows x up to 6 tokens with VNNI.
//!
//! Two vectors of 16 rows are multiplied with each token's four activations, broadcast; 12 independent dot products
//! hide the latency, and per group of weights their sums are converted to f32 and scaled. Quants are unsigned, signed
//! ones biased by 128, so integer sums start from the activations' sums times -128. Price: converting and scaling
//! take a fifth of the time in groups of 32, a third in groups of 16.
#![expect(
    clippy::needless_range_loop,
    reason = "t counts tokens and half halves of the rows, in several arrays at once"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use crate::activations::SPAN;
use crate::lanes::x86::Avx512 as Lanes;
use crate::level::rows::Avx512Vnni;
use crate::panel::avx512::{load, load_floats, put, store_rows, transpose};
use crate::panel::{Adjust, FloatPanel, Form, Mins, Panel, Quants, ROWS, Span};
use crate::tile::{
    FloatTiles, Product, Rounding, Shape, Tile, Tiled, Tiles, Tiling, by_form, by_tokens,
    check_strip, few_columns, float, format_of_form, in_order, starts, whole_row,
};

/// Maximum tokens per tile.
const TOKENS: usize = 6;

impl Tiled for Avx512Vnni {
    const TILING: Tiling = Tiling {
        names: ["int8 avx512vnni", "f32 avx512"],
        tokens_max: |_| TOKENS,
        format: format_of_form,
        tiles,
        float_tiles: FloatTiles {
            cols: 128,
            interleave: interleave_floats,
            tile: float::tile::<Lanes, 2, TOKENS, false>,
        },
        pair_tiles: None,
        row_tiles: whole_row::AVX512,
        fill: |quants| quants.fill,
        // Measured: benches/record/epyc-genoa-2vcpu/2026-11-25-columns.md.
        tokens_min: few_columns,
        // Measured: benches/record/epyc-genoa-2vcpu/2026-11-26-fast-prefill.md.
        rounding: |quants| {
            let tokens_min = if quants.is_some() { 256 } else { 16 };
            Some(Rounding { form: Form::Signed256K, tokens_min })
        },
        has_matrix_unit: false,
    };
}

fn tiles(quants: &Quants) -> Tiles {
    let tile: Tile = by_form!(quants.form, any_tile);
    Tiles { adjust: Adjust::unsigned(quants.form, quants.bias), interleave, tile }
}

/// See [`crate::tile::Interleave`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn interleave(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel) {
    let bias = _mm512_set1_epi8(adjust.quants as i8);
    for part in 0..4 {
        let mut rows = [_mm512_setzero_si512(); 16];
        for (row, span) in rows.iter_mut().zip(spans) {
            *row = _mm512_add_epi8(load(&span.quants.as_chunks::<64>().0[part]), bias);
        }
        for (step, value) in transpose(rows).into_iter().enumerate() {
            put(panel, 16 * part + step, first, value);
        }
    }
    let mut rows = [_mm512_setzero_si512(); 16];
    for (row, span) in rows.iter_mut().zip(spans) {
        let unit = _mm512_set1_ps(span.unit);
        *row = _mm512_castps_si512(_mm512_mul_ps(load_floats(&span.scales), unit));
    }
    store_rows(&transpose(rows), first, &mut panel.scales);
    if let Mins::Times(factor) = adjust.mins {
        for (row, span) in rows.iter_mut().zip(spans) {
            let unit = _mm512_set1_ps(span.min_unit * factor);
            *row = _mm512_castps_si512(_mm512_mul_ps(load_floats(&span.mins), unit));
        }
        store_rows(&transpose(rows), first, &mut panel.mins);
    }
}

/// See [`crate::tile::FloatInterleave`].
#[target_feature(enable = "avx512f")]
pub(super) fn interleave_floats(
    rows: &[[f32; SPAN]],
    cols: Range<usize>,
    first: usize,
    panel: &mut FloatPanel,
) {
    for (part, panel) in panel[..cols.len()].chunks_mut(16).enumerate() {
        let start = cols.start + 16 * part;
        let mut values = [_mm512_setzero_si512(); 16];
        for (value, row) in values.iter_mut().zip(rows) {
            *value = _mm512_castps_si512(load_floats(&row[start..]));
        }
        store_rows(&transpose(values), first, panel);
    }
}

/// See [`Tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn any_tile<S: Shape>(product: Product<'_>, strip: &mut [f32]) {
    by_tokens!(product.block.tokens, N up to TOKENS => tile::<S, N>(product, strip))
}

/// `N` = tokens of the block. Addresses are raw pointers, because bounds checks between the loads cost a third.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn tile<S: Shape, const N: usize>(product: Product<'_>, strip: &mut [f32]) {
    let Product { panel, block, ahead, stride } = product;
    let steps = block.cols / 4;
    let parts = block.parts();
    assert!(block.tokens == N && steps <= 64);
    check_strip(strip, stride, N, ROWS);
    let (strip, mut acc) = (strip.as_mut_ptr(), [[_mm512_setzero_ps(); 2]; N]);
    let groups = steps / S::STEPS;
    let mut ahead = ahead.split(groups);
    for group in 0..groups {
        ahead.part().fetch();
        // Checked before the products: after a branch, the compiler would sink the arithmetic behind it but not the
        // loads, which would run out of registers.
        let (w, m) = (panel.scales[group].as_ptr(), panel.mins[group].as_ptr());
        // SAFETY: the parts hold `steps` x N quants and a sum and, but for `PER_256`, a scale for
        // each group x N; the panel holds 64 steps and 16 groups.
        unsafe {
            let first = group * S::STEPS;
            let quants = panel.quants.as_ptr().add(first).cast();
            let start = starts::<S, N>(&parts, group);
            let dots = dots::<S, N>(quants, parts.quants.add(first * N), start);
            let w = [_mm512_load_ps(w), _mm512_load_ps(w.add(16))];
            for t in 0..N {
                for half in 0..2 {
                    let mut dot = _mm512_cvtepi32_ps(dots[t][half]);
                    if !S::PER_256 {
                        let scale = _mm512_set1_ps(*parts.scales.add(group * N + t));
                        dot = _mm512_mul_ps(dot, scale);
                    }
                    acc[t][half] = _mm512_fmadd_ps(dot, w[half], acc[t][half]);
                }
            }
            if S::SIGNED {
                continue;
            }
            let m = [_mm512_load_ps(m), _mm512_load_ps(m.add(16))];
            for t in 0..N {
                let sum = if S::FLOAT_SUMS {
                    _mm512_set1_ps(*parts.float_sums.add(group * N + t))
                } else if S::PER_256 {
                    _mm512_cvtepi32_ps(_mm512_set1_epi32(*parts.sums.add(group * N + t)))
                } else {
                    let scale = _mm512_set1_ps(*parts.scales.add(group * N + t));
                    _mm512_mul_ps(
                        _mm512_cvtepi32_ps(_mm512_set1_epi32(*parts.sums.add(group * N + t))),
                        scale,
                    )
                };
                acc[t][0] = _mm512_fmadd_ps(sum, m[0], acc[t][0]);
                acc[t][1] = _mm512_fmadd_ps(sum, m[1], acc[t][1]);
            }
        }
    }
    for t in 0..N {
        for half in 0..2 {
            // SAFETY: the strip was checked, the scales of `PER_256` are N.
            unsafe {
                let to = strip.add(t * stride + 16 * half);
                let scale = _mm512_set1_ps(if S::PER_256 { *parts.scales.add(t) } else { 1.0 });
                _mm512_storeu_ps(to, _mm512_fmadd_ps(acc[t][half], scale, _mm512_loadu_ps(to)));
            }
        }
    }
}

/// The integer sums of one group: `start` + quants x activations.
///
/// # Safety
/// The pointers are followed by `STEPS` x 32 x 4 quants and `STEPS` x N x 4 activations.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn dots<S: Shape, const N: usize>(
    mut quants: *const __m512i,
    mut x: *const i32,
    start: [i32; N],
) -> [[__m512i; 2]; N] {
    let mut dots = [[_mm512_setzero_si512(); 2]; N];
    for (dots, start) in dots.iter_mut().zip(start) {
        *dots = [_mm512_set1_epi32(start); 2];
    }
    for _ in 0..S::STEPS {
        (quants, x) = in_order(quants, x);
        // SAFETY: there are `STEPS` times two vectors of quants, aligned as the panel is.
        let w = unsafe { [_mm512_load_si512(quants), _mm512_load_si512(quants.add(1))] };
        for (t, dots) in dots.iter_mut().enumerate() {
            // SAFETY: there are `STEPS` x N activations, aligned to 4 bytes.
            let x = _mm512_set1_epi32(unsafe { *x.add(t) });
            dots[0] = _mm512_dpbusd_epi32(dots[0], w[0], x);
            dots[1] = _mm512_dpbusd_epi32(dots[1], w[1], x);
        }
        (quants, x) = (quants.wrapping_add(2), x.wrapping_add(N));
    }
    dots
}
