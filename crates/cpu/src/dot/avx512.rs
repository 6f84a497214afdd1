//! The kernel families' loops with 512-bit vectors and VNNI integer dot products.

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx2::prefetch;
use super::{Groups, Job, each, part};
use crate::activations::{Block256, F32_STEP, QUAD_LANES, Quad32};
use crate::x86::fields;

/// A block of 256 weights in natural order.
pub struct K {
    /// Codes, unsigned and at most 64, so that a lane's four products fit 16 bits.
    pub quants: [__m512i; 4],
    /// The scale of each lane's four weights in its low 16 bits, zero in its high 16 bits.
    pub scales: [__m512i; 4],
    /// The block's scale.
    pub d: __m512,
    /// The minimums of each 16 weights, which are subtracted.
    pub mins: __m512,
}

/// Multiplies rows of `BYTES` bytes per block of 256 with `C` columns.
///
/// VPDPBUSD sums four products per lane; VPDPWSSD multiplies that sum, which fits 16 bits, with the scale and
/// accumulates it: two instructions for 64 products and their scales. Minimums are applied as one f32 multiply-add
/// per block with the activations' sums, instead of integer operations.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
pub fn k<const BYTES: usize, const C: usize>(
    job: &mut Job<'_>,
    unpack: impl Fn(&[u8; BYTES]) -> K,
) {
    let columns = job.columns::<Block256, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [_mm512_setzero_ps(); C];
        for (b, block) in row.as_chunks::<BYTES>().0.iter().enumerate() {
            prefetch(block);
            let weights = unpack(block);
            each::<C>(|c| sums[c] = k_add(&weights, &columns[c][b], sums[c]));
        }
        job.store(r, reduce(sums));
    }
}

/// Adds a block's dot product to the sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn k_add(weights: &K, column: &Block256, sum: __m512) -> __m512 {
    let zero = _mm512_setzero_si512();
    let mut dots = zero;
    for i in 0..4 {
        let activations = load(bytemuck::bytes_of(&column.quants), 64 * i);
        let lanes = _mm512_dpbusd_epi32(zero, weights.quants[i], activations);
        dots = dpwssd(dots, lanes, weights.scales[i]);
    }
    let scale = _mm512_mul_ps(weights.d, _mm512_set1_ps(column.scale[0]));
    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sum);
    _mm512_fnmadd_ps(weights.mins, load_ps(&column.sums), sum)
}

/// VPDPWSSD as a single instruction: the compiler would split it into multiply and add, which shortens a chain that
/// is not critical and costs a third of the kernel's arithmetic.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dpwssd(mut sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the instruction reads and writes the named registers only, and is enabled above.
    unsafe {
        asm!(
            "vpdpwssd {sums}, {a}, {b}",
            sums = inout(zmm_reg) sums,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Four blocks of 32 weights in natural order.
pub struct Quad {
    /// Codes, unsigned.
    pub quants: [__m512i; 2],
    /// The scale of each lane's block, lanes as `QUAD_LANES`.
    pub scales: __m512,
    /// The offset added to each weight of the lane's block.
    pub offsets: __m512,
}

/// Multiplies rows of `BYTES` bytes per `QUADS` quads with `C` columns; `CODE_BITS` bounds the codes, and
/// `unpack` is called for each quad in order.
///
/// Each of two integer dot products has eight lanes per block. One folding step leaves four lanes for each of all
/// four blocks, so that conversion and scaling, which cost as much as the dot product itself, are done once per 128
/// weights. Small codes fold as 16-bit integers, which saves an instruction.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
pub fn quad<const BYTES: usize, const QUADS: usize, const CODE_BITS: u32, const C: usize>(
    job: &mut Job<'_>,
    unpack: impl Fn(&[u8; BYTES], usize) -> Quad,
) {
    let columns = job.columns::<Quad32, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [_mm512_setzero_ps(); C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            prefetch(group);
            for q in 0..QUADS {
                let weights = unpack(group, q);
                let at = g * QUADS + q;
                each::<C>(|c| sums[c] = quad_add::<CODE_BITS>(&weights, &columns[c][at], sums[c]));
            }
        }
        job.store(r, reduce(sums));
    }
}

/// Adds a quad's dot product to the sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn quad_add<const CODE_BITS: u32>(weights: &Quad, column: &Quad32, sum: __m512) -> __m512 {
    let (zero, ones) = (_mm512_setzero_si512(), _mm512_set1_epi16(1));
    let activations = bytemuck::bytes_of(&column.quants);
    let a = _mm512_dpbusd_epi32(zero, weights.quants[0], load(activations, 0));
    let b = _mm512_dpbusd_epi32(zero, weights.quants[1], load(activations, 64));
    let folded = if CODE_BITS <= 6 {
        _mm512_madd_epi16(_mm512_packs_epi32(a, b), ones)
    } else {
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    };
    // Only the last addition depends on the previous quad.
    let dots = _mm512_mul_ps(_mm512_cvtepi32_ps(folded), load_ps(&column.scales));
    let offsets = _mm512_mul_ps(weights.offsets, load_ps(&column.sums));
    _mm512_add_ps(sum, _mm512_fmadd_ps(dots, weights.scales, offsets))
}

/// Multiplies rows of `BYTES` bytes per 32 floats with `C` columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub fn float<const BYTES: usize, const C: usize>(
    job: &mut Job<'_>,
    unpack: impl Fn(&[u8; BYTES]) -> [__m512; 2],
) {
    let columns = job.columns::<[f32; F32_STEP], C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [[_mm512_setzero_ps(); 2]; C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            prefetch(group);
            let weights = unpack(group);
            each::<C>(|c| {
                let activations = columns[c][g].as_chunks::<16>().0;
                sums[c][0] = _mm512_fmadd_ps(weights[0], load_ps(&activations[0]), sums[c][0]);
                sums[c][1] = _mm512_fmadd_ps(weights[1], load_ps(&activations[1]), sums[c][1]);
            });
        }
        job.store(r, reduce(sums.map(|[a, b]| _mm512_add_ps(a, b))));
    }
}

/// The dot product of two f32 slices of equal length, whole steps of [`F32_STEP`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub fn dot(weights: &[f32], activations: &[f32]) -> f32 {
    let mut sums = [_mm512_setzero_ps(); 2];
    let steps = weights.as_chunks::<16>().0.iter().zip(activations.as_chunks::<16>().0);
    for (i, (weights, activations)) in steps.enumerate() {
        sums[i % 2] = _mm512_fmadd_ps(load_ps(weights), load_ps(activations), sums[i % 2]);
    }
    _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]))
}

/// The sum of each vector's lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub fn reduce<const C: usize>(sums: [__m512; C]) -> [f32; C] {
    let mut out = [0.0; C];
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = _mm512_reduce_add_ps(sum);
    }
    out
}

/// 64 bytes from `at` on.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn load(bytes: &[u8], at: usize) -> __m512i {
    let bytes: &[u8; 64] = part(bytes, at);
    // SAFETY: the reference covers the 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// 16 floats.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn load_ps(values: &[f32; 16]) -> __m512 {
    // SAFETY: the reference covers the 16 floats; the load needs no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// 32 bytes from `at` on, in both halves.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn load_twice(bytes: &[u8], at: usize) -> __m512i {
    _mm512_broadcast_i64x4(super::avx2::load(bytes, at))
}

/// Two times 32 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn load_pair(bytes: &[u8], low: usize, high: usize) -> __m512i {
    let low = _mm512_castsi256_si512(super::avx2::load(bytes, low));
    _mm512_inserti64x4::<1>(low, super::avx2::load(bytes, high))
}

/// Two fields, each in half of the vector.
#[inline]
#[target_feature(enable = "avx512f,gfni")]
pub fn two_fields(bytes: __m512i, low: i64, high: i64) -> __m512i {
    fields(bytes, [low, low, low, low, high, high, high, high])
}

/// Loads shift counts, masks or indices from a table.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn table(bytes: &[u8; 64]) -> __m512i {
    load(bytes, 0)
}

/// Indices of 16-bit words that spread four numbers over [`QUAD_LANES`]: the number of block b is at byte `at[b]`.
pub const fn quad_words(at: [usize; 4]) -> [u8; 64] {
    let mut order = [0; 64];
    let mut lane = 0;
    while lane < 16 {
        order[2 * lane] = (at[QUAD_LANES[lane]] / 2) as u8;
        lane += 1;
    }
    order
}

/// The f16 numbers at the words of a [`quad_words`] table.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn quad_scales(bytes: __m512i, words: &[u8; 64]) -> __m512 {
    let bits = _mm512_permutexvar_epi16(table(words), bytes);
    _mm512_cvtph_ps(_mm512_castsi512_si256(bits))
}

/// The f16 numbers at the words of a table over two times 64 bytes; bytes of the second count from 64 on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn quad_scales_2(first: __m512i, second: __m512i, words: &[u8; 64]) -> __m512 {
    let bits = _mm512_permutex2var_epi16(first, table(words), second);
    _mm512_cvtph_ps(_mm512_castsi512_si256(bits))
}

/// Indices of bytes that spread four bytes over the low bytes of [`QUAD_LANES`]: the byte of block b is at `at[b]`.
/// The other bytes of a lane are unused.
pub const fn quad_bytes(at: [usize; 4]) -> [u8; 64] {
    let mut order = [0; 64];
    let mut lane = 0;
    while lane < 16 {
        order[4 * lane] = at[QUAD_LANES[lane]] as u8;
        lane += 1;
    }
    order
}
