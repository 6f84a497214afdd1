//! The Hadamard transform of keys before they are quantized, and of the queries they are multiplied with.
//!
//! Each of five equal passes adds and subtracts the halves of a block and interleaves the results; after five, the
//! elements are in Sylvester's order. Equal passes need no shuffles of several widths, so the compiler makes vectors of
//! them at every level.

use bilayer_quant::cache::BLOCK;

use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};

/// Factor that makes the transform its own inverse: `1 / sqrt(32)`.
const FACTOR: f32 = std::f32::consts::FRAC_1_SQRT_2 / 4.0;

/// Transforms every 32 elements of `x`, whose length is a multiple of 32; sums are f32.
pub(super) fn hadamard(level: Level, x: &mut [f32]) {
    dispatch(level, Hadamard(x));
}

struct Hadamard<'a>(&'a mut [f32]);

impl Kernel for Hadamard<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        for block in self.0.as_chunks_mut::<BLOCK>().0 {
            let sums = pass(&pass(&pass(&pass(&pass(block)))));
            *block = sums.map(|x| x * FACTOR);
        }
    }
}

#[inline(always)]
fn pass(x: &[f32; BLOCK]) -> [f32; BLOCK] {
    let mut out = [0.0; BLOCK];
    let (left, right) = x.split_at(BLOCK / 2);
    for ((out, a), b) in out.as_chunks_mut::<2>().0.iter_mut().zip(left).zip(right) {
        *out = [a + b, a - b];
    }
    out
}
