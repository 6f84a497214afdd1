//! Q4_K rows.

use std::mem::offset_of;

use bilayer_quant::k_scales::scales_mins;
use bilayer_quant::q4_k::Block;

use super::{Entry, Job, entry, f16_at, part, scalar};
use crate::activations::Format;
use crate::level::Level;

#[cfg(target_arch = "aarch64")]
pub(super) use arm::{nibbles, open};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::scales_mins_128;
#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{nibbles_512, open_head, unpack_512};
#[cfg(target_arch = "aarch64")]
use {super::neon, arm::Q4K};

/// The type's kernels.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "q4_k.scalar", Q8x256, scalar[1 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "q4_k.avx2", Q8x256, avx2[1 2 3 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "q4_k.avxvnni", Q8x256, avxvnni[1 2 4]),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "q4_k.avx512vnni", Q8x256, avx512[1 2 4 8]),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "q4_k.neon", Q8x256, neon::plain<Q4K>[1 2 4]),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "q4_k.neon-dotprod", Q8x256, neon::dotprod<Q4K>[1 2 4]),
];

const BYTES: usize = size_of::<Block>();
const SCALES: usize = offset_of!(Block, scales);
const QUANTS: usize = offset_of!(Block, quants);

fn scalar<const C: usize>(job: &mut Job<'_>) {
    scalar::k::<BYTES, C>(job, |block| {
        let quants = &block[QUANTS..];
        let code = |i: usize| quants[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        unpack(block, part(block, SCALES), std::array::from_fn(code))
    });
}

/// The scalar block of Q4_K and Q5_K, whose layouts start alike.
pub(super) fn unpack(block: &[u8], packed: &[u8; 12], quants: [u8; 256]) -> scalar::K {
    let (scales, mins) = scales_mins(packed);
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    scalar::K {
        quants,
        scales: std::array::from_fn(|p| i32::from(scales[p / 2])),
        d,
        mins: std::array::from_fn(|p| dmin * f32::from(mins[p / 2])),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512, avxvnni};
    use super::{BYTES, Job, QUANTS};
    use crate::x86::field;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::k::<BYTES, 4, C>(job, |block| open(block), |block, h| half(block, h));
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        avxvnni::k::<BYTES, C>(job, |block| open(block), |block, h| half(block, h));
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        avx512::k::<BYTES, C>(job, |block| {
            unpack_512(block, [0, 32, 64, 96].map(|at| nibbles_512(block, QUANTS + at)))
        });
    }

    /// The nibbles of the 32 bytes from `at` on, low ones first.
    #[inline]
    #[target_feature(enable = "avx512f,gfni")]
    pub fn nibbles_512(block: &[u8], at: usize) -> __m512i {
        let bytes = avx512::load_twice(block, at);
        avx512::two_fields(bytes, field(0, 4), field(4, 4))
    }

    /// The 512-bit block of Q4_K and Q5_K, whose layouts start alike.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn unpack_512(block: &[u8], quants: [__m512i; 4]) -> avx512::K {
        // Scale p in the low byte of eight lanes, minimum p in two; byte 63 is always zero.
        const SCALES: [[u8; 64]; 4] = {
            let mut table = [[63; 64]; 4];
            let mut lane = 0;
            while lane < 64 {
                table[lane / 16][lane % 16 * 4] = lane as u8 / 8;
                lane += 1;
            }
            table
        };
        const MINS: [u8; 64] = {
            let mut table = [63; 64];
            let mut lane = 0;
            while lane < 16 {
                table[lane * 4] = 8 + lane as u8 / 2;
                lane += 1;
            }
            table
        };
        let head = avx2::load_128(block, 0);
        let numbers = _mm512_zextsi128_si512(scales_mins_128(head));
        let spread = |table: &[u8; 64]| _mm512_permutexvar_epi8(avx512::table(table), numbers);
        let floats = _mm_cvtph_ps(head);
        let dmin = _mm512_broadcastss_ps(_mm_movehdup_ps(floats));
        avx512::K {
            quants,
            scales: SCALES.each_ref().map(spread),
            d: _mm512_broadcastss_ps(floats),
            mins: _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(spread(&MINS))),
        }
    }

    /// The sixteen numbers of `k_scales`, scales then minimums, one per byte, from the first 16 bytes of a block,
    /// whose last three lanes hold them packed.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn scales_mins_128(head: __m128i) -> __m128i {
        let low = _mm_shuffle_epi32::<0b11_10_11_01>(head);
        let low = _mm_srlv_epi32(low, _mm_set_epi32(4, 0, 0, 0));
        let low_mask = _mm_set_epi32(0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f);
        let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(head));
        let high_mask = _mm_set_epi32(0x3030_3030, 0, 0x3030_3030, 0);
        _mm_or_si128(_mm_and_si128(low, low_mask), _mm_and_si128(high, high_mask))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn open(block: &[u8; BYTES]) -> avx2::K {
        open_head(avx2::load_128(block, 0))
    }

    /// [`open`] for the first 16 bytes of a Q4_K or Q5_K block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn open_head(head: __m128i) -> avx2::K {
        let numbers = scales_mins_128(head);
        let floats = _mm_cvtph_ps(head);
        // Each number applies to an even and an odd group of sixteen.
        let mins = _mm256_cvtepu8_epi16(_mm_unpackhi_epi64(numbers, numbers));
        let dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(floats));
        avx2::K {
            d: _mm256_broadcastss_ps(floats),
            scales: _mm256_cvtepu8_epi16(_mm_unpacklo_epi64(numbers, numbers)),
            mins: avx2::Mins::Own(mins, dmin),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn half(block: &[u8; BYTES], h: usize) -> [__m256i; 4] {
        let nibbles = _mm256_set1_epi8(15);
        let [a, b] = [0, 32].map(|at| avx2::load(block, QUANTS + 64 * h + at));
        let high = |bytes| _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibbles);
        [_mm256_and_si256(a, nibbles), high(a), _mm256_and_si256(b, nibbles), high(b)]
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::{neon, part};
    use super::{BYTES, Job, QUANTS, SCALES, f16_at};

    pub struct Q4K;

    impl neon::RowKernel for Q4K {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            neon::k::<M, BYTES, 2, true, C>(m, job, |block| open(block), half);
        }
    }

    /// The scales of a Q4_K or Q5_K block, whose layouts start alike.
    #[inline(always)]
    pub fn open(block: &[u8]) -> neon::K<2> {
        let (scales, mins) = scales_mins(part(block, SCALES));
        neon::K {
            d: f16_at(block, 0),
            scales: neon::lanes_8(scales),
            mins: neon::times(neon::lanes_8(mins), f16_at(block, 2)),
        }
    }

    /// The numbers of `k_scales`, four at a time: six bits of the first four; of the last four, four bits separately
    /// and two above the first four.
    #[inline(always)]
    fn scales_mins(packed: &[u8; 12]) -> (uint8x8_t, uint8x8_t) {
        let [a, b, c] = [0, 4, 8].map(|at| u64::from(u32::from_le_bytes(*part(packed, at))));
        let first = |word: u64| word & 0x3f3f_3f3f;
        let last = |low: u64, word: u64| (low & 0x0f0f_0f0f) | (word >> 2 & 0x3030_3030);
        let scales = first(a) | last(c, a) << 32;
        let mins = first(b) | last(c >> 4, b) << 32;
        (vcreate_u8(scales), vcreate_u8(mins))
    }

    #[inline(always)]
    fn half(block: &[u8; BYTES], h: usize) -> [int8x16_t; 8] {
        neon::centred(nibbles(block, QUANTS + 64 * h), 0)
    }

    /// The low four bits of half a block's weights: the low nibbles of each 32 bytes, then the high ones.
    #[inline(always)]
    pub fn nibbles(block: &[u8], at: usize) -> [uint8x16_t; 8] {
        let [a, b, c, d] = [0, 16, 32, 48].map(|i| neon::load(block, at + i));
        let low = |bytes| vandq_u8(bytes, vdupq_n_u8(15));
        let high = |bytes| vshrq_n_u8::<4>(bytes);
        [low(a), low(b), high(a), high(b), low(c), low(d), high(c), high(d)]
    }
}
