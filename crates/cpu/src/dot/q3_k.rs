//! Q3_K rows: Q2_K's codes with a third bit, and signed scales.

use std::mem::offset_of;

use bilayer_quant::q3_k::{Block, scales};

use super::{Entry, Job, entry, f16_at, part, q2_k, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Q3K};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "q3_k.scalar", Q8x256, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "q3_k.avx2", Q8x256, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "q3_k.avxvnni", Q8x256, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "q3_k.avx512vnni", Q8x256, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "q3_k.neon", Q8x256, neon::plain<Q3K>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "q3_k.neon-dotprod", Q8x256, neon::dotprod<Q3K>[1 2 4]),
];

const BYTES: usize = size_of::<Block>();
const HIGH: usize = offset_of!(Block, high);
const QUANTS: usize = offset_of!(Block, quants);
const SCALES: usize = offset_of!(Block, scales);
const D: usize = offset_of!(Block, d);
/// The code that stands for zero.
const OFFSET: f32 = 4.0;

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::k::<BYTES, C>(job, |block| {
        let code = |i: usize| {
            let high = block[HIGH + i % 32] >> (i / 32) & 1;
            q2_k::code(&block[QUANTS..], i) | high << 2
        };
        let (d, scales) = (f16_at(block, D), scales(part(block, SCALES)));
        scalar::K {
            quants: std::array::from_fn(code),
            scales: scales.map(i32::from),
            d,
            mins: scales.map(|scale| d * OFFSET * f32::from(scale)),
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, q2_k, q6_k};
    use super::{BYTES, HIGH, Job, OFFSET, QUANTS};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::k::<BYTES, 3, C>(job, |block| open(block), |block, h| half(block, h));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::k::<BYTES, C>(job, |block| open(block), |block, h| half(block, h));
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        // Left rotations of 64 bits that move bits 2 i and 2 i + 1 of the two halves to bit 2.
        const TURNS: [[i64; 2]; 4] = [[2, 1], [0, 63], [62, 61], [60, 59]];
        avx512::k::<BYTES, C>(job, |block| {
            let third = _mm512_set1_epi8(4);
            let high = avx512::load_twice(block, HIGH);
            let low = q2_k::codes_512(block, QUANTS);
            let quants = [0, 1, 2, 3].map(|i| {
                let [a, b] = TURNS[i];
                let turned = _mm512_rolv_epi64(high, _mm512_set_epi64(b, b, b, b, a, a, a, a));
                // low | turned & third
                _mm512_ternarylogic_epi64::<0xf8>(low[i], turned, third)
            });
            let (scales, d) = scales_unit(block);
            let d = _mm512_broadcastss_ps(d);
            let floats = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales));
            avx512::K {
                quants,
                scales: q6_k::spread_16(scales),
                d,
                mins: _mm512_mul_ps(floats, _mm512_mul_ps(d, _mm512_set1_ps(OFFSET))),
            }
        });
    }

    /// The sixteen signed scales, one per byte, and the block's scale in the first lane.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn scales_unit(block: &[u8; BYTES]) -> (__m128i, __m128) {
        // The last 16 bytes of a block: two of codes, twelve of scales, two of the block's scale.
        let tail = avx2::load_128(block, BYTES - 16);
        let low =
            _mm_shuffle_epi8(tail, _mm_set_epi64x(0x0908_0706_0504_0302, 0x0908_0706_0504_0302));
        let low = _mm_and_si128(_mm_srlv_epi64(low, _mm_set_epi64x(4, 0)), _mm_set1_epi8(15));
        let high = _mm_shuffle_epi8(tail, _mm_set1_epi32(0x0d0c_0b0a));
        let high = _mm_srlv_epi32(high, _mm_set_epi32(6, 4, 2, 0));
        let high = _mm_slli_epi16::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
        let scales = _mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32));
        (scales, _mm_cvtph_ps(_mm_srli_si128::<14>(tail)))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn open(block: &[u8; BYTES]) -> avx2::K {
        let (scales, d) = scales_unit(block);
        q6_k::open_16::<2>(scales, d)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn half(block: &[u8; BYTES], h: usize) -> [__m256i; 4] {
        let bits = avx2::load(block, HIGH);
        let bits = _mm256_srl_epi16(bits, _mm_cvtsi32_si128(4 * h as i32));
        let turned = [
            _mm256_slli_epi16::<2>(bits),
            _mm256_slli_epi16::<1>(bits),
            bits,
            _mm256_srli_epi16::<1>(bits),
        ];
        let low = q2_k::codes_256(block, QUANTS, h);
        [0, 1, 2, 3].map(|i| {
            let third = _mm256_and_si256(turned[i], _mm256_set1_epi8(4));
            _mm256_or_si256(low[i], third)
        })
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::{neon, part, q2_k};
    use super::{BYTES, D, HIGH, Job, OFFSET, QUANTS, SCALES, f16_at};

    pub struct Q3K;

    impl neon::RowKernel for Q3K {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::k::<M, BYTES, 4, false, C>(m, job, open, half);
        }
    }

    #[inline(always)]
    fn open(block: &[u8; BYTES]) -> neon::K<4> {
        neon::K {
            d: f16_at(block, D),
            scales: neon::lanes_16(scales(block)),
            mins: [vdupq_n_f32(0.0); 4],
        }
    }

    /// The sixteen signed scales: nibbles of eight bytes, then two bits of each from four more bytes.
    #[inline(always)]
    fn scales(block: &[u8; BYTES]) -> int8x16_t {
        let low = vcreate_u8(u64::from_le_bytes(*part(block, SCALES)));
        let low = vcombine_u8(vand_u8(low, vdup_n_u8(15)), vshr_n_u8::<4>(low));
        let high = u32::from_le_bytes(*part(block, SCALES + 8));
        let high = vreinterpretq_u8_u32(vdupq_n_u32(high));
        // Shifts of 0, 2, 4 and 6 bits, four lanes each.
        let down =
            vcombine_s8(vcreate_s8(0xfefe_fefe_0000_0000), vcreate_s8(0xfafa_fafa_fcfc_fcfc));
        let high = vandq_u8(vshlq_u8(high, down), vdupq_n_u8(3));
        let [scales] = neon::centred([vorrq_u8(low, vshlq_n_u8::<4>(high))], 32);
        scales
    }

    #[inline(always)]
    fn half(block: &[u8; BYTES], h: usize) -> [int8x16_t; 8] {
        // Bit 4 h + j belongs to the jth 32 weights of the half.
        let down = vdupq_n_s8(-4 * h as i8);
        let [a, b] = [0, 16].map(|at| vshlq_u8(neon::load(block, HIGH + at), down));
        let thirds = [
            vshlq_n_u8::<2>(a),
            vshlq_n_u8::<2>(b),
            vshlq_n_u8::<1>(a),
            vshlq_n_u8::<1>(b),
            a,
            b,
            vshrq_n_u8::<1>(a),
            vshrq_n_u8::<1>(b),
        ];
        let low = q2_k::codes(block, QUANTS + 32 * h);
        let third = |i: usize| vandq_u8(thirds[i], vdupq_n_u8(4));
        neon::centred(std::array::from_fn(|i| vorrq_u8(low[i], third(i))), OFFSET as u8)
    }
}
