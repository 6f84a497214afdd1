//! The kernel families' loops with 512-bit vectors and VNNI integer dot products.

use std::arch::x86_64::*;

use super::{AHEAD, Groups, Job, each, prefetch};
use crate::activations::{Block256, QUAD_LANES, Quad32};
use crate::bytes::part;
use crate::level::rows;
use crate::types::{Quads, ScaleBits, Sign, SuperBlock};
use crate::x86::{apart, dpwssd_512, field, fields};

/// A block of 256 weights in natural order.
struct K {
    /// Codes, unsigned and at most 64, so that a lane's four products fit 16 bits.
    codes: [__m512i; 4],
    /// The signs of [`Sign::Apart`], a bit per weight.
    signs: [u64; 4],
    /// The scale of each lane's four weights in its low 16 bits, zero in its high 16 bits.
    scales: [__m512i; 4],
    /// The block's scale.
    d: __m512,
    /// The minimums of each 16 weights, which are subtracted.
    mins: __m512,
}

/// Multiplies rows of blocks of 256 with `C` columns.
///
/// VPDPBUSD sums four products per lane; VPDPWSSD multiplies that sum, which fits 16 bits, with the scale and
/// accumulates it: two instructions for 64 products and their scales. Minimums are applied as one f32 multiply-add
/// per block with the activations' sums, instead of integer operations.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
pub fn k<T: SuperBlock, const C: usize>(job: &mut Job<'_>) {
    let columns = job.columns::<Block256, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [_mm512_setzero_ps(); C];
        for (b, block) in row.chunks_exact(T::BYTES).enumerate() {
            prefetch(block, AHEAD);
            let weights = open::<T>(block);
            each::<C>(|c| sums[c] = k_add::<T>(&weights, &columns[c][b], sums[c]));
        }
        job.store(r, reduce(sums));
    }
}

/// Unpacks a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn open<T: SuperBlock>(block: &[u8]) -> K {
    const { assert!(matches!(T::SIGN, Sign::Lifted | Sign::Apart) && T::HIGHEST <= 64) };
    // Scale lane / 8 in the low byte of each lane, and scale or minimum lane / 2; byte 63 is always zero.
    const SCALES: [[u8; 64]; 4] = {
        let (mut table, mut lane) = ([[63; 64]; 4], 0);
        while lane < 64 {
            table[lane / 16][lane % 16 * 4] = lane as u8 / 8;
            lane += 1;
        }
        table
    };
    const MINS: [[u8; 64]; 2] = {
        let (mut table, mut lane) = ([[63; 64]; 2], 0);
        while lane < 16 {
            table[0][lane * 4] = lane as u8 / 2;
            table[1][lane * 4] = 8 + lane as u8 / 2;
            lane += 1;
        }
        table
    };
    let [scales, mins] = super::avx2::numbers::<T, rows::Avx512Vnni>(block);
    let [d, dmin] = super::avx2::units::<T>(block).map(|unit| _mm512_broadcastss_ps(unit));
    let (mins, unit) = if T::HAS_MINS {
        (mins, dmin)
    } else {
        (scales, _mm512_mul_ps(d, _mm512_set1_ps(f32::from(T::ZERO))))
    };
    let mins = if T::GROUP == 32 {
        let order = if T::HAS_MINS { &MINS[1] } else { &MINS[0] };
        _mm512_permutexvar_epi8(table(order), _mm512_zextsi128_si512(mins))
    } else {
        _mm512_cvtepi8_epi32(mins)
    };
    let mins = _mm512_mul_ps(_mm512_cvtepi32_ps(mins), unit);
    let signs = T::signs(block);
    let signs = [0, 2, 4, 6].map(|i| u64::from(signs[i]) | u64::from(signs[i + 1]) << 32);
    K {
        codes: [
            T::codes(block, 0),
            T::codes(block, 64),
            T::codes(block, 128),
            T::codes(block, 192),
        ],
        signs,
        scales: if T::GROUP == 32 {
            let numbers = _mm512_zextsi128_si512(scales);
            SCALES.each_ref().map(|order| _mm512_permutexvar_epi8(table(order), numbers))
        } else {
            spread_16(scales)
        },
        d,
        mins,
    }
}

/// Signed scale p of each 16 weights in the low half of four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vl")]
fn spread_16(scales: __m128i) -> [__m512i; 4] {
    const TABLE: [[u8; 64]; 4] = {
        let (mut table, mut lane) = ([[63; 64]; 4], 0);
        while lane < 64 {
            table[lane / 16][lane % 16 * 4] = lane as u8 / 4 * 2;
            table[lane / 16][lane % 16 * 4 + 1] = lane as u8 / 4 * 2 + 1;
            lane += 1;
        }
        table
    };
    let wide = _mm512_zextsi256_si512(_mm256_cvtepi8_epi16(scales));
    TABLE.each_ref().map(|order| _mm512_permutexvar_epi8(table(order), wide))
}

/// Adds a block's dot product to the sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn k_add<T: SuperBlock>(weights: &K, column: &Block256, sum: __m512) -> __m512 {
    let zero = _mm512_setzero_si512();
    let mut dots = zero;
    for i in 0..4 {
        let mut activations = load(bytemuck::bytes_of(&column.quants), 64 * i);
        if T::SIGN == Sign::Apart {
            activations = _mm512_mask_sub_epi8(activations, weights.signs[i], zero, activations);
        }
        let lanes = _mm512_dpbusd_epi32(zero, weights.codes[i], activations);
        dots = dpwssd_512(dots, lanes, weights.scales[i]);
    }
    let scale = _mm512_mul_ps(weights.d, _mm512_set1_ps(column.scale[0]));
    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sum);
    if T::HAS_MINS || T::ZERO > 0 {
        return _mm512_fnmadd_ps(weights.mins, load_ps(&column.sums), sum);
    }
    sum
}

/// Four blocks of 32 weights in natural order.
struct Quad {
    /// Values, unsigned; magnitudes, if scales are those of 16 weights.
    values: [__m512i; 2],
    /// The negative ones of magnitudes.
    signs: [u64; 2],
    /// The scale of each lane's group, lanes as `QUAD_LANES`.
    scales: __m512,
    /// The offset added to each weight of the lane's block.
    offsets: __m512,
}

/// Multiplies rows of quads with `C` columns.
///
/// Each of two integer dot products has eight lanes per block. One folding step leaves four lanes for each of all
/// four blocks, so that conversion and scaling, which cost as much as the dot product itself, are done once per 128
/// weights. Small values fold as 16-bit integers, which saves an instruction.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
pub fn quad<T: Quads, const BYTES: usize, const C: usize>(job: &mut Job<'_>) {
    let columns = job.columns::<Quad32, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [_mm512_setzero_ps(); C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            prefetch(group, AHEAD);
            for q in 0..T::QUADS {
                let weights = unpack::<T>(group, q);
                let at = g * T::QUADS + q;
                each::<C>(|c| sums[c] = quad_add::<T>(&weights, &columns[c][at], sums[c]));
            }
        }
        job.store(r, reduce(sums));
    }
}

/// Where 64 bytes are loaded and how they become the codes of half a quad.
struct Order {
    start: usize,
    /// The byte of each weight.
    bytes: [u8; 64],
    /// The byte of its flag.
    flags: [u8; 64],
    /// The field of each eight weights.
    matrices: [i64; 8],
}

impl Order {
    /// Of half `half` of the first quad of some blocks.
    const fn of<T: Quads>(half: usize) -> Order {
        let (first, last) = (place::<T>(0).0, place::<T>(127).0);
        let start = match half {
            _ if last - first < 64 => first,
            0 => 0,
            _ => T::BYTES - 64,
        };
        let mut order = Order { start, bytes: [0; 64], flags: [0; 64], matrices: [0; 8] };
        let mut i = 0;
        while i < 64 && T::CODES.bits < 8 {
            let (byte, shift) = place::<T>(64 * half + i);
            order.bytes[i] = (byte - start) as u8;
            order.matrices[i / 8] = field(shift, T::CODES.bits);
            if let Some(flags) = T::FLAGS {
                let block = (64 * half + i) / 32 * T::BLOCK;
                order.flags[i] = (block + flags.at + i % 32 / 8 - start) as u8;
            }
            i += 1;
        }
        order
    }
}

/// Byte and shift of a weight of some blocks.
const fn place<T: Quads>(weight: usize) -> (usize, u32) {
    let (byte, shift) = T::CODES.place(weight % T::WEIGHTS);
    (weight / T::WEIGHTS * T::BLOCK + byte, shift)
}

/// The codes of half a quad, `skipped` bytes further than `order` says.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn codes<T: Quads>(blocks: &[u8], order: &Order, skipped: usize) -> __m512i {
    let bytes = load(blocks, skipped + order.start);
    let codes = fields(_mm512_permutexvar_epi8(table(&order.bytes), bytes), order.matrices);
    let Some(flags) = T::FLAGS else { return codes };
    // Each weight's byte of flags, then its bit.
    let own = _mm512_permutexvar_epi8(table(&order.flags), bytes);
    let bit = _mm512_set1_epi64(0x8040_2010_0804_0201_u64.cast_signed());
    let value = _mm512_set1_epi8(flags.value.cast_signed());
    _mm512_mask_add_epi8(codes, _mm512_test_epi8_mask(own, bit), codes, value)
}

/// Unpacks quad `q` of some blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,gfni")]
fn unpack<T: Quads>(blocks: &[u8], q: usize) -> Quad {
    let codes = if T::CODES.bits == 8 {
        let pair = |b: usize| {
            let [low, high] = [b, b + 1].map(|b| b * T::BLOCK + T::CODES.at);
            load_pair(blocks, low, high)
        };
        [pair(0), pair(2)]
    } else {
        // A quad that begins inside a block.
        let skipped = T::CODES.place(128 * q % T::WEIGHTS).0 - T::CODES.at;
        let [first, last] = const { &[Order::of::<T>(0), Order::of::<T>(1)] };
        [codes::<T>(blocks, first, skipped), codes::<T>(blocks, last, skipped)]
    };
    let [a, b] = codes;
    let scales = scales::<T>(blocks, q);
    if T::GROUP == 16 {
        let (a, b) = (T::signed(a), T::signed(b));
        return Quad {
            values: [_mm512_abs_epi8(a), _mm512_abs_epi8(b)],
            signs: [_mm512_movepi8_mask(a), _mm512_movepi8_mask(b)],
            scales,
            offsets: _mm512_setzero_ps(),
        };
    }
    let offsets = match T::MIN {
        Some(at) => halves::<T>(blocks, at),
        None => _mm512_mul_ps(scales, _mm512_set1_ps(-f32::from(T::ZERO))),
    };
    Quad { values: [T::unsigned(a), T::unsigned(b)], signs: [0; 2], scales, offsets }
}

/// The scales of a quad's lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn scales<T: Quads>(blocks: &[u8], q: usize) -> __m512 {
    match T::SCALES {
        ScaleBits::F16(_) => halves::<T>(blocks, const { f16_offset::<T>() }),
        ScaleBits::Exponent(_) => exponents::<T>(load(blocks, 0)),
        ScaleBits::Computed => {
            let lanes: [usize; 16] = if T::GROUP == 16 {
                [0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7]
            } else {
                QUAD_LANES.map(|block| 4 * q + block)
            };
            let scales = _mm512_zextps256_ps512(T::computed_256(blocks));
            let lanes = lanes.map(|lane| lane as i32);
            _mm512_permutexvar_ps(load(bytemuck::bytes_of(&lanes), 0), scales)
        }
    }
}

/// Offset of an f16 scale.
const fn f16_offset<T: Quads>() -> usize {
    match T::SCALES {
        ScaleBits::F16(at) => at,
        _ => 0,
    }
}

/// The f16 numbers of a quad's blocks, spread over the lanes: from the first 64 bytes, and from 64 later ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn halves<T: Quads>(blocks: &[u8], at: usize) -> __m512 {
    let words = if at == const { f16_offset::<T>() } {
        const { &words::<T>(f16_offset::<T>()) }
    } else {
        const { &words::<T>(min_offset::<T>()) }
    };
    if 3 * T::BLOCK + at + 2 <= 64 {
        return quad_scales(load(blocks, 0), words);
    }
    let later = const { later::<T>() };
    if T::CODES.bits == 8 {
        // Narrower loads cover these bytes.
        let [first, second] = [0, later].map(|at| load(apart::<[u8; 64]>(part(blocks, at)), 0));
        return quad_scales_2(first, second, words);
    }
    quad_scales_2(load(blocks, 0), load(blocks, later), words)
}

const fn min_offset<T: Quads>() -> usize {
    match T::MIN {
        Some(at) => at,
        None => 0,
    }
}

/// Start of the 64 bytes with the last blocks' numbers.
const fn later<T: Quads>() -> usize {
    let (last, third) = (T::BYTES - 64, 2 * T::BLOCK);
    if last < third { last } else { third }
}

/// The [`quad_words`] of a field in the first and the later bytes.
const fn words<T: Quads>(field: usize) -> [u8; 64] {
    let (mut at, mut b) = ([0; 4], 0);
    while b < 4 {
        let byte = b * T::BLOCK + field;
        at[b] = if byte + 2 <= 64 { byte } else { 64 + byte - later::<T>() };
        b += 1;
    }
    quad_words(at)
}

/// 2^(e - 128) of the blocks' exponents, spread over the lanes: e - 1 as exponent of a float, or a fraction bit for
/// the two smallest, as in `half_scale`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn exponents<T: Quads>(bytes: __m512i) -> __m512 {
    let order = const {
        let at = match T::SCALES {
            ScaleBits::Exponent(at) => at,
            _ => 0,
        };
        &quad_bytes([at, T::BLOCK + at, 2 * T::BLOCK + at, 3 * T::BLOCK + at])
    };
    let spread = _mm512_permutexvar_epi8(table(order), bytes);
    let exponents = _mm512_and_si512(spread, _mm512_set1_epi32(0xff));
    let bits = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
    let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
    let is_small = _mm512_cmplt_epi32_mask(exponents, _mm512_set1_epi32(2));
    _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, is_small, small))
}

/// Adds a quad's dot product to the sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn quad_add<T: Quads>(weights: &Quad, column: &Quad32, sum: __m512) -> __m512 {
    let (zero, ones) = (_mm512_setzero_si512(), _mm512_set1_epi16(1));
    let activations = bytemuck::bytes_of(&column.quants);
    let (mut a, mut b) = (load(activations, 0), load(activations, 64));
    if T::GROUP == 16 {
        a = _mm512_mask_sub_epi8(a, weights.signs[0], zero, a);
        b = _mm512_mask_sub_epi8(b, weights.signs[1], zero, b);
    }
    let a = _mm512_dpbusd_epi32(zero, weights.values[0], a);
    let b = _mm512_dpbusd_epi32(zero, weights.values[1], b);
    // Four products of small values fit 16 bits.
    let folded = if T::HIGHEST <= 64 {
        _mm512_madd_epi16(_mm512_packs_epi32(a, b), ones)
    } else {
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    };
    // Only the last addition depends on the previous quad.
    let dots = _mm512_mul_ps(_mm512_cvtepi32_ps(folded), load_ps(&column.scales));
    if T::GROUP == 16 {
        return _mm512_fmadd_ps(dots, weights.scales, sum);
    }
    let offsets = _mm512_mul_ps(weights.offsets, load_ps(&column.sums));
    _mm512_add_ps(sum, _mm512_fmadd_ps(dots, weights.scales, offsets))
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

/// Two times 32 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_pair(bytes: &[u8], low: usize, high: usize) -> __m512i {
    let low = _mm512_castsi256_si512(super::avx2::load(bytes, low));
    _mm512_inserti64x4::<1>(low, super::avx2::load(bytes, high))
}

/// Loads shift counts, masks or indices from a table.
#[inline]
#[target_feature(enable = "avx512f")]
fn table(bytes: &[u8; 64]) -> __m512i {
    load(bytes, 0)
}

/// Indices of 16-bit words that spread four numbers over [`QUAD_LANES`]: the number of block b is at byte `at[b]`.
const fn quad_words(at: [usize; 4]) -> [u8; 64] {
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
fn quad_scales(bytes: __m512i, words: &[u8; 64]) -> __m512 {
    let bits = _mm512_permutexvar_epi16(table(words), bytes);
    _mm512_cvtph_ps(_mm512_castsi512_si256(bits))
}

/// The f16 numbers at the words of a table over two times 64 bytes; bytes of the second count from 64 on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn quad_scales_2(first: __m512i, second: __m512i, words: &[u8; 64]) -> __m512 {
    let bits = _mm512_permutex2var_epi16(first, table(words), second);
    _mm512_cvtph_ps(_mm512_castsi512_si256(bits))
}

/// Indices of bytes that spread four bytes over the low bytes of [`QUAD_LANES`]: the byte of block b is at `at[b]`.
/// The other bytes of a lane are unused.
const fn quad_bytes(at: [usize; 4]) -> [u8; 64] {
    let mut order = [0; 64];
    let mut lane = 0;
    while lane < 16 {
        order[4 * lane] = at[QUAD_LANES[lane]] as u8;
        lane += 1;
    }
    order
}
