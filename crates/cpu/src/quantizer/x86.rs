//! The parts of the quantizer in AVX2 and AVX-512. From the plain loops the compiler makes code that narrows each vector for
//! itself and reduces each block's lanes one after the other: with it, packing for Q8_0 at AVX-512 took 0.40 ns an activation,
//! 0.31 without (benches/record/epyc-genoa-2vcpu/2026-11-28-encoders.md).

use std::arch::x86_64::*;

use bilayer_quant::q8_0;

use super::{BLOCK, BLOCKS, Blocks, PEAK_8, Scale};
use crate::bytes::Bytes;
use crate::x86::{avx2, avx512};

/// [`Lanes::quantize`](crate::lanes::Lanes::quantize) of whole blocks of 32; if `AWAY`, halves are rounded away from zero.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn quantize_avx2<const AWAY: bool>(x: &[f32], scale: Scale, out: &mut [i8]) {
    debug_assert!(x.len().is_multiple_of(BLOCK) && x.len() == out.len());
    let (factor, zero) = (_mm256_set1_ps(scale.inverse), _mm256_set1_epi16(scale.zero as i16));
    // Packing works within halves.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (x, out) in x.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let mut whole = [_mm256_setzero_si256(); 4];
        for (whole, x) in whole.iter_mut().zip(x.as_chunks::<8>().0) {
            let exact = _mm256_mul_ps(avx2::load_floats(x), factor);
            *whole = if AWAY { round_away(exact) } else { _mm256_cvtps_epi32(exact) };
        }
        let low = _mm256_sub_epi16(_mm256_packs_epi32(whole[0], whole[1]), zero);
        let high = _mm256_sub_epi16(_mm256_packs_epi32(whole[2], whole[3]), zero);
        let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        bytes.store(bytemuck::cast_slice_mut(out));
    }
}

/// The nearest integers, halves away from zero.
#[target_feature(enable = "avx2")]
#[inline]
fn round_away(exact: __m256) -> __m256i {
    // With the float below a half, none that is nearer to zero reaches the next integer.
    let half = _mm256_set1_ps(0.5f32.next_down());
    let half = _mm256_or_ps(half, _mm256_and_ps(exact, _mm256_set1_ps(-0.0)));
    _mm256_cvttps_epi32(_mm256_add_ps(exact, half))
}

/// [`Lanes::quantize_stored`](crate::lanes::Lanes::quantize_stored).
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(crate) fn quantize_stored(x: &[f32; BLOCK]) -> q8_0::Block {
    let value = f32::from_bits(peak(x)) / PEAK_8;
    let inverse = if value < f32::MIN_POSITIVE { 0.0 } else { 1.0 / value };
    let mut quants = [0; BLOCK];
    quantize_avx2::<true>(x, Scale { value, inverse, zero: 0 }, &mut quants);
    let bounded = _mm_set_ss(value.min(65504.0));
    let d = _mm_cvtsi128_si32(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bounded)) as u16;
    q8_0::Block { d, quants }
}

/// [`quantize_avx2`] with vectors of 512 bits.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(crate) fn quantize_avx512(x: &[f32], scale: Scale, out: &mut [i8]) {
    let (factor, zero) = (_mm512_set1_ps(scale.inverse), _mm512_set1_epi16(scale.zero as i16));
    // Packing works within quarters.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let ((x, rest), (out, rest_out)) = (x.as_chunks::<64>(), out.as_chunks_mut::<64>());
    for (x, out) in x.iter().zip(out) {
        let mut whole = [_mm512_setzero_si512(); 4];
        for (whole, x) in whole.iter_mut().zip(x.as_chunks::<16>().0) {
            *whole = _mm512_cvtps_epi32(_mm512_mul_ps(avx512::load_floats(x), factor));
        }
        let low = _mm512_sub_epi16(_mm512_packs_epi32(whole[0], whole[1]), zero);
        let high = _mm512_sub_epi16(_mm512_packs_epi32(whole[2], whole[3]), zero);
        let bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
        bytes.store(bytemuck::cast_slice_mut(out));
    }
    quantize_avx2::<false>(rest, scale, rest_out);
}

/// [`Lanes::quantize_blocks`](crate::lanes::Lanes::quantize_blocks).
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn quantize_blocks(x: &[f32; BLOCKS], out: &mut [i8; BLOCKS]) -> Blocks {
    let mut blocks = Blocks::default();
    let peaks = peaks(x);
    let parts = x.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0);
    for (block, (x, out)) in parts.enumerate() {
        let scale = Scale::of(peaks[block], PEAK_8);
        blocks.scales[block] = scale.value;
        quantize_avx2::<false>(x, scale, out);
    }
    blocks.sums = sums(out);
    blocks
}

/// [`Lanes::peak`](crate::lanes::Lanes::peak) of whole blocks of 32.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn peak(x: &[f32]) -> u32 {
    debug_assert!(x.len().is_multiple_of(BLOCK));
    let mut most = [_mm256_setzero_si256(); 4];
    for x in x.as_chunks::<BLOCK>().0 {
        for (most, x) in most.iter_mut().zip(x.as_chunks::<8>().0) {
            *most = _mm256_max_epi32(*most, magnitudes(x));
        }
    }
    let [a, b, c, d] = most;
    let most = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
    let four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    let two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<1>(two))).cast_unsigned()
}

/// The bits of magnitudes.
#[target_feature(enable = "avx2")]
#[inline]
fn magnitudes(x: &[f32; 8]) -> __m256i {
    let bits = _mm256_castps_si256(avx2::load_floats(x));
    _mm256_and_si256(bits, _mm256_set1_epi32(i32::MAX))
}

/// The bits of the largest magnitude of each block.
#[target_feature(enable = "avx2")]
#[inline]
fn peaks(x: &[f32; BLOCKS]) -> [u32; 4] {
    let mut peaks = [_mm_setzero_si128(); 4];
    for (peak, x) in peaks.iter_mut().zip(x.as_chunks::<BLOCK>().0) {
        let mut most = _mm256_setzero_si256();
        for x in x.as_chunks::<8>().0 {
            most = _mm256_max_epi32(most, magnitudes(x));
        }
        *peak = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    }
    // The largest of neighbours, of two vectors at a time.
    let pair = |a, b| _mm_max_epi32(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
    let (first, second) = (pair(peaks[0], peaks[1]), pair(peaks[2], peaks[3]));
    let low = _mm_unpacklo_epi64(first, second);
    bytemuck::cast(_mm_max_epi32(low, _mm_unpackhi_epi64(first, second)))
}

/// [`Lanes::sum_quants`](crate::lanes::Lanes::sum_quants) of whole blocks of 32.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn sum(quants: &[i8]) -> i32 {
    debug_assert!(quants.len().is_multiple_of(BLOCK));
    let mut sum = _mm256_setzero_si256();
    for quants in quants.as_chunks::<BLOCK>().0 {
        sum = _mm256_add_epi32(sum, fours(quants));
    }
    let four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    let two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<1>(two)))
}

/// The sum of each four quants.
#[target_feature(enable = "avx2")]
#[inline]
fn fours(quants: &[i8; BLOCK]) -> __m256i {
    let quants = avx2::load(bytemuck::cast_ref(quants));
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), quants);
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// The sum of each block.
#[target_feature(enable = "avx2")]
#[inline]
fn sums(quants: &[i8; BLOCKS]) -> [i32; 4] {
    let mut sums = [_mm_setzero_si128(); 4];
    for (sum, quants) in sums.iter_mut().zip(quants.as_chunks::<BLOCK>().0) {
        let fours = fours(quants);
        *sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256::<1>(fours));
    }
    let (first, second) = (_mm_hadd_epi32(sums[0], sums[1]), _mm_hadd_epi32(sums[2], sums[3]));
    bytemuck::cast(_mm_hadd_epi32(first, second))
}
