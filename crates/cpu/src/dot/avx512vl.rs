//! The `k` family with 256-bit vectors of AVX-512, for CPUs that compute 512 bits in two halves.
//!
//! They are as fast with 256 bits per instruction, and 32 weights are a run of every type: codes need no rearrangement,
//! where 64 weights need a broadcast and a matrix for each vector. On Zen 4 a block of Q4_K takes 0.85 to 0.92 of the
//! time at 512 bits; on Zen 5, which computes 512 bits at once, 1.2 to 1.6 times as long.

use std::arch::x86_64::*;

use super::avx2::{evens_odds, load, load_ps_128, numbers, reduce, units};
use super::{AHEAD, Job, each, prefetch};
use crate::activations::Block256;
use crate::level::rows;
use crate::types::{Sign, SuperBlock};
use crate::x86::{apart, dpwssd_256};

/// For each 64 weights the shuffle of a block's scales to the lanes of two packed vectors of sums. In lower and upper
/// half the 16-bit scales of even and of odd groups of sixteen are shuffled.
const OF_16: [[u8; 32]; 4] = {
    let (mut tables, mut at) = ([[0; 32]; 4], 0);
    while at < 128 {
        let (pair, byte) = (at / 32, at % 32);
        tables[pair][byte] = (4 * pair + byte % 16 / 8 * 2 + byte % 2) as u8;
        at += 1;
    }
    tables
};

/// [`OF_16`] of groups of 32, whose scales are the bytes of a vector; byte 31 is zero.
const OF_32: [[u8; 32]; 4] = {
    let (mut tables, mut at) = ([[31; 32]; 4], 0);
    while at < 128 {
        let (pair, byte) = (at / 32, at % 32);
        tables[pair][byte] = (2 * pair + byte % 16 / 8) as u8;
        at += 2;
    }
    tables
};

/// A block's scales and minimums.
struct Head {
    /// As [`OF_16`] or [`OF_32`] expects them.
    scales: __m256i,
    /// Minimums of groups of sixteen, in the order of [`Block256::whole_sums`].
    mins: __m256i,
    /// The scale of the scales and that of the minimums.
    units: __m128,
    /// The signs of [`Sign::Apart`], a bit per weight.
    signs: [u32; 8],
}

/// Whether scales are unsigned bytes that [`OF_32`] spreads.
const fn is_spread<T: SuperBlock>() -> bool {
    T::GROUP == 32 && T::HAS_MINS
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
fn open<T: SuperBlock>(block: &[u8]) -> Head {
    let [scales, mins] = numbers::<T, rows::Avx512Vnni>(block);
    let (units, signs) = (units::<T>(block)[0], T::signs(block));
    if is_spread::<T>() {
        let scales = _mm256_zextsi128_si256(scales);
        let mins = _mm256_cvtepi8_epi16(_mm_unpackhi_epi64(mins, mins));
        return Head { scales, mins, units, signs };
    }
    // A number of 32 weights applies to an even and an odd group of sixteen.
    let scales =
        if T::GROUP == 32 { _mm_unpacklo_epi64(scales, scales) } else { evens_odds(scales) };
    let scales = T::scales_256(block).unwrap_or(_mm256_cvtepi8_epi16(scales));
    let mins = if T::HAS_MINS {
        _mm256_cvtepi8_epi16(evens_odds(mins))
    } else {
        _mm256_mullo_epi16(scales, _mm256_set1_epi16(i16::from(T::ZERO)))
    };
    Head { scales, mins, units, signs }
}

/// Multiplies rows of blocks of 256 with `C` columns.
///
/// VPDPBUSD sums four products per lane, which fit 16 bits; two vectors of sums are packed, so that VPDPWSSD
/// multiplies the sums of 64 weights with their scales.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
pub fn k<T: SuperBlock, const C: usize>(job: &mut Job<'_>) {
    const { assert!(matches!(T::SIGN, Sign::Lifted | Sign::Apart) && T::HIGHEST <= 64) };
    let columns = job.columns::<Block256, C>();
    let tables = apart(if is_spread::<T>() { &OF_32 } else { &OF_16 });
    for (r, row) in job.rows().enumerate() {
        // Of products and of minimums: a block adds to both, and would wait twice for a single one.
        let mut sums = [[_mm256_setzero_ps(); 2]; C];
        for (b, block) in row.chunks_exact(T::BYTES).enumerate() {
            prefetch(block, AHEAD);
            let head = open::<T>(block);
            let mut dots = [_mm256_setzero_si256(); C];
            for (pair, table) in tables.iter().enumerate() {
                let codes = [T::codes(block, 64 * pair), T::codes(block, 64 * pair + 32)];
                let table = load(table, 0);
                let scales = if is_spread::<T>() {
                    _mm256_permutexvar_epi8(table, head.scales)
                } else {
                    _mm256_shuffle_epi8(head.scales, table)
                };
                each::<C>(|c| {
                    let [a, b] = [0, 1].map(|half| {
                        products::<T>(codes[half], &columns[c][b], &head.signs, 2 * pair + half)
                    });
                    dots[c] = dpwssd_256(dots[c], _mm256_packs_epi32(a, b), scales);
                });
            }
            each::<C>(|c| close::<T>(&head, dots[c], &columns[c][b], &mut sums[c]));
        }
        job.store(r, reduce(sums.map(|[products, mins]| _mm256_sub_ps(products, mins))));
    }
}

/// Sums of four products each of 32 weights, the `i`-th of their block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
fn products<T: SuperBlock>(
    codes: __m256i,
    column: &Block256,
    signs: &[u32; 8],
    i: usize,
) -> __m256i {
    let zero = _mm256_setzero_si256();
    let mut activations = load(bytemuck::bytes_of(&column.quants), 32 * i);
    if T::SIGN == Sign::Apart {
        activations = _mm256_mask_sub_epi8(activations, signs[i], zero, activations);
    }
    _mm256_dpbusd_epi32(zero, codes, activations)
}

/// Adds a block's dot products and minimums to the sums of both.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
fn close<T: SuperBlock>(head: &Head, mut dots: __m256i, column: &Block256, sums: &mut [__m256; 2]) {
    let units = _mm_mul_ps(head.units, load_ps_128(&column.scale));
    let mins = _mm256_madd_epi16(head.mins, load(bytemuck::bytes_of(&column.whole_sums), 0));
    if T::HAS_MINS {
        let dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(units));
        sums[1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(mins), dmin, sums[1]);
    } else if T::ZERO > 0 {
        dots = _mm256_sub_epi32(dots, mins);
    }
    sums[0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_broadcastss_ps(units), sums[0]);
}
