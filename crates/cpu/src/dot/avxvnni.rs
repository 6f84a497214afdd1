//! The kernel families' loops with 256-bit VNNI integer dot products; everything else is shared with AVX2.

use std::arch::x86_64::*;

use super::avx2::{
    Half, K, QuadSum, k_close, k_scales, load, open, prefetch, quad_close, reduce, spread, unit,
    unpack,
};
use super::{Groups, Job};
use crate::activations::{Block256, Quad32};
use crate::level::rows;
use crate::types::{Quads, SuperBlock};
use crate::x86::{dpwssd_vex, whole_lines};

/// Multiplies rows of blocks of 256 with `C` columns. VPDPWSSD multiplies the pairs' sums with their scales and
/// accumulates them in one instruction, where AVX2 needs two.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub fn k<T: SuperBlock, const C: usize>(job: &mut Job<'_>) {
    whole_lines();
    let (columns, tables) = (job.columns::<Block256, C>(), spread());
    for (r, row) in job.rows().enumerate() {
        let mut sums = [_mm256_setzero_ps(); C];
        for (b, block) in row.chunks_exact(T::BYTES).enumerate() {
            prefetch(block);
            let weights = open::<T, rows::AvxVnni>(block);
            let mut dots = [_mm256_setzero_si256(); C];
            k_half::<T, 0, C>(block, &weights, tables, columns.map(|column| &column[b]), &mut dots);
            k_half::<T, 1, C>(block, &weights, tables, columns.map(|column| &column[b]), &mut dots);
            for ((sum, dots), column) in sums.iter_mut().zip(dots).zip(columns) {
                *sum = k_close(&weights, dots, &column[b], *sum);
            }
        }
        job.store(r, reduce(sums));
    }
}

/// Adds half `H` of a block, scaled.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn k_half<T: SuperBlock, const H: usize, const C: usize>(
    block: &[u8],
    weights: &K,
    tables: &[[u8; 32]; 8],
    columns: [&Block256; C],
    dots: &mut [__m256i; C],
) {
    let (half, scales) = (Half::of::<T, H>(block, weights), k_scales(weights, tables, H));
    for (dots, column) in dots.iter_mut().zip(columns) {
        let activations = bytemuck::bytes_of(&column.quants);
        for (i, scales) in scales.into_iter().enumerate() {
            let pairs = half.pairs::<T>(load(activations, 128 * H + 32 * i), i);
            *dots = dpwssd_vex(*dots, pairs, scales);
        }
    }
}

/// Multiplies rows of quads with `C` columns. Values are unsigned, but for those with scales of 16 weights: their
/// offsets would need sums of 16 activations, so they transfer their sign.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub fn quad<T: Quads, const BYTES: usize, const C: usize>(job: &mut Job<'_>) {
    whole_lines();
    let is_signed = const { T::GROUP == 16 };
    let columns = job.columns::<Quad32, C>();
    let zero = _mm256_setzero_si256();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [QuadSum::zero(); C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            prefetch(group);
            for q in 0..T::QUADS {
                let weights = if is_signed {
                    unpack::<T, true>(group, q)
                } else {
                    unpack::<T, false>(group, q)
                };
                for (sum, column) in sums.iter_mut().zip(columns) {
                    let column = &column[g * T::QUADS + q];
                    let activations = bytemuck::bytes_of(&column.quants);
                    let dots = [0, 1, 2, 3].map(|b| {
                        let (values, activations) = (weights.values[b], load(activations, 32 * b));
                        if is_signed {
                            let signed = _mm256_sign_epi8(activations, values);
                            _mm256_dpbusd_avx_epi32(zero, _mm256_abs_epi8(values), signed)
                        } else {
                            _mm256_dpbusd_avx_epi32(zero, values, activations)
                        }
                    });
                    if is_signed {
                        quad_close::<T, false>(&weights, dots, column, sum);
                    } else {
                        quad_close::<T, true>(&weights, dots, column, sum);
                    }
                }
            }
        }
        job.store(r, reduce(sums.map(|sum| sum.close(unit::<T>()))));
    }
}
