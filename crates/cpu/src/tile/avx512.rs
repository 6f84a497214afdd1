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

use crate::activations::{Parts, SPAN};
use crate::lanes::x86::Avx512 as Lanes;
use crate::level::rows::Avx512Vnni;
use crate::panel::avx512::{load, load_floats, put, store_floats, store_rows, transpose};
use crate::panel::{Adjust, FloatPanel, Form, Mins, Panel, Quants, ROWS, Span};
use crate::tile::{
    FloatTiles, Product, Rounding, Shape, Tile, Tiled, Tiles, Tiling, by_form, by_tokens,
    check_strip, few_columns, float, format_of_form, fused, in_order, starts, whole_row,
};

/// Maximum tokens per tile of 32 rows.
const TOKENS: usize = 6;

impl Tiled for Avx512Vnni {
    const TILING: Tiling = Tiling {
        names: ["int8 avx512vnni", "f32 avx512"],
        tokens_alone: fused::TOKENS,
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
        fused: fused::avx512,
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

/// See [`Tile`]. More than six tokens have no registers for both halves of the rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn any_tile<S: Shape>(product: Product<'_>, strip: &mut [f32]) {
    by_tokens!(product.block.tokens, N up to fused::TOKENS => {
        if const { N > TOKENS } {
            tile::<S, N, 1>(product, strip);
        } else {
            tile::<S, N, 2>(product, strip);
        }
    })
}

/// `N` = tokens of the block, `H` = sixteens of rows at a time. Addresses are raw pointers, because bounds checks between the
/// loads cost a third.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn tile<S: Shape, const N: usize, const H: usize>(product: Product<'_>, strip: &mut [f32]) {
    const { assert!(ROWS.is_multiple_of(16 * H)) };
    let Product { panel, block, ahead, stride } = product;
    let steps = block.cols / 4;
    let parts = block.parts();
    assert!(block.tokens == N && steps <= 64);
    check_strip(strip, stride, N, ROWS);
    let groups = steps / S::STEPS;
    let mut ahead = ahead.split(groups * (ROWS / 16 / H));
    for rows in (0..ROWS).step_by(16 * H) {
        let mut acc = [[_mm512_setzero_ps(); H]; N];
        for group in 0..groups {
            ahead.part().fetch();
            // Checked before the products: after a branch, the compiler would sink the arithmetic behind it but not the
            // loads, which would run out of registers.
            let (scales, mins) = (panel.scales[group].as_ptr(), panel.mins[group].as_ptr());
            // SAFETY: the panel holds 64 steps and 16 groups of 32 rows, the block all groups of its columns.
            unsafe {
                let step = panel.quants.as_ptr().add(group * S::STEPS).cast::<[u8; 4]>();
                let mut quants = step.add(rows).cast();
                let weights = |_| {
                    (quants, _) = in_order(quants, quants);
                    let w = halves(quants, _mm512_setzero_si512(), |at| _mm512_load_si512(at));
                    quants = quants.add(ROWS / 16);
                    w
                };
                let floats = |from: *const f32| {
                    let from = from.add(rows).cast::<__m512>();
                    halves(from, _mm512_setzero_ps(), |at| _mm512_load_ps(at.cast()))
                };
                let (scales, mins) = (|| floats(scales), || floats(mins));
                add_group::<S, N, H>(weights, scales, mins, &parts, group, &mut acc);
            }
        }
        for t in 0..N {
            let scale = _mm512_set1_ps(if S::PER_256 { block.scales()[t] } else { 1.0 });
            for half in 0..H {
                let to = &mut strip[t * stride + rows + 16 * half..][..16];
                store_floats(to, _mm512_fmadd_ps(acc[t][half], scale, load_floats(to)));
            }
        }
    }
}

/// Consecutive vectors of `H` times 16 rows.
#[inline(always)]
fn halves<V: Copy, const H: usize>(
    from: *const V,
    zero: V,
    load: impl Fn(*const V) -> V,
) -> [V; H] {
    let mut values = [zero; H];
    for (half, value) in values.iter_mut().enumerate() {
        *value = load(from.wrapping_add(half));
    }
    values
}

/// Adds the products of a group of columns to `acc`, but for the scales of `PER_256`: of 16 times `H` rows with N tokens.
/// `weights` has the quants of each step.
///
/// # Safety
/// The parts are those of a block of N tokens in the shape's format that has this group.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) unsafe fn add_group<S: Shape, const N: usize, const H: usize>(
    mut weights: impl FnMut(usize) -> [__m512i; H],
    scales: impl FnOnce() -> [__m512; H],
    mins: impl FnOnce() -> [__m512; H],
    parts: &Parts,
    group: usize,
    acc: &mut [[__m512; H]; N],
) {
    let mut dots = [[_mm512_setzero_si512(); H]; N];
    // SAFETY: the parts hold STEPS x N quants, the group's sums and, but for `PER_256`, a scale for each group x N.
    unsafe {
        for (dots, start) in dots.iter_mut().zip(starts::<S, N>(parts, group)) {
            *dots = [_mm512_set1_epi32(start); H];
        }
        let mut x = parts.quants.add(group * S::STEPS * N);
        for step in 0..S::STEPS {
            (x, _) = in_order(x, x);
            let w = weights(step);
            for (t, dots) in dots.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(*x.add(t));
                for (dot, w) in dots.iter_mut().zip(w) {
                    *dot = _mm512_dpbusd_epi32(*dot, w, x);
                }
            }
            x = x.add(N);
        }
        let w = scales();
        for t in 0..N {
            for half in 0..H {
                let mut dot = _mm512_cvtepi32_ps(dots[t][half]);
                if !S::PER_256 {
                    let scale = _mm512_set1_ps(*parts.scales.add(group * N + t));
                    dot = _mm512_mul_ps(dot, scale);
                }
                acc[t][half] = _mm512_fmadd_ps(dot, w[half], acc[t][half]);
            }
        }
        if S::SIGNED {
            return;
        }
        let m = mins();
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
            for half in 0..H {
                acc[t][half] = _mm512_fmadd_ps(sum, m[half], acc[t][half]);
            }
        }
    }
}
