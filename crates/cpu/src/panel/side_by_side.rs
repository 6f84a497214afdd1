//! Unpacks blocks of 256 of several rows side by side: sixteen for AVX-512, eight for AVX2.
//!
//! **The idea.** Four bytes of each row are transposed into a vector, packed as they are, a quarter to three quarters
//! of what unpacked bytes would take; fields are taken out behind that. A vector then is a step of a panel: four
//! columns of all rows.
//!
//! Sixteen bytes of the lower field hold several runs of sixteen weights; the sixteen bytes of the upper field that
//! belong to them are transposed once for all.

use std::arch::x86_64::*;

use crate::bytes::Field;
use crate::panel::{Panel, Quants, avx2, avx512};
use crate::stream::{Ahead, PanelRows};
use crate::types::{Scales, Sign, SuperBlock};
use crate::x86::{Eight, NONE, Sixteen, TWICE_HIGH, f16_low, f16_low_256, pick};

/// Adds the fast paths of a type whose codes are fields.
pub(crate) const fn with_fills<T: SuperBlock, const BYTES: usize>(quants: Quants) -> Quants {
    if T::CODES.is_empty() {
        return quants;
    }
    // Integer minimums of signed types are made for these alone.
    let has_lines = T::HAS_MINS || matches!((T::SIGN, T::ZERO), (Sign::Code, _) | (_, 4 | 32));
    Quants {
        fill_avx2: if has_lines { Some(fill_256::<T, BYTES, false>) } else { None },
        fill_avxvnni: Some(fill_256::<T, BYTES, true>),
        fill: Some(fill_512::<T, BYTES>),
        ..quants
    }
}

/// Sixteen bytes of the lower field of a type, in the order of the upper field's bytes.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    /// Offset of the bytes.
    low: usize,
    /// Offset of the bytes of the upper field.
    high: usize,
    /// The first run of sixteen weights.
    run: usize,
    /// Distance to the next run in the same bytes.
    stride: usize,
    /// Whether `high` differs from that of the piece before.
    is_new: bool,
}

/// The pieces of a type; `count` are used.
struct Pieces {
    all: [Piece; 8],
    count: usize,
}

impl Pieces {
    const fn of<T: SuperBlock>() -> Pieces {
        let low = lower::<T>();
        let high = if T::CODES.len() > 1 { T::CODES[1] } else { low };
        let none = Piece { low: 0, high: 0, run: 0, stride: low.run / 16, is_new: false };
        let mut pieces = Pieces { all: [none; 8], count: 0 };
        let mut at = high.at;
        // The upper field's bytes in order, for each the lower field's.
        while at < high.at + 32 * high.bits as usize {
            let (mut run, mut is_new) = (0, true);
            while run < 16 {
                let (byte, shift) = low.place(16 * run);
                if shift == 0 && high.place(16 * run).0 == at {
                    pieces.all[pieces.count] = Piece { low: byte, high: at, run, is_new, ..none };
                    pieces.count += 1;
                    is_new = false;
                }
                run += 1;
            }
            at += 16;
        }
        pieces
    }
}

/// The lower field of a type; of no use without fields.
const fn lower<T: SuperBlock>() -> Field {
    if T::CODES.is_empty() { Field { at: 0, bits: 4, run: 32 } } else { T::CODES[0] }
}

/// The upper field of a type, if it has one.
const fn upper<T: SuperBlock>() -> Option<Field> {
    if T::CODES.len() > 1 { Some(T::CODES[1]) } else { None }
}

/// Unpacks sixteen rows; see [`crate::panel::Fill`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
pub(crate) fn fill_512<T: SuperBlock, const BYTES: usize>(
    rows: PanelRows<'_>,
    ahead: Ahead,
    first: usize,
    panel: &mut Panel,
) {
    let rows = Sixteen::<BYTES>::new(rows);
    let mut ahead = ahead.split(const { Pieces::of::<T>().count });
    let mut highs = [_mm512_setzero_si512(); 4];
    macro_rules! pieces {
        ($($index:literal)*) => {$(
            if $index < const { Pieces::of::<T>().count } {
                ahead.part().fetch();
                piece_512::<T, BYTES, $index>(rows, &mut highs, first, panel);
            }
        )*};
    }
    pieces!(0 1 2 3 4 5 6 7);
    lines_512::<T, BYTES>(rows, first, panel);
}

/// The matrices of the shifts of both fields.
struct Matrices {
    /// The lower field alone.
    low: [i64; 8],
    /// The upper field above it; of signed codes also its highest bit up to the top, for [`lift`].
    high: [i64; 8],
}

impl Matrices {
    const fn of<T: SuperBlock>() -> Matrices {
        let low = lower::<T>();
        let mut matrices = Matrices { low: [0; 8], high: [0; 8] };
        let mut shift = 0;
        while shift < 8 {
            let (mut lower, mut higher, mut bit) = ([NONE; 8], [NONE; 8], 0);
            while bit < 8 {
                if bit < low.bits && shift + bit < 8 {
                    lower[bit as usize] = shift + bit;
                }
                if let Some(high) = upper::<T>() {
                    let last = high.bits - 1;
                    if bit >= low.bits && bit <= low.bits + last {
                        higher[bit as usize] = shift + bit - low.bits;
                    } else if bit > low.bits && T::ZERO > 0 {
                        higher[bit as usize] = shift + last;
                    }
                    if higher[bit as usize] != NONE && higher[bit as usize] > 7 {
                        higher[bit as usize] = NONE;
                    }
                }
                bit += 1;
            }
            matrices.low[shift as usize] = pick(lower);
            matrices.high[shift as usize] = pick(higher);
            shift += 1;
        }
        matrices
    }
}

/// The bits of the upper field. Signed codes are stored around a power of two, z, and needed around 128: adding 128 - z
/// copies the highest bit to all above it, and inverts these and itself but for the last.
#[inline]
#[target_feature(enable = "avx512f,gfni")]
fn upper_bits<T: SuperBlock>(bytes: __m512i, shift: u32) -> __m512i {
    let matrix = _mm512_set1_epi64(const { &Matrices::of::<T>().high }[shift as usize]);
    match T::ZERO {
        32 => _mm512_gf2p8affine_epi64_epi8::<0x60>(bytes, matrix),
        4 => _mm512_gf2p8affine_epi64_epi8::<0x7c>(bytes, matrix),
        _ => _mm512_gf2p8affine_epi64_epi8::<0>(bytes, matrix),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn piece_512<T: SuperBlock, const BYTES: usize, const INDEX: usize>(
    rows: Sixteen<'_, BYTES>,
    highs: &mut [__m512i; 4],
    first: usize,
    panel: &mut Panel,
) {
    let piece = const { Pieces::of::<T>().all[INDEX] };
    let low = const { lower::<T>() };
    if const { upper::<T>().is_some() } && piece.is_new {
        *highs = rows.dwords(piece.high);
    }
    for (i, (bytes, high)) in rows.dwords(piece.low).into_iter().zip(*highs).enumerate() {
        for level in 0..8 / low.bits {
            let run = piece.run + level as usize * piece.stride;
            let codes = codes_512::<T>(bytes, high, [level * low.bits, above::<T>(run)]);
            avx512::put(panel, 4 * run + i, first, codes);
        }
    }
}

/// Codes of sixteen weights, of which `bytes` hold the lower field and `high` the upper one, each behind some bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn codes_512<T: SuperBlock>(bytes: __m512i, high: __m512i, [shift, above]: [u32; 2]) -> __m512i {
    let mask = _mm512_set1_epi8(const { lower::<T>() }.mask().cast_signed());
    let matrix = _mm512_set1_epi64(const { &Matrices::of::<T>().low }[shift as usize]);
    let codes = match upper::<T>() {
        Some(_) => {
            let upper = upper_bits::<T>(high, above);
            if shift == 0 {
                // bytes & mask | upper
                _mm512_ternarylogic_epi64::<0xea>(bytes, mask, upper)
            } else {
                let low = _mm512_gf2p8affine_epi64_epi8::<0>(bytes, matrix);
                _mm512_or_si512(low, upper)
            }
        }
        None if shift == 0 => _mm512_and_si512(bytes, mask),
        None => _mm512_gf2p8affine_epi64_epi8::<0>(bytes, matrix),
    };
    lifted::<T>(codes)
}

/// Codes as a panel has them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn lifted<T: SuperBlock>(codes: __m512i) -> __m512i {
    match T::SIGN {
        // Done with the upper field.
        Sign::Lifted if upper::<T>().is_some() => codes,
        _ => _mm512_add_epi8(T::values(codes), _mm512_set1_epi8(lift::<T>())),
    }
}

/// How groups of columns are unpacked from sixteen rows one after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Groups of 16: a few in each [`Piece`].
    Pieces,
    /// Groups of 32: a few in each unit, columns whose lower fields are in the same 16 or 32 bytes.
    Units,
}

/// The order of a type's groups; `None` if its codes are not fields.
pub(crate) const fn order<T: SuperBlock>() -> Option<Order> {
    match (T::GROUP, T::CODES.len()) {
        (_, 0) => None,
        (16, _) => Some(Order::Pieces),
        _ => Some(Order::Units),
    }
}

/// The pieces of a type with groups of 16, in order.
pub(crate) fn pieces<T: SuperBlock>() -> &'static [Piece] {
    let Pieces { all, count } = const { &Pieces::of::<T>() };
    &all[..*count]
}

/// Groups of 16 columns that share the bytes of a piece.
pub(crate) const fn levels<T: SuperBlock>() -> usize {
    8 / lower::<T>().bits as usize
}

/// The bytes of a piece of sixteen rows; `highs` are those of the upper field, for this piece and those behind it.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn bytes_of_piece<T: SuperBlock, const BYTES: usize>(
    rows: Sixteen<'_, BYTES>,
    piece: &Piece,
    highs: &mut [__m512i; 4],
) -> [__m512i; 4] {
    if const { upper::<T>().is_some() } && piece.is_new {
        *highs = rows.dwords(piece.high);
    }
    rows.dwords(piece.low)
}

/// The number of a group of 16 columns, and its codes, four columns each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(crate) fn group_of_piece<T: SuperBlock>(
    bytes: [__m512i; 4],
    highs: [__m512i; 4],
    piece: &Piece,
    level: usize,
) -> (usize, [__m512i; 4]) {
    let low = const { lower::<T>() };
    let run = piece.run + level * piece.stride;
    let matrix = const { &Matrices::of::<T>().low }[level * low.bits as usize];
    let matrix = _mm512_set1_epi64(matrix);
    let mut codes = [_mm512_setzero_si512(); 4];
    for (i, codes) in codes.iter_mut().enumerate() {
        let low = _mm512_gf2p8affine_epi64_epi8::<0>(bytes[i], matrix);
        *codes = match upper::<T>() {
            Some(field) => {
                let upper = upper_bits::<T>(highs[i], field.place(16 * run).1);
                lifted::<T>(_mm512_or_si512(low, upper))
            }
            None => lifted::<T>(low),
        };
    }
    (run, codes)
}

/// Groups of 32 columns in a unit.
pub(crate) const fn groups_of_unit<T: SuperBlock>() -> usize {
    lower::<T>().run * 8 / lower::<T>().bits as usize / 32
}

/// 16 or 32 bytes of sixteen rows; the latter half is unused if there are 16.
type Bytes = [[__m512i; 4]; 2];

/// The bytes of a unit of sixteen rows.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn bytes_of_unit<T: SuperBlock, const BYTES: usize>(
    rows: Sixteen<'_, BYTES>,
    unit: usize,
) -> Bytes {
    let low = const { lower::<T>() };
    let part = rows.from(low.at + unit * low.run, low.run);
    let first = part.dwords(0);
    [first, if low.run > 16 { part.dwords(16) } else { first }]
}

/// The bytes of the upper fields of all units, or anything for types without.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn bytes_above<T: SuperBlock, const BYTES: usize>(rows: Sixteen<'_, BYTES>) -> Bytes {
    match const { upper::<T>() } {
        Some(high) => {
            assert!(high.run * 8 / high.bits as usize == 256 && high.run == 32);
            [rows.dwords(high.at), rows.dwords(high.at + 16)]
        }
        None => [[_mm512_setzero_si512(); 4]; 2],
    }
}

/// The codes of a group of a unit, four columns each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(crate) fn group_of_unit<T: SuperBlock, const GROUP: usize>(
    bytes: Bytes,
    highs: Bytes,
    unit: usize,
) -> [__m512i; 8] {
    let low = const { lower::<T>() };
    let mut all = [_mm512_setzero_si512(); 8];
    for part in 0..2 {
        let (at, shift) = low.place(16 * (2 * GROUP + part));
        let run = 2 * (unit * const { groups_of_unit::<T>() } + GROUP) + part;
        let bytes = bytes[(at - low.at) / 16];
        for i in 0..4 {
            all[4 * part + i] = codes_512::<T>(bytes[i], highs[part][i], [shift, above::<T>(run)]);
        }
    }
    all
}

/// The shift of the upper field of the sixteen weights from `16 * run` on.
#[inline(always)]
fn above<T: SuperBlock>(run: usize) -> u32 {
    const { upper::<T>() }.map_or(0, |field| field.place(16 * run).1)
}

/// The scales and minimums of sixteen rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn lines_512<T: SuperBlock, const BYTES: usize>(
    rows: Sixteen<'_, BYTES>,
    first: usize,
    panel: &mut Panel,
) {
    let Scales { scales, mins } = T::scales(|at| rows.dwords(at));
    let (word, half) = const { unit_word::<T>() };
    let word = rows.dwords(word.0)[word.1];
    let d = f16_low(if half == 0 { word } else { _mm512_srli_epi32::<16>(word) });
    let zero = _mm512_set1_epi8(T::SCALE_ZERO.cast_signed());
    for group in 0..256 / T::GROUP {
        let byte = _mm512_sub_epi8(scales[group / 4], zero);
        let byte = _mm512_sll_epi32(byte, _mm_cvtsi32_si128(24 - group as i32 % 4 * 8));
        let scale = _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(byte));
        avx512::store_floats(&mut panel.scales[group][first..], _mm512_mul_ps(d, scale));
    }
    if T::HAS_MINS {
        let dmin = _mm512_xor_ps(f16_low(_mm512_srli_epi32::<16>(word)), _mm512_set1_ps(-0.0));
        // See `Adjust::unsigned`.
        let dmin =
            if T::GROUP == 16 { _mm512_mul_ps(dmin, _mm512_set1_ps(-1.0 / 128.0)) } else { dmin };
        for group in 0..256 / T::GROUP {
            let count = _mm_cvtsi32_si128(group as i32 % 4 * 8);
            let byte = _mm512_srl_epi32(mins[group / 4], count);
            let min = _mm512_cvtepi32_ps(_mm512_and_si512(byte, _mm512_set1_epi32(0xff)));
            avx512::store_floats(&mut panel.mins[group][first..], _mm512_mul_ps(dmin, min));
        }
    }
}

/// The word with d, as an offset of sixteen bytes and an index in these, and the half of it.
const fn unit_word<T: SuperBlock>() -> ((usize, usize), usize) {
    let start = if T::D + 16 <= T::BYTES { T::D } else { T::BYTES - 16 };
    ((start, (T::D - start) / 4), (T::D - start) % 4 / 2)
}

/// Unpacks sixteen rows, eight at a time; see [`crate::panel::Fill`]. The tiles of AVX2 want codes as they are and
/// integer scales, or signed codes times these; those of AVX-VNNI, if `LIFT`, signed codes around 128 and floats.
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn fill_256<T: SuperBlock, const BYTES: usize, const LIFT: bool>(
    rows: PanelRows<'_>,
    ahead: Ahead,
    first: usize,
    panel: &mut Panel,
) {
    avx2::fill::<BYTES, 1>(rows, ahead, first, |rows, first, ahead| {
        ahead.part().fetch();
        let mut highs = [_mm256_setzero_si256(); 4];
        macro_rules! pieces {
            ($($index:literal)*) => {$(
                if $index < const { Pieces::of::<T>().count } {
                    piece_256::<T, BYTES, $index, LIFT>(rows, &mut highs, first, panel);
                }
            )*};
        }
        if LIFT {
            lines_float_256::<T, BYTES>(rows, first, panel);
        } else {
            lines_256::<T, BYTES>(rows, first, panel);
        }
        pieces!(0 1 2 3 4 5 6 7);
    });
}

#[inline]
#[target_feature(enable = "avx2")]
fn piece_256<T: SuperBlock, const BYTES: usize, const INDEX: usize, const LIFT: bool>(
    rows: Eight<'_, BYTES>,
    highs: &mut [__m256i; 4],
    first: usize,
    panel: &mut Panel,
) {
    let piece = const { Pieces::of::<T>().all[INDEX] };
    let low = const { lower::<T>() };
    if const { upper::<T>().is_some() } && piece.is_new {
        *highs = rows.dwords(piece.high);
    }
    for (i, (bytes, high)) in rows.dwords(piece.low).into_iter().zip(*highs).enumerate() {
        for level in 0..8 / low.bits {
            let run = piece.run + level as usize * piece.stride;
            let mut codes = field_256(bytes, (level * low.bits) as i32, low.mask());
            if let Some(field) = upper::<T>() {
                let right = field.place(16 * run).1 as i32 - low.bits as i32;
                let upper = field_256(high, right, field.mask() << low.bits);
                codes = _mm256_or_si256(codes, upper);
            }
            codes = T::values(codes);
            let step = 4 * run + i;
            match (LIFT, T::SIGN) {
                (true, _) => {
                    codes = _mm256_add_epi8(codes, _mm256_set1_epi8(lift::<T>()));
                    avx2::put(panel, step, first, codes);
                }
                (false, Sign::Lifted) => avx2::put(panel, step, first, codes),
                (false, _) if T::GROUP == 16 => {
                    avx2::put_products::<16, true>(panel, step, first, codes);
                }
                (false, _) => avx2::put_products::<32, true>(panel, step, first, codes),
            }
        }
    }
}

/// What makes zero 128 in signed types.
const fn lift<T: SuperBlock>() -> i8 {
    match T::SIGN {
        Sign::Lifted if T::ZERO == 0 => 0,
        Sign::Lifted => (128 - T::ZERO).cast_signed(),
        _ => i8::MIN,
    }
}

/// Bytes shifted right, or left if negative, and masked.
#[inline]
#[target_feature(enable = "avx2")]
fn field_256(bytes: __m256i, right: i32, mask: u8) -> __m256i {
    let bytes = match right {
        0 => bytes,
        1.. => _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(right)),
        _ => _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(-right)),
    };
    _mm256_and_si256(bytes, _mm256_set1_epi8(mask.cast_signed()))
}

/// The scales and minimums of eight rows.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn lines_256<T: SuperBlock, const BYTES: usize>(
    rows: Eight<'_, BYTES>,
    first: usize,
    panel: &mut Panel,
) {
    let Scales { scales, mins } = T::scales(|at| rows.dwords(at));
    let (word, half) = const { unit_word::<T>() };
    let word = rows.dwords(word.0)[word.1];
    if T::HAS_MINS {
        if T::GROUP == 16 {
            return avx2::put_affine_lines(scales, mins, word, first, panel);
        }
        let ([a, b, ..], [c, d, ..]) = (scales, mins);
        return avx2::put_affine_lines([a, b], [c, d], word, first, panel);
    }
    let d = f16_low_256(if half == 0 { word } else { _mm256_srli_epi32::<16>(word) });
    let zero = _mm256_set1_epi8(T::SCALE_ZERO.cast_signed());
    let [a, b, c, e] = scales;
    let scales = [
        _mm256_sub_epi8(a, zero),
        _mm256_sub_epi8(b, zero),
        _mm256_sub_epi8(c, zero),
        _mm256_sub_epi8(e, zero),
    ];
    match (T::SIGN, T::ZERO) {
        (Sign::Lifted, 32) => avx2::put_signed_lines::<5>(scales, d, first, panel),
        (Sign::Lifted, 4) => avx2::put_signed_lines::<2>(scales, d, first, panel),
        _ => {
            avx2::store_floats(&mut panel.units[0][first..], d);
            avx2::store_floats(&mut panel.units[1][first..], _mm256_setzero_ps());
            for (group, line) in panel.scales[..8].iter_mut().enumerate() {
                let order = avx2::load(&TWICE_HIGH[group % 4]);
                let high = _mm256_shuffle_epi8(scales[group / 4], order);
                avx2::put_pairs(line, first, _mm256_srai_epi16::<8>(high));
            }
        }
    }
}

/// The scales and minimums of eight rows as floats.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn lines_float_256<T: SuperBlock, const BYTES: usize>(
    rows: Eight<'_, BYTES>,
    first: usize,
    panel: &mut Panel,
) {
    let Scales { scales, mins } = T::scales(|at| rows.dwords(at));
    let (word, half) = const { unit_word::<T>() };
    let word = rows.dwords(word.0)[word.1];
    let d = f16_low_256(if half == 0 { word } else { _mm256_srli_epi32::<16>(word) });
    let zero = _mm256_set1_epi8(T::SCALE_ZERO.cast_signed());
    for group in 0..256 / T::GROUP {
        let byte = _mm256_sub_epi8(scales[group / 4], zero);
        let byte = _mm256_sll_epi32(byte, _mm_cvtsi32_si128(24 - group as i32 % 4 * 8));
        let scale = _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(byte));
        avx2::store_floats(&mut panel.scales[group][first..], _mm256_mul_ps(d, scale));
    }
    if T::HAS_MINS {
        let unit = f16_low_256(_mm256_srli_epi32::<16>(word));
        // See `Adjust::unsigned`.
        let factor = if T::GROUP == 16 { 1.0 / 128.0 } else { -1.0 };
        let unit = _mm256_mul_ps(unit, _mm256_set1_ps(factor));
        for group in 0..256 / T::GROUP {
            let byte = _mm256_srl_epi32(mins[group / 4], _mm_cvtsi32_si128(group as i32 % 4 * 8));
            let min = _mm256_cvtepi32_ps(_mm256_and_si256(byte, _mm256_set1_epi32(0xff)));
            avx2::store_floats(&mut panel.mins[group][first..], _mm256_mul_ps(unit, min));
        }
    }
}
