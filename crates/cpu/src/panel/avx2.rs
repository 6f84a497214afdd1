//! Writing into panels, eight rows at a time.

use std::arch::x86_64::*;

use super::{Panel, ROWS};
use crate::stream::{Ahead, PanelRows, Split};
use crate::x86::{BOTH, BOTH_HIGH, Eight, Sixteen, TWICE, TWICE_HIGH, f16_low_256};

pub(crate) use crate::x86::avx2::{load, load_floats};

#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn store_floats(to: &mut [f32], value: __m256) {
    let to = &mut to[..8];
    // SAFETY: the slice has 8 elements.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), value) }
}

/// Stores the four columns of step `step` of rows `first..first + 8`.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn put(panel: &mut Panel, step: usize, first: usize, quants: __m256i) {
    let to = &mut panel.quants[step][first..first + 8];
    // SAFETY: eight rows of four bytes are written, as many as the slice has.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), quants) }
}

/// A fast path into a panel, eight rows at a time: `fill` writes rows `first..first + 8`, and prefetches a part of
/// `ahead` with each of `PARTS`: as many lines at once as a core can wait for would delay its loads.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(crate) fn fill<const BYTES: usize, const PARTS: usize>(
    rows: PanelRows<'_>,
    ahead: Ahead,
    first: usize,
    mut fill: impl FnMut(Eight<'_, BYTES>, usize, &mut Split),
) {
    let mut ahead = ahead.split(2 * PARTS);
    for (half, rows) in Sixteen::new(rows).halves().into_iter().enumerate() {
        fill(rows, first + 8 * half, &mut ahead);
    }
}

/// Stores scales or minimums of rows `first..first + 8`, two 16-bit integers each.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn put_pairs(line: &mut [f32; ROWS], first: usize, pairs: __m256i) {
    store_floats(&mut line[first..], _mm256_castsi256_ps(pairs));
}

/// Floats times `factor` as 16-bit integers, those of `low` next to those of `high`.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn pairs(low: __m256i, high: __m256i, factor: f32) -> __m256i {
    let integers = |values| {
        _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(values), _mm256_set1_ps(factor)))
    };
    let high = _mm256_slli_epi32::<16>(integers(high));
    _mm256_blend_epi16::<0b1010_1010>(integers(low), high)
}

/// The largest scale of codes of a full byte: times 128 and shifted, a product has 12 bits.
pub(crate) const SHARE_MAX: f32 = 4096.0;

/// Stores the scales of groups of 32 of rows `first..first + 8`, a vector of rows for each group, as shares of the largest
/// of a row, which becomes [`SHARE_MAX`], and the units of products with them. A scale that is not finite makes the unit
/// NaN.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn put_shares(scales: [__m256; 8], first: usize, panel: &mut Panel) {
    const LEAST: f32 = f32::MIN_POSITIVE * 67_108_864.0;
    let (mut peak, mut odd) = (_mm256_setzero_ps(), _mm256_setzero_ps());
    for scale in scales {
        // The second operand is taken beside a NaN.
        peak = _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0), scale), peak);
        odd = _mm256_add_ps(odd, _mm256_mul_ps(scale, _mm256_setzero_ps()));
    }
    let is_small = _mm256_cmp_ps::<_CMP_LT_OQ>(peak, _mm256_set1_ps(LEAST));
    let factor = _mm256_div_ps(_mm256_set1_ps(SHARE_MAX), peak);
    let factor = _mm256_andnot_ps(is_small, factor);
    let unit = _mm256_mul_ps(peak, _mm256_set1_ps(128.0 / SHARE_MAX));
    store_floats(&mut panel.units[0][first..], _mm256_add_ps(unit, odd));
    for (line, scale) in panel.scales.iter_mut().zip(scales) {
        let share = _mm256_castps_si256(_mm256_mul_ps(scale, factor));
        put_pairs(line, first, pairs(share, share, 1.0));
    }
}

/// Stores products of 16 bits (`tile/avx2_wide.rs`): the codes of step `step`, four bytes of each of eight rows, times
/// the scales stored in the panel before. The even columns are in the place of rows 0 to 15 of a panel of bytes, the odd
/// ones in that of rows 16 to 31.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn put_products<const GROUP: usize, const INTEGERS: bool>(
    panel: &mut Panel,
    step: usize,
    first: usize,
    codes: __m256i,
) {
    let scales = _mm256_castps_si256(load_floats(&panel.scales[4 * step / GROUP][first..]));
    let scales = if INTEGERS { _mm256_slli_epi16::<7>(scales) } else { scales };
    // A code in the upper byte is 256 times too large, and the product is divided by 2^15.
    let even = _mm256_slli_epi16::<8>(codes);
    let odd = _mm256_and_si256(codes, _mm256_set1_epi16(0xff00u16.cast_signed()));
    put(panel, step, first, _mm256_mulhrs_epi16(even, scales));
    put(panel, step, 16 + first, _mm256_mulhrs_epi16(odd, scales));
}

/// Stores the scales and minimums of rows `first..first + 8`, four in each lane, and their units, f16 in the halves
/// of each lane; minimums are subtracted.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(crate) fn put_affine_lines<const FOURS: usize>(
    scales: [__m256i; FOURS],
    mins: [__m256i; FOURS],
    units: __m256i,
    first: usize,
    panel: &mut Panel,
) {
    let min_unit = f16_low_256(_mm256_srli_epi32::<16>(units));
    let min_unit = _mm256_xor_ps(min_unit, _mm256_set1_ps(-0.0));
    store_floats(&mut panel.units[0][first..], f16_low_256(units));
    store_floats(&mut panel.units[1][first..], min_unit);
    for (group, line) in panel.scales[..4 * FOURS].iter_mut().enumerate() {
        let order = load(&TWICE[group % 4]);
        put_pairs(line, first, _mm256_shuffle_epi8(scales[group / 4], order));
    }
    for (pair, line) in panel.mins[..2 * FOURS].iter_mut().enumerate() {
        let order = load(&BOTH[pair % 2]);
        put_pairs(line, first, _mm256_shuffle_epi8(mins[pair / 2], order));
    }
}

/// Stores the sixteen scales of rows `first..first + 8`, four in each lane, and their unit; the minimums are the
/// scales times -2^`BIAS`.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn put_signed_lines<const BIAS: u32>(
    scales: [__m256i; 4],
    unit: __m256,
    first: usize,
    panel: &mut Panel,
) {
    store_floats(&mut panel.units[0][first..], unit);
    store_floats(&mut panel.units[1][first..], _mm256_setzero_ps());
    // In the upper half of 16 bits a scale is too large by 2^8.
    for (group, line) in panel.scales.iter_mut().enumerate() {
        let high = _mm256_shuffle_epi8(scales[group / 4], load(&TWICE_HIGH[group % 4]));
        put_pairs(line, first, _mm256_srai_epi16::<8>(high));
    }
    for (pair, line) in panel.mins[..8].iter_mut().enumerate() {
        let high = _mm256_shuffle_epi8(scales[pair / 2], load(&BOTH_HIGH[pair % 2]));
        let bias = _mm256_sra_epi16(high, _mm_cvtsi32_si128(8 - BIAS as i32));
        put_pairs(line, first, _mm256_sub_epi16(_mm256_setzero_si256(), bias));
    }
}

/// Transposes eight vectors of eight dwords.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
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

/// Groups `8 * part..8 * part + 8` of eight rows, each row's times its factor: one vector of rows per group.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn columns(rows: [(&[f32; 16], f32); 8], part: usize) -> [__m256i; 8] {
    let mut values = [_mm256_setzero_si256(); 8];
    for (value, (row, factor)) in values.iter_mut().zip(rows) {
        let row = _mm256_mul_ps(load_floats(&row[8 * part..]), _mm256_set1_ps(factor));
        *value = _mm256_castps_si256(row);
    }
    transpose(values)
}

/// Stores values times `factor` of rows `first..first + 8`, one vector per element of `to`.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn store_rows(values: &[__m256i; 8], factor: f32, first: usize, to: &mut [[f32; ROWS]]) {
    for (to, value) in to.iter_mut().zip(values) {
        let value = _mm256_mul_ps(_mm256_castsi256_ps(*value), _mm256_set1_ps(factor));
        store_floats(&mut to[first..], value);
    }
}
