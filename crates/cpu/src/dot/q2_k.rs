//! Q2_K rows.

use std::mem::offset_of;

use bilayer_quant::q2_k::Block;

use super::{Entry, Job, entry, f16_at, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "aarch64")]
pub(super) use arm::codes;
#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{codes_256, codes_512};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Q2K};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "q2_k.scalar", Q8x256, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "q2_k.avx2", Q8x256, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "q2_k.avxvnni", Q8x256, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "q2_k.avx512vnni", Q8x256, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "q2_k.neon", Q8x256, neon::plain<Q2K>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "q2_k.neon-dotprod", Q8x256, neon::dotprod<Q2K>[1 2 4]),
];

const BYTES: usize = size_of::<Block>();
const QUANTS: usize = offset_of!(Block, quants);
const D: usize = offset_of!(Block, d);
const DMIN: usize = offset_of!(Block, dmin);

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::k::<BYTES, C>(job, |block| {
        let dmin = f16_at(block, DMIN);
        scalar::K {
            quants: std::array::from_fn(|i| code(&block[QUANTS..], i)),
            scales: std::array::from_fn(|p| i32::from(block[p] & 15)),
            d: f16_at(block, D),
            mins: std::array::from_fn(|p| dmin * f32::from(block[p] >> 4)),
        }
    });
}

/// The two bits of weight `i`, as stored in Q2_K and Q3_K.
pub(super) fn code(quants: &[u8], i: usize) -> u8 {
    quants[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, part, q6_k};
    use super::{BYTES, D, Job, QUANTS};
    use crate::x86::field;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::k::<BYTES, 2, C>(job, |block| open(block), |block, h| half(block, h));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::k::<BYTES, C>(job, |block| open(block), |block, h| half(block, h));
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        avx512::k::<BYTES, C>(job, |block| {
            let (scales, mins) = scales_mins(avx2::load_128(block, 0));
            let (d, dmin) = units(block);
            let mins = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(mins));
            avx512::K {
                quants: codes_512(block, QUANTS),
                scales: q6_k::spread_16(scales),
                d: _mm512_broadcastss_ps(d),
                mins: _mm512_mul_ps(_mm512_broadcastss_ps(dmin), mins),
            }
        });
    }

    /// The two bits of 256 weights, four per byte and 32 apart, from `at` on.
    #[inline]
    #[target_feature(enable = "avx512f,gfni")]
    pub fn codes_512(block: &[u8], at: usize) -> [__m512i; 4] {
        const CODES: [i64; 4] = [field(0, 2), field(2, 2), field(4, 2), field(6, 2)];
        let bytes = [0, 32].map(|half| avx512::load_twice(block, at + half));
        [0, 1, 2, 3]
            .map(|i| avx512::two_fields(bytes[i / 2], CODES[i % 2 * 2], CODES[i % 2 * 2 + 1]))
    }

    /// The two bits of half a block's weights.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn codes_256(block: &[u8], at: usize, h: usize) -> [__m256i; 4] {
        let bytes = avx2::load(block, at + 32 * h);
        let turned = [
            bytes,
            _mm256_srli_epi16::<2>(bytes),
            _mm256_srli_epi16::<4>(bytes),
            _mm256_srli_epi16::<6>(bytes),
        ];
        turned.map(|bytes| _mm256_and_si256(bytes, _mm256_set1_epi8(3)))
    }

    /// The sixteen scales and minimums, one per byte, from sixteen bytes with both.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn scales_mins(both: __m128i) -> (__m128i, __m128i) {
        let nibbles = _mm_set1_epi8(15);
        (_mm_and_si128(both, nibbles), _mm_and_si128(_mm_srli_epi16::<4>(both), nibbles))
    }

    /// The block's scale and the scale of its minimums, in the first lanes.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn units(block: &[u8; BYTES]) -> (__m128, __m128) {
        let units = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes(*part(block, D))));
        (units, _mm_movehdup_ps(units))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn open(block: &[u8; BYTES]) -> avx2::K {
        let (scales, mins) = scales_mins(avx2::evens_odds(avx2::load_128(block, 0)));
        let (d, dmin) = units(block);
        avx2::K {
            d: _mm256_broadcastss_ps(d),
            scales: _mm256_cvtepi8_epi16(scales),
            mins: avx2::Mins::Own(_mm256_cvtepi8_epi16(mins), _mm256_broadcastss_ps(dmin)),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn half(block: &[u8; BYTES], h: usize) -> [__m256i; 4] {
        codes_256(block, QUANTS, h)
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::neon;
    use super::{BYTES, D, DMIN, Job, QUANTS, f16_at};

    pub struct Q2K;

    impl neon::RowKernel for Q2K {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::k::<M, BYTES, 4, true, C>(m, job, open, half);
        }
    }

    #[inline(always)]
    fn open(block: &[u8; BYTES]) -> neon::K<4> {
        let both = neon::load(block, 0);
        let [scales] = neon::centred([vandq_u8(both, vdupq_n_u8(15))], 0);
        let [mins] = neon::centred([vshrq_n_u8::<4>(both)], 0);
        neon::K {
            d: f16_at(block, D),
            scales: neon::lanes_16(scales),
            mins: neon::times(neon::lanes_16(mins), f16_at(block, DMIN)),
        }
    }

    #[inline(always)]
    fn half(block: &[u8; BYTES], h: usize) -> [int8x16_t; 8] {
        neon::centred(codes(block, QUANTS + 32 * h), 0)
    }

    /// The two bits of half a block's weights, four per byte and 32 apart.
    #[inline(always)]
    pub fn codes(block: &[u8], at: usize) -> [uint8x16_t; 8] {
        let [a, b] = [0, 16].map(|i| neon::load(block, at + i));
        let two = |bits| vandq_u8(bits, vdupq_n_u8(3));
        [
            two(a),
            two(b),
            two(vshrq_n_u8::<2>(a)),
            two(vshrq_n_u8::<2>(b)),
            two(vshrq_n_u8::<4>(a)),
            two(vshrq_n_u8::<4>(b)),
            vshrq_n_u8::<6>(a),
            vshrq_n_u8::<6>(b),
        ]
    }
}
