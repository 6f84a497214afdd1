//! Q4_0 rows.

use bilayer_quant::q4_0::Block;

use super::{Entry, Job, entry, f16_at, scalar};
use crate::columns::Format;
use crate::level::Level;

#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "q4_0.scalar", Q8x32, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "q4_0.avx2", Q8x32, avx2[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "q4_0.avxvnni", Q8x32, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "q4_0.avx512vnni", Q8x32, avx512[1 2 4 8]),
];

const BLOCK: usize = size_of::<Block>();
/// Bytes of four blocks.
const BYTES: usize = 4 * BLOCK;
/// Where the codes of a block start: after the scale.
const QUANTS: usize = 2;
/// The code of weight zero.
const OFFSET: f32 = 8.0;

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::quad::<BYTES, C>(job, |quad| {
        let code = |i: usize| quad[i / 32 * BLOCK + QUANTS + i % 16] >> (i / 16 % 2 * 4) & 15;
        let scales = [0, 1, 2, 3].map(|b| f16_at(quad, b * BLOCK));
        scalar::Quad {
            quants: std::array::from_fn(|i| i16::from(code(i))),
            scales,
            offsets: scales.map(|scale| -OFFSET * scale),
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The same for AVX2 and AVX-512.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni, u16_at};
    use super::{BLOCK, BYTES, Job, OFFSET, QUANTS};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::quad::<BYTES, false, C>(job, |quad| unpack(quad));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::quad::<BYTES, C>(job, |quad| unpack(quad));
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack(quad: &[u8; BYTES]) -> avx2::Quad {
        let nibbles = _mm256_set1_epi8(15);
        let scales = avx2::quad_scales([0, 1, 2, 3].map(|b| u16_at(quad, b * BLOCK)));
        avx2::Quad {
            quants: [0, 1, 2, 3].map(|b| {
                let bytes = avx2::load_128(quad, b * BLOCK + QUANTS);
                let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
                _mm256_and_si256(both, nibbles)
            }),
            scales,
            offsets: scales.map(|scale| _mm256_mul_ps(scale, _mm256_set1_ps(-OFFSET))),
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        avx512::quad::<BYTES, 4, C>(job, |quad| {
            // The first 64 of the 72 bytes hold all scales and blocks 0 and 1, the last 2 and 3.
            let (first, last) = (avx512::load(quad, 0), avx512::load(quad, BYTES - 64));
            let scales = scales_512(first);
            avx512::Quad {
                quants: [
                    codes::<QUANTS, { BLOCK + QUANTS }>(first),
                    codes::<{ 2 * BLOCK + QUANTS + 64 - BYTES }, { 3 * BLOCK + QUANTS + 64 - BYTES }>(
                        last,
                    ),
                ],
                scales,
                offsets: _mm512_mul_ps(scales, _mm512_set1_ps(-OFFSET)),
            }
        });
    }

    /// The 64 codes of the blocks whose bytes start at `A` and `B`: each 16 bytes twice, the
    /// second time shifted by four.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn codes<const A: usize, const B: usize>(bytes: __m512i) -> __m512i {
        let order = const {
            let mut order = [0; 64];
            let mut i = 0;
            while i < 64 {
                order[i] = (if i < 32 { A } else { B } + i % 16) as u8;
                i += 1;
            }
            order
        };
        let shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
        let ordered = _mm512_permutexvar_epi8(avx512::table(&order), bytes);
        _mm512_and_si512(_mm512_srlv_epi64(ordered, shifts), _mm512_set1_epi8(15))
    }

    /// The four scales over the lanes, from the first 64 bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn scales_512(bytes: __m512i) -> __m512 {
        const ORDER: [u8; 64] = avx512::quad_words([0, 1, 2, 3], BLOCK / 2);
        let bits = _mm512_permutexvar_epi16(avx512::table(&ORDER), bytes);
        _mm512_cvtph_ps(_mm512_castsi512_si256(bits))
    }
}
