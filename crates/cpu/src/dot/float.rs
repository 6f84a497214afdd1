//! Kernels for float rows, and the generic kernel: dequantize, then an f32 dot product.

use half::{bf16, f16};

use super::{Entry, Groups, Job, entry, kernels};
use crate::activations::{F32_STEP, Format};
use crate::level::Level;

#[cfg(target_arch = "aarch64")]
use arm::{bf16_neon, f16_neon, f32_neon, generic_neon};
#[cfg(target_arch = "x86_64")]
use x86::{
    bf16_avx2, bf16_avx512, f16_avx2, f16_avx512, f32_avx2, f32_avx512, generic_avx2,
    generic_avx512,
};

/// Weights dequantized at a time by the generic kernel; a whole number of blocks of every type.
const CHUNK: usize = 256;

/// F32 rows.
pub(super) const F32: &[Entry] = &[
    entry!(Scalar, "f32.scalar", F32, C in [1 4] => f32_scalar::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "f32.avx2", F32, C in [1 2 3] => f32_avx2::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "f32.avx512vnni", F32, C in [1 2 4 8] => f32_avx512::<C>),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "f32.neon", F32, C in [1 2 4] => f32_neon::<C>),
];

/// F16 rows.
pub(super) const F16: &[Entry] = &[
    entry!(Scalar, "f16.scalar", F32, C in [1 4] => f16_scalar::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "f16.avx2", F32, C in [1 2 3] => f16_avx2::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "f16.avx512vnni", F32, C in [1 2 4 8] => f16_avx512::<C>),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "f16.neon", F32, C in [1 2 4] => f16_neon::<C>),
];

/// BF16 rows.
pub(super) const BF16: &[Entry] = &[
    entry!(Scalar, "bf16.scalar", F32, C in [1 4] => bf16_scalar::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "bf16.avx2", F32, C in [1 2 3] => bf16_avx2::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "bf16.avx512vnni", F32, C in [1 2 4 8] => bf16_avx512::<C>),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "bf16.neon", F32, C in [1 2 4] => bf16_neon::<C>),
];

/// Rows of any type.
pub(super) const GENERIC: &[Entry] = &[
    entry!(Scalar, "generic.scalar", F32, C in [1 2 4 8] => generic_scalar::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx2, "generic.avx2", F32, C in [1 2 4 8] => generic_avx2::<C>),
    #[cfg(target_arch = "x86_64")]
    entry!(Avx512Vnni, "generic.avx512vnni", F32, C in [1 2 4 8] => generic_avx512::<C>),
    #[cfg(target_arch = "aarch64")]
    entry!(Neon, "generic.neon", F32, C in [1 2 4 8] => generic_neon::<C>),
];

fn f32_scalar<const C: usize>(job: &mut Job<'_>) {
    float::<{ 4 * F32_STEP }, C>(job, |step| {
        let bytes = step.as_chunks::<4>().0;
        std::array::from_fn(|i| f32::from_le_bytes(bytes[i]))
    });
}

fn f16_scalar<const C: usize>(job: &mut Job<'_>) {
    float::<{ 2 * F32_STEP }, C>(job, |step| {
        let bytes = step.as_chunks::<2>().0;
        std::array::from_fn(|i| f16::from_le_bytes(bytes[i]).to_f32())
    });
}

fn bf16_scalar<const C: usize>(job: &mut Job<'_>) {
    float::<{ 2 * F32_STEP }, C>(job, |step| {
        let bytes = step.as_chunks::<2>().0;
        std::array::from_fn(|i| bf16::from_le_bytes(bytes[i]).to_f32())
    });
}

/// Multiplies rows of `BYTES` bytes per 32 floats with `C` columns.
fn float<const BYTES: usize, const C: usize>(
    job: &mut Job<'_>,
    unpack: impl Fn(&[u8; BYTES]) -> [f32; F32_STEP],
) {
    let columns = job.columns::<[f32; F32_STEP], C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [[0.0; 8]; C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            let weights = unpack(group);
            for (sums, column) in sums.iter_mut().zip(columns) {
                add_products(&weights, &column[g], sums);
            }
        }
        job.store(r, sums.map(|sums| sums.iter().sum()));
    }
}

fn generic_scalar<const C: usize>(job: &mut Job<'_>) {
    generic::<C>(job, |weights, activations| {
        let mut sums = [0.0; 8];
        add_products(weights, activations, &mut sums);
        sums.iter().sum()
    });
}

/// Adds the products to eight accumulators in turn.
#[inline(always)]
fn add_products(weights: &[f32], activations: &[f32], sums: &mut [f32; 8]) {
    let steps = weights.as_chunks::<8>().0.iter().zip(activations.as_chunks::<8>().0);
    for (weights, activations) in steps {
        for ((sum, w), a) in sums.iter_mut().zip(weights).zip(activations) {
            *sum += w * a;
        }
    }
}

/// Multiplies rows of any type with `C` columns: the type's scalar code dequantizes [`CHUNK`] weights at a time,
/// which limits the speed, then `dot` multiplies them with every column.
#[inline(always)]
fn generic<const C: usize>(job: &mut Job<'_>, dot: impl Fn(&[f32], &[f32]) -> f32) {
    let columns = job.columns::<f32, C>();
    let ty = job.ty;
    let mut values = [0.0; CHUNK];
    for (r, row) in job.rows().enumerate() {
        let mut sums = [0.0; C];
        let cols = (row.len() - ty.row_header_bytes) / ty.block_bytes * ty.block_weights;
        let chunk = CHUNK / ty.block_weights * ty.block_weights;
        for (i, first) in (0..cols).step_by(chunk).enumerate() {
            let len = chunk.min(cols - first);
            ty.dequantize_cols(row, first, &mut values[..len]);
            let padded = len.next_multiple_of(F32_STEP);
            values[len..padded].fill(0.0);
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum += dot(&values[..padded], &column[i * CHUNK..][..padded]);
            }
        }
        job.store(r, sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2 and AVX-512 kernels.

    use std::arch::x86_64::*;

    use super::super::{avx2, avx512};
    use super::{F32_STEP, Job, generic};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn f32_avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::float::<{ 4 * F32_STEP }, C>(job, |step| {
            [0, 32, 64, 96].map(|at| _mm256_castsi256_ps(avx2::load(step, at)))
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub fn f32_avx512<const C: usize>(job: &mut Job<'_>) {
        avx512::float::<{ 4 * F32_STEP }, C>(job, |step| {
            [0, 64].map(|at| _mm512_castsi512_ps(avx512::load(step, at)))
        });
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn f16_avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::float::<{ 2 * F32_STEP }, C>(job, |step| {
            [0, 16, 32, 48].map(|at| _mm256_cvtph_ps(avx2::load_128(step, at)))
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub fn f16_avx512<const C: usize>(job: &mut Job<'_>) {
        avx512::float::<{ 2 * F32_STEP }, C>(job, |step| {
            [0, 32].map(|at| _mm512_cvtph_ps(avx2::load(step, at)))
        });
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn bf16_avx2<const C: usize>(job: &mut Job<'_>) {
        avx2::float::<{ 2 * F32_STEP }, C>(job, |step| {
            [0, 16, 32, 48].map(|at| {
                let wide = _mm256_cvtepu16_epi32(avx2::load_128(step, at));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub fn bf16_avx512<const C: usize>(job: &mut Job<'_>) {
        avx512::float::<{ 2 * F32_STEP }, C>(job, |step| {
            [0, 32].map(|at| {
                let wide = _mm512_cvtepu16_epi32(avx2::load(step, at));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            })
        });
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn generic_avx2<const C: usize>(job: &mut Job<'_>) {
        generic::<C>(job, |weights, activations| avx2::dot(weights, activations));
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub fn generic_avx512<const C: usize>(job: &mut Job<'_>) {
        generic::<C>(job, |weights, activations| avx512::dot(weights, activations));
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! NEON kernels.

    use crate::neon::intrinsics::*;

    use super::super::neon;
    use super::{F32_STEP, Job, generic};
    use crate::neon::f16x4;

    pub fn f32_neon<const C: usize>(job: &mut Job<'_>) {
        neon::float::<{ 4 * F32_STEP }, C>(job, |step| {
            std::array::from_fn(|i| vreinterpretq_f32_u8(neon::load(step, 16 * i)))
        });
    }

    pub fn f16_neon<const C: usize>(job: &mut Job<'_>) {
        halves::<C>(job, f16x4);
    }

    pub fn bf16_neon<const C: usize>(job: &mut Job<'_>) {
        halves::<C>(job, |bits| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(bits))));
    }

    /// Multiplies rows of 16-bit floats, which `widen` converts four at a time.
    #[inline(always)]
    fn halves<const C: usize>(job: &mut Job<'_>, widen: impl Fn(uint16x4_t) -> float32x4_t) {
        neon::float::<{ 2 * F32_STEP }, C>(job, |step| {
            std::array::from_fn(|i| {
                let bits = vreinterpretq_u16_u8(neon::load(step, 16 * (i / 2)));
                widen(if i % 2 == 0 { vget_low_u16(bits) } else { vget_high_u16(bits) })
            })
        });
    }

    pub fn generic_neon<const C: usize>(job: &mut Job<'_>) {
        generic::<C>(job, neon::dot);
    }
}
