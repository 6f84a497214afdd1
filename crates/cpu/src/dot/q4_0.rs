//! Q4_0 rows.

use bilayer_quant::q4_0::Block;

use super::{Entry, Job, entry, f16_at, nibbles, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "x86_64")]
pub(super) use x86::unpack_512;
#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Q4_0};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "q4_0.scalar", Q8x32, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "q4_0.avx2", Q8x32, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "q4_0.avxvnni", Q8x32, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "q4_0.avx512vnni", Q8x32, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "q4_0.neon", Q8x32, neon::plain<Q4_0>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "q4_0.neon-dotprod", Q8x32, neon::dotprod<Q4_0>[1 2 4]),
];

const BLOCK: usize = size_of::<Block>();
/// Bytes of four blocks.
const BYTES: usize = 4 * BLOCK;
/// Offset of the codes in a block, after the scale.
const QUANTS: usize = 2;
/// The code that stands for zero.
const OFFSET: f32 = 8.0;

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::quad::<BYTES, 1, C>(job, |quad, _| {
        let scales = [0, 1, 2, 3].map(|b| f16_at(quad, b * BLOCK));
        scalar::Quad {
            quants: std::array::from_fn(|i| i16::from(nibbles::code(quad, BLOCK, QUANTS, i))),
            scales,
            offsets: scales.map(|scale| -OFFSET * scale),
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, nibbles};
    use super::{BLOCK, BYTES, Job, OFFSET, QUANTS};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::quad::<BYTES, 1, 4, C>(job, -OFFSET, |quad, _| unpack(quad));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::quad::<BYTES, 1, C>(job, -OFFSET, |quad, _| unpack(quad));
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack(quad: &[u8; BYTES]) -> avx2::Quad {
        let scales = avx2::quad_scales(quad, BLOCK, 0);
        avx2::Quad { quants: nibbles::codes_256(quad, BLOCK, QUANTS), scales, offsets: scales }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        avx512::quad::<BYTES, 1, 4, C>(job, |quad, _| {
            let (quants, scales) = unpack_512(quad);
            let offsets = _mm512_mul_ps(scales, _mm512_set1_ps(-OFFSET));
            avx512::Quad { quants, scales, offsets }
        });
    }

    /// Codes and scales of Q4_0 and IQ4_NL, which share the layout. The first 64 of the 72 bytes contain all scales
    /// and blocks 0 and 1, the last 64 blocks 2 and 3.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    pub fn unpack_512(quad: &[u8; BYTES]) -> ([__m512i; 2], __m512) {
        const SKIPPED: usize = BYTES - 64;
        const FIRST: [u8; 64] = nibbles::order(QUANTS, BLOCK + QUANTS);
        const LAST: [u8; 64] =
            nibbles::order(2 * BLOCK + QUANTS - SKIPPED, 3 * BLOCK + QUANTS - SKIPPED);
        const SCALES: [u8; 64] = avx512::quad_words([0, BLOCK, 2 * BLOCK, 3 * BLOCK]);
        let (first, last) = (avx512::load(quad, 0), avx512::load(quad, SKIPPED));
        let quants = [nibbles::codes_512(first, &FIRST), nibbles::codes_512(last, &LAST)];
        (quants, avx512::quad_scales(first, &SCALES))
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::{neon, nibbles};
    use super::{BLOCK, BYTES, Job, OFFSET, QUANTS};

    pub struct Q4_0;

    impl neon::RowKernel for Q4_0 {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::quad::<M, BYTES, 1, false, C>(m, job, |quad, _| neon::Quad {
                quants: neon::centred(nibbles::codes(quad, BLOCK, QUANTS), OFFSET as u8),
                scales: neon::quad_f16(quad, BLOCK, 0),
                offsets: vdupq_n_f32(0.0),
            });
        }
    }
}
