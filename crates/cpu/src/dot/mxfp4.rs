//! MXFP4 rows: codebook indices in nibbles and a power of two.

use bilayer_quant::mxfp4::{Block, CODEBOOK, half_scale};

use super::{Entry, Job, entry, nibbles, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Mxfp4};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "mxfp4.scalar", Q8x32, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "mxfp4.avx2", Q8x32, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "mxfp4.avxvnni", Q8x32, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "mxfp4.avx512vnni", Q8x32, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "mxfp4.neon", Q8x32, neon::plain<Mxfp4>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "mxfp4.neon-dotprod", Q8x32, neon::dotprod<Mxfp4>[1 2 4]),
];

const BLOCK: usize = size_of::<Block>();
/// Bytes of four blocks.
const BYTES: usize = 4 * BLOCK;
/// Offset of the codes in a block, after the exponent.
const QUANTS: usize = 1;

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::quad::<BYTES, 1, C>(job, |quad, _| {
        let code = |i| usize::from(nibbles::code(quad, BLOCK, QUANTS, i));
        scalar::Quad {
            quants: std::array::from_fn(|i| i16::from(CODEBOOK[code(i)])),
            scales: [0, 1, 2, 3].map(|b| half_scale(quad[b * BLOCK])),
            offsets: [0.0; 4],
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels. The codebook is biased by its largest value, 12.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, nibbles};
    use super::{BLOCK, BYTES, CODEBOOK, Job, QUANTS, half_scale};

    const OFFSET: i8 = 12;

    const LIFTED: [u8; 16] = {
        let mut values = [0; 16];
        let mut code = 0;
        while code < 16 {
            values[code] = (CODEBOOK[code] + OFFSET).cast_unsigned();
            code += 1;
        }
        values
    };

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::quad::<BYTES, 1, 5, C>(job, -f32::from(OFFSET), |quad, _| unpack(quad));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::quad::<BYTES, 1, C>(job, -f32::from(OFFSET), |quad, _| unpack(quad));
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack(quad: &[u8; BYTES]) -> avx2::Quad {
        let values = _mm256_broadcastsi128_si256(avx2::load_128(&LIFTED, 0));
        let [a, b, c, d] = [0, 1, 2, 3].map(|b| half_scale(quad[b * BLOCK]));
        let scales = _mm_set_ps(d, c, b, a);
        avx2::Quad {
            quants: nibbles::codes_256(quad, BLOCK, QUANTS)
                .map(|codes| _mm256_shuffle_epi8(values, codes)),
            scales,
            offsets: scales,
        }
    }

    /// The first 64 of the 68 bytes hold all exponents and blocks 0 and 1.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        const SKIPPED: usize = BYTES - 64;
        const FIRST: [u8; 64] = nibbles::order(QUANTS, BLOCK + QUANTS);
        const LAST: [u8; 64] =
            nibbles::order(2 * BLOCK + QUANTS - SKIPPED, 3 * BLOCK + QUANTS - SKIPPED);
        avx512::quad::<BYTES, 1, 5, C>(job, |quad, _| {
            let (first, last) = (avx512::load(quad, 0), avx512::load(quad, SKIPPED));
            let values = _mm512_broadcast_i32x4(avx2::load_128(&LIFTED, 0));
            let value = |codes| _mm512_shuffle_epi8(values, codes);
            let scales = scales_512(first);
            avx512::Quad {
                quants: [
                    value(nibbles::codes_512(first, &FIRST)),
                    value(nibbles::codes_512(last, &LAST)),
                ],
                scales,
                offsets: _mm512_mul_ps(scales, _mm512_set1_ps(-f32::from(OFFSET))),
            }
        });
    }

    /// 2^(e - 128) spread over the lanes: e - 1 as exponent of a float, or a fraction bit for the two smallest, as in
    /// `half_scale`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn scales_512(bytes: __m512i) -> __m512 {
        const EXPONENTS: [u8; 64] = avx512::quad_bytes([0, BLOCK, 2 * BLOCK, 3 * BLOCK]);
        let spread = _mm512_permutexvar_epi8(avx512::table(&EXPONENTS), bytes);
        let exponents = _mm512_and_si512(spread, _mm512_set1_epi32(0xff));
        let bits = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
        let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
        let is_small = _mm512_cmplt_epi32_mask(exponents, _mm512_set1_epi32(2));
        _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, is_small, small))
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::{iq4_nl, neon, nibbles};
    use super::{BLOCK, BYTES, CODEBOOK, Job, QUANTS, half_scale};
    use crate::neon::load_floats;

    pub struct Mxfp4;

    impl neon::RowKernel for Mxfp4 {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::quad::<M, BYTES, 1, false, C>(m, job, |quad, _| neon::Quad {
                quants: iq4_nl::values(nibbles::codes(quad, BLOCK, QUANTS), &CODEBOOK),
                scales: load_floats(&[0, 1, 2, 3].map(|b| half_scale(quad[b * BLOCK]))),
                offsets: vdupq_n_f32(0.0),
            });
        }
    }
}
