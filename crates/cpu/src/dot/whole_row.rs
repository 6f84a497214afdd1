//! Rows of one scale and signed bytes: whole rows are summed as integers, and scaled once.
//!
//! Activations have one scale per token, so every level returns the same bits. VPDPBUSD needs one unsigned operand: the
//! weights' sign bits are flipped, which adds 128 to each, and the sums start from -128 times the sum of the activations.
//! AVX2 multiplies magnitudes with activations that carry their signs: no pair sum exceeds 2 · 128 · 127 = 32512, so
//! VPMADDUBSW never saturates. The few activations that are stored apart are multiplied one by one,
//! and a token's zero point with the sum of the row.

use bilayer_quant::w8a8::{HEADER, scale};

use super::{Entry, Job, entry, kernels};
use crate::activations::{Format, RowColumn};
use crate::level::Level;

/// The kernels of all such types.
pub(super) const ENTRIES: &[Entry] = &[
    entry!(Scalar, "w8a8.scalar", Q8Row, C in [1 4] => scalar::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "w8a8.avx2", Q8Row, C in [1 2 4] => avx2::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(AvxVnni, "w8a8.avxvnni", Q8Row, C in [1 2 4] => avxvnni::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "w8a8.avx512vnni", Q8Row, C in [1 2 4 8] => avx512::<C>),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "w8a8.neon", Q8Row, C in [1 2 4] => neon::<C>),
    #[cfg(target_arch = "aarch64")]
    entry!(NeonDotprod, "w8a8.neon-dotprod", Q8Row, C in [1 2 4] => neon_dotprod::<C>),
];

#[cfg(target_arch = "aarch64")]
use arm::{neon, neon_dotprod};
#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, avxvnni};

/// The columns of a job.
#[inline(always)]
fn columns<'a, const C: usize>(job: &Job<'a>) -> [RowColumn<'a>; C] {
    job.columns::<u8, C>().map(RowColumn::of)
}

/// The results of a row's sums, to which outliers and zero points are added. `sum` gives the sum of weights.
#[inline(always)]
fn scaled<const C: usize>(
    row: &[u8],
    columns: &[RowColumn<'_>; C],
    dots: [i32; C],
    sum: impl FnOnce(&[u8]) -> i32,
) -> [f32; C] {
    let d = scale(row);
    let has_zeros = columns.iter().any(|column| column.zero != 0);
    let row_sum = if has_zeros { sum(&row[HEADER..]) } else { 0 };
    std::array::from_fn(|c| {
        let zeros = row_sum.wrapping_mul(columns[c].zero);
        let dot = dots[c].wrapping_add(zeros).wrapping_add(columns[c].outliers(&row[HEADER..]));
        dot as f32 * (d * columns[c].scale)
    })
}

fn scalar<const C: usize>(job: &mut Job<'_>) {
    let columns = columns::<C>(job);
    for (r, row) in job.rows().enumerate() {
        let dots = columns.map(|column| {
            let products = row[HEADER..].iter().zip(column.quants);
            products.map(|(w, x)| i32::from(w.cast_signed()) * i32::from(x.cast_signed())).sum()
        });
        let sum = |row: &[u8]| row.iter().map(|w| i32::from(w.cast_signed())).sum();
        job.store(r, scaled(row, &columns, dots, sum));
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2, AVX-VNNI and AVX-512 kernels.

    use std::arch::x86_64::*;

    use bilayer_quant::w8a8::HEADER;

    use super::super::{AHEAD, avx2, avx512, each, prefetch};
    use super::{Job, columns, scaled};
    use crate::quantizer::x86 as quantizer;
    use crate::x86::whole_lines;

    /// -128 times the sums of the activations.
    #[inline(always)]
    fn offsets<const C: usize>(columns: &[super::RowColumn<'_>; C]) -> [i32; C] {
        columns.map(|column| column.sum.wrapping_mul(-128))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    pub fn avx512<const C: usize>(job: &mut Job<'_>) {
        let columns = columns::<C>(job);
        let offsets = offsets(&columns);
        let flip = _mm512_set1_epi8(i8::MIN);
        for (r, row) in job.rows().enumerate() {
            let mut dots = [_mm512_setzero_si512(); C];
            // A second sum for few columns, whose products would wait for each other.
            let mut others = [_mm512_setzero_si512(); C];
            let (steps, rest) = row[HEADER..].as_chunks::<64>();
            for (s, step) in steps.iter().enumerate() {
                prefetch(step, AHEAD);
                let w = _mm512_xor_si512(avx512::load(step, 0), flip);
                each::<C>(|c| {
                    let x = avx512::load(columns[c].quants, 64 * s);
                    let to = if C < 4 && s % 2 == 1 { &mut others[c] } else { &mut dots[c] };
                    *to = _mm512_dpbusd_epi32(*to, w, x);
                });
            }
            if !rest.is_empty() {
                let w = _mm512_zextsi256_si512(avx2::load(rest, 0));
                // The activations beyond the row are zero.
                let w = _mm512_xor_si512(w, flip);
                each::<C>(|c| {
                    let x = avx512::load(columns[c].quants, 64 * steps.len());
                    dots[c] = _mm512_dpbusd_epi32(dots[c], w, x);
                });
            }
            let mut sums = offsets;
            for c in 0..C {
                let all = _mm512_add_epi32(dots[c], others[c]);
                sums[c] = sums[c].wrapping_add(_mm512_reduce_add_epi32(all));
            }
            job.store(r, scaled(row, &columns, sums, |row| row_sum_512(row)));
        }
    }

    /// The sum of a row's weights.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    fn row_sum_512(row: &[u8]) -> i32 {
        let ones = _mm512_set1_epi8(1);
        let mut sums = [_mm512_setzero_si512(); 2];
        let (steps, rest) = row.as_chunks::<64>();
        for (s, step) in steps.iter().enumerate() {
            sums[s % 2] = _mm512_dpbusd_epi32(sums[s % 2], ones, avx512::load(step, 0));
        }
        if !rest.is_empty() {
            let rest = _mm512_zextsi256_si512(avx2::load(rest, 0));
            sums[0] = _mm512_dpbusd_epi32(sums[0], ones, rest);
        }
        _mm512_reduce_add_epi32(_mm512_add_epi32(sums[0], sums[1]))
    }

    /// [`row_sum_512`] with AVX2.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn row_sum_256(row: &[u8]) -> i32 {
        quantizer::sum(bytemuck::cast_slice(row))
    }

    /// The sum of eight lanes.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn sum(dots: __m256i) -> i32 {
        let four = _mm_add_epi32(_mm256_castsi256_si128(dots), _mm256_extracti128_si256::<1>(dots));
        let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
        _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avxvnni<const C: usize>(job: &mut Job<'_>) {
        whole_lines();
        let columns = columns::<C>(job);
        let offsets = offsets(&columns);
        let flip = _mm256_set1_epi8(i8::MIN);
        for (r, row) in job.rows().enumerate() {
            let mut dots = [_mm256_setzero_si256(); C];
            for (s, step) in row[HEADER..].as_chunks::<32>().0.iter().enumerate() {
                prefetch(step, AHEAD);
                let w = _mm256_xor_si256(avx2::load(step, 0), flip);
                for (dots, column) in dots.iter_mut().zip(&columns) {
                    let x = avx2::load(column.quants, 32 * s);
                    *dots = _mm256_dpbusd_avx_epi32(*dots, w, x);
                }
            }
            let sums = std::array::from_fn(|c| offsets[c].wrapping_add(sum(dots[c])));
            job.store(r, scaled(row, &columns, sums, |row| row_sum_256(row)));
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<const C: usize>(job: &mut Job<'_>) {
        whole_lines();
        let columns = columns::<C>(job);
        let ones = _mm256_set1_epi16(1);
        for (r, row) in job.rows().enumerate() {
            let mut dots = [_mm256_setzero_si256(); C];
            for (s, step) in row[HEADER..].as_chunks::<32>().0.iter().enumerate() {
                prefetch(step, AHEAD);
                let w = avx2::load(step, 0);
                let sizes = _mm256_abs_epi8(w);
                for (dots, column) in dots.iter_mut().zip(&columns) {
                    let x = _mm256_sign_epi8(avx2::load(column.quants, 32 * s), w);
                    let pairs = _mm256_maddubs_epi16(sizes, x);
                    *dots = _mm256_add_epi32(*dots, _mm256_madd_epi16(pairs, ones));
                }
            }
            let sums = dots.map(|dots| sum(dots));
            job.store(r, scaled(row, &columns, sums, |row| row_sum_256(row)));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use bilayer_quant::w8a8::HEADER;

    use super::super::neon::{self, Multiply, RowKernel};
    use super::super::{AHEAD, prefetch};
    use super::{Job, columns, scaled};
    use crate::bytes::part;
    use crate::neon::intrinsics::*;
    use crate::neon::load;

    struct WholeRows;

    impl RowKernel for WholeRows {
        #[inline(always)]
        fn run<M: Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
            let columns = columns::<C>(job);
            for (r, row) in job.rows().enumerate() {
                let mut dots = [vdupq_n_s32(0); C];
                for (s, step) in row[HEADER..].as_chunks::<16>().0.iter().enumerate() {
                    prefetch(step, AHEAD);
                    let w = vreinterpretq_s8_u8(load(step));
                    for (dots, column) in dots.iter_mut().zip(&columns) {
                        let x = vreinterpretq_s8_u8(load(part(column.quants, 16 * s)));
                        *dots = m.add(*dots, w, x);
                    }
                }
                let sum = |row: &[u8]| {
                    let mut sum = vdupq_n_s32(0);
                    for step in row.as_chunks::<16>().0 {
                        sum = m.add(sum, vreinterpretq_s8_u8(load(step)), vdupq_n_s8(1));
                    }
                    vaddvq_s32(sum)
                };
                job.store(r, scaled(row, &columns, dots.map(vaddvq_s32), sum));
            }
        }
    }

    pub fn neon<const C: usize>(job: &mut Job<'_>) {
        neon::plain::<WholeRows, C>(job);
    }

    #[target_feature(enable = "dotprod")]
    pub fn neon_dotprod<const C: usize>(job: &mut Job<'_>) {
        neon::dotprod::<WholeRows, C>(job);
    }
}
