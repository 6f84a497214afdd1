//! Activations with one scale per token ([`Format::Q8Row`](super::Format::Q8Row)): columns and packed chunks.
//!
//! ```text
//! column:  quants [cols, padded with zeros to a multiple of 64] i8
//!          scale f32, sum of quants i32, padding to 64 bytes
//! chunk:   quants [cols / 4, n, 4] i8     n tokens
//!          sums   [n] i32                 -128 · sum of quants
//!          scales [n] f32
//! ```

use super::quantize::{Scale, scale_of};
use crate::lanes::{Lanes, Transform};
use crate::level::{Level, transform};

/// Bytes after a column's quants.
const TAIL: usize = 64;

/// Activations quantized at a time.
const STEP: usize = 32;

/// Bytes of a column.
pub(super) fn column_bytes(cols: usize) -> usize {
    cols.next_multiple_of(64) + TAIL
}

/// A prepared column.
#[derive(Clone, Copy)]
pub(crate) struct RowColumn<'a> {
    /// A multiple of 64, zeros beyond the columns.
    pub quants: &'a [u8],
    /// What one quant stands for.
    pub scale: f32,
    /// The sum of the quants.
    pub sum: i32,
}

impl<'a> RowColumn<'a> {
    /// The column in these bytes.
    #[inline(always)]
    pub fn of(bytes: &'a [u8]) -> RowColumn<'a> {
        let (quants, tail) = bytes.split_at(bytes.len() - TAIL);
        let word = |at: usize| [tail[at], tail[at + 1], tail[at + 2], tail[at + 3]];
        let (scale, sum) = (f32::from_ne_bytes(word(0)), i32::from_ne_bytes(word(4)));
        RowColumn { quants, scale, sum }
    }
}

/// Converts one token's activations, a multiple of 32, to a column.
pub(super) fn prepare(level: Level, x: &[f32], out: &mut [u8]) {
    assert!(x.len().is_multiple_of(STEP), "{} columns are not whole blocks", x.len());
    transform(level, Prepare(x), out);
}

struct Prepare<'a>(&'a [f32]);

impl Transform for Prepare<'_> {
    type Out = [u8];

    #[inline(always)]
    fn run<L: Lanes>(self, _: L, out: &mut [u8]) {
        let (quants, tail) = out.split_at_mut(out.len() - TAIL);
        let (used, padding) = quants.split_at_mut(self.0.len());
        padding.fill(0);
        let (scale, sum) = quantize_row(self.0, used);
        tail.fill(0);
        tail[..4].copy_from_slice(&scale.to_ne_bytes());
        tail[4..8].copy_from_slice(&sum.to_ne_bytes());
    }
}

/// Quantizes a row with one scale; returns the scale and the sum of the quants.
#[inline(always)]
fn quantize_row(x: &[f32], quants: &mut [u8]) -> (f32, i32) {
    let scale = scale_of(x);
    let mut sum = 0i32;
    for (x, out) in x.as_chunks::<STEP>().0.iter().zip(quants.as_chunks_mut::<STEP>().0) {
        sum = sum.wrapping_add(quantize_step(scale, x, out));
    }
    (scale.value, sum)
}

/// Quantizes some activations; returns the sum of the quants.
#[inline(always)]
fn quantize_step<const N: usize>(scale: Scale, x: &[f32; N], out: &mut [u8; N]) -> i32 {
    let whole = x.map(|x| scale.quant(x));
    *out = whole.map(|q| (q as i8).cast_unsigned());
    whole.iter().fold(0i32, |sum, q| sum.wrapping_add(*q))
}

/// Maximum tokens of a chunk.
const TOKENS_MAX: usize = 8;

/// Packs a chunk `[tokens, cols]` f32.
pub(super) fn pack(level: Level, x: &[f32], cols: usize, out: &mut [u8]) {
    assert!(cols.is_multiple_of(STEP), "{cols} columns are not whole blocks");
    transform(level, Pack { x, cols }, out);
}

struct Pack<'a> {
    x: &'a [f32],
    cols: usize,
}

impl Transform for Pack<'_> {
    type Out = [u8];

    #[inline(always)]
    fn run<L: Lanes>(self, _: L, out: &mut [u8]) {
        let Pack { x, cols } = self;
        let n = x.len() / cols;
        assert!(n <= TOKENS_MAX, "{n} tokens in a chunk of at most {TOKENS_MAX}");
        let (quants, rest) = out.split_at_mut(n * cols);
        let (sums, scales) = rest.split_at_mut(4 * n);
        let sums = bytemuck::cast_slice_mut::<u8, i32>(sums);
        let scales = &mut bytemuck::cast_slice_mut::<u8, f32>(scales)[..n];
        let fours = quants.as_chunks_mut::<4>().0;
        for (token, x) in x.chunks_exact(cols).enumerate() {
            let scale = scale_of(x);
            let mut sum = 0i32;
            for (step, x) in x.as_chunks::<STEP>().0.iter().enumerate() {
                let mut bytes = [0; STEP];
                sum = sum.wrapping_add(quantize_step(scale, x, &mut bytes));
                let to = fours[step * (STEP / 4) * n + token..].iter_mut().step_by(n);
                for (to, four) in to.zip(bytes.as_chunks::<4>().0) {
                    *to = *four;
                }
            }
            scales[token] = scale.value;
            sums[token] = (-128i32).wrapping_mul(sum);
        }
    }
}

/// A packed chunk.
#[derive(Clone, Copy)]
pub(crate) struct PackedRows<'a> {
    /// `[cols / 4, tokens, 4]`.
    pub quants: &'a [u8],
    /// `[tokens]`, -128 · sum of quants.
    pub sums: &'a [i32],
    /// `[tokens]`.
    pub scales: &'a [f32],
}

impl<'a> PackedRows<'a> {
    /// Bytes per token.
    pub fn bytes_per_token(cols: usize) -> usize {
        cols + 8
    }

    /// The chunk of `tokens` tokens at the start of `bytes`.
    pub fn of(bytes: &'a [u8], cols: usize, tokens: usize) -> PackedRows<'a> {
        let (quants, rest) = bytes.split_at(cols * tokens);
        let (sums, rest) = rest.split_at(4 * tokens);
        let scales = &rest[..4 * tokens];
        PackedRows {
            quants,
            sums: bytemuck::cast_slice(sums),
            scales: bytemuck::cast_slice(scales),
        }
    }
}
