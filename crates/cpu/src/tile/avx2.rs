//! The integer tile at 256 bits without VNNI: 16 rows x up to 4 tokens, a panel in two passes.
//!
//! An unsigned quant times a signed activation gives 16-bit pair sums (`maddubs`); of small quants
//! several steps are added in 16 bits before they are widened: eight steps at 4 bits, four at 5, two
//! at 6. Biases are taken back through the minimums. Quants of a full byte would overflow: they are
//! multiplied as magnitudes with activations that carry their signs, and widened every step, which
//! costs twice the time of 4 bits.
#![expect(
    clippy::needless_range_loop,
    reason = "t counts tokens and half halves of the rows, in several arrays at once"
)]

use std::arch::x86_64::*;

use crate::panel::{Form, Quants, Span};
use crate::tile::{
    Adjust, Affine16K, Affine32, Affine32K, Mins, Panel, Product, ROWS, Shape, Signed16K, Signed32,
    Signed32K, Tile, Tiles, check_strip, in_order,
};
use crate::x86::whole_lines;

/// Most tokens in a tile.
pub(super) const TOKENS: usize = 4;

/// Stands for quants of a full byte among the lengths of chains.
const WIDE: usize = 0;

pub(super) fn tiles(quants: &Quants) -> Tiles {
    // 2 · chain · highest · 127 must fit 16 bits.
    let chain = match quants.highest {
        0..=15 => 8,
        16..=31 => 4,
        32..=63 => 2,
        _ => WIDE,
    };
    let tile: Tile = match (quants.form, chain) {
        (Form::Signed32, 8) => any_tile::<Signed32, 8>,
        (Form::Signed32, 4) => any_tile::<Signed32, 4>,
        (Form::Signed32, WIDE) => any_tile::<Signed32, WIDE>,
        (Form::Signed32K, WIDE) => any_tile::<Signed32K, WIDE>,
        (Form::Affine32, 8) => any_tile::<Affine32, 8>,
        (Form::Affine32, 4) => any_tile::<Affine32, 4>,
        (Form::Affine32K, 8) => any_tile::<Affine32K, 8>,
        (Form::Affine32K, 4) => any_tile::<Affine32K, 4>,
        (Form::Signed16K, 8) => any_tile::<Signed16K, 4>,
        (Form::Signed16K, 2) => any_tile::<Signed16K, 2>,
        (Form::Affine16K, 8) => any_tile::<Affine16K, 4>,
        (form, chain) => unreachable!("no type has {form:?} with chains of {chain}"),
    };
    let adjust = match chain {
        // 128 too high becomes two's complement.
        WIDE => Adjust { quants: 128, mins: Mins::None },
        _ if quants.form.is_signed() => {
            let factor = f32::from(quants.bias) / 128.0;
            Adjust { quants: 0, mins: Mins::ScalesTimes(factor) }
        }
        _ => Adjust::unsigned(quants.form, quants.bias),
    };
    Tiles { adjust, interleave, tile }
}

/// Eight vectors of eight dwords, transposed.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    let mut a = rows;
    for i in 0..4 {
        a[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut b = a;
    for i in 0..2 {
        for half in 0..2 {
            b[4 * i + 2 * half] = _mm256_unpacklo_epi64(a[4 * i + half], a[4 * i + 2 + half]);
            b[4 * i + 2 * half + 1] = _mm256_unpackhi_epi64(a[4 * i + half], a[4 * i + 2 + half]);
        }
    }
    let mut out = b;
    for c in 0..4 {
        out[c] = _mm256_permute2x128_si256::<0x20>(b[c], b[4 + c]);
        out[4 + c] = _mm256_permute2x128_si256::<0x31>(b[c], b[4 + c]);
    }
    out
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load(from: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes are read from a reference to 32.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load_floats(from: &[f32]) -> __m256 {
    let from = &from[..8];
    // SAFETY: the slice has 8 elements.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_floats(to: &mut [f32], value: __m256) {
    let to = &mut to[..8];
    // SAFETY: the slice has 8 elements.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), value) }
}

/// See [`crate::tile::Interleave`].
#[target_feature(enable = "avx2")]
pub(super) fn interleave(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel) {
    let bias = _mm256_set1_epi8(adjust.quants as i8);
    for (half, spans) in spans.as_chunks::<8>().0.iter().enumerate() {
        let first = first + 8 * half;
        for part in 0..8 {
            let mut rows = [_mm256_setzero_si256(); 8];
            for (row, span) in rows.iter_mut().zip(spans) {
                *row = _mm256_add_epi8(load(&span.quants.as_chunks().0[part]), bias);
            }
            for (step, value) in transpose(rows).into_iter().enumerate() {
                let to = &mut panel.quants[8 * part + step][first..first + 8];
                // SAFETY: eight rows of four bytes are written, as many as the slice has.
                unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) };
            }
        }
        for part in 0..2 {
            let groups = 8 * part..8 * part + 8;
            let mut rows = [_mm256_setzero_si256(); 8];
            for (row, span) in rows.iter_mut().zip(spans) {
                *row = _mm256_castps_si256(load_floats(&span.scales[8 * part..]));
            }
            let scales = transpose(rows);
            store_rows(&scales, 1.0, first, &mut panel.scales[groups.clone()]);
            let mins = &mut panel.mins[groups];
            match adjust.mins {
                Mins::None => {}
                Mins::ScalesTimes(factor) => store_rows(&scales, factor, first, mins),
                Mins::Times(factor) => {
                    for (row, span) in rows.iter_mut().zip(spans) {
                        *row = _mm256_castps_si256(load_floats(&span.mins[8 * part..]));
                    }
                    store_rows(&transpose(rows), factor, first, mins);
                }
            }
        }
    }
}

/// Stores values times `factor` of rows `first..first + 8`, a vector for each of `to`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_rows(values: &[__m256i; 8], factor: f32, first: usize, to: &mut [[f32; ROWS]]) {
    for (to, value) in to.iter_mut().zip(values) {
        let value = _mm256_mul_ps(_mm256_castsi256_ps(*value), _mm256_set1_ps(factor));
        store_floats(&mut to[first..], value);
    }
}

/// See [`Tile`].
#[target_feature(enable = "avx2,fma")]
fn any_tile<S: Shape, const CHAIN: usize>(product: Product<'_>, strip: &mut [f32]) {
    whole_lines();
    product.ahead.fetch();
    for first in [0, 16] {
        let strip = &mut strip[first..];
        match product.block.tokens {
            1 => tile::<S, CHAIN, 1>(product, first, strip),
            2 => tile::<S, CHAIN, 2>(product, first, strip),
            3 => tile::<S, CHAIN, 3>(product, first, strip),
            4 => tile::<S, CHAIN, 4>(product, first, strip),
            tokens => unreachable!("{tokens} tokens in a chunk of at most {TOKENS}"),
        }
    }
}

/// Rows `first..first + 16` of a panel; `N` = tokens of the block.
#[target_feature(enable = "avx2,fma")]
fn tile<S: Shape, const CHAIN: usize, const N: usize>(
    product: Product<'_>,
    first: usize,
    strip: &mut [f32],
) {
    let Product { panel, block, stride, .. } = product;
    let steps = block.cols / 4;
    let parts = block.parts();
    assert!(block.tokens == N && steps <= 64 && first <= 16);
    check_strip(strip, stride, N, 16);
    let (strip, mut acc) = (strip.as_mut_ptr(), [[_mm256_setzero_ps(); 2]; N]);
    for group in 0..steps / S::STEPS {
        // Checked before the products: see the tile at 512 bits.
        let w = panel.scales[group][first..first + 16].as_ptr();
        let m = panel.mins[group][first..first + 16].as_ptr();
        // SAFETY: the parts hold `steps` x N quants and, but for `PER_256`, a scale for each group x
        // N; the panel holds 64 steps of 32 x 4 quants, of which each group reads `S::STEPS`.
        unsafe {
            let step = group * S::STEPS;
            let quants = panel.quants.as_ptr().cast::<u8>().add(step * 4 * ROWS + 4 * first);
            let dots = dots::<CHAIN, N>(S::STEPS, quants, parts.quants.add(step * N));
            for t in 0..N {
                let index = group * N + t;
                let scale = if S::PER_256 { 1.0 } else { *parts.scales.add(index) };
                let sum = if CHAIN == WIDE {
                    0.0
                } else if S::FLOAT_SUMS {
                    *parts.float_sums.add(index)
                } else {
                    *parts.sums.add(index) as f32 * scale
                };
                for half in 0..2 {
                    let mut dot = _mm256_cvtepi32_ps(dots[t][half]);
                    if !S::PER_256 {
                        dot = _mm256_mul_ps(dot, _mm256_set1_ps(scale));
                    }
                    let out = &mut acc[t][half];
                    *out = _mm256_fmadd_ps(dot, _mm256_loadu_ps(w.add(8 * half)), *out);
                    if CHAIN != WIDE {
                        let m = _mm256_loadu_ps(m.add(8 * half));
                        *out = _mm256_fmadd_ps(_mm256_set1_ps(sum), m, *out);
                    }
                }
            }
        }
    }
    for t in 0..N {
        for half in 0..2 {
            // SAFETY: the strip was checked, the scales of `PER_256` are N.
            unsafe {
                let to = strip.add(t * stride + 8 * half);
                let scale = _mm256_set1_ps(if S::PER_256 { *parts.scales.add(t) } else { 1.0 });
                _mm256_storeu_ps(to, _mm256_fmadd_ps(acc[t][half], scale, _mm256_loadu_ps(to)));
            }
        }
    }
}

/// The integer sums of one group, without the activations' sums.
///
/// # Safety
/// From the pointers on there must be `steps` x 32 x 4 quants, but for the last 16 rows of the last
/// step, and `steps` x N x 4 activations.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn dots<const CHAIN: usize, const N: usize>(
    steps: usize,
    mut quants: *const u8,
    mut x: *const i32,
) -> [[__m256i; 2]; N] {
    let ones = _mm256_set1_epi16(1);
    let mut dots = [[_mm256_setzero_si256(); 2]; N];
    for _ in 0..steps / CHAIN.max(1) {
        let mut pairs = [[_mm256_setzero_si256(); 2]; N];
        for _ in 0..CHAIN.max(1) {
            (quants, x) = in_order(quants, x);
            // SAFETY: the caller has `steps` of them.
            let w = unsafe {
                let from = quants.cast::<__m256i>();
                [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))]
            };
            for t in 0..N {
                // SAFETY: as above; activations lie at multiples of 4 bytes.
                let x = _mm256_set1_epi32(unsafe { *x.add(t) });
                for half in 0..2 {
                    if CHAIN == WIDE {
                        let x = _mm256_sign_epi8(x, w[half]);
                        pairs[t][half] = _mm256_maddubs_epi16(_mm256_abs_epi8(w[half]), x);
                    } else {
                        let pair = _mm256_maddubs_epi16(w[half], x);
                        pairs[t][half] = _mm256_add_epi16(pairs[t][half], pair);
                    }
                }
            }
            (quants, x) = (quants.wrapping_add(4 * ROWS), x.wrapping_add(N));
        }
        for t in 0..N {
            for half in 0..2 {
                let sums = _mm256_madd_epi16(pairs[t][half], ones);
                dots[t][half] = _mm256_add_epi32(dots[t][half], sums);
            }
        }
    }
    dots
}
