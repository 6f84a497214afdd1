//! Q5_K rows: Q4_K with a fifth bit.

use std::mem::offset_of;

use bilayer_quant::q5_k::Block;

use super::{Entry, Job, entry, part, q4_k, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Q5K};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "q5_k.scalar", Q8x256, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "q5_k.avx2", Q8x256, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "q5_k.avxvnni", Q8x256, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "q5_k.avx512vnni", Q8x256, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "q5_k.neon", Q8x256, neon::plain<Q5K>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "q5_k.neon-dotprod", Q8x256, neon::dotprod<Q5K>[1 2 4]),
];

const BYTES: usize = size_of::<Block>();
const SCALES: usize = offset_of!(Block, scales);
const HIGH: usize = offset_of!(Block, high);
const QUANTS: usize = offset_of!(Block, quants);

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::k::<BYTES, C>(job, |block| {
        let (high, quants) = (&block[HIGH..], &block[QUANTS..]);
        let low = |i: usize| quants[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        let code = |i: usize| low(i) | (high[i % 32] >> (i / 32) & 1) << 4;
        q4_k::unpack(block, part(block, SCALES), std::array::from_fn(code))
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, q4_k};
    use super::{BYTES, HIGH, Job, QUANTS};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::k::<BYTES, 5, C>(job, |block| open(block), |block, h| half(block, h));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::k::<BYTES, C>(job, |block| open(block), |block, h| half(block, h));
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        // Left rotations of 64 bits that move bits 2 i and 2 i + 1 of the two halves to bit 4.
        const TURNS: [[i64; 2]; 4] = [[4, 3], [2, 1], [0, 63], [62, 61]];
        avx512::k::<BYTES, C>(job, |block| {
            let fifth = _mm512_set1_epi8(16);
            let high = avx512::load_twice(block, HIGH);
            let quants = [0, 1, 2, 3].map(|i| {
                let low = q4_k::nibbles_512(block, QUANTS + 32 * i);
                let [a, b] = TURNS[i];
                let turned = _mm512_rolv_epi64(high, _mm512_set_epi64(b, b, b, b, a, a, a, a));
                // low | turned & fifth
                _mm512_ternarylogic_epi64::<0xf8>(low, turned, fifth)
            });
            q4_k::unpack_512(block, quants)
        });
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn open(block: &[u8; BYTES]) -> avx2::K {
        q4_k::open_head(avx2::load_128(block, 0))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn half(block: &[u8; BYTES], h: usize) -> [__m256i; 4] {
        let (nibbles, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
        let [a, b] = [0, 32].map(|at| avx2::load(block, QUANTS + 64 * h + at));
        let bits = avx2::load(block, HIGH);
        let bits = _mm256_srl_epi16(bits, _mm_cvtsi32_si128(4 * h as i32));
        let join = |low, turned| {
            let low = _mm256_and_si256(low, nibbles);
            _mm256_or_si256(low, _mm256_and_si256(turned, fifth))
        };
        [
            join(a, _mm256_slli_epi16::<4>(bits)),
            join(_mm256_srli_epi16::<4>(a), _mm256_slli_epi16::<3>(bits)),
            join(b, _mm256_slli_epi16::<2>(bits)),
            join(_mm256_srli_epi16::<4>(b), _mm256_slli_epi16::<1>(bits)),
        ]
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::{neon, q4_k};
    use super::{BYTES, HIGH, Job, QUANTS};

    pub struct Q5K;

    impl neon::RowKernel for Q5K {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::k::<M, BYTES, 2, true, C>(m, job, |block| q4_k::open(block), half);
        }
    }

    #[inline(always)]
    fn half(block: &[u8; BYTES], h: usize) -> [int8x16_t; 8] {
        // Bit 4 h + j belongs to the jth 32 weights of the half.
        let down = vdupq_n_s8(-4 * h as i8);
        let [a, b] = [0, 16].map(|at| vshlq_u8(neon::load(block, HIGH + at), down));
        let fifths = [
            vshlq_n_u8::<4>(a),
            vshlq_n_u8::<4>(b),
            vshlq_n_u8::<3>(a),
            vshlq_n_u8::<3>(b),
            vshlq_n_u8::<2>(a),
            vshlq_n_u8::<2>(b),
            vshlq_n_u8::<1>(a),
            vshlq_n_u8::<1>(b),
        ];
        let low = q4_k::nibbles(block, QUANTS + 64 * h);
        let fifth = |i: usize| vandq_u8(fifths[i], vdupq_n_u8(16));
        neon::centred(std::array::from_fn(|i| vorrq_u8(low[i], fifth(i))), 0)
    }
}
