//! The families' loops with AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::{AHEAD, AHEAD_FLOATS, Job, groups, part};
use crate::columns::{Block256, F32_STEP, Quad32};
use crate::x86::{apart, whole_lines};

/// What a block of 256 weights has but for its codes.
pub struct K {
    /// The block's scale.
    pub d: __m256,
    /// The scales of the parts, 16 bits each, as the type's `half` wants them.
    pub scales: __m256i,
    /// What is subtracted from each 16 weights.
    pub mins: [__m256; 2],
}

/// Half a block: codes of 128 weights in natural order, unsigned and at most 64, and the 16-bit
/// scale of each pair of them.
pub struct KHalf {
    pub quants: [__m256i; 4],
    pub scales: [__m256i; 4],
}

/// Rows of `BYTES` a block of 256 against `C` columns.
///
/// Half a block at a time, so that codes and scales stay in the sixteen registers. Sums of two
/// products fit 16 bits, and VPMADDWD multiplies them with the scales.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn k<const BYTES: usize, const C: usize>(
    job: &mut Job<'_>,
    open: impl Fn(&[u8; BYTES]) -> K,
    half: impl Fn(&[u8; BYTES], &K, usize) -> KHalf,
) {
    whole_lines();
    let columns = job.columns::<Block256, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [_mm256_setzero_ps(); C];
        for (b, block) in row.as_chunks::<BYTES>().0.iter().enumerate() {
            prefetch(block);
            let weights = open(block);
            let mut dots = [_mm256_setzero_si256(); C];
            for h in 0..2 {
                let half = half(block, &weights, h);
                for (dots, column) in dots.iter_mut().zip(columns) {
                    let activations = bytemuck::bytes_of(&column[b].quants);
                    for i in 0..4 {
                        let activations = load(activations, 128 * h + 32 * i);
                        let pairs = _mm256_maddubs_epi16(half.quants[i], activations);
                        let scaled = _mm256_madd_epi16(pairs, half.scales[i]);
                        *dots = _mm256_add_epi32(*dots, scaled);
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

/// Adds a block's scaled dots and minimums to the sum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn k_close(weights: &K, dots: __m256i, column: &Block256, sum: __m256) -> __m256 {
    let [sums_low, sums_high] = halves(&column.sums);
    let scale = _mm256_mul_ps(weights.d, halves(&column.scale)[0]);
    let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scale, sum);
    let sum = _mm256_fnmadd_ps(weights.mins[0], sums_low, sum);
    _mm256_fnmadd_ps(weights.mins[1], sums_high, sum)
}

/// Four blocks of 32 weights in natural order.
pub struct Quad {
    /// Codes: unsigned or signed as the kernel is told.
    pub quants: [__m256i; 4],
    /// The scale of each lane's block: blocks 0 and 2, then 1 and 3, as `QUAD_LANES`.
    pub scales: [__m256; 2],
    /// What is added to each weight of the lane's block.
    pub offsets: [__m256; 2],
}

/// Rows of `BYTES` per `QUADS` quads against `C` columns; `unpack` is asked for each in turn.
///
/// As the 512-bit kernel, with blocks 0 and 2 in one vector and 1 and 3 in the other. Codes of
/// eight `CODE_BITS` are signed: they give their sign to the activations, because VPMADDUBSW
/// would saturate on unsigned ones, and need no offsets.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn quad<const BYTES: usize, const QUADS: usize, const CODE_BITS: u32, const C: usize>(
    job: &mut Job<'_>,
    unpack: impl Fn(&[u8; BYTES], usize) -> Quad,
) {
    whole_lines();
    let columns = job.columns::<Quad32, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [_mm256_setzero_ps(); C];
        let (whole, tail) = groups::<BYTES>(row);
        for (g, group) in whole.iter().chain(&tail).enumerate() {
            prefetch(group);
            for q in 0..QUADS {
                let weights = unpack(group, q);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    let column = &column[g * QUADS + q];
                    let folded = quad_dots::<CODE_BITS>(&weights, column);
                    *sum = if CODE_BITS == 8 {
                        quad_close::<false>(&weights, folded, column, *sum)
                    } else {
                        quad_close::<true>(&weights, folded, column, *sum)
                    };
                }
            }
        }
        job.store(r, reduce(sums));
    }
}

/// The four blocks' dots, four lanes each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quad_dots<const CODE_BITS: u32>(weights: &Quad, column: &Quad32) -> [__m256i; 2] {
    let activations = bytemuck::bytes_of(&column.quants);
    fold::<CODE_BITS>([0, 1, 2, 3].map(|b| {
        let (quants, activations) = (weights.quants[b], load(activations, 32 * b));
        let pairs = if CODE_BITS == 8 {
            let signed = _mm256_sign_epi8(activations, quants);
            _mm256_maddubs_epi16(_mm256_abs_epi8(quants), signed)
        } else {
            _mm256_maddubs_epi16(quants, activations)
        };
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }))
}

/// Folds eight lanes each of four blocks into four each of blocks 0 and 2, 1 and 3. Small codes
/// fold as 16-bit numbers, an instruction less.
#[inline]
#[target_feature(enable = "avx2")]
pub fn fold<const CODE_BITS: u32>(dots: [__m256i; 4]) -> [__m256i; 2] {
    [0, 1].map(|i| {
        let (a, b) = (dots[i], dots[i + 2]);
        if CODE_BITS <= 6 {
            _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1))
        } else {
            _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
        }
    })
}

/// Adds four blocks' folded dots to the sum; with `OFFSETS`, what their offsets add too.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn quad_close<const OFFSETS: bool>(
    weights: &Quad,
    folded: [__m256i; 2],
    column: &Quad32,
    sum: __m256,
) -> __m256 {
    let (scales, sums) = (halves(&column.scales), halves(&column.sums));
    let term = |i: usize| _mm256_mul_ps(_mm256_cvtepi32_ps(folded[i]), scales[i]);
    // Only the last addition waits for the quad before.
    let mut added = _mm256_mul_ps(term(0), weights.scales[0]);
    added = _mm256_fmadd_ps(term(1), weights.scales[1], added);
    if OFFSETS {
        added = _mm256_fmadd_ps(weights.offsets[0], sums[0], added);
        added = _mm256_fmadd_ps(weights.offsets[1], sums[1], added);
    }
    _mm256_add_ps(sum, added)
}

/// The f16 numbers `field` bytes into each of four blocks of `block` bytes, over the lanes of
/// [`Quad::scales`].
///
/// Whole vectors are loaded for two bytes each: insertions of single words would come to depend on
/// whatever register the compiler merges them into, and it chooses the sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn quad_scales(quad: &[u8], block: usize, field: usize) -> [__m256; 2] {
    let [a, b, c, d] =
        [0, 1, 2, 3].map(|b| load_128(apart::<[u8; 16]>(part(quad, b * block + field)), 0));
    let bits = _mm_unpacklo_epi32(_mm_unpacklo_epi16(a, b), _mm_unpacklo_epi16(c, d));
    quad_lanes(_mm_cvtph_ps(bits))
}

/// Four blocks' values, spread over the lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn quad_lanes(values: __m128) -> [__m256; 2] {
    let values = _mm256_set_m128(values, values);
    [_mm256_moveldup_ps(values), _mm256_movehdup_ps(values)]
}

/// Rows of `BYTES` per 32 floats against `C` columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn float<const BYTES: usize, const C: usize>(
    job: &mut Job<'_>,
    unpack: impl Fn(&[u8; BYTES]) -> [__m256; 4],
) {
    whole_lines();
    let columns = job.columns::<[f32; F32_STEP], C>();
    for (r, row) in job.rows().enumerate() {
        // Four chains of additions hide their latency where there is one column. Several have as many, so that a
        // column's sum is the same whoever stands beside it.
        let mut sums = [[_mm256_setzero_ps(); 4]; C];
        let (whole, tail) = groups::<BYTES>(row);
        for (g, group) in whole.iter().chain(&tail).enumerate() {
            prefetch_at::<AHEAD_FLOATS>(group);
            let weights = unpack(group);
            for (sums, column) in sums.iter_mut().zip(columns) {
                let activations = column[g].as_chunks::<8>().0;
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_fmadd_ps(weights[i], load_ps(&activations[i]), *sum);
                }
            }
        }
        let mut folded = [_mm256_setzero_ps(); C];
        for (folded, [a, b, c, d]) in folded.iter_mut().zip(sums) {
            *folded = _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d));
        }
        job.store(r, reduce(folded));
    }
}

/// The dot of two f32 slices of equal length, whole steps of [`F32_STEP`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn dot(weights: &[f32], activations: &[f32]) -> f32 {
    let mut sums = [_mm256_setzero_ps(); 4];
    let steps = weights.as_chunks::<8>().0.iter().zip(activations.as_chunks::<8>().0);
    for (i, (weights, activations)) in steps.enumerate() {
        sums[i % 4] = _mm256_fmadd_ps(load_ps(weights), load_ps(activations), sums[i % 4]);
    }
    let [a, b, c, d] = sums;
    reduce([_mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d))])[0]
}

/// The sum of each vector's lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub fn reduce<const C: usize>(sums: [__m256; C]) -> [f32; C] {
    let mut out = [0.0; C];
    for (out, sum) in out.iter_mut().zip(sums) {
        let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
        let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        *out = _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
    }
    out
}

/// Asks for the lines [`AHEAD`] of a block.
#[inline]
#[target_feature(enable = "sse")]
pub fn prefetch(block: &[u8]) {
    prefetch_at::<AHEAD>(block);
}

/// Asks for the lines so many bytes in front of a block.
#[inline]
#[target_feature(enable = "sse")]
fn prefetch_at<const BYTES: usize>(block: &[u8]) {
    for at in (0..block.len()).step_by(64) {
        let line = block.as_ptr().wrapping_add(BYTES + at);
        // Of any address, mapped or not: a prefetch has no effect but on the caches.
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
}

/// 32 bytes from `at` on.
#[inline]
#[target_feature(enable = "avx")]
pub fn load(bytes: &[u8], at: usize) -> __m256i {
    let bytes: &[u8; 32] = part(bytes, at);
    // SAFETY: the reference covers the 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 16 bytes from `at` on, in both halves.
#[inline]
#[target_feature(enable = "avx2")]
pub fn load_twice(bytes: &[u8], at: usize) -> __m256i {
    _mm256_broadcastsi128_si256(load_128(bytes, at))
}

/// 16 bytes from `at` on.
#[inline]
#[target_feature(enable = "sse2")]
pub fn load_128(bytes: &[u8], at: usize) -> __m128i {
    let bytes: &[u8; 16] = part(bytes, at);
    // SAFETY: the reference covers the 16 bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// 8 floats.
#[inline]
#[target_feature(enable = "avx")]
pub fn load_ps(values: &[f32; 8]) -> __m256 {
    // SAFETY: the reference covers the 8 floats; the load needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// 16 floats.
#[inline]
#[target_feature(enable = "avx")]
pub fn halves(values: &[f32; 16]) -> [__m256; 2] {
    let [low, high] = values.as_chunks::<8>().0 else { unreachable!("16 is two times 8") };
    [load_ps(low), load_ps(high)]
}
