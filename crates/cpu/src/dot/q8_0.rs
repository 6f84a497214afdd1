//! Q8_0 rows.

use bilayer_quant::q8_0::Block;

use super::{Entry, Job, entry, f16_at, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Q8_0};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "q8_0.scalar", Q8x32, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "q8_0.avx2", Q8x32, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "q8_0.avxvnni", Q8x32, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "q8_0.avx512vnni", Q8x32, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "q8_0.neon", Q8x32, neon::plain<Q8_0>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "q8_0.neon-dotprod", Q8x32, neon::dotprod<Q8_0>[1 2 4]),
];

const BLOCK: usize = size_of::<Block>();
/// Bytes of four blocks.
const BYTES: usize = 4 * BLOCK;
/// Offset of the codes in a block, after the scale.
const QUANTS: usize = 2;

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::quad::<BYTES, 1, C>(job, |quad, _| scalar::Quad {
        quants: std::array::from_fn(|i| {
            i16::from(quad[i / 32 * BLOCK + QUANTS + i % 32].cast_signed())
        }),
        scales: [0, 1, 2, 3].map(|b| f16_at(quad, b * BLOCK)),
        offsets: [0.0; 4],
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels. VPDPBUSD requires one unsigned operand: there 128 is added to the codes and
    //! subtracted again through the activations' sums.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, part};
    use super::{BLOCK, BYTES, Job, QUANTS};
    use crate::x86::apart;

    const OFFSET: f32 = 128.0;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::quad::<BYTES, 1, 8, C>(job, -OFFSET, |quad, _| unpack(quad));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::quad::<BYTES, 1, C>(job, -OFFSET, |quad, _| {
            let mut unpacked = unpack(quad);
            let flip = _mm256_set1_epi8(i8::MIN);
            unpacked.quants = unpacked.quants.map(|quants| _mm256_xor_si256(quants, flip));
            unpacked
        });
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack(quad: &[u8; BYTES]) -> avx2::Quad {
        let scales = avx2::quad_scales(quad, BLOCK, 0);
        avx2::Quad {
            quants: [0, 1, 2, 3].map(|b| avx2::load(quad, b * BLOCK + QUANTS)),
            scales,
            offsets: scales,
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        avx512::quad::<BYTES, 1, 8, C>(job, |quad, _| {
            let flip = _mm512_set1_epi8(i8::MIN);
            let pair = |b: usize| {
                let [low, high] = [b, b + 1].map(|b| b * BLOCK + QUANTS);
                _mm512_xor_si512(avx512::load_pair(quad, low, high), flip)
            };
            let quants = [pair(0), pair(2)];
            let scales = scales_512(quad);
            avx512::Quad { quants, scales, offsets: _mm512_mul_ps(scales, _mm512_set1_ps(-OFFSET)) }
        });
    }

    /// The four scales spread over the lanes: 0 and 1 are in the first 64 bytes, 2 and 3 in the 64 bytes from block 2
    /// on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn scales_512(quad: &[u8; BYTES]) -> __m512 {
        const WORDS: [u8; 64] = avx512::quad_words([0, BLOCK, 64, 64 + BLOCK]);
        let [first, second] =
            [0, 2 * BLOCK].map(|at| avx512::load(apart::<[u8; 64]>(part(quad, at)), 0));
        avx512::quad_scales_2(first, second, &WORDS)
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::neon;
    use super::{BLOCK, BYTES, Job, QUANTS};

    pub struct Q8_0;

    impl neon::RowKernel for Q8_0 {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::quad::<M, BYTES, 1, false, C>(m, job, |quad, _| neon::Quad {
                quants: std::array::from_fn(|i| {
                    vreinterpretq_s8_u8(neon::load(quad, i / 2 * BLOCK + QUANTS + i % 2 * 16))
                }),
                scales: neon::quad_f16(quad, BLOCK, 0),
                offsets: vdupq_n_f32(0.0),
            });
        }
    }
}
