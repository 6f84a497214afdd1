//! The kernel families' loops with 256-bit VNNI integer dot products; everything else is shared with AVX2.

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx2::{
    K, Quad, QuadSum, k_close, k_scales, load, prefetch, quad_close, reduce, spread,
};
use super::{Groups, Job};
use crate::activations::{Block256, Quad32};
use crate::x86::whole_lines;

/// Multiplies rows of `BYTES` bytes per block of 256 with `C` columns. VPDPWSSD multiplies the pairs' sums with their
/// scales and accumulates them in one instruction, where AVX2 needs two.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub fn k<const BYTES: usize, const C: usize>(
    job: &mut Job<'_>,
    open: impl Fn(&[u8; BYTES]) -> K,
    half: impl Fn(&[u8; BYTES], usize) -> [__m256i; 4],
) {
    whole_lines();
    let (columns, tables) = (job.columns::<Block256, C>(), spread());
    for (r, row) in job.rows().enumerate() {
        let mut sums = [_mm256_setzero_ps(); C];
        for (b, block) in row.as_chunks::<BYTES>().0.iter().enumerate() {
            prefetch(block);
            let weights = open(block);
            let mut dots = [_mm256_setzero_si256(); C];
            for h in 0..2 {
                let (quants, scales) = (half(block, h), k_scales(&weights, tables, h));
                for (dots, column) in dots.iter_mut().zip(columns) {
                    let activations = bytemuck::bytes_of(&column[b].quants);
                    for i in 0..4 {
                        let activations = load(activations, 128 * h + 32 * i);
                        let pairs = _mm256_maddubs_epi16(quants[i], activations);
                        *dots = dpwssd(*dots, pairs, scales[i]);
                    }
                }
            }
            for ((sum, dots), column) in sums.iter_mut().zip(dots).zip(columns) {
                *sum = k_close(&weights, dots, &column[b], *sum);
            }
        }
        job.store(r, reduce(sums));
    }
}

/// VPDPWSSD as a single instruction, as in avx512.rs.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn dpwssd(mut sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the instruction reads and writes the named registers only, and is enabled above.
    unsafe {
        asm!(
            "{{vex}} vpdpwssd {sums}, {a}, {b}",
            sums = inout(ymm_reg) sums,
            a = in(ymm_reg) a,
            b = in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Multiplies rows of `BYTES` bytes per `QUADS` quads with `C` columns; codes are unsigned.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub fn quad<const BYTES: usize, const QUADS: usize, const C: usize>(
    job: &mut Job<'_>,
    unit: f32,
    unpack: impl Fn(&[u8; BYTES], usize) -> Quad,
) {
    whole_lines();
    let columns = job.columns::<Quad32, C>();
    let zero = _mm256_setzero_si256();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [QuadSum::zero(); C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            prefetch(group);
            for q in 0..QUADS {
                let weights = unpack(group, q);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    let column = &column[g * QUADS + q];
                    let activations = bytemuck::bytes_of(&column.quants);
                    let dots = [0, 1, 2, 3].map(|b| {
                        let activations = load(activations, 32 * b);
                        _mm256_dpbusd_avx_epi32(zero, weights.quants[b], activations)
                    });
                    quad_close::<true>(&weights, dots, column, sum);
                }
            }
        }
        job.store(r, reduce(sums.map(|sum| sum.close(unit))));
    }
}
