//! The integer tile at 256 bits without VNNI: 16 rows x up to 4 tokens, a panel in two passes.
//!
//! An unsigned quant times a signed activation gives 16-bit pair sums (`maddubs`); for small quants several steps are
//! added in 16 bits before widening: eight steps at 4 bits, four at 5, two at 6. Biases are subtracted through the
//! minimums. Full-byte quants would overflow: they are multiplied in 16 bits (`tile/avx2_wide.rs`).
//!
//! Widening multiplies pairs (`madd`), by 1 or at no extra cost by a scale. Therefore, with one activation scale per
//! 256 columns, the weights' scales stay the stored integers, each twice side by side in place of an f32, and all 256
//! columns are summed as integers; likewise the minimums of two groups with the activations' sums in pairs
//! ([`Format::Q8x256Pairs`]). Nothing overflows: a `madd` result is below 2^23 and at most 64 of them are added;
//! for minimums it is below 2^24, and eight.
#![expect(
    clippy::needless_range_loop,
    reason = "t counts tokens and half halves of the rows, in several arrays at once"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use crate::activations::{Format, SPAN};
use crate::lanes::x86::Avx2 as Lanes;
use crate::level::rows::Avx2;
use crate::panel::avx2::{
    columns, load, load_floats, pairs, put, put_pairs, store_rows, transpose,
};
use crate::panel::{Adjust, FloatPanel, Form, Mins, Panel, Quants, ROWS, Span};
use crate::tile::{
    Affine16K, Affine32, Affine32K, FloatTiles, Interleave, Product, Rounding, Shape, Signed16K,
    Signed32, Signed32K, TOKENS_MIN_MAX, Tile, Tiled, Tiles, Tiling, avx2_wide, by_tokens,
    check_strip, float, in_order, whole_row,
};
use crate::x86::{in_memory, whole_lines};

/// Maximum tokens per tile.
const TOKENS: usize = 4;

/// Maximum tokens per tile of floats. With fewer than five, the multipliers stall on their own results.
const TOKENS_FLOAT: usize = 6;

/// 16 rows at a time.
pub(super) const FLOAT_TILES: FloatTiles = FloatTiles {
    cols: SPAN,
    interleave: interleave_floats,
    tile: float::tile::<Lanes, 2, TOKENS_FLOAT, true>,
};

/// Maximum tokens per tile with activation sums in pairs. Its 32-bit sums are spilled to memory, and are needed again
/// so late that this causes no stalls.
const TOKENS_PAIRS: usize = 5;

impl Tiled for Avx2 {
    const TILING: Tiling = Tiling {
        names: ["int8 avx2", "f32 avx2"],
        tokens_alone: 0,
        tokens_max: |format| match format {
            Format::F32 => TOKENS_FLOAT,
            Format::Q8x256Pairs => TOKENS_PAIRS,
            Format::Q12x256 => avx2_wide::TOKENS,
            _ => TOKENS,
        },
        format: |quants| match quants.form {
            _ if is_wide(quants) => Format::Q12x256,
            form if form.is_per_256() => Format::Q8x256Pairs,
            _ => Format::Q8x32,
        },
        tiles,
        float_tiles: FLOAT_TILES,
        pair_tiles: None,
        row_tiles: whole_row::AVX2,
        fill: |quants| quants.fill_avx2,
        fused: |_| None,
        // Measured: benches/record/epyc-milan-2vcpu/kernels.md.
        tokens_min: |quants| match quants.highest {
            0..=15 => 5,
            32..=63 => TOKENS_MIN_MAX,
            _ => 7,
        },
        // Codes of a full byte are as slow as rounded weights, others are faster.
        rounding: |quants| {
            quants.is_none().then_some(Rounding { form: Form::Signed32K, tokens_min: 32 })
        },
        has_matrix_unit: false,
    };
}

fn tiles(quants: &Quants) -> Tiles {
    if is_wide(quants) {
        let interleave = match quants.form {
            Form::Signed32K => avx2_wide::of_integers::<32>(),
            Form::Signed16K => avx2_wide::of_integers::<16>(),
            Form::Signed32 => avx2_wide::OF_FLOATS,
            form => unreachable!("{form:?} has minimums for codes of a full byte"),
        };
        let adjust = Adjust::signed(quants.form, quants.bias);
        return Tiles { adjust, interleave, tile: avx2_wide::TILE };
    }
    let chain = chain_of(quants);
    let tile: Tile = match (quants.form, chain) {
        (Form::Signed32, 8) => any_tile::<Signed32, 8>,
        (Form::Signed32, 4) => any_tile::<Signed32, 4>,
        (Form::Signed32K, 8) => any_tile::<Signed32K, 8>,
        (Form::Signed32K, 4) => any_tile::<Signed32K, 4>,
        (Form::Affine32, 8) => any_tile::<Affine32, 8>,
        (Form::Affine32, 4) => any_tile::<Affine32, 4>,
        (Form::Affine32K, 8) => any_tile::<Affine32K, 8>,
        (Form::Affine32K, 4) => any_tile::<Affine32K, 4>,
        (Form::Signed16K, 8) => any_tile::<Signed16K, 4>,
        (Form::Signed16K, 4) => any_tile::<Signed16K, 4>,
        (Form::Signed16K, 2) => any_tile::<Signed16K, 2>,
        (Form::Affine16K, 8) => any_tile::<Affine16K, 4>,
        (form, chain) => unreachable!("no type has {form:?} with chains of {chain}"),
    };
    let adjust = match quants.form {
        form if form.is_signed() => {
            let bias = f32::from(quants.bias);
            let factor = if quants.form.is_per_256() { -bias } else { bias / 128.0 };
            Adjust { quants: 0, mins: Mins::ScalesTimes(factor) }
        }
        form if form.is_per_256() => Adjust { quants: 0, mins: Mins::Times(1.0) },
        form => Adjust::unsigned(form, quants.bias),
    };
    let interleave: Interleave = match quants.form {
        Form::Signed256K => unreachable!("integer scales are per 32 or 16"),
        Form::Signed32 | Form::Affine32 => interleave,
        Form::Signed16K | Form::Affine16K => interleave_integers::<16>,
        Form::Signed32K | Form::Affine32K => interleave_integers::<32>,
    };
    Tiles { adjust, interleave, tile }
}

/// Whether products of a type's quants do not fit 16 bits.
fn is_wide(quants: &Quants) -> bool {
    quants.highest > 63
}

/// The number of steps of a type's quants that fit 16 bits: 2 · chain · highest · 127.
fn chain_of(quants: &Quants) -> usize {
    match quants.highest {
        0..=15 => 8,
        16..=31 => 4,
        _ => 2,
    }
}

/// See [`crate::tile::Interleave`].
#[target_feature(enable = "avx2")]
pub(super) fn interleave(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel) {
    for (half, spans) in spans.as_chunks::<8>().0.iter().enumerate() {
        let first = first + 8 * half;
        interleave_quants(spans, first, adjust, panel);
        for part in 0..2 {
            let groups = 8 * part..8 * part + 8;
            let scales = columns(spans.each_ref().map(|span| (&span.scales, span.unit)), part);
            store_rows(&scales, 1.0, first, &mut panel.scales[groups.clone()]);
            let mins = &mut panel.mins[groups];
            match adjust.mins {
                Mins::None => {}
                Mins::ScalesTimes(factor) => store_rows(&scales, factor, first, mins),
                Mins::Times(factor) => {
                    let rows = spans.each_ref().map(|span| (&span.mins, span.min_unit));
                    store_rows(&columns(rows, part), factor, first, mins);
                }
            }
        }
    }
}

/// [`interleave`] with the scales and minimums of groups of `GROUP` columns as 16-bit integers: each scale twice, and
/// the minimums of two groups side by side.
#[target_feature(enable = "avx2")]
fn interleave_integers<const GROUP: usize>(
    spans: &[Span; 16],
    first: usize,
    adjust: Adjust,
    panel: &mut Panel,
) {
    for (half, spans) in spans.as_chunks::<8>().0.iter().enumerate() {
        let first = first + 8 * half;
        interleave_quants(spans, first, adjust, panel);
        for (row, span) in spans.iter().enumerate() {
            panel.units[0][first + row] = span.unit;
            panel.units[1][first + row] = span.min_unit;
        }
        for part in 0..SPAN / GROUP / 8 {
            let scales = columns(spans.each_ref().map(|span| (&span.scales, 1.0)), part);
            for (to, scales) in panel.scales[8 * part..].iter_mut().zip(scales) {
                put_pairs(to, first, pairs(scales, scales, 1.0));
            }
            let (mins, factor) = match adjust.mins {
                Mins::None => continue,
                Mins::ScalesTimes(factor) => (scales, factor),
                Mins::Times(factor) => {
                    (columns(spans.each_ref().map(|span| (&span.mins, 1.0)), part), factor)
                }
            };
            let to = &mut panel.mins[4 * part..];
            for (to, [low, high]) in to.iter_mut().zip(mins.as_chunks::<2>().0) {
                put_pairs(to, first, pairs(*low, *high, factor));
            }
        }
    }
}

/// See [`crate::tile::FloatInterleave`].
#[target_feature(enable = "avx2")]
fn interleave_floats(
    rows: &[[f32; SPAN]],
    cols: Range<usize>,
    first: usize,
    panel: &mut FloatPanel,
) {
    for (half, rows) in rows.as_chunks::<8>().0.iter().enumerate() {
        for (part, panel) in panel[..cols.len()].chunks_mut(8).enumerate() {
            let mut values = [_mm256_setzero_si256(); 8];
            for (value, row) in values.iter_mut().zip(rows) {
                *value = _mm256_castps_si256(load_floats(&row[cols.start + 8 * part..]));
            }
            store_rows(&transpose(values), 1.0, first + 8 * half, panel);
        }
    }
}

/// Interleaves the quants of rows `first..first + 8` into the panel.
#[target_feature(enable = "avx2")]
#[inline]
fn interleave_quants(spans: &[Span; 8], first: usize, adjust: Adjust, panel: &mut Panel) {
    let bias = _mm256_set1_epi8(adjust.quants as i8);
    for part in 0..8 {
        let mut rows = [_mm256_setzero_si256(); 8];
        for (row, span) in rows.iter_mut().zip(spans) {
            *row = _mm256_add_epi8(load(&span.quants.as_chunks().0[part]), bias);
        }
        for (step, value) in transpose(rows).into_iter().enumerate() {
            put(panel, 8 * part + step, first, value);
        }
    }
}

/// See [`Tile`].
#[target_feature(enable = "avx2,fma")]
fn any_tile<S: Shape, const CHAIN: usize>(product: Product<'_>, strip: &mut [f32]) {
    whole_lines();
    product.ahead.fetch();
    for first in [0, 16] {
        let strip = &mut strip[first..];
        by_tokens!(
            product.block.tokens,
            N up to if S::PER_256 { TOKENS_PAIRS } else { TOKENS }
                => tile::<S, CHAIN, N>(product, first, strip)
        )
    }
}

/// Rows `first..first + 16` of a panel; `N` = tokens of the block.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn tile<S: Shape, const CHAIN: usize, const N: usize>(
    product: Product<'_>,
    first: usize,
    strip: &mut [f32],
) {
    check_strip(strip, product.stride, N, 16);
    assert!(product.block.tokens == N && product.block.cols <= SPAN && first <= 16);
    // SAFETY: checked here.
    unsafe {
        if S::PER_256 {
            integer_scales::<S, CHAIN, N>(product, first, strip);
        } else {
            float_scales::<S, CHAIN, N>(product, first, strip);
        }
    }
}

/// Sums every 32 columns as integers and all of them as floats.
///
/// # Safety
/// There are 16 rows from `first` on, `N` tokens and 16 results for each.
#[target_feature(enable = "avx2,fma")]
unsafe fn float_scales<S: Shape, const CHAIN: usize, const N: usize>(
    product: Product<'_>,
    first: usize,
    strip: &mut [f32],
) {
    let Product { panel, block, stride, .. } = product;
    let parts = block.parts();
    let ones = [_mm256_set1_epi16(1); 2];
    let (strip, mut acc) = (strip.as_mut_ptr(), [[_mm256_setzero_ps(); 2]; N]);
    for group in 0..block.cols / 4 / S::STEPS {
        // Checked before the products; see the tile at 512 bits.
        let w = panel.scales[group][first..first + 16].as_ptr();
        let m = panel.mins[group][first..first + 16].as_ptr();
        // SAFETY: the parts hold 4 x N quants for each step, a scale and a sum for each group x N; the panel holds 64
        // steps of 32 x 4 quants, of which each group reads `S::STEPS`.
        unsafe {
            let step = group * S::STEPS;
            let quants = panel.quants.as_ptr().cast::<u8>().add(step * 4 * ROWS + 4 * first);
            let mut at = (quants, parts.quants.add(step * N));
            let mut dots = [[_mm256_setzero_si256(); 2]; N];
            for _ in 0..S::STEPS / CHAIN {
                let chain = chain::<CHAIN, N>(&mut at);
                add_products(&mut dots, &chain, ones);
            }
            for t in 0..N {
                let index = group * N + t;
                let scale = *parts.scales.add(index);
                let sum = *parts.sums.add(index) as f32 * scale;
                for half in 0..2 {
                    let dot =
                        _mm256_mul_ps(_mm256_cvtepi32_ps(dots[t][half]), _mm256_set1_ps(scale));
                    let out = &mut acc[t][half];
                    *out = _mm256_fmadd_ps(dot, _mm256_loadu_ps(w.add(8 * half)), *out);
                    let m = _mm256_loadu_ps(m.add(8 * half));
                    *out = _mm256_fmadd_ps(_mm256_set1_ps(sum), m, *out);
                }
            }
        }
    }
    for t in 0..N {
        for half in 0..2 {
            // SAFETY: the caller guarantees that many results.
            unsafe {
                let to = strip.add(t * stride + 8 * half);
                _mm256_storeu_ps(to, _mm256_add_ps(acc[t][half], _mm256_loadu_ps(to)));
            }
        }
    }
}

/// Sums all 256 columns as integers.
///
/// # Safety
/// Those of [`float_scales`].
#[target_feature(enable = "avx2,fma")]
unsafe fn integer_scales<S: Shape, const CHAIN: usize, const N: usize>(
    product: Product<'_>,
    first: usize,
    strip: &mut [f32],
) {
    let Product { panel, block, stride, .. } = product;
    assert!(block.cols == SPAN, "rows of blocks of 256 are whole blocks");
    let parts = block.parts();
    let x_sums = block.pair_sums(4 * S::STEPS);
    let strip = strip.as_mut_ptr();
    let mut dots = [[_mm256_setzero_si256(); 2]; N];
    // The registers hold the 16-bit sums.
    let dots = in_memory(&mut dots);
    let mut at = (panel.quants.as_ptr().cast::<u8>().wrapping_add(4 * first), parts.quants);
    for scales in &panel.scales[..SPAN / 4 / S::STEPS] {
        // SAFETY: the parts hold 64 x N x 4 quants, as the panel does for 32 rows, of which every group takes `S::STEPS`;
        // there are scales of 16 rows.
        unsafe {
            let scales = scales.as_ptr().add(first).cast::<__m256i>();
            for _ in 0..S::STEPS / CHAIN {
                let pairs = chain::<CHAIN, N>(&mut at);
                let (scales, _) = in_order(scales, scales);
                let scales = [_mm256_loadu_si256(scales), _mm256_loadu_si256(scales.add(1))];
                add_products(dots, &pairs, scales);
            }
        }
    }
    let mut sums = [[_mm256_setzero_si256(); 2]; N];
    if S::SIGNED {
        sums.copy_from_slice(&dots[..]);
    }
    let group_pairs = SPAN / 8 / S::STEPS;
    assert!(x_sums.len() == group_pairs * N);
    for pair in 0..group_pairs {
        // SAFETY: there are minimums of 16 rows, and N sums for each pair of groups.
        unsafe {
            let mins = panel.mins[pair].as_ptr().add(first).cast::<__m256i>();
            let (mins, x) = in_order(mins, x_sums.as_ptr().add(pair * N));
            let mins = [_mm256_loadu_si256(mins), _mm256_loadu_si256(mins.add(1))];
            let x: [_; N] = std::array::from_fn(|t| [_mm256_set1_epi32(*x.add(t)); 2]);
            add_products(&mut sums, &x, mins);
        }
    }
    for t in 0..N {
        for half in 0..2 {
            // SAFETY: as above, and the caller guarantees that many results.
            unsafe {
                let unit =
                    |of: usize| _mm256_loadu_ps(panel.units[of].as_ptr().add(first + 8 * half));
                let sum = _mm256_cvtepi32_ps(sums[t][half]);
                let value = if S::SIGNED {
                    _mm256_mul_ps(sum, unit(0))
                } else {
                    let dot = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[t][half]), unit(0));
                    _mm256_fmadd_ps(sum, unit(1), dot)
                };
                let to = strip.add(t * stride + 8 * half);
                let scale = _mm256_set1_ps(*parts.scales.add(t));
                _mm256_storeu_ps(to, _mm256_fmadd_ps(value, scale, _mm256_loadu_ps(to)));
            }
        }
    }
}

/// Adds pairs of 16-bit integers times those of a half's rows.
#[target_feature(enable = "avx2")]
#[inline]
fn add_products<const N: usize>(
    to: &mut [[__m256i; 2]; N],
    pairs: &[[__m256i; 2]; N],
    factors: [__m256i; 2],
) {
    for (to, pairs) in to.iter_mut().zip(pairs) {
        for half in 0..2 {
            let products = _mm256_madd_epi16(pairs[half], factors[half]);
            to[half] = _mm256_add_epi32(to[half], products);
        }
    }
}

/// The pair sums of as many steps as fit 16 bits, without the activations' sums. Advances the addresses past them.
///
/// # Safety
/// The addresses are followed by that many times 32 x 4 quants, except for the last 16 rows of the last step, and N x
/// 4 activations.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn chain<const CHAIN: usize, const N: usize>(
    at: &mut (*const u8, *const i32),
) -> [[__m256i; 2]; N] {
    let mut pairs = [[_mm256_setzero_si256(); 2]; N];
    for _ in 0..CHAIN {
        let (quants, x) = in_order(at.0, at.1);
        // SAFETY: guaranteed by the caller.
        let w = unsafe {
            let from = quants.cast::<__m256i>();
            [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))]
        };
        for t in 0..N {
            // SAFETY: as above; activations are aligned to 4 bytes.
            let x = _mm256_set1_epi32(unsafe { *x.add(t) });
            for half in 0..2 {
                let pair = _mm256_maddubs_epi16(w[half], x);
                pairs[t][half] = _mm256_add_epi16(pairs[t][half], pair);
            }
        }
        *at = (quants.wrapping_add(4 * ROWS), x.wrapping_add(N));
    }
    pairs
}
