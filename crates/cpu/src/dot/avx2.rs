//! The kernel families' loops with AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::{AHEAD, AHEAD_FLOATS, AHEAD_NEAR, Groups, Job, part};
use crate::activations::{Block256, F32_STEP, Quad32};
use crate::x86::{apart, unknown, whole_lines};

/// A block of 256 weights without its codes.
pub struct K {
    /// The block's scale.
    pub d: __m256,
    /// The scales of 16 weights each, as 16-bit integers: the even ones in the lower half, the odd ones in the upper.
    pub scales: __m256i,
    /// The minimums of each 16 weights, which are subtracted.
    pub mins: Mins,
}

/// Minimums of 16 weights each, in the same lanes as the scales.
pub enum Mins {
    None,
    /// As multiples of the block's scale.
    Same(__m256i),
    /// As multiples of a separate scale.
    Own(__m256i, __m256),
}

/// Shuffle that broadcasts word i of both halves to all of their lanes.
static SPREAD: [[u8; 32]; 8] = {
    let mut tables = [[0; 32]; 8];
    let mut at = 0;
    while at < 256 {
        tables[at / 32][at % 32] = (at / 32 * 2 + at % 2) as u8;
        at += 1;
    }
    tables
};

/// The scale of the even and of the odd sixteen of each 32 weights of half a block, in all lanes of the two halves.
///
/// `tables` is [`SPREAD`] hidden from the compiler by [`apart`]: of shuffles with known indices it makes two
/// instructions each.
#[inline]
#[target_feature(enable = "avx2")]
pub fn k_scales(weights: &K, tables: &[[u8; 32]; 8], h: usize) -> [__m256i; 4] {
    [0, 1, 2, 3].map(|i| _mm256_shuffle_epi8(weights.scales, load(&tables[4 * h + i], 0)))
}

/// [`SPREAD`] for [`k_scales`].
#[inline(always)]
pub fn spread() -> &'static [[u8; 32]; 8] {
    apart(&SPREAD)
}

/// Multiplies rows of `BYTES` bytes per block of 256 with `C` columns.
///
/// `half` returns the codes of half a block, 128 weights in natural order, unsigned and at most 64; or signed with
/// eight `CODE_BITS`, as in [`quad`]. Working on half a block keeps codes and scales in the sixteen registers. Sums
/// of two products fit 16 bits, and VPMADDWD multiplies them with the scales.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn k<const BYTES: usize, const CODE_BITS: u32, const C: usize>(
    job: &mut Job<'_>,
    open: impl Fn(&[u8; BYTES]) -> K,
    half: impl Fn(&[u8; BYTES], usize) -> [__m256i; 4],
) {
    whole_lines();
    let (columns, tables) = (job.columns::<Block256, C>(), spread());
    for (r, row) in job.rows().enumerate() {
        let mut sums = [_mm256_setzero_ps(); C];
        for (b, block) in row.as_chunks::<BYTES>().0.iter().enumerate() {
            prefetch_at::<AHEAD_NEAR, _MM_HINT_NTA>(block);
            let weights = open(block);
            let mut dots = [_mm256_setzero_si256(); C];
            for h in 0..2 {
                let (quants, scales) = (half(block, h), k_scales(&weights, tables, h));
                for (dots, column) in dots.iter_mut().zip(columns) {
                    let activations = bytemuck::bytes_of(&column[b].quants);
                    for i in 0..4 {
                        let activations = load(activations, 128 * h + 32 * i);
                        let pairs = pairs::<CODE_BITS>(quants[i], activations);
                        let scaled = _mm256_madd_epi16(pairs, scales[i]);
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

/// Reorders sixteen bytes: the even ones, then the odd ones.
#[inline]
#[target_feature(enable = "avx2")]
pub fn evens_odds(bytes: __m128i) -> __m128i {
    _mm_shuffle_epi8(bytes, _mm_set_epi64x(0x0f0d_0b09_0705_0301, 0x0e0c_0a08_0604_0200))
}

/// Adds a block's scaled dot products and minimums to the sum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn k_close(weights: &K, mut dots: __m256i, column: &Block256, mut sum: __m256) -> __m256 {
    let (sums, scale) = (load(bytemuck::bytes_of(&column.whole_sums), 0), load_ps(&column.scale));
    match weights.mins {
        Mins::None => {}
        Mins::Same(mins) => dots = _mm256_sub_epi32(dots, _mm256_madd_epi16(mins, sums)),
        Mins::Own(mins, unit) => {
            let mins = _mm256_cvtepi32_ps(_mm256_madd_epi16(mins, sums));
            sum = _mm256_fnmadd_ps(mins, _mm256_mul_ps(unit, scale), sum);
        }
    }
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_mul_ps(weights.d, scale), sum)
}

/// Four blocks of 32 weights in natural order.
pub struct Quad {
    /// Codes, unsigned or signed as declared by the kernel.
    pub quants: [__m256i; 4],
    /// The blocks' scales.
    pub scales: __m128,
    /// The offset added to each weight of a block, as multiples of the kernel's `unit`.
    pub offsets: __m128,
}

/// The accumulators of a column for one row.
#[derive(Clone, Copy)]
pub struct QuadSum {
    /// Of blocks 0 and 2, and of 1 and 3: two independent chains.
    dots: [__m256; 2],
    /// A quarter of the sum of all offsets times the sums of their blocks.
    offsets: __m128,
}

impl QuadSum {
    #[inline]
    #[target_feature(enable = "avx")]
    pub fn zero() -> QuadSum {
        QuadSum { dots: [_mm256_setzero_ps(); 2], offsets: _mm_setzero_ps() }
    }

    /// The total, where offsets are multiples of `unit`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub fn close(self, unit: f32) -> __m256 {
        let [even, odd] = self.dots;
        let offsets = _mm_mul_ps(self.offsets, _mm_set1_ps(4.0 * unit));
        _mm256_add_ps(_mm256_add_ps(even, odd), _mm256_zextps128_ps256(offsets))
    }
}

/// Multiplies rows of `BYTES` bytes per `QUADS` quads with `C` columns; `unpack` is called for each in order, `unit` is that of its offsets.
///
/// Codes of eight `CODE_BITS` are signed ([`pairs`]) and need no offsets.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn quad<const BYTES: usize, const QUADS: usize, const CODE_BITS: u32, const C: usize>(
    job: &mut Job<'_>,
    unit: f32,
    unpack: impl Fn(&[u8; BYTES], usize) -> Quad,
) {
    whole_lines();
    let columns = job.columns::<Quad32, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [QuadSum::zero(); C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            prefetch_at::<AHEAD_NEAR, _MM_HINT_NTA>(group);
            for q in 0..QUADS {
                let weights = unpack(group, q);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    let column = &column[g * QUADS + q];
                    let dots = quad_dots::<CODE_BITS>(&weights, column);
                    if CODE_BITS == 8 {
                        quad_close::<false>(&weights, dots, column, sum);
                    } else {
                        quad_close::<true>(&weights, dots, column, sum);
                    }
                }
            }
        }
        job.store(r, reduce(sums.map(|sum| sum.close(unit))));
    }
}

/// The four blocks' dot products, eight lanes each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quad_dots<const CODE_BITS: u32>(weights: &Quad, column: &Quad32) -> [__m256i; 4] {
    let activations = bytemuck::bytes_of(&column.quants);
    [0, 1, 2, 3].map(|b| {
        let pairs = pairs::<CODE_BITS>(weights.quants[b], load(activations, 32 * b));
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    })
}

/// Sums of two products each. Codes of eight bits are signed and transfer their sign to the activations, because
/// VPMADDUBSW would saturate on unsigned ones.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs<const CODE_BITS: u32>(quants: __m256i, activations: __m256i) -> __m256i {
    if CODE_BITS == 8 {
        let signed = _mm256_sign_epi8(activations, quants);
        _mm256_maddubs_epi16(_mm256_abs_epi8(quants), signed)
    } else {
        _mm256_maddubs_epi16(quants, activations)
    }
}

/// Adds four blocks' dot products to the sum; with `OFFSETS`, also their offsets' contribution.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn quad_close<const OFFSETS: bool>(
    weights: &Quad,
    dots: [__m256i; 4],
    column: &Quad32,
    sum: &mut QuadSum,
) {
    let scales = _mm_mul_ps(weights.scales, by_block(&column.scales));
    // Otherwise the compiler makes two instructions of each of the four below.
    let scales = unknown(_mm256_set_m128(scales, scales));
    let [a, b, c, d] = dots.map(|dots| _mm256_cvtepi32_ps(dots));
    let [even, odd] = &mut sum.dots;
    *even = _mm256_fmadd_ps(a, _mm256_permute_ps::<0x00>(scales), *even);
    *odd = _mm256_fmadd_ps(b, _mm256_permute_ps::<0x55>(scales), *odd);
    *even = _mm256_fmadd_ps(c, _mm256_permute_ps::<0xaa>(scales), *even);
    *odd = _mm256_fmadd_ps(d, _mm256_permute_ps::<0xff>(scales), *odd);
    if OFFSETS {
        sum.offsets = _mm_fmadd_ps(weights.offsets, by_block(&column.sums), sum.offsets);
    }
}

/// The four blocks' values in the lane order of [`crate::activations::QUAD_LANES`].
#[inline]
#[target_feature(enable = "avx")]
fn by_block(lanes: &[f32; 16]) -> __m128 {
    let [evens, _, odds, _] = lanes.as_chunks::<4>().0 else { unreachable!("16 is four times 4") };
    // 0, 0, 2, 2 and 1, 1, 3, 3.
    _mm_blend_ps::<0b1010>(load_ps_128(evens), load_ps_128(odds))
}

/// The f16 numbers `field` bytes into each of four blocks of `block` bytes.
///
/// Whole vectors are loaded for two bytes each: inserting single words would depend on the register that the compiler
/// merges them into, and it picks the accumulators.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn quad_scales(quad: &[u8], block: usize, field: usize) -> __m128 {
    let [a, b, c, d] =
        [0, 1, 2, 3].map(|b| load_128(apart::<[u8; 16]>(part(quad, b * block + field)), 0));
    _mm_cvtph_ps(_mm_unpacklo_epi32(_mm_unpacklo_epi16(a, b), _mm_unpacklo_epi16(c, d)))
}

/// Multiplies rows of `BYTES` bytes per 32 floats with `C` columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn float<const BYTES: usize, const C: usize>(
    job: &mut Job<'_>,
    unpack: impl Fn(&[u8; BYTES]) -> [__m256; 4],
) {
    whole_lines();
    let columns = job.columns::<[f32; F32_STEP], C>();
    for (r, row) in job.rows().enumerate() {
        // With one column, four independent chains hide the latency of additions. With several columns there are as
        // many, so that a column's sum does not depend on its neighbours.
        let mut sums = [[_mm256_setzero_ps(); 4]; C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            prefetch_at::<AHEAD_FLOATS, _MM_HINT_NTA>(group);
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

/// The dot product of two f32 slices of equal length, whole steps of [`F32_STEP`].
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

/// Prefetches a block's cache lines [`AHEAD`] bytes in front.
#[inline]
#[target_feature(enable = "sse")]
pub fn prefetch(block: &[u8]) {
    prefetch_at::<AHEAD, _MM_HINT_T0>(block);
}

/// Prefetches a block's cache lines `ahead` bytes in front.
#[inline]
#[target_feature(enable = "sse")]
pub fn prefetch_at<const BYTES: usize, const HINT: i32>(block: &[u8]) {
    for at in (0..block.len()).step_by(64) {
        let line = block.as_ptr().wrapping_add(BYTES + at);
        // Any address is allowed, mapped or not: a prefetch affects only the caches.
        _mm_prefetch::<HINT>(line.cast());
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

/// 4 floats.
#[inline]
#[target_feature(enable = "sse")]
fn load_ps_128(values: &[f32; 4]) -> __m128 {
    // SAFETY: the reference covers the 4 floats; the load needs no alignment.
    unsafe { _mm_loadu_ps(values.as_ptr()) }
}

/// 8 floats.
#[inline]
#[target_feature(enable = "avx")]
pub fn load_ps(values: &[f32; 8]) -> __m256 {
    // SAFETY: the reference covers the 8 floats; the load needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}
