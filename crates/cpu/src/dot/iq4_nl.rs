//! IQ4_NL rows: Q4_0's layout with a codebook.

use bilayer_quant::iq4_nl::{Block, CODEBOOK};

use super::{Entry, Job, entry, f16_at, nibbles, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "aarch64")]
pub(super) use arm::values;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{SIGNED, UNSIGNED, codebook_256, codebook_512};
#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Iq4Nl};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "iq4_nl.scalar", Q8x32, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "iq4_nl.avx2", Q8x32, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "iq4_nl.avxvnni", Q8x32, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "iq4_nl.avx512vnni", Q8x32, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "iq4_nl.neon", Q8x32, neon::plain<Iq4Nl>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "iq4_nl.neon-dotprod", Q8x32, neon::dotprod<Iq4Nl>[1 2 4]),
];

const BLOCK: usize = size_of::<Block>();
/// Bytes of four blocks.
const BYTES: usize = 4 * BLOCK;
/// Offset of the codes in a block, after the scale.
const QUANTS: usize = 2;

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::quad::<BYTES, 1, C>(job, |quad, _| {
        let code = |i| usize::from(nibbles::code(quad, BLOCK, QUANTS, i));
        scalar::Quad {
            quants: std::array::from_fn(|i| i16::from(CODEBOOK[code(i)])),
            scales: [0, 1, 2, 3].map(|b| f16_at(quad, b * BLOCK)),
            offsets: [0.0; 4],
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels. Codebook values are biased to be unsigned for VPDPBUSD, as in
    //! q8_0.rs.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, nibbles, q4_0};
    use super::{BLOCK, BYTES, CODEBOOK, Job, QUANTS};

    const OFFSET: f32 = 128.0;

    /// The codebook unbiased, for levels that multiply signed bytes.
    pub const SIGNED: [u8; 16] = lifted(0);
    /// The codebook plus [`OFFSET`], for levels that multiply unsigned bytes.
    pub const UNSIGNED: [u8; 16] = lifted(0x80);

    const fn lifted(sign: u8) -> [u8; 16] {
        let mut values = [0; 16];
        let mut code = 0;
        while code < 16 {
            values[code] = CODEBOOK[code].cast_unsigned() ^ sign;
            code += 1;
        }
        values
    }

    /// Values of codes in one of the codebooks.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn codebook_256(codes: __m256i, codebook: &[u8; 16]) -> __m256i {
        let values = avx2::load_128(codebook, 0);
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes)
    }

    /// Values of codes plus [`OFFSET`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn codebook_512(codes: __m512i) -> __m512i {
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(avx2::load_128(&UNSIGNED, 0)), codes)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::quad::<BYTES, 1, 8, C>(job, -OFFSET, |quad, _| unpack(quad, &SIGNED));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::quad::<BYTES, 1, C>(job, -OFFSET, |quad, _| unpack(quad, &UNSIGNED));
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack(quad: &[u8; BYTES], codebook: &[u8; 16]) -> avx2::Quad {
        let codes = nibbles::codes_256(quad, BLOCK, QUANTS);
        let scales = avx2::quad_scales(quad, BLOCK, 0);
        avx2::Quad {
            quants: codes.map(|codes| codebook_256(codes, codebook)),
            scales,
            offsets: scales,
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        avx512::quad::<BYTES, 1, 8, C>(job, |quad, _| {
            let (codes, scales) = q4_0::unpack_512(quad);
            avx512::Quad {
                quants: codes.map(|codes| codebook_512(codes)),
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
    use super::{BLOCK, BYTES, CODEBOOK, Job, QUANTS};

    pub struct Iq4Nl;

    impl neon::RowKernel for Iq4Nl {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::quad::<M, BYTES, 1, false, C>(m, job, |quad, _| neon::Quad {
                quants: values(nibbles::codes(quad, BLOCK, QUANTS), &CODEBOOK),
                scales: neon::quad_f16(quad, BLOCK, 0),
                offsets: vdupq_n_f32(0.0),
            });
        }
    }

    /// The codebook values.
    #[inline(always)]
    pub fn values(codes: [uint8x16_t; 8], codebook: &[i8; 16]) -> [int8x16_t; 8] {
        let codebook = neon::load_signed(codebook, 0);
        codes.map(|codes| vqtbl1q_s8(codebook, codes))
    }
}
