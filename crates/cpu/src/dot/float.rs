//! Kernels for float rows, and the generic kernel: dequantize, then an f32 dot product. One body for all levels.

use std::marker::PhantomData;

use bilayer_quant::Type;

use super::{AHEAD_FLOATS, Entry, Job, entry, kernels, prefetch};
use crate::activations::{F32_STEP, Format};
use crate::lanes::{Lanes, Transform};
use crate::level::{Level, Vectors, rows};
use crate::types::floats::{Bf16, F16, F32, Floats};

/// Weights dequantized at a time by the generic kernel; a whole number of blocks of every type.
const CHUNK: usize = 256;

/// The most vectors of a step.
const VECTORS: usize = 4;

/// How a level streams floats.
trait Stream: Vectors {
    /// Vectors over which a sum is spread, since additions wait for each other: a power of two. With several columns there
    /// are as many for each, so that a column's sum does not depend on its neighbours.
    const SUMS: usize;
}

impl Stream for rows::Scalar {
    const SUMS: usize = 1;
}

#[cfg(target_arch = "x86_64")]
impl Stream for rows::Avx2 {
    const SUMS: usize = 4;
}

#[cfg(target_arch = "x86_64")]
impl Stream for rows::Avx512Vnni {
    const SUMS: usize = 2;
}

#[cfg(target_arch = "aarch64")]
impl Stream for rows::Neon {
    /// Of two vectors of four.
    const SUMS: usize = 2;
}

/// The entries of a form of rows, with the numbers of columns but for those of AVX-512.
macro_rules! entries {
    ($stem:literal, $form:ty, $scalar:tt $avx2:tt $neon:tt) => {
        &[
            entry!(Scalar, concat!($stem, ".scalar"), F32, C in $scalar => run::<rows::Scalar, $form, C>),
            #[cfg(target_arch = "x86_64")]
            entry!(Avx2, concat!($stem, ".avx2"), F32, C in $avx2 => run::<rows::Avx2, $form, C>),
            #[cfg(target_arch = "x86_64")]
            entry!(Avx512Vnni, concat!($stem, ".avx512vnni"), F32, C in [1 2 4 8] => run::<rows::Avx512Vnni, $form, C>),
            #[cfg(target_arch = "aarch64")]
            entry!(Neon, concat!($stem, ".neon"), F32, C in $neon => run::<rows::Neon, $form, C>),
        ]
    };
}

/// Rows of each type.
pub(super) const TABLE: [(Type, &[Entry]); 3] = [
    (Type::F32, entries!("f32", Steps<F32, 128>, [1 4] [1 2 3] [1 2 4])),
    (Type::F16, entries!("f16", Steps<F16, 64>, [1 4] [1 2 3] [1 2 4])),
    (Type::BF16, entries!("bf16", Steps<Bf16, 64>, [1 4] [1 2 3] [1 2 4])),
];

/// Rows of any type.
pub(super) const GENERIC: &[Entry] =
    entries!("generic", Dequantized, [1 2 4 8] [1 2 4 8] [1 2 4 8]);

/// Rows in some form.
trait Form {
    /// Computes the job for `C` columns; must be `#[inline(always)]`.
    fn run<S: Stream, L: Lanes, const C: usize>(l: L, job: &mut Job<'_>);
}

/// Computes a job.
///
/// # Safety
/// The CPU has the level.
unsafe fn run<S: Stream, F: Form, const C: usize>(job: &mut Job<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe { S::Lanes::enter(OfForm::<S, F, C>(PhantomData), job) };
}

struct OfForm<'a, S, F, const C: usize>(PhantomData<(S, F, &'a ())>);

impl<'a, S: Stream, F: Form, const C: usize> Transform for OfForm<'a, S, F, C> {
    type Out = Job<'a>;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, job: &mut Job<'a>) {
        F::run::<S, L, C>(l, job);
    }
}

/// Rows of `BYTES` bytes per 32 floats.
struct Steps<T, const BYTES: usize>(PhantomData<T>);

impl<T: Floats, const BYTES: usize> Form for Steps<T, BYTES> {
    #[inline(always)]
    fn run<S: Stream, L: Lanes, const C: usize>(l: L, job: &mut Job<'_>) {
        const { assert!(BYTES == F32_STEP * T::BYTES && C <= 8) };
        let columns = job.columns::<[f32; F32_STEP], C>();
        for (r, row) in job.rows().enumerate() {
            let mut sums = [[l.splat(0.0); VECTORS]; C];
            let (whole, rest) = row.as_chunks::<BYTES>();
            // The rest with zeros: the columns have zeros there too.
            let mut tail = [[0; BYTES]];
            tail[0][..rest.len()].copy_from_slice(rest);
            let tail = &tail[..usize::from(!rest.is_empty())];
            for (first, steps) in [(0, whole), (whole.len(), tail)] {
                let columns = columns.map(|column| &column[first..first + steps.len()]);
                for (s, bytes) in steps.iter().enumerate() {
                    prefetch(bytes, AHEAD_FLOATS);
                    let weights = step::<L, T>(l, bytes);
                    // By hand: the compiler stops unrolling loops at eight columns, and the sums would be spilled.
                    macro_rules! column {
                        ($($c:literal)+) => {$(
                            if C > $c {
                                add::<L, S>(l, &weights, &columns[$c][s], &mut sums[$c]);
                            }
                        )+};
                    }
                    column!(0 1 2 3 4 5 6 7);
                }
            }
            let mut totals = [0.0; C];
            for (total, sums) in totals.iter_mut().zip(sums) {
                *total = fold::<L, S>(l, sums);
            }
            job.store(r, totals);
        }
    }
}

/// Rows of any type: its scalar code dequantizes [`CHUNK`] weights at a time, which limits the speed, then they are
/// multiplied with every column.
struct Dequantized;

impl Form for Dequantized {
    #[inline(always)]
    fn run<S: Stream, L: Lanes, const C: usize>(l: L, job: &mut Job<'_>) {
        let columns = job.columns::<f32, C>();
        let ty = job.ty;
        let mut values = [0.0; CHUNK];
        for (r, row) in job.rows().enumerate() {
            let mut totals = [0.0; C];
            let cols = (row.len() - ty.row_header_bytes) / ty.block_bytes * ty.block_weights;
            let chunk = CHUNK / ty.block_weights * ty.block_weights;
            for (i, first) in (0..cols).step_by(chunk).enumerate() {
                let len = chunk.min(cols - first);
                ty.dequantize_cols(row, first, &mut values[..len]);
                let padded = len.next_multiple_of(F32_STEP);
                values[len..padded].fill(0.0);
                for (total, column) in totals.iter_mut().zip(columns) {
                    let mut sums = [l.splat(0.0); VECTORS];
                    let weights = values[..padded].as_chunks::<F32_STEP>().0;
                    let x = column[i * CHUNK..][..padded].as_chunks::<F32_STEP>().0;
                    for (weights, x) in weights.iter().zip(x) {
                        let weights = step::<L, F32>(l, bytemuck::bytes_of(weights));
                        add::<L, S>(l, &weights, x, &mut sums);
                    }
                    *total += fold::<L, S>(l, sums);
                }
            }
            job.store(r, totals);
        }
    }
}

/// The 32 weights of a step, in as many vectors as they take.
#[inline(always)]
fn step<L: Lanes, T: Floats>(l: L, step: &[u8]) -> [L::F; VECTORS] {
    const { assert!(F32_STEP / L::N <= VECTORS) };
    assert!(step.len() == F32_STEP * T::BYTES);
    let mut weights = [l.splat(0.0); VECTORS];
    for (i, weights) in weights.iter_mut().enumerate().take(F32_STEP / L::N) {
        *weights = T::read(l, &step[i * L::N * T::BYTES..]);
    }
    weights
}

/// Adds the products of a step to the sums in turn.
#[inline(always)]
fn add<L: Lanes, S: Stream>(
    l: L,
    weights: &[L::F; VECTORS],
    x: &[f32; F32_STEP],
    sums: &mut [L::F; VECTORS],
) {
    for (i, weights) in weights.iter().enumerate().take(F32_STEP / L::N) {
        let sum = &mut sums[i % S::SUMS];
        *sum = l.fma(*weights, l.read(&x[i * L::N..]), *sum);
    }
}

/// The sum of all lanes of the sums.
#[inline(always)]
fn fold<L: Lanes, S: Stream>(l: L, mut sums: [L::F; VECTORS]) -> f32 {
    let mut count = S::SUMS;
    while count > 1 {
        count /= 2;
        for i in 0..count {
            sums[i] = l.add(sums[i], sums[i + count]);
        }
    }
    l.sum(sums[0])
}
