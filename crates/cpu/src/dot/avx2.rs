//! The kernel families' loops with AVX2, FMA and F16C.

use std::arch::x86_64::*;

use bilayer_quant::mxfp4::half_scale;

use super::{AHEAD, Groups, Job, prefetch};
use crate::activations::{Block256, Quad32};
use crate::bytes::avx2::spread_bits;
use crate::bytes::part;
use crate::level::{Vectors, rows};
pub(crate) use crate::types::x86::{numbers, units};
use crate::types::{Quads, ScaleBits, Sign, SuperBlock};
use crate::x86::{apart, unknown, whole_lines};

/// A block of 256 weights without its codes.
pub struct K {
    /// The block's scale.
    pub d: __m256,
    /// The scales of 16 weights each, as 16-bit integers: the even ones in the lower half, the odd ones in the upper.
    pub scales: __m256i,
    /// The minimums of each 16 weights, which are subtracted.
    pub mins: Mins,
    /// The signs of [`Sign::Apart`], a bit per weight.
    pub signs: [u32; 8],
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

/// Makes the loops of a level with 256 bits, `k` and `quad`, from its features and row and from what differs:
///
/// - `is_signed::<T>()`: whether values of quads are signed, and need no offsets;
/// - `add_scaled(sums, pairs, scales)` adds pairs of 16-bit sums times their scales;
/// - `products::<T>(values, activations)` sums the products of four bytes each.
///
/// A macro, because the features of a function are not those of its caller: a product of another level would be a call.
macro_rules! loops {
    ($features:literal, $row:ident) => {
        /// Multiplies rows of blocks of 256 with `C` columns.
        ///
        /// Working on half a block keeps codes and scales in the sixteen registers. Sums of two products fit 16 bits, and
        /// are multiplied with the scales.
        #[inline]
        #[target_feature(enable = $features)]
        pub fn k<T: SuperBlock, const C: usize>(job: &mut Job<'_>) {
            whole_lines();
            let (columns, tables) = (job.columns::<Block256, C>(), spread());
            for (r, row) in job.rows().enumerate() {
                let mut sums = [_mm256_setzero_ps(); C];
                for (b, block) in row.chunks_exact(T::BYTES).enumerate() {
                    prefetch(block, AHEAD);
                    let weights = open::<T, rows::$row>(block);
                    let mut dots = [_mm256_setzero_si256(); C];
                    let half = columns.map(|column| &column[b]);
                    k_half::<T, 0, C>(block, &weights, tables, half, &mut dots);
                    let half = columns.map(|column| &column[b]);
                    k_half::<T, 1, C>(block, &weights, tables, half, &mut dots);
                    for ((sum, dots), column) in sums.iter_mut().zip(dots).zip(columns) {
                        *sum = k_close(&weights, dots, &column[b], *sum);
                    }
                }
                job.store(r, reduce(sums));
            }
        }

        /// Adds half `H` of a block, scaled.
        #[inline]
        #[target_feature(enable = $features)]
        fn k_half<T: SuperBlock, const H: usize, const C: usize>(
            block: &[u8],
            weights: &K,
            tables: &[[u8; 32]; 8],
            columns: [&Block256; C],
            dots: &mut [__m256i; C],
        ) {
            let (half, scales) = (Half::of::<T, H>(block, weights), k_scales(weights, tables, H));
            for (dots, column) in dots.iter_mut().zip(columns) {
                let activations = bytemuck::bytes_of(&column.quants);
                for (i, scales) in scales.into_iter().enumerate() {
                    let pairs = half.pairs::<T>(load(activations, 128 * H + 32 * i), i);
                    *dots = add_scaled(*dots, pairs, scales);
                }
            }
        }

        /// Multiplies rows of quads with `C` columns.
        #[inline]
        #[target_feature(enable = $features)]
        pub fn quad<T: Quads, const BYTES: usize, const C: usize>(job: &mut Job<'_>) {
            whole_lines();
            let is_signed = const { is_signed::<T>() };
            let columns = job.columns::<Quad32, C>();
            for (r, row) in job.rows().enumerate() {
                let mut sums = [QuadSum::zero(); C];
                let groups = Groups::<BYTES>::of(row);
                for (g, group) in groups.iter().enumerate() {
                    prefetch(group, AHEAD);
                    for q in 0..T::QUADS {
                        let weights = if is_signed {
                            unpack::<T, true>(group, q)
                        } else {
                            unpack::<T, false>(group, q)
                        };
                        for (sum, column) in sums.iter_mut().zip(columns) {
                            let column = &column[g * T::QUADS + q];
                            let activations = bytemuck::bytes_of(&column.quants);
                            let dots = [0, 1, 2, 3].map(|b| {
                                products::<T>(weights.values[b], load(activations, 32 * b))
                            });
                            if is_signed {
                                quad_close::<T, false>(&weights, dots, column, sum);
                            } else {
                                quad_close::<T, true>(&weights, dots, column, sum);
                            }
                        }
                    }
                }
                job.store(r, reduce(sums.map(|sum| sum.close(unit::<T>()))));
            }
        }
    };
}
pub(super) use loops;

loops!("avx2,fma,f16c", Avx2);

/// Values of eight bits are signed ([`pairs`]), and those with scales of 16 weights, whose offsets would need sums of 16
/// activations.
const fn is_signed<T: Quads>() -> bool {
    T::ZERO == 0x80 || T::GROUP == 16
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_scaled(sums: __m256i, pairs: __m256i, scales: __m256i) -> __m256i {
    _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, scales))
}

#[inline]
#[target_feature(enable = "avx2")]
fn products<T: Quads>(values: __m256i, activations: __m256i) -> __m256i {
    let pairs = if is_signed::<T>() {
        pairs(values, activations)
    } else {
        _mm256_maddubs_epi16(values, activations)
    };
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// The scales and minimums of a block, for the level of the row `R`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn open<T: SuperBlock, R: Vectors>(block: &[u8]) -> K {
    let [scales, mins] = numbers::<T, R>(block);
    let [d, dmin] = units::<T>(block);
    // Each number of 32 weights applies to an even and an odd group of sixteen.
    let (scales, mins) = if T::GROUP == 32 {
        (_mm_unpacklo_epi64(scales, scales), _mm_unpackhi_epi64(mins, mins))
    } else {
        (evens_odds(scales), evens_odds(mins))
    };
    let (scales, mins) = (_mm256_cvtepi8_epi16(scales), _mm256_cvtepi8_epi16(mins));
    let scales = T::scales_256(block).unwrap_or(scales);
    let mins = if T::HAS_MINS {
        Mins::Own(mins, _mm256_broadcastss_ps(dmin))
    } else if T::ZERO > 0 {
        Mins::Same(_mm256_mullo_epi16(scales, _mm256_set1_epi16(i16::from(T::ZERO))))
    } else {
        Mins::None
    };
    K { d: _mm256_broadcastss_ps(d), scales, mins, signs: T::signs(block) }
}

/// The codes of half a block.
pub struct Half {
    codes: [__m256i; 4],
    /// Only of [`Sign::Apart`]: negative and positive.
    signs: [__m256i; 4],
}

impl Half {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn of<T: SuperBlock, const H: usize>(block: &[u8], weights: &K) -> Half {
        let codes = [
            T::codes(block, 128 * H),
            T::codes(block, 128 * H + 32),
            T::codes(block, 128 * H + 64),
            T::codes(block, 128 * H + 96),
        ];
        let signs = [0, 1, 2, 3].map(|i| match T::SIGN {
            Sign::Apart => {
                _mm256_or_si256(spread_bits(*apart(&weights.signs[4 * H + i])), _mm256_set1_epi8(1))
            }
            _ => _mm256_setzero_si256(),
        });
        Half { codes, signs }
    }

    /// Sums of two products each of 32 weights. Signs are transferred to the activations, because VPMADDUBSW takes
    /// unsigned codes and would saturate on lifted ones of eight bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn pairs<T: SuperBlock>(&self, activations: __m256i, i: usize) -> __m256i {
        let codes = self.codes[i];
        match T::SIGN {
            Sign::Lifted => _mm256_maddubs_epi16(codes, activations),
            Sign::Code => pairs(codes, activations),
            Sign::Apart => {
                _mm256_maddubs_epi16(codes, _mm256_sign_epi8(activations, self.signs[i]))
            }
        }
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
    /// Values, unsigned or signed.
    pub values: [__m256i; 4],
    /// The blocks' scales, twice; of groups of 16, those of the even ones, then those of the odd ones.
    pub scales: __m256,
    /// The offset added to each weight of a block, as multiples of [`unit`].
    pub offsets: __m128,
}

/// The unit of a type's offsets.
pub fn unit<T: Quads>() -> f32 {
    if T::MIN.is_some() { 1.0 } else { -f32::from(T::ZERO) }
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

/// Unpacks quad `q` of some blocks, to signed values if `SIGNED`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn unpack<T: Quads, const SIGNED: bool>(blocks: &[u8], q: usize) -> Quad {
    let codes: [__m256i; 4] = [
        T::codes(blocks, 128 * q),
        T::codes(blocks, 128 * q + 32),
        T::codes(blocks, 128 * q + 64),
        T::codes(blocks, 128 * q + 96),
    ];
    let [a, b, c, d] = codes;
    let values = if SIGNED {
        [T::signed(a), T::signed(b), T::signed(c), T::signed(d)]
    } else {
        [T::unsigned(a), T::unsigned(b), T::unsigned(c), T::unsigned(d)]
    };
    let scales = match T::SCALES {
        ScaleBits::F16(at) => quad_scales(blocks, T::BLOCK, at),
        ScaleBits::Exponent(at) => {
            let [a, b, c, d] = [0, 1, 2, 3].map(|b| half_scale(blocks[b * T::BLOCK + at]));
            _mm_set_ps(d, c, b, a)
        }
        ScaleBits::Computed => {
            let scales = T::computed_256(blocks);
            if T::GROUP == 16 {
                let parities = _mm256_set_epi32(7, 5, 3, 1, 6, 4, 2, 0);
                let scales = _mm256_permutevar8x32_ps(scales, parities);
                return Quad { values, scales, offsets: _mm_setzero_ps() };
            }
            if q == 0 { _mm256_castps256_ps128(scales) } else { _mm256_extractf128_ps::<1>(scales) }
        }
    };
    let offsets = match T::MIN {
        Some(at) => quad_scales(blocks, T::BLOCK, at),
        None => scales,
    };
    Quad { values, scales: _mm256_castps128_ps256(scales), offsets }
}

/// Sums of two products each of signed bytes, which transfer their sign to the activations, because VPMADDUBSW would
/// saturate on unsigned ones.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs(values: __m256i, activations: __m256i) -> __m256i {
    let signed = _mm256_sign_epi8(activations, values);
    _mm256_maddubs_epi16(_mm256_abs_epi8(values), signed)
}

/// Adds four blocks' dot products to the sum; with `OFFSETS`, also their offsets' contribution.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn quad_close<T: Quads, const OFFSETS: bool>(
    weights: &Quad,
    dots: [__m256i; 4],
    column: &Quad32,
    sum: &mut QuadSum,
) {
    let scales = if T::GROUP == 16 {
        let column = by_block(&column.scales);
        _mm256_mul_ps(weights.scales, _mm256_set_m128(column, column))
    } else {
        let scales = _mm_mul_ps(_mm256_castps256_ps128(weights.scales), by_block(&column.scales));
        _mm256_set_m128(scales, scales)
    };
    // Otherwise the compiler makes two instructions of each of the four below.
    let scales = unknown(scales);
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

/// 32 bytes from `at` on.
#[inline]
#[target_feature(enable = "avx")]
pub fn load(bytes: &[u8], at: usize) -> __m256i {
    let bytes: &[u8; 32] = part(bytes, at);
    // SAFETY: the reference covers the 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 16 bytes from `at` on.
#[inline]
#[target_feature(enable = "sse2")]
pub fn load_128(bytes: &[u8], at: usize) -> __m128i {
    let bytes: &[u8; 16] = part(bytes, at);
    // SAFETY: the reference covers the 16 bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// The first 4 floats.
#[inline]
#[target_feature(enable = "sse")]
pub fn load_ps_128<const N: usize>(values: &[f32; N]) -> __m128 {
    const { assert!(N >= 4) };
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
