//! Unpacks blocks of 32 of several rows side by side: sixteen for AVX-512, eight for AVX2.
//!
//! As in `side_by_side.rs`, bytes are transposed as they are stored and their fields are taken out behind that: a vector
//! then is a step of a panel. Scales, minimums and flags come from the word at a block's beginning, transposed alike.

use std::arch::x86_64::*;

use crate::panel::{Panel, Quants, avx2, avx512};
use crate::stream::{Ahead, PanelRows};
use crate::types::{Quads, ScaleBits};
use crate::x86::{Eight, PartOfSixteen, Sixteen, f16_low, f16_low_256};

/// Adds the fast paths of a type. `BYTES` are those of eight blocks.
pub(crate) const fn with_fills<T: Quads, const BYTES: usize>(quants: Quants) -> Quants {
    // Codes of a full byte are multiplied in 16 bits at AVX2.
    let is_wide = T::HIGHEST > 63;
    Quants {
        fill_avx2: Some(if is_wide { fill_wide::<T, BYTES> } else { fill_256::<T, BYTES> }),
        fill: Some(fill_512::<T, BYTES>),
        ..quants
    }
}

/// Unpacks eight blocks of sixteen rows; see [`crate::panel::Fill`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
fn fill_512<T: Quads, const BYTES: usize>(
    rows: PanelRows<'_>,
    ahead: Ahead,
    first: usize,
    panel: &mut Panel,
) {
    const { assert!(BYTES == 8 * T::BLOCK && T::GROUP == 32 && T::WEIGHTS == 32) };
    let rows = Sixteen::<BYTES>::new(rows);
    let mut ahead = ahead.split(8);
    for block in 0..8 {
        ahead.part().fetch();
        let unit = unit::<T, BYTES>(rows, block);
        for (step, codes) in unit.codes.into_iter().enumerate() {
            avx512::put(panel, 8 * block + step, first, codes);
        }
        avx512::store_floats(&mut panel.scales[block][first..], unit.scale);
        if T::MIN.is_some() {
            avx512::store_floats(&mut panel.mins[block][first..], unit.min);
        }
    }
}

/// A block of sixteen rows, as a panel has it.
pub(crate) struct Unit {
    /// Four columns of all rows each.
    pub codes: [__m512i; 8],
    pub scale: __m512,
    /// Zero if the type has none.
    pub min: __m512,
}

/// Block `block` of sixteen rows, which starts at the columns of `rows`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
pub(crate) fn unit<T: Quads, const BYTES: usize>(rows: Sixteen<'_, BYTES>, block: usize) -> Unit {
    let rows = rows.from(block * T::BLOCK, T::BLOCK);
    // The first bytes of a block hold all but its codes.
    let head = rows.dwords(0);
    let scale = match T::SCALES {
        ScaleBits::F16(at) => half(head, at),
        ScaleBits::Exponent(at) => exponent(head, at),
        ScaleBits::Computed => unreachable!("panels have no such scales"),
    };
    let min = match T::MIN {
        // See `Adjust::unsigned`.
        Some(at) => _mm512_mul_ps(half(head, at), _mm512_set1_ps(-1.0 / 128.0)),
        None => _mm512_setzero_ps(),
    };
    Unit { codes: codes::<T>(rows, head), scale, min }
}

/// The codes of a block of sixteen rows, which starts with the rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn codes<T: Quads>(rows: PartOfSixteen<'_>, head: [__m512i; 4]) -> [__m512i; 8] {
    let mut bytes = [_mm512_setzero_si512(); 4];
    let mut all = [_mm512_setzero_si512(); 8];
    for run in 0..2 {
        let (at, shift) = T::CODES.place(16 * run);
        if run == 0 || at != T::CODES.place(0).0 {
            bytes = rows.dwords(at);
        }
        for (i, bytes) in bytes.into_iter().enumerate() {
            let mask = _mm512_set1_epi8(T::CODES.mask().cast_signed());
            let mut codes = match (T::CODES.bits, shift) {
                (8, _) => bytes,
                (_, 0) => _mm512_and_si512(bytes, mask),
                _ => _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask),
            };
            if let Some(flags) = T::FLAGS {
                codes = flag(codes, head, flags.at + 2 * run + i / 2, i, flags.value);
            }
            let codes = T::unsigned(codes);
            all[4 * run + i] = match T::MIN {
                Some(_) => codes,
                None => _mm512_add_epi8(codes, _mm512_set1_epi8(const { lift::<T>() })),
            };
        }
    }
    all
}

/// What makes zero 128 in signed types.
const fn lift<T: Quads>() -> i8 {
    128u8.wrapping_sub(T::ZERO).cast_signed()
}

/// Adds `value` to the codes of a step whose flags are set. Byte `at` of a block has the flags of two steps, `step` and
/// its neighbour.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn flag(codes: __m512i, head: [__m512i; 4], at: usize, step: usize, value: u8) -> __m512i {
    // A row's byte of flags for each of its four columns, then the column's bit.
    let rows = _mm512_set4_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0);
    let order = _mm512_add_epi8(rows, _mm512_set1_epi8((at % 4) as i8));
    let own = _mm512_shuffle_epi8(head[at / 4], order);
    let bits = if step.is_multiple_of(2) { 0x0804_0201_u32 } else { 0x8040_2010 };
    let is_set = _mm512_test_epi8_mask(own, _mm512_set1_epi32(bits.cast_signed()));
    _mm512_mask_add_epi8(codes, is_set, codes, _mm512_set1_epi8(value.cast_signed()))
}

/// The f16 at an even offset of the head.
#[inline]
#[target_feature(enable = "avx512f")]
fn half(head: [__m512i; 4], at: usize) -> __m512 {
    let word = head[at / 4];
    f16_low(if at.is_multiple_of(4) { word } else { _mm512_srli_epi32::<16>(word) })
}

/// 2^(e - 128) of the byte e at an offset of the head, as `half_scale` has it.
#[inline]
#[target_feature(enable = "avx512f")]
fn exponent(head: [__m512i; 4], at: usize) -> __m512 {
    let word = _mm512_srl_epi32(head[at / 4], _mm_cvtsi32_si128(8 * (at % 4) as i32));
    let exponents = _mm512_and_si512(word, _mm512_set1_epi32(0xff));
    let bits = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
    let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
    let is_small = _mm512_cmplt_epi32_mask(exponents, _mm512_set1_epi32(2));
    _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, is_small, small))
}

/// Unpacks sixteen rows, eight at a time; see [`crate::panel::Fill`]. The tiles of AVX2 want codes as they are and
/// subtract biases through the minimums.
#[target_feature(enable = "avx2,f16c")]
fn fill_256<T: Quads, const BYTES: usize>(
    rows: PanelRows<'_>,
    ahead: Ahead,
    first: usize,
    panel: &mut Panel,
) {
    const { assert!(BYTES == 8 * T::BLOCK && T::GROUP == 32 && T::WEIGHTS == 32) };
    avx2::fill::<BYTES, 1>(rows, ahead, first, |rows, first, ahead| {
        ahead.part().fetch();
        for block in 0..8 {
            let head = rows.dwords(block * T::BLOCK);
            codes_256::<T, BYTES>(rows, head, block, |step, codes| {
                avx2::put(panel, step, first, T::unsigned(codes));
            });
            let scale = scale_256::<T>(head);
            avx2::store_floats(&mut panel.scales[block][first..], scale);
            // See `Adjust::unsigned` and `tile/avx2.rs`.
            let min = match T::MIN {
                Some(at) => _mm256_mul_ps(half_256(head, at), _mm256_set1_ps(-1.0 / 128.0)),
                None => _mm256_mul_ps(scale, _mm256_set1_ps(f32::from(T::ZERO) / 128.0)),
            };
            avx2::store_floats(&mut panel.mins[block][first..], min);
        }
    });
}

/// [`fill_256`] for products of 16 bits: signed codes times scales that are shares of the largest of eight. See
/// `tile/avx2_wide.rs`.
#[target_feature(enable = "avx2,f16c")]
fn fill_wide<T: Quads, const BYTES: usize>(
    rows: PanelRows<'_>,
    ahead: Ahead,
    first: usize,
    panel: &mut Panel,
) {
    const { assert!(BYTES == 8 * T::BLOCK && T::GROUP == 32 && T::WEIGHTS == 32) };
    avx2::fill::<BYTES, 8>(rows, ahead, first, |rows, first, ahead| {
        let mut scales = [_mm256_setzero_ps(); 8];
        for (block, scale) in scales.iter_mut().enumerate() {
            *scale = scale_256::<T>(rows.dwords(block * T::BLOCK));
        }
        avx2::put_shares(scales, first, panel);
        for block in 0..8 {
            ahead.part().fetch();
            let head = rows.dwords(block * T::BLOCK);
            codes_256::<T, BYTES>(rows, head, block, |step, codes| {
                avx2::put_products::<32, false>(panel, step, first, T::signed(codes));
            });
        }
    });
}

/// The scales of eight rows.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn scale_256<T: Quads>(head: [__m256i; 4]) -> __m256 {
    match T::SCALES {
        ScaleBits::F16(at) => half_256(head, at),
        ScaleBits::Exponent(at) => exponent_256(head, at),
        ScaleBits::Computed => unreachable!("panels have no such scales"),
    }
}

/// [`codes`] of eight rows, each step's given to `put`.
#[inline]
#[target_feature(enable = "avx2")]
fn codes_256<T: Quads, const BYTES: usize>(
    rows: Eight<'_, BYTES>,
    head: [__m256i; 4],
    block: usize,
    mut put: impl FnMut(usize, __m256i),
) {
    let mut bytes = [_mm256_setzero_si256(); 4];
    for run in 0..2 {
        let (at, shift) = T::CODES.place(16 * run);
        if run == 0 || at != T::CODES.place(0).0 {
            bytes = rows.dwords(block * T::BLOCK + at);
        }
        for (i, bytes) in bytes.into_iter().enumerate() {
            let mask = _mm256_set1_epi8(T::CODES.mask().cast_signed());
            let mut codes = match (T::CODES.bits, shift) {
                (8, _) => bytes,
                (_, 0) => _mm256_and_si256(bytes, mask),
                _ => _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask),
            };
            if let Some(flags) = T::FLAGS {
                codes = flag_256(codes, head, flags.at + 2 * run + i / 2, i, flags.value);
            }
            put(8 * block + 4 * run + i, codes);
        }
    }
}

/// [`flag`] of eight rows.
#[inline]
#[target_feature(enable = "avx2")]
fn flag_256(codes: __m256i, head: [__m256i; 4], at: usize, step: usize, value: u8) -> __m256i {
    let rows = _mm_set_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0);
    let order = _mm_add_epi8(rows, _mm_set1_epi8((at % 4) as i8));
    let own = _mm256_shuffle_epi8(head[at / 4], _mm256_broadcastsi128_si256(order));
    let bits = if step.is_multiple_of(2) { 0x0804_0201_u32 } else { 0x8040_2010 };
    let bits = _mm256_set1_epi32(bits.cast_signed());
    let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(own, bits), bits);
    let value = _mm256_set1_epi8(value.cast_signed());
    _mm256_add_epi8(codes, _mm256_and_si256(is_set, value))
}

/// [`half`] of eight rows.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn half_256(head: [__m256i; 4], at: usize) -> __m256 {
    let word = head[at / 4];
    f16_low_256(if at.is_multiple_of(4) { word } else { _mm256_srli_epi32::<16>(word) })
}

/// [`exponent`] of eight rows.
#[inline]
#[target_feature(enable = "avx2")]
fn exponent_256(head: [__m256i; 4], at: usize) -> __m256 {
    let word = _mm256_srl_epi32(head[at / 4], _mm_cvtsi32_si128(8 * (at % 4) as i32));
    let exponents = _mm256_and_si256(word, _mm256_set1_epi32(0xff));
    let bits = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
    let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
    let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponents);
    _mm256_castsi256_ps(_mm256_blendv_epi8(bits, small, is_small))
}
