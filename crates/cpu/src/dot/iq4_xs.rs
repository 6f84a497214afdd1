//! IQ4_XS rows: eight blocks of IQ4_NL's codes with packed scales; two quads per block.

use std::mem::offset_of;

use bilayer_quant::iq4_nl::CODEBOOK;
use bilayer_quant::iq4_xs::{Block, scales};

use super::{Entry, Job, entry, nibbles, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Iq4Xs};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "iq4_xs.scalar", Q8x32, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "iq4_xs.avx2", Q8x256, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "iq4_xs.avxvnni", Q8x32, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "iq4_xs.avx512vnni", Q8x32, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "iq4_xs.neon", Q8x32, neon::plain<Iq4Xs>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "iq4_xs.neon-dotprod", Q8x32, neon::dotprod<Iq4Xs>[1 2 4]),
];

const BYTES: usize = size_of::<Block>();
const QUANTS: usize = offset_of!(Block, quants);
/// Bytes of the nibbles of 32 weights.
const PART: usize = 16;

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::quad::<BYTES, 2, C>(job, |bytes, q| {
        let block: Block = bytemuck::pod_read_unaligned(bytes);
        let d = half::f16::from_bits(block.d).to_f32();
        let code = |i| usize::from(nibbles::code(bytes, PART, QUANTS + 4 * PART * q, i));
        let scales = scales(&block);
        scalar::Quad {
            quants: std::array::from_fn(|i| i16::from(CODEBOOK[code(i)])),
            scales: std::array::from_fn(|b| d * f32::from(scales[4 * q + b])),
            offsets: [0.0; 4],
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, iq4_nl, nibbles, part, u16_at};
    use super::{BYTES, Job, PART, QUANTS};
    use crate::activations::QUAD_LANES;

    const OFFSET: f32 = 128.0;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::k::<BYTES, 8, C>(job, |block| open(block), |block, h| half(block, h));
    }

    /// A block with integer scales, as in the K types: one product and one 32-bit sum per 32 weights, where floats
    /// would need two and a shuffle.
    ///
    /// The scales are computed in 16 bits from the start: packing those of [`scales`] made the whole block a tenth
    /// slower.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn open(block: &[u8; BYTES]) -> avx2::K {
        let low = _mm_cvtsi32_si128(i32::from_le_bytes(*part(block, 4)));
        let nibbles = _mm_unpacklo_epi8(low, _mm_srli_epi16::<4>(low));
        let low = _mm_cvtepu8_epi16(_mm_and_si128(nibbles, _mm_set1_epi8(15)));
        // The two high bits of each scale: those of scale p at bit 2 p, moved to bits 14 and 15, then to 4 and 5.
        let high = _mm_set1_epi16(u16_at(block, 2).cast_signed());
        let up = _mm_set_epi16(1, 1 << 2, 1 << 4, 1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14);
        let high = _mm_srli_epi16::<14>(_mm_mullo_epi16(high, up));
        let scales = _mm_or_si128(low, _mm_slli_epi16::<4>(high));
        let scales = _mm_sub_epi16(scales, _mm_set1_epi16(32));
        let d = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16_at(block, 0))));
        avx2::K {
            d: _mm256_broadcastss_ps(d),
            scales: _mm256_broadcastsi128_si256(scales),
            mins: avx2::Mins::None,
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn half(block: &[u8; BYTES], h: usize) -> [__m256i; 4] {
        let codes = nibbles::codes_256(block, PART, QUANTS + 4 * PART * h);
        codes.map(|codes| iq4_nl::codebook_256(codes, &iq4_nl::SIGNED))
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::quad::<BYTES, 2, C>(job, -OFFSET, |block, q| unpack(block, q));
    }

    /// The eight scales of a block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn scales(block: &[u8; BYTES]) -> __m256 {
        let low = _mm256_set1_epi32(i32::from_le_bytes(*part(block, 4)));
        let low = _mm256_srlv_epi32(low, _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0));
        let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
        // The two high bits of each are at 2 p and must become bits 4 and 5.
        let high = _mm256_set1_epi32(i32::from(u16_at(block, 2)) << 4);
        let high = _mm256_srlv_epi32(high, _mm256_set_epi32(14, 12, 10, 8, 6, 4, 2, 0));
        let high = _mm256_and_si256(high, _mm256_set1_epi32(0x30));
        let scales = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
        let d = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16_at(block, 0))));
        _mm256_mul_ps(_mm256_broadcastss_ps(d), _mm256_cvtepi32_ps(scales))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack(block: &[u8; BYTES], q: usize) -> avx2::Quad {
        let scales = scales(block);
        let scales = if q == 0 {
            _mm256_castps256_ps128(scales)
        } else {
            _mm256_extractf128_ps::<1>(scales)
        };
        let codes = nibbles::codes_256(block, PART, QUANTS + 4 * PART * q);
        avx2::Quad {
            quants: codes.map(|codes| iq4_nl::codebook_256(codes, &iq4_nl::UNSIGNED)),
            scales,
            offsets: scales,
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        const FIRST: [u8; 64] = nibbles::order(0, PART);
        const LAST: [u8; 64] = nibbles::order(2 * PART, 3 * PART);
        avx512::quad::<BYTES, 2, 8, C>(job, |block, q| {
            let lanes = avx512::load_ps(if q == 0 { &LOW_LANES } else { &HIGH_LANES });
            let scales = _mm512_zextps256_ps512(scales(block));
            let scales = _mm512_permutexvar_ps(_mm512_castps_si512(lanes), scales);
            let bytes = avx512::load(block, QUANTS + 64 * q);
            avx512::Quad {
                quants: [FIRST, LAST]
                    .each_ref()
                    .map(|order| iq4_nl::codebook_512(nibbles::codes_512(bytes, order))),
                scales,
                offsets: _mm512_mul_ps(scales, _mm512_set1_ps(-OFFSET)),
            }
        });
    }

    /// The scales spread over the lanes, as bits of indices.
    const LOW_LANES: [f32; 16] = lanes(0);
    const HIGH_LANES: [f32; 16] = lanes(4);

    const fn lanes(first: usize) -> [f32; 16] {
        let mut lanes = [0.0; 16];
        let mut lane = 0;
        while lane < 16 {
            lanes[lane] = f32::from_bits((first + QUAD_LANES[lane]) as u32);
            lane += 1;
        }
        lanes
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::{f16_at, iq4_nl, neon, nibbles, part, u16_at};
    use super::{BYTES, CODEBOOK, Job, PART, QUANTS};

    pub struct Iq4Xs;

    impl neon::RowKernel for Iq4Xs {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::quad::<M, BYTES, 2, false, C>(m, job, |block, q| {
                let codes = nibbles::codes(block, PART, QUANTS + 4 * PART * q);
                neon::Quad {
                    quants: iq4_nl::values(codes, &CODEBOOK),
                    scales: scales(block, q),
                    offsets: vdupq_n_f32(0.0),
                }
            });
        }
    }

    /// The scales of a quad: four low and two high bits each, biased by 32.
    #[inline(always)]
    fn scales(block: &[u8; BYTES], q: usize) -> float32x4_t {
        const STEPS: [i32; 4] = [0, -1, -2, -3];
        // SAFETY: the array has four numbers.
        let steps = unsafe { vld1q_s32(STEPS.as_ptr()) };
        let low = u32::from_le_bytes(*part(block, 4)) >> (16 * q);
        let low = vshlq_u32(vdupq_n_u32(low), vshlq_n_s32::<2>(steps));
        let high = u32::from(u16_at(block, 2)) << 4 >> (8 * q);
        let high = vshlq_u32(vdupq_n_u32(high), vshlq_n_s32::<1>(steps));
        let low = vandq_u32(low, vdupq_n_u32(15));
        let scales = vorrq_u32(low, vandq_u32(high, vdupq_n_u32(0x30)));
        let scales = vsubq_s32(vreinterpretq_s32_u32(scales), vdupq_n_s32(32));
        vmulq_n_f32(vcvtq_f32_s32(scales), f16_at(block, 0))
    }
}
