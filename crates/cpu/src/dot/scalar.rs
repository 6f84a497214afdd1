//! The kernel families' loops in plain Rust: the reference for the vector levels.

use bilayer_quant::mxfp4::half_scale;

use super::{Groups, Job};
use crate::activations::{Block256, Quad32};
use crate::bytes::{f16_at, u32_at};
use crate::types::{Quads, ScaleBits, Scales, Sign, SuperBlock};

/// A block of 256 weights: weight i = `d · scales[i / 16] · codes[i] - mins[i / 16]`.
struct K {
    codes: [i16; 256],
    scales: [i32; 16],
    d: f32,
    mins: [f32; 16],
}

/// Multiplies rows of blocks of 256 with `C` columns.
pub fn k<T: SuperBlock, const C: usize>(job: &mut Job<'_>) {
    let columns = job.columns::<Block256, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [0.0; C];
        for (b, block) in row.chunks_exact(T::BYTES).enumerate() {
            let weights = open::<T>(block);
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum += k_block(&weights, &column[b]);
            }
        }
        job.store(r, sums);
    }
}

/// Unpacks a block.
fn open<T: SuperBlock>(block: &[u8]) -> K {
    let Scales { scales, mins } =
        T::scales(|at| [0, 4, 8, 12].map(|word| u32_at(block, at + word)));
    let (scales, mins): ([i8; 16], [u8; 16]) = (bytemuck::cast(scales), bytemuck::cast(mins));
    let scale =
        |p: usize| i32::from(scales[16 * p / T::GROUP].wrapping_sub_unsigned(T::SCALE_ZERO));
    let d = half::f16::from_bits(T::d(block)).to_f32() * T::UNIT;
    let dmin = if T::HAS_MINS { f16_at(block, T::D + 2) } else { 0.0 };
    let signs = T::signs(block);
    let mut codes = [0; 256];
    for (part, out) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let codes: [u8; 32] = T::codes(block, 32 * part);
        for (i, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            *out = match T::SIGN {
                Sign::Lifted => i16::from(code),
                Sign::Code => i16::from(code.cast_signed()),
                Sign::Apart if signs[part] >> i & 1 == 1 => -i16::from(code),
                Sign::Apart => i16::from(code),
            };
        }
    }
    K {
        codes,
        scales: std::array::from_fn(scale),
        d,
        mins: std::array::from_fn(|p| {
            let min = dmin * f32::from(mins[16 * p / T::GROUP]);
            min + d * f32::from(T::ZERO) * scale(p) as f32
        }),
    }
}

fn k_block(weights: &K, column: &Block256) -> f32 {
    let mut dots = 0;
    let mut offsets = 0.0;
    for p in 0..16 {
        let codes = weights.codes[16 * p..][..16].iter().zip(&column.quants[16 * p..][..16]);
        let dot: i32 = codes.map(|(w, a)| i32::from(*w) * i32::from(*a)).sum();
        dots += dot * weights.scales[p];
        offsets += weights.mins[p] * column.sums[p];
    }
    dots as f32 * (weights.d * column.scale[0]) - offsets
}

/// Four blocks of 32 weights: weight i = `scales[i / 16] · values[i] + offsets[i / 32]`.
struct Quad {
    values: [i16; 128],
    scales: [f32; 8],
    offsets: [f32; 4],
}

/// Multiplies rows of quads with `C` columns.
pub fn quad<T: Quads, const BYTES: usize, const C: usize>(job: &mut Job<'_>) {
    let columns = job.columns::<Quad32, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [0.0; C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            for q in 0..T::QUADS {
                let weights = unpack::<T>(group, q);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum += quad_dot(&weights, &column[g * T::QUADS + q]);
                }
            }
        }
        job.store(r, sums);
    }
}

/// Unpacks quad `q` of some blocks.
fn unpack<T: Quads>(blocks: &[u8], q: usize) -> Quad {
    let mut values = [0; 128];
    for (b, out) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let codes: [u8; 32] = T::unsigned(T::codes(blocks, 128 * q + 32 * b));
        for (out, code) in out.iter_mut().zip(codes) {
            *out = i16::from(code) - i16::from(T::ZERO);
        }
    }
    let scales = match T::SCALES {
        ScaleBits::Computed if T::GROUP == 16 => T::computed(blocks),
        scales => std::array::from_fn(|p| {
            let block = p / 2 * T::BLOCK;
            match scales {
                ScaleBits::F16(at) => f16_at(blocks, block + at),
                ScaleBits::Exponent(at) => half_scale(blocks[block + at]),
                ScaleBits::Computed => T::computed(blocks)[4 * q + p / 2],
            }
        }),
    };
    let offset = |b: usize| T::MIN.map_or(0.0, |at| f16_at(blocks, b * T::BLOCK + at));
    Quad { values, scales, offsets: std::array::from_fn(offset) }
}

fn quad_dot(weights: &Quad, column: &Quad32) -> f32 {
    /// One of the four lanes of each block.
    const LANE: [usize; 4] = [0, 8, 2, 10];
    let mut sum = 0.0;
    for (b, lane) in LANE.into_iter().enumerate() {
        for p in [2 * b, 2 * b + 1] {
            let values = weights.values[16 * p..][..16].iter().zip(&column.quants[16 * p..][..16]);
            let dot: i32 = values.map(|(w, a)| i32::from(*w) * i32::from(*a)).sum();
            sum += dot as f32 * column.scales[lane] * weights.scales[p];
        }
        sum += 4.0 * column.sums[lane] * weights.offsets[b];
    }
    sum
}
