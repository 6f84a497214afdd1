//! Q6_K rows.

use std::mem::offset_of;

use bilayer_quant::q6_k::Block;

use super::{Entry, Job, entry, f16_at, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{open_16, spread_16};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{quants_512, scale_128};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Q6K};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "q6_k.scalar", Q8x256, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "q6_k.avx2", Q8x256, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "q6_k.avxvnni", Q8x256, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "q6_k.avx512vnni", Q8x256, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "q6_k.neon", Q8x256, neon::plain<Q6K>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "q6_k.neon-dotprod", Q8x256, neon::dotprod<Q6K>[1 2 4]),
];

const BYTES: usize = size_of::<Block>();
const LOW: usize = offset_of!(Block, low);
const HIGH: usize = offset_of!(Block, high);
const SCALES: usize = offset_of!(Block, scales);
const D: usize = offset_of!(Block, d);
/// The code that stands for zero.
const OFFSET: f32 = 32.0;

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::k::<BYTES, C>(job, |block| {
        let code = |i: usize| {
            let low = block[LOW + i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
            let high = block[HIGH + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
            low | high << 4
        };
        let d = f16_at(block, D);
        let scale = |p: usize| block[SCALES + p].cast_signed();
        scalar::K {
            quants: std::array::from_fn(code),
            scales: std::array::from_fn(|p| i32::from(scale(p))),
            d,
            mins: std::array::from_fn(|p| d * OFFSET * f32::from(scale(p))),
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, u16_at};
    use super::{BYTES, D, HIGH, Job, LOW, OFFSET, SCALES};
    use crate::x86::{field, fields};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::k::<BYTES, 6, C>(job, |block| open(block), |block, h| half(block, h));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::k::<BYTES, C>(job, |block| open(block), |block, h| half(block, h));
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        avx512::k::<BYTES, C>(job, |block| {
            let [a, b] = quants_512(block, 0);
            let [c, d] = quants_512(block, 1);
            let scales = avx2::load_128(block, SCALES);
            let floats = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales));
            let scale = _mm512_broadcastss_ps(scale_128(block));
            avx512::K {
                quants: [a, b, c, d],
                scales: spread_16(scales),
                d: scale,
                mins: _mm512_mul_ps(floats, _mm512_mul_ps(scale, _mm512_set1_ps(OFFSET))),
            }
        });
    }

    /// Half a block's 128 codes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,gfni")]
    pub fn quants_512(block: &[u8; BYTES], h: usize) -> [__m512i; 2] {
        let nibbles = _mm512_set1_epi8(15);
        let top = _mm512_set1_epi8(0x30);
        let low = avx512::load(block, LOW + 64 * h);
        let high = avx512::load_twice(block, HIGH + 32 * h);
        // Bits 0 and 1, 2 and 3 of the halves, then 4 and 5, 6 and 7 become bits 4 and 5.
        let first = _mm512_rolv_epi64(high, _mm512_set_epi64(2, 2, 2, 2, 4, 4, 4, 4));
        let second = _mm512_rolv_epi64(high, _mm512_set_epi64(62, 62, 62, 62, 0, 0, 0, 0));
        let a = _mm512_and_si512(low, nibbles);
        let b = fields(low, [field(4, 4); 8]);
        // low | turned & top
        [
            _mm512_ternarylogic_epi64::<0xf8>(a, first, top),
            _mm512_ternarylogic_epi64::<0xf8>(b, second, top),
        ]
    }

    /// Signed scale p of each 16 weights in the low half of four lanes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vl")]
    pub fn spread_16(scales: __m128i) -> [__m512i; 4] {
        const TABLE: [[u8; 64]; 4] = {
            let mut table = [[63; 64]; 4];
            let mut lane = 0;
            while lane < 64 {
                table[lane / 16][lane % 16 * 4] = lane as u8 / 4 * 2;
                table[lane / 16][lane % 16 * 4 + 1] = lane as u8 / 4 * 2 + 1;
                lane += 1;
            }
            table
        };
        let wide = _mm512_zextsi256_si512(_mm256_cvtepi8_epi16(scales));
        TABLE.each_ref().map(|table| _mm512_permutexvar_epi8(avx512::table(table), wide))
    }

    /// The block's scale in the first lane.
    #[inline]
    #[target_feature(enable = "sse2,f16c")]
    pub fn scale_128(block: &[u8; BYTES]) -> __m128 {
        _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16_at(block, D))))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn open(block: &[u8; BYTES]) -> avx2::K {
        open_16::<5>(avx2::load_128(block, SCALES), scale_128(block))
    }

    /// A block with sixteen signed scales; the code that stands for zero is 2^`ZERO`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn open_16<const ZERO: i32>(scales: __m128i, d: __m128) -> avx2::K {
        let scales = _mm256_cvtepi8_epi16(avx2::evens_odds(scales));
        let mins = avx2::Mins::Same(_mm256_slli_epi16::<ZERO>(scales));
        avx2::K { d: _mm256_broadcastss_ps(d), scales, mins }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn half(block: &[u8; BYTES], h: usize) -> [__m256i; 4] {
        let (nibbles, top) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
        let [a, b] = [0, 32].map(|at| avx2::load(block, LOW + 64 * h + at));
        let high = avx2::load(block, HIGH + 32 * h);
        let join = |low, turned| {
            let low = _mm256_and_si256(low, nibbles);
            _mm256_or_si256(low, _mm256_and_si256(turned, top))
        };
        [
            join(a, _mm256_slli_epi16::<4>(high)),
            join(b, _mm256_slli_epi16::<2>(high)),
            join(_mm256_srli_epi16::<4>(a), high),
            join(_mm256_srli_epi16::<4>(b), _mm256_srli_epi16::<2>(high)),
        ]
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::neon;
    use super::{BYTES, D, HIGH, Job, LOW, OFFSET, SCALES, f16_at};

    pub struct Q6K;

    impl neon::RowKernel for Q6K {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::k::<M, BYTES, 4, false, C>(m, job, open, half);
        }
    }

    #[inline(always)]
    fn open(block: &[u8; BYTES]) -> neon::K<4> {
        let scales = vreinterpretq_s8_u8(neon::load(block, SCALES));
        neon::K { d: f16_at(block, D), scales: neon::lanes_16(scales), mins: [vdupq_n_f32(0.0); 4] }
    }

    #[inline(always)]
    fn half(block: &[u8; BYTES], h: usize) -> [int8x16_t; 8] {
        let low = [0, 16, 32, 48].map(|at| neon::load(block, LOW + 64 * h + at));
        let [a, b] = [0, 16].map(|at| neon::load(block, HIGH + 32 * h + at));
        let high = [
            vshlq_n_u8::<4>(a),
            vshlq_n_u8::<4>(b),
            vshlq_n_u8::<2>(a),
            vshlq_n_u8::<2>(b),
            a,
            b,
            vshrq_n_u8::<2>(a),
            vshrq_n_u8::<2>(b),
        ];
        let codes = std::array::from_fn(|i| {
            let nibble =
                if i < 4 { vandq_u8(low[i], vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(low[i - 4]) };
            vorrq_u8(nibble, vandq_u8(high[i], vdupq_n_u8(0x30)))
        });
        neon::centred(codes, OFFSET as u8)
    }
}
