//! Rows of the balanced sparse types: the activations of a group's weights are looked up by their places.
//!
//! Every group of 64 columns has equally many weights, so which slot belongs to which group is a constant. AVX-512 looks
//! up the slots of one group at a time in one vector of 64 activations (VPERMB with a constant mask), or where 512 bits are
//! computed in halves in two vectors of 32 (VPERMI2B); AVX2 in four tables of 16 (VPSHUFB), of which bits 4 and 5 of the
//! place select; NEON in one table of 64 (TBL). Activations have one scale per 256 columns, so a block is one exact integer
//! sum.

use bilayer_quant::Type;
use bilayer_quant::sparse::{GROUP, Layout};

use super::{Entry, Job, entry, f16_at, kernels};
use crate::activations::{Block256, Format};
use crate::level::Level;

#[cfg(target_arch = "aarch64")]
use super::neon;

/// The kernels of each type, one line per type.
macro_rules! table {
    ($($ty:ident, $stem:literal: $n:literal, $bits:literal;)+) => {
        &[$((Type::$ty, &[
            entry!(Scalar, concat!($stem, ".scalar"), Q8x256, C in [1 4] => scalar::<$n, $bits, C>),
            #[cfg(target_arch = "x86_64")]
            entry!(Avx2, concat!($stem, ".avx2"), Q8x256, C in [1 4] => x86::avx2::<$n, $bits, C>),
            #[cfg(target_arch = "x86_64")]
            Entry {
                halved: Some(kernels!(C in [1 4] => x86::avx512vl::<$n, $bits, C>)),
                ..entry!(Avx512Vnni, concat!($stem, ".avx512vnni"), Q8x256, C in [1 4] => x86::avx512::<$n, $bits, C>)
            },
            #[cfg(target_arch = "aarch64")]
            entry!(Neon, concat!($stem, ".neon"), Q8x256, C in [1 4] => neon::plain::<arm::SparseRows<$n, $bits>, C>),
            #[cfg(target_arch = "aarch64")]
            entry!(NeonDotprod, concat!($stem, ".neon-dotprod"), Q8x256, C in [1 4] => neon::dotprod::<arm::SparseRows<$n, $bits>, C>),
        ])),+]
    };
}

pub(super) const TABLE: &[(Type, &[Entry])] = table! {
    S4_4_64, "s4_4_64": 4, 4;
    S4_8_64, "s4_8_64": 8, 4;
    S4_12_64, "s4_12_64": 12, 4;
    S4_16_64, "s4_16_64": 16, 4;
    S4_24_64, "s4_24_64": 24, 4;
    S4_32_64, "s4_32_64": 32, 4;
    S8_4_64, "s8_4_64": 4, 8;
    S8_8_64, "s8_8_64": 8, 8;
    S8_12_64, "s8_12_64": 12, 8;
    S8_16_64, "s8_16_64": 16, 8;
    S8_24_64, "s8_24_64": 24, 8;
    S8_32_64, "s8_32_64": 32, 8;
};

fn scalar<const N: usize, const BITS: usize, const C: usize>(job: &mut Job<'_>) {
    let columns = job.columns::<Block256, C>();
    let bias = i32::from(Layout::<N, BITS>::BIAS);
    for (r, row) in job.rows().enumerate() {
        let mut sums = [0.0; C];
        for (b, block) in row.chunks_exact(Layout::<N, BITS>::BYTES).enumerate() {
            let mut dots = [0; C];
            for slot in 0..Layout::<N, BITS>::SLOTS {
                let q = i32::from(Layout::<N, BITS>::code(block, slot)) - bias;
                let at = slot / N * GROUP + Layout::<N, BITS>::place(block, slot);
                for (dot, column) in dots.iter_mut().zip(columns) {
                    *dot += q * i32::from(column[b].quants[at]);
                }
            }
            let d = f16_at(block, 0);
            for ((sum, dot), column) in sums.iter_mut().zip(dots).zip(columns) {
                *sum += dot as f32 * (d * column[b].scale[0]);
            }
        }
        job.store(r, sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use std::arch::x86_64::*;

    use bilayer_quant::sparse::{GROUP, Layout};

    use super::super::{AHEAD, avx2, avx512, each, prefetch};
    use super::{Block256, Job};
    use crate::bytes::u16_at;
    use crate::x86::whole_lines;

    /// Slots of one AVX-512 vector.
    const WIDE: usize = 64;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const N: usize, const BITS: usize, const C: usize>(job: &mut Job<'_>) {
        let bias = _mm512_set1_epi8(Layout::<N, BITS>::BIAS.cast_signed());
        let columns = job.columns::<Block256, C>();
        for (r, row) in job.rows().enumerate() {
            let mut sums = [_mm512_setzero_ps(); C];
            for (b, block) in row.chunks_exact(Layout::<N, BITS>::BYTES).enumerate() {
                prefetch(block, AHEAD);
                let first = slots::<N, BITS, 0>(block);
                let second = slots::<N, BITS, 1>(block);
                let d = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16_at(block, 0))));
                let d = _mm512_broadcastss_ps(d);
                each::<C>(|c| {
                    let column = &columns[c][b];
                    // Codes are unsigned, as VPDPBUSD needs one operand; their bias counts each activation once.
                    let zero = _mm512_setzero_si512();
                    let found = look_up::<N, 0>(column, first.0);
                    let mut dots = _mm512_dpbusd_epi32(zero, first.1, found);
                    let mut biased = _mm512_dpbusd_epi32(zero, bias, found);
                    if Layout::<N, BITS>::SLOTS > WIDE {
                        let found = look_up::<N, 1>(column, second.0);
                        dots = _mm512_dpbusd_epi32(dots, second.1, found);
                        biased = _mm512_dpbusd_epi32(biased, bias, found);
                    }
                    let dots = _mm512_cvtepi32_ps(_mm512_sub_epi32(dots, biased));
                    let scale = _mm512_mul_ps(d, _mm512_set1_ps(column.scale[0]));
                    sums[c] = _mm512_fmadd_ps(dots, scale, sums[c]);
                });
            }
            job.store(r, avx512::reduce(sums));
        }
    }

    /// Places and codes of slots `64 V..` of a block; zeros beyond the last.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn slots<const N: usize, const BITS: usize, const V: usize>(
        block: &[u8],
    ) -> (__m512i, __m512i) {
        let count = Layout::<N, BITS>::SLOTS.saturating_sub(WIDE * V).min(WIDE);
        if count == 0 {
            return (_mm512_setzero_si512(), _mm512_setzero_si512());
        }
        let places = bytes(block, Layout::<N, BITS>::PLACES + WIDE * V, count);
        if BITS == 8 {
            return (places, bytes(block, Layout::<N, BITS>::QUANTS + WIDE * V, count));
        }
        let nibbles = bytes(block, Layout::<N, BITS>::QUANTS + WIDE / 2 * V, count / 2);
        let pairs = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(nibbles));
        let codes = _mm512_or_si512(pairs, _mm512_slli_epi16::<4>(pairs));
        (places, _mm512_and_si512(codes, _mm512_set1_epi8(15)))
    }

    /// `count` bytes from `at` on, then zeros. The count is a constant at each call.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn bytes(block: &[u8], at: usize, count: usize) -> __m512i {
        match count {
            64 => avx512::load(block, at),
            32 => _mm512_zextsi256_si512(avx2::load(block, at)),
            16 => _mm512_zextsi128_si512(avx2::load_128(block, at)),
            _ => {
                let bytes = &block[at..at + count];
                // SAFETY: the mask leaves out everything after the slice.
                unsafe { _mm512_maskz_loadu_epi8((1 << count) - 1, bytes.as_ptr().cast()) }
            }
        }
    }

    /// The activations of slots `64 V..` of a block, zero beyond the last slot.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn look_up<const N: usize, const V: usize>(column: &Block256, places: __m512i) -> __m512i {
        let activations = bytemuck::bytes_of(&column.quants);
        let mut found = _mm512_setzero_si512();
        for group in 0..4 {
            let mask = slots_of(N, group, WIDE * V);
            if mask != 0 {
                let table = avx512::load(activations, GROUP * group);
                found = _mm512_mask_permutexvar_epi8(found, mask, places, table);
            }
        }
        found
    }

    /// Which of slots `first..first + 64` belong to a group of `n` slots.
    #[inline(always)]
    const fn slots_of(n: usize, group: usize, first: usize) -> u64 {
        let (mut mask, mut lane) = (0, 0);
        while lane < WIDE {
            if (first + lane) / n == group {
                mask |= 1 << lane;
            }
            lane += 1;
        }
        mask
    }

    /// Slots of one 256-bit vector of AVX-512.
    const HALF: usize = 32;

    /// [`avx512`] with vectors of 256 bits, of which a CPU that computes 512 bits in two halves has twice as many per cycle.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    pub fn avx512vl<const N: usize, const BITS: usize, const C: usize>(job: &mut Job<'_>) {
        let bias = _mm256_set1_epi8(Layout::<N, BITS>::BIAS.cast_signed());
        let columns = job.columns::<Block256, C>();
        for (r, row) in job.rows().enumerate() {
            let mut sums = [_mm256_setzero_ps(); C];
            for (b, block) in row.chunks_exact(Layout::<N, BITS>::BYTES).enumerate() {
                prefetch(block, AHEAD);
                let mut dots = [_mm256_setzero_si256(); C];
                let mut biased = dots;
                for part in 0..Layout::<N, BITS>::SLOTS.div_ceil(HALF) {
                    let (places, codes) = half_slots::<N, BITS>(block, part);
                    each::<C>(|c| {
                        let found = look_up_half::<N>(&columns[c][b], part, places);
                        dots[c] = _mm256_dpbusd_epi32(dots[c], codes, found);
                        biased[c] = _mm256_dpbusd_epi32(biased[c], bias, found);
                    });
                }
                let d = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16_at(block, 0))));
                let d = _mm256_broadcastss_ps(d);
                each::<C>(|c| {
                    let dots = _mm256_cvtepi32_ps(_mm256_sub_epi32(dots[c], biased[c]));
                    let scale = _mm256_mul_ps(d, _mm256_set1_ps(columns[c][b].scale[0]));
                    sums[c] = _mm256_fmadd_ps(dots, scale, sums[c]);
                });
            }
            job.store(r, avx2::reduce(sums));
        }
    }

    /// Places and codes of slots `32 part..` of a block; zeros beyond the last.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn half_slots<const N: usize, const BITS: usize>(
        block: &[u8],
        part: usize,
    ) -> (__m256i, __m256i) {
        let is_whole = Layout::<N, BITS>::SLOTS - HALF * part >= HALF;
        let bytes = |at: usize| match is_whole {
            true => avx2::load(block, at),
            false => _mm256_zextsi128_si256(avx2::load_128(block, at)),
        };
        let places = bytes(Layout::<N, BITS>::PLACES + HALF * part);
        let at = Layout::<N, BITS>::QUANTS + HALF * BITS / 8 * part;
        if BITS == 8 {
            return (places, bytes(at));
        }
        let nibbles = match is_whole {
            true => avx2::load_128(block, at),
            false => _mm_cvtsi64_si128(i64::from_le_bytes(*crate::bytes::part(block, at))),
        };
        let pairs = _mm256_cvtepu8_epi16(nibbles);
        let codes = _mm256_or_si256(pairs, _mm256_slli_epi16::<4>(pairs));
        (places, _mm256_and_si256(codes, _mm256_set1_epi8(15)))
    }

    /// The activations of slots `32 part..` of a block; lanes beyond the last keep their zeros.
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vbmi")]
    fn look_up_half<const N: usize>(column: &Block256, part: usize, places: __m256i) -> __m256i {
        let activations = bytemuck::bytes_of(&column.quants);
        // Lanes of other groups keep their places until it is their turn, or what was found for them.
        let mut found = places;
        for group in 0..4 {
            let mask = slots_of(N, group, HALF * part) as u32;
            if mask != 0 {
                let [low, high] = [0, HALF].map(|at| avx2::load(activations, GROUP * group + at));
                found = _mm256_mask2_permutex2var_epi8(low, found, mask, high);
            }
        }
        found
    }

    /// Slots of one AVX2 vector, which holds them twice.
    const NARROW: usize = 16;

    /// Sixteen slots at a time, in both halves of a vector: the lower half looks in the first and third quarter of a
    /// group's activations, the upper half in the second and fourth, and one of them finds each slot's.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const N: usize, const BITS: usize, const C: usize>(job: &mut Job<'_>) {
        whole_lines();
        let columns = job.columns::<Block256, C>();
        let ones = _mm256_set1_epi16(1);
        for (r, row) in job.rows().enumerate() {
            let mut sums = [_mm256_setzero_ps(); C];
            for (b, block) in row.chunks_exact(Layout::<N, BITS>::BYTES).enumerate() {
                prefetch(block, AHEAD);
                let mut dots = [_mm256_setzero_si256(); C];
                for part in 0..Layout::<N, BITS>::SLOTS / NARROW {
                    let places = _mm256_broadcastsi128_si256(avx2::load_128(
                        block,
                        Layout::<N, BITS>::PLACES + NARROW * part,
                    ));
                    let weights = weights::<N, BITS>(block, part);
                    let sizes = _mm256_abs_epi8(weights);
                    for (dots, column) in dots.iter_mut().zip(columns) {
                        let found = look_up_twice::<N>(&column[b], part, places);
                        let pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(found, weights));
                        // At most eight pairs of 2 · 8 · 127 fit 16 bits.
                        *dots = match BITS {
                            8 => _mm256_add_epi32(*dots, _mm256_madd_epi16(pairs, ones)),
                            _ => _mm256_add_epi16(*dots, pairs),
                        };
                    }
                }
                let d = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16_at(block, 0))));
                let d = _mm256_broadcastss_ps(d);
                for ((sum, dots), column) in sums.iter_mut().zip(dots).zip(columns) {
                    let dots = if BITS == 8 { dots } else { _mm256_madd_epi16(dots, ones) };
                    let scale = _mm256_mul_ps(d, avx2::load_ps(&column[b].scale));
                    *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scale, *sum);
                }
            }
            job.store(r, avx2::reduce(sums));
        }
    }

    /// The weights of slots `16 part..` as multiples of the scale, in both halves.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn weights<const N: usize, const BITS: usize>(block: &[u8], part: usize) -> __m256i {
        let at = Layout::<N, BITS>::QUANTS + NARROW * BITS / 8 * part;
        let bias = _mm256_set1_epi8(Layout::<N, BITS>::BIAS.cast_signed());
        let codes = if BITS == 8 {
            _mm256_broadcastsi128_si256(avx2::load_128(block, at))
        } else {
            let bytes = _mm256_set1_epi64x(i64::from_le_bytes(*crate::bytes::part(block, at)));
            let nibbles = _mm256_unpacklo_epi8(bytes, _mm256_srli_epi16::<4>(bytes));
            _mm256_and_si256(nibbles, _mm256_set1_epi8(15))
        };
        _mm256_sub_epi8(codes, bias)
    }

    /// The activations of slots `16 part..`, each in one half; zero in the other.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn look_up_twice<const N: usize>(column: &Block256, part: usize, places: __m256i) -> __m256i {
        let activations = bytemuck::bytes_of(&column.quants);
        // Bit 4 of a place tells even from odd quarters: where it is not that of the half, VPSHUFB's sign bit is set.
        let halves = _mm256_set_epi64x(0x1010_1010_1010_1010, 0x1010_1010_1010_1010, 0, 0);
        let keys = _mm256_and_si256(_mm256_xor_si256(places, halves), _mm256_set1_epi8(31));
        let keys = _mm256_add_epi8(keys, _mm256_set1_epi8(0x70));
        // Bit 5 tells the last two quarters, as the sign bit of a blend.
        let last = _mm256_slli_epi16::<2>(places);
        let of = |group: usize| {
            let first = _mm256_shuffle_epi8(avx2::load(activations, GROUP * group), keys);
            let second = _mm256_shuffle_epi8(avx2::load(activations, GROUP * group + 32), keys);
            _mm256_blendv_epi8(first, second, last)
        };
        // Groups begin at multiples of four slots.
        let group = |four: usize| (NARROW * part + 4 * four) / N;
        let mut found = of(group(0));
        if group(1) != group(0) {
            found = _mm256_blend_epi32::<0b1110_1110>(found, of(group(1)));
        }
        if group(2) != group(1) {
            found = _mm256_blend_epi32::<0b1100_1100>(found, of(group(2)));
        }
        if group(3) != group(2) {
            found = _mm256_blend_epi32::<0b1000_1000>(found, of(group(3)));
        }
        found
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use bilayer_quant::sparse::{GROUP, Layout};

    use super::super::{AHEAD, f16_at, neon, prefetch};
    use super::{Block256, Job};
    use crate::bytes::part;
    use crate::neon::intrinsics::*;
    use crate::neon::{load, load_64};

    /// Slots of one vector.
    const WIDE: usize = 16;

    /// Rows of a type.
    pub struct SparseRows<const N: usize, const BITS: usize>;

    impl<const N: usize, const BITS: usize> neon::RowKernel for SparseRows<N, BITS> {
        #[inline(always)]
        fn run<M: neon::Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            let columns = job.columns::<Block256, C>();
            for (r, row) in job.rows().enumerate() {
                let mut sums = [vdupq_n_f32(0.0); C];
                for (b, block) in row.chunks_exact(Layout::<N, BITS>::BYTES).enumerate() {
                    prefetch(block, AHEAD);
                    let mut dots = [vdupq_n_s32(0); C];
                    for slots in 0..Layout::<N, BITS>::SLOTS / WIDE {
                        let places = load(part(block, Layout::<N, BITS>::PLACES + WIDE * slots));
                        let places = vandq_u8(places, vdupq_n_u8(63));
                        let weights = weights::<N, BITS>(block, slots);
                        for (dots, column) in dots.iter_mut().zip(columns) {
                            let found = look_up::<N>(&column[b], slots, places);
                            *dots = m.add(*dots, weights, found);
                        }
                    }
                    let d = f16_at(block, 0);
                    for ((sum, dots), column) in sums.iter_mut().zip(dots).zip(columns) {
                        *sum = vfmaq_n_f32(*sum, vcvtq_f32_s32(dots), d * column[b].scale[0]);
                    }
                }
                job.store(r, sums.map(vaddvq_f32));
            }
        }
    }

    /// The weights of slots `16 slots..` as multiples of the scale.
    #[inline(always)]
    fn weights<const N: usize, const BITS: usize>(block: &[u8], slots: usize) -> int8x16_t {
        /// Every byte twice, and the shift that moves its low or high nibble down.
        const TWICE: [u8; 16] = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7];
        const DOWN: [u8; 16] = [0, 252, 0, 252, 0, 252, 0, 252, 0, 252, 0, 252, 0, 252, 0, 252];
        let at = Layout::<N, BITS>::QUANTS + WIDE * BITS / 8 * slots;
        let codes = if BITS == 8 {
            load(part(block, at))
        } else {
            let bytes = vcreate_u8(u64::from_le_bytes(*part(block, at)));
            let bytes = vqtbl1q_u8(vcombine_u8(bytes, bytes), load(&TWICE));
            vandq_u8(vshlq_u8(bytes, vreinterpretq_s8_u8(load(&DOWN))), vdupq_n_u8(15))
        };
        vreinterpretq_s8_u8(vsubq_u8(codes, vdupq_n_u8(Layout::<N, BITS>::BIAS)))
    }

    /// The activations of slots `16 slots..`. TBL gives zero for places above 63, which those of other groups become.
    #[inline(always)]
    fn look_up<const N: usize>(column: &Block256, slots: usize, places: uint8x16_t) -> int8x16_t {
        let tables = column.quants.as_chunks::<GROUP>().0;
        let mut found = vdupq_n_u8(0);
        for (group, table) in tables.iter().enumerate() {
            let others: [u8; WIDE] =
                std::array::from_fn(|i| if (WIDE * slots + i) / N == group { 0 } else { 64 });
            if others != [64; WIDE] {
                let own = vqtbl4q_u8(load_64(table), vorrq_u8(places, load(&others)));
                found = vorrq_u8(found, own);
            }
        }
        vreinterpretq_s8_u8(found)
    }
}
