//! The kernel families' loops in plain Rust: the reference for the vector levels.

use super::{Groups, Job};
use crate::activations::{Block256, Quad32};

/// A block of 256 weights: weight i = `d · scales[i / 16] · quants[i] - mins[i / 16]`.
pub struct K {
    pub quants: [u8; 256],
    pub scales: [i32; 16],
    pub d: f32,
    pub mins: [f32; 16],
}

/// Multiplies rows of `BYTES` bytes per block with `C` columns.
pub fn k<const BYTES: usize, const C: usize>(
    job: &mut Job<'_>,
    unpack: impl Fn(&[u8; BYTES]) -> K,
) {
    let columns = job.columns::<Block256, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [0.0; C];
        for (b, block) in row.as_chunks::<BYTES>().0.iter().enumerate() {
            let weights = unpack(block);
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum += k_block(&weights, &column[b]);
            }
        }
        job.store(r, sums);
    }
}

fn k_block(weights: &K, column: &Block256) -> f32 {
    let mut dots = 0;
    let mut offsets = 0.0;
    for p in 0..16 {
        let quants = weights.quants[16 * p..][..16].iter().zip(&column.quants[16 * p..][..16]);
        let dot: i32 = quants.map(|(w, a)| i32::from(*w) * i32::from(*a)).sum();
        dots += dot * weights.scales[p];
        offsets += weights.mins[p] * column.sums[p];
    }
    dots as f32 * (weights.d * column.scale[0]) - offsets
}

/// Four blocks of 32 weights: weight i = `scales[i / 32] · quants[i] + offsets[i / 32]`.
pub struct Quad {
    pub quants: [i16; 128],
    pub scales: [f32; 4],
    pub offsets: [f32; 4],
}

/// Multiplies rows of `BYTES` bytes per `QUADS` quads with `C` columns; `unpack` is called for each in order.
pub fn quad<const BYTES: usize, const QUADS: usize, const C: usize>(
    job: &mut Job<'_>,
    unpack: impl Fn(&[u8; BYTES], usize) -> Quad,
) {
    let columns = job.columns::<Quad32, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [0.0; C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            for q in 0..QUADS {
                let weights = unpack(group, q);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum += quad_dot(&weights, &column[g * QUADS + q]);
                }
            }
        }
        job.store(r, sums);
    }
}

fn quad_dot(weights: &Quad, column: &Quad32) -> f32 {
    /// One of the four lanes of each block.
    const LANE: [usize; 4] = [0, 8, 2, 10];
    let mut sum = 0.0;
    for (b, lane) in LANE.into_iter().enumerate() {
        let quants = weights.quants[32 * b..][..32].iter().zip(&column.quants[32 * b..][..32]);
        let dot: i32 = quants.map(|(w, a)| i32::from(*w) * i32::from(*a)).sum();
        sum += dot as f32 * column.scales[lane] * weights.scales[b]
            + 4.0 * column.sums[lane] * weights.offsets[b];
    }
    sum
}
