//! The integer tile at 256 bits with VNNI: 16 rows x up to 6 tokens, a panel in two passes.
//!
//! The 512-bit tile with half the rows. Twelve integer sums and their operands fill the 16 registers; the f32 sums
//! are spilled, which is cheap because they are used once per group.
#![expect(
    clippy::needless_range_loop,
    reason = "t counts tokens and half halves of the rows, in several arrays at once"
)]

use std::arch::x86_64::*;

use crate::level::rows::AvxVnni;
use crate::panel::{Adjust, Quants, ROWS};
use crate::tile::avx2::{FLOAT_TILES, interleave};
use crate::tile::{
    Product, Shape, Tile, Tiled, Tiles, Tiling, by_form, by_tokens, check_strip, few_columns,
    format_of_form, in_order, never, starts, whole_row,
};
use crate::x86::whole_lines;

/// Maximum tokens per tile.
const TOKENS: usize = 6;

impl Tiled for AvxVnni {
    const TILING: Tiling = Tiling {
        names: ["int8 avxvnni", "f32 avx2"],
        tokens_alone: 0,
        tokens_max: |_| TOKENS,
        format: format_of_form,
        tiles,
        float_tiles: FLOAT_TILES,
        pair_tiles: None,
        row_tiles: whole_row::AVXVNNI,
        fill: |quants| quants.fill_avxvnni,
        fused: |_| None,
        tokens_min: few_columns,
        rounding: never,
        has_matrix_unit: false,
    };
}

fn tiles(quants: &Quants) -> Tiles {
    let tile: Tile = by_form!(quants.form, any_tile);
    Tiles { adjust: Adjust::unsigned(quants.form, quants.bias), interleave, tile }
}

/// See [`Tile`].
#[target_feature(enable = "avx2,fma,avxvnni")]
fn any_tile<S: Shape>(product: Product<'_>, strip: &mut [f32]) {
    whole_lines();
    product.ahead.fetch();
    for first in [0, 16] {
        let strip = &mut strip[first..];
        by_tokens!(product.block.tokens, N up to TOKENS => tile::<S, N>(product, first, strip))
    }
}

/// Rows `first..first + 16` of a panel; `N` = tokens of the block.
#[target_feature(enable = "avx2,fma,avxvnni")]
fn tile<S: Shape, const N: usize>(product: Product<'_>, first: usize, strip: &mut [f32]) {
    let Product { panel, block, stride, .. } = product;
    let steps = block.cols / 4;
    let parts = block.parts();
    assert!(block.tokens == N && steps <= 64 && first <= 16);
    check_strip(strip, stride, N, 16);
    let (strip, mut acc) = (strip.as_mut_ptr(), [[_mm256_setzero_ps(); 2]; N]);
    for group in 0..steps / S::STEPS {
        // Checked before the products; see the tile at 512 bits.
        let w = panel.scales[group][first..first + 16].as_ptr();
        let m = panel.mins[group][first..first + 16].as_ptr();
        // SAFETY: the parts hold `steps` x N quants and, for each group x N, what its shape reads; the
        // panel holds 64 steps of 32 x 4 quants, of which each group reads `S::STEPS`.
        unsafe {
            let step = group * S::STEPS;
            let quants = panel.quants.as_ptr().cast::<u8>().add(step * 4 * ROWS + 4 * first);
            let start = starts::<S, N>(&parts, group);
            let dots = dots::<N>(S::STEPS, quants, parts.quants.add(step * N), start);
            for t in 0..N {
                let index = group * N + t;
                let scale = if S::PER_256 { 1.0 } else { *parts.scales.add(index) };
                let sum = if S::FLOAT_SUMS {
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
                    if !S::SIGNED {
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

/// The integer sums of one group: `start` + quants x activations.
///
/// # Safety
/// The pointers are followed by `steps` x 32 x 4 quants, except for the last 16 rows of the last step, and `steps` x
/// N x 4 activations.
#[target_feature(enable = "avx2,avxvnni")]
#[inline]
unsafe fn dots<const N: usize>(
    steps: usize,
    mut quants: *const u8,
    mut x: *const i32,
    start: [i32; N],
) -> [[__m256i; 2]; N] {
    let mut dots = [[_mm256_setzero_si256(); 2]; N];
    for t in 0..N {
        dots[t] = [_mm256_set1_epi32(start[t]); 2];
    }
    for _ in 0..steps {
        (quants, x) = in_order(quants, x);
        // SAFETY: the caller guarantees `steps` of them.
        let w = unsafe {
            let from = quants.cast::<__m256i>();
            [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))]
        };
        for t in 0..N {
            // SAFETY: as above; activations are aligned to 4 bytes.
            let x = _mm256_set1_epi32(unsafe { *x.add(t) });
            dots[t][0] = _mm256_dpbusd_avx_epi32(dots[t][0], w[0], x);
            dots[t][1] = _mm256_dpbusd_avx_epi32(dots[t][1], w[1], x);
        }
        (quants, x) = (quants.wrapping_add(4 * ROWS), x.wrapping_add(N));
    }
    dots
}
