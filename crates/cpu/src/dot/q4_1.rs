//! Q4_1 rows.

use bilayer_quant::q4_1::Block;

use super::{Entry, Job, entry, f16_at, nibbles, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Q4_1};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "q4_1.scalar", Q8x32, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "q4_1.avx2", Q8x32, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "q4_1.avxvnni", Q8x32, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "q4_1.avx512vnni", Q8x32, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "q4_1.neon", Q8x32, neon::plain<Q4_1>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "q4_1.neon-dotprod", Q8x32, neon::dotprod<Q4_1>[1 2 4]),
];

const BLOCK: usize = size_of::<Block>();
/// Bytes of four blocks.
const BYTES: usize = 4 * BLOCK;
/// Offsets of minimum and codes in a block.
const MIN: usize = 2;
const QUANTS: usize = 4;

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::quad::<BYTES, 1, C>(job, |quad, _| scalar::Quad {
        quants: std::array::from_fn(|i| i16::from(nibbles::code(quad, BLOCK, QUANTS, i))),
        scales: [0, 1, 2, 3].map(|b| f16_at(quad, b * BLOCK)),
        offsets: [0, 1, 2, 3].map(|b| f16_at(quad, b * BLOCK + MIN)),
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use super::super::{avx2, avx512, avxvnni, nibbles};
    use super::{BLOCK, BYTES, Job, MIN, QUANTS};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::quad::<BYTES, 1, 4, C>(job, 1.0, |quad, _| unpack(quad));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::quad::<BYTES, 1, C>(job, 1.0, |quad, _| unpack(quad));
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack(quad: &[u8; BYTES]) -> avx2::Quad {
        avx2::Quad {
            quants: nibbles::codes_256(quad, BLOCK, QUANTS),
            scales: avx2::quad_scales(quad, BLOCK, 0),
            offsets: avx2::quad_scales(quad, BLOCK, MIN),
        }
    }

    /// The first 64 of the 80 bytes contain all scales and minimums, and blocks 0 and 1.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        const SKIPPED: usize = BYTES - 64;
        const FIRST: [u8; 64] = nibbles::order(QUANTS, BLOCK + QUANTS);
        const LAST: [u8; 64] =
            nibbles::order(2 * BLOCK + QUANTS - SKIPPED, 3 * BLOCK + QUANTS - SKIPPED);
        const SCALES: [u8; 64] = avx512::quad_words([0, BLOCK, 2 * BLOCK, 3 * BLOCK]);
        const MINS: [u8; 64] =
            avx512::quad_words([MIN, BLOCK + MIN, 2 * BLOCK + MIN, 3 * BLOCK + MIN]);
        avx512::quad::<BYTES, 1, 4, C>(job, |quad, _| {
            let (first, last) = (avx512::load(quad, 0), avx512::load(quad, SKIPPED));
            avx512::Quad {
                quants: [nibbles::codes_512(first, &FIRST), nibbles::codes_512(last, &LAST)],
                scales: avx512::quad_scales(first, &SCALES),
                offsets: avx512::quad_scales(first, &MINS),
            }
        });
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use super::super::{neon, nibbles};
    use super::{BLOCK, BYTES, Job, MIN, QUANTS};

    pub struct Q4_1;

    impl neon::RowKernel for Q4_1 {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::quad::<M, BYTES, 1, true, C>(m, job, |quad, _| neon::Quad {
                quants: neon::centred(nibbles::codes(quad, BLOCK, QUANTS), 0),
                scales: neon::quad_f16(quad, BLOCK, 0),
                offsets: neon::quad_f16(quad, BLOCK, MIN),
            });
        }
    }
}
