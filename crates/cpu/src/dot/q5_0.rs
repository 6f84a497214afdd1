//! Q5_0 rows.

use bilayer_quant::q5_0::Block;

use super::{Entry, Job, entry, f16_at, nibbles, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Q5_0};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "q5_0.scalar", Q8x32, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "q5_0.avx2", Q8x32, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "q5_0.avxvnni", Q8x32, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "q5_0.avx512vnni", Q8x32, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "q5_0.neon", Q8x32, neon::plain<Q5_0>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "q5_0.neon-dotprod", Q8x32, neon::dotprod<Q5_0>[1 2 4]),
];

const BLOCK: usize = size_of::<Block>();
/// Bytes of four blocks.
const BYTES: usize = 4 * BLOCK;
/// Offsets of fifth bits and codes in a block.
const HIGH: usize = 2;
const QUANTS: usize = 6;
/// The code that stands for zero.
const OFFSET: f32 = 16.0;

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::quad::<BYTES, 1, C>(job, |quad, _| {
        let low = |i| nibbles::code(quad, BLOCK, QUANTS, i);
        let scales = [0, 1, 2, 3].map(|b| f16_at(quad, b * BLOCK));
        scalar::Quad {
            quants: std::array::from_fn(|i| {
                i16::from(low(i) | nibbles::fifth(quad, BLOCK, HIGH, i))
            }),
            scales,
            offsets: scales.map(|scale| -OFFSET * scale),
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, nibbles, part};
    use super::{BLOCK, BYTES, HIGH, Job, OFFSET, QUANTS};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::quad::<BYTES, 1, 5, C>(job, -OFFSET, |quad, _| unpack(quad));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::quad::<BYTES, 1, C>(job, -OFFSET, |quad, _| unpack(quad));
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack(quad: &[u8; BYTES]) -> avx2::Quad {
        let low = nibbles::codes_256(quad, BLOCK, QUANTS);
        let fifths = nibbles::fifths_256(quad, BLOCK, HIGH);
        let scales = avx2::quad_scales(quad, BLOCK, 0);
        avx2::Quad {
            quants: [0, 1, 2, 3].map(|b| _mm256_or_si256(low[b], fifths[b])),
            scales,
            offsets: scales,
        }
    }

    /// The first 64 of the 88 bytes contain blocks 0 and 1, the last 64 blocks 2 and 3.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        const SKIPPED: usize = BYTES - 64;
        const FIRST: [u8; 64] = nibbles::order(QUANTS, BLOCK + QUANTS);
        const LAST: [u8; 64] =
            nibbles::order(2 * BLOCK + QUANTS - SKIPPED, 3 * BLOCK + QUANTS - SKIPPED);
        const SCALES: [u8; 64] =
            avx512::quad_words([0, BLOCK, 2 * BLOCK, 64 + 3 * BLOCK - SKIPPED]);
        avx512::quad::<BYTES, 1, 5, C>(job, |quad, _| {
            let (first, last) = (avx512::load(quad, 0), avx512::load(quad, SKIPPED));
            let [a, b, c, d] = [0, 1, 2, 3].map(|b| *part(quad, b * BLOCK + HIGH));
            let scales = avx512::quad_scales_2(first, last, &SCALES);
            avx512::Quad {
                quants: [
                    nibbles::with_fifths_512(nibbles::codes_512(first, &FIRST), a, b),
                    nibbles::with_fifths_512(nibbles::codes_512(last, &LAST), c, d),
                ],
                scales,
                offsets: _mm512_mul_ps(scales, _mm512_set1_ps(-OFFSET)),
            }
        });
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::{neon, nibbles};
    use super::{BLOCK, BYTES, HIGH, Job, OFFSET, QUANTS};

    pub struct Q5_0;

    impl neon::RowKernel for Q5_0 {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::quad::<M, BYTES, 1, false, C>(m, job, |quad, _| neon::Quad {
                quants: neon::centred(codes(quad), OFFSET as u8),
                scales: neon::quad_f16(quad, BLOCK, 0),
                offsets: vdupq_n_f32(0.0),
            });
        }
    }

    #[inline(always)]
    fn codes(quad: &[u8; BYTES]) -> [uint8x16_t; 8] {
        nibbles::with_fifths(nibbles::codes(quad, BLOCK, QUANTS), quad, BLOCK, HIGH)
    }
}
