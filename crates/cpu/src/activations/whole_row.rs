//! Activations with one scale per token ([`Format::Q8Row`](super::Format::Q8Row)): columns and packed chunks.
//!
//! **The idea.** A few activations of a token may be many times larger than the others: encoders carry them through all
//! layers, and gates make them. One scale for all would leave the others few steps. So up to [`OUTLIERS`] activations of
//! a token are stored apart, as multiples of its scale in 16 bits, and the scale is that of the others. A product stays
//! one exact sum of integers, `Σ w · q + Σ w · outlier`, so every level returns the same bits.
//!
//! **Price.** A pass over the activations for their mean square, and per outlier a column of weights multiplied once
//! more; most tokens have one or two.
//!
//! ```text
//! column:  quants [cols, padded with zeros to a multiple of 64] i8, 0 where outliers are
//!          scale f32, sum of quants i32, outliers [8] { column u32, value i32 }, padding to 128 bytes
//! chunk:   quants [cols / 4, n, 4] i8     n tokens
//!          sums   [n] i32                 -128 · sum of quants and outliers
//!          scales [n] f32
//!          outliers [n, 8] { column u32, value i32 }
//! ```

use bytemuck::{Pod, Zeroable};

use super::SPAN;
use super::interleave::{Piece, TOKENS_MAX, interleave};
use crate::lanes::{Lanes, Transform};
use crate::level::{Level, transform};
use crate::quantizer::{MAGNITUDE, PEAK_8, Scale};

/// Bytes after a column's quants.
const TAIL: usize = 128;

/// Activations whose largest are found, and squares summed, at a time.
const STEP: usize = 32;

/// The most outliers of a token.
pub(crate) const OUTLIERS: usize = 8;

/// How many times larger than the root of the mean square of all an outlier is. With normally distributed activations one
/// in two million is.
const OUTLIER_FACTOR: f32 = 5.0;

/// The largest outlier in 16 bits.
const PEAK_16: f32 = 32767.0;

/// An activation that is stored apart.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Outlier {
    pub column: u32,
    /// The multiple of the token's scale; 0 after the last outlier.
    pub value: i32,
}

/// The outliers of a token.
pub(crate) type Outliers = [Outlier; OUTLIERS];

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
    /// The sum of the quants, outliers left out.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "VPDPBUSD alone needs it"))]
    pub sum: i32,
    outliers: &'a Outliers,
}

impl<'a> RowColumn<'a> {
    /// The column in these bytes.
    #[inline(always)]
    pub fn of(bytes: &'a [u8]) -> RowColumn<'a> {
        let (quants, tail) = bytes.split_at(bytes.len() - TAIL);
        let word = |at: usize| [tail[at], tail[at + 1], tail[at + 2], tail[at + 3]];
        let (scale, sum) = (f32::from_ne_bytes(word(0)), i32::from_ne_bytes(word(4)));
        let outliers = bytemuck::from_bytes(&tail[8..8 + size_of::<Outliers>()]);
        RowColumn { quants, scale, sum, outliers }
    }

    /// The product of the outliers with a row of weights.
    #[inline(always)]
    pub fn outliers(&self, weights: &[u8]) -> i32 {
        let outliers = self.outliers.iter().take_while(|outlier| outlier.value != 0);
        let products = outliers.map(|outlier| {
            i32::from(weights[outlier.column as usize].cast_signed()) * outlier.value
        });
        products.sum()
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
    fn run<L: Lanes>(self, l: L, out: &mut [u8]) {
        let (quants, tail) = out.split_at_mut(out.len() - TAIL);
        let (used, padding) = bytemuck::cast_slice_mut(quants).split_at_mut(self.0.len());
        padding.fill(0);
        let Parted { scale, outliers } = Parted::of(l, self.0);
        l.quantize(self.0, scale, used);
        for outlier in outliers.iter().take_while(|outlier| outlier.value != 0) {
            used[outlier.column as usize] = 0;
        }
        let sum = l.sum_quants(used);
        tail.fill(0);
        tail[..4].copy_from_slice(&scale.value.to_ne_bytes());
        tail[4..8].copy_from_slice(&sum.to_ne_bytes());
        tail[8..8 + size_of::<Outliers>()].copy_from_slice(bytemuck::bytes_of(&outliers));
    }
}

/// A token's scale and outliers.
struct Parted {
    scale: Scale,
    outliers: Outliers,
}

impl Parted {
    /// Finds the outliers of a token. Activations that are not finite make the scale NaN.
    #[inline(always)]
    fn of<L: Lanes>(l: L, x: &[f32]) -> Parted {
        let (most, mean_square) = survey(l, x);
        let limit = OUTLIER_FACTOR * mean_square.sqrt();
        // False if a square is too large for the mean, or all are too small.
        if limit > 0.0 && most > limit {
            return Parted::with_outliers(l, x, limit);
        }
        // Squares that are too large for the mean hide no activation that is not finite.
        let most = if mean_square.is_finite() { most.to_bits() } else { l.peak(x) };
        Parted { scale: Scale::of(most, PEAK_8), outliers: [Outlier::default(); OUTLIERS] }
    }

    /// The largest activations above a limit become outliers, which some are.
    #[inline(always)]
    fn with_outliers<L: Lanes>(l: L, x: &[f32], limit: f32) -> Parted {
        // Sorted from the largest to the smallest, equal ones in order.
        let mut largest = [(0.0f32, 0u32); OUTLIERS];
        let (mut rest, mut rests) = (0.0f32, l.splat(0.0));
        for (step, x) in x.as_chunks::<STEP>().0.iter().enumerate() {
            let mut most = l.splat(0.0);
            for x in x.chunks_exact(L::N) {
                most = l.max(most, l.abs(l.read(x)));
            }
            if !l.any_above(most, limit) {
                rests = l.max(rests, most);
                continue;
            }
            let (mut places, mut below) = (0u32, 0u32);
            for (at, x) in x.iter().enumerate() {
                let bits = x.to_bits() & MAGNITUDE;
                let is_outlier = bits > limit.to_bits();
                places |= u32::from(is_outlier) << at;
                below = below.max(if is_outlier { 0 } else { bits });
            }
            rest = rest.max(f32::from_bits(below));
            while places != 0 {
                let at = places.trailing_zeros() as usize;
                places &= places - 1;
                let mut next = (x[at].abs(), (step * STEP + at) as u32);
                for kept in &mut largest {
                    if next.0 > kept.0 {
                        std::mem::swap(kept, &mut next);
                    }
                }
                // What is left is no outlier.
                rest = rest.max(next.0);
            }
        }
        let rest = rest.max(l.largest(rests));
        // So that the largest outlier has 16 bits.
        let least = largest[0].0 * (PEAK_8 / PEAK_16);
        let scale = Scale::of(rest.max(least).to_bits(), PEAK_8);
        let mut outliers = Outliers::default();
        let found = largest.iter().take_while(|(size, _)| *size > 0.0);
        for (outlier, &(_, column)) in outliers.iter_mut().zip(found) {
            *outlier = Outlier { column, value: scale.quant(x[column as usize]) };
        }
        Parted { scale, outliers }
    }
}

/// The largest magnitude, arbitrary if there is a NaN, and the mean square. Its sum is that of 32 parts, which are added
/// in the same order at all levels: halves, then halves of that.
#[inline(always)]
fn survey<L: Lanes>(l: L, x: &[f32]) -> (f32, f32) {
    let (mut most, mut sums) = ([l.splat(0.0); VECTORS_MAX], [l.splat(0.0); VECTORS_MAX]);
    for x in x.as_chunks::<STEP>().0 {
        let parts = most.iter_mut().zip(&mut sums).zip(x.chunks_exact(L::N));
        for ((most, sum), x) in parts {
            let x = l.read(x);
            *most = l.max(*most, l.abs(x));
            *sum = l.add(*sum, l.mul(x, x));
        }
    }
    let mut count = STEP / L::N;
    while count > 1 {
        count /= 2;
        for at in 0..count {
            most[at] = l.max(most[at], most[at + count]);
            sums[at] = l.add(sums[at], sums[at + count]);
        }
    }
    let mut parts = [0.0; STEP];
    l.write(sums[0], &mut parts);
    let mut count = L::N;
    while count > 1 {
        count /= 2;
        for at in 0..count {
            parts[at] += parts[at + count];
        }
    }
    (l.largest(most[0]), parts[0] / x.len() as f32)
}

/// Vectors of [`STEP`] elements at the level with the shortest ones.
const VECTORS_MAX: usize = 4;

/// Rows to be quantized with one scale each and without outliers: the first `cols` of every `stride` elements.
pub(crate) struct KeyRows<'a> {
    pub x: &'a [f32],
    pub stride: usize,
    pub cols: usize,
}

/// Quantizes rows of a multiple of 32 columns to `out`, `[rows, cols]` i8, and `scales`, `[rows]`.
pub(crate) fn quantize_rows(level: Level, rows: KeyRows<'_>, scales: &mut [f32], out: &mut [u8]) {
    assert!(rows.cols.is_multiple_of(STEP), "{} columns are not whole blocks", rows.cols);
    assert_eq!(out.len(), scales.len() * rows.cols);
    transform(level, QuantizeRows { rows, scales }, out);
}

struct QuantizeRows<'a> {
    rows: KeyRows<'a>,
    scales: &'a mut [f32],
}

impl Transform for QuantizeRows<'_> {
    type Out = [u8];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, out: &mut [u8]) {
        let KeyRows { x, stride, cols } = self.rows;
        let rows = x.chunks(stride).zip(bytemuck::cast_slice_mut(out).chunks_exact_mut(cols));
        for ((x, out), to) in rows.zip(self.scales) {
            let x = &x[..cols];
            let scale = Scale::of(l.peak(x), PEAK_8);
            l.quantize(x, scale, out);
            *to = scale.value;
        }
    }
}

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
    fn run<L: Lanes>(self, l: L, out: &mut [u8]) {
        let Pack { x, cols } = self;
        let n = x.len() / cols;
        assert!(n <= TOKENS_MAX, "{n} tokens in a chunk of at most {TOKENS_MAX}");
        let (quants, rest) = out.split_at_mut(n * cols);
        let (sums, rest) = rest.split_at_mut(4 * n);
        let (scales, rest) = rest.split_at_mut(4 * n);
        let sums = bytemuck::cast_slice_mut::<u8, i32>(sums);
        let scales = bytemuck::cast_slice_mut::<u8, f32>(scales);
        let outliers = &mut rest[..n * size_of::<Outliers>()];
        let outliers = bytemuck::cast_slice_mut::<u8, Outliers>(outliers);
        // All scales first: what one takes to find overlaps with the next, and rows arrive before they are needed.
        let mut scale = [Scale::default(); TOKENS_MAX];
        for (token, row) in x.chunks_exact(cols).enumerate() {
            let next = x[(token + 1) * cols..].chunks(LINE).take(cols.div_ceil(LINE));
            next.for_each(|line| l.prefetch(line.as_ptr().cast()));
            let parted = Parted::of(l, row);
            (scale[token], outliers[token]) = (parted.scale, parted.outliers);
        }
        let fours = quants.as_chunks_mut::<4>().0;
        let mut piece: Piece = [[[0; 4]; SPAN / 4]; TOKENS_MAX];
        sums.fill(0);
        for first in (0..cols).step_by(SPAN) {
            let range = first..cols.min(first + SPAN);
            for (token, row) in x.chunks_exact(cols).enumerate() {
                let bytes = &mut piece[token].as_flattened_mut()[..range.len()];
                // What is stored of outliers is arbitrary.
                l.quantize(&row[range.clone()], scale[token], bytes);
                sums[token] = sums[token].wrapping_add(l.sum_quants(bytes));
            }
            interleave(&piece, n, &mut fours[range.start / 4 * n..range.end / 4 * n]);
        }
        for token in 0..n {
            let mut sum = sums[token];
            for outlier in outliers[token].iter().take_while(|outlier| outlier.value != 0) {
                let column = outlier.column as usize;
                let stored = std::mem::take(&mut fours[column / 4 * n + token][column % 4]);
                sum = sum.wrapping_add(outlier.value - i32::from(stored.cast_signed()));
            }
            scales[token] = scale[token].value;
            sums[token] = (-128i32).wrapping_mul(sum);
        }
    }
}

/// Floats of a cache line.
const LINE: usize = 16;

/// A packed chunk.
#[derive(Clone, Copy)]
pub(crate) struct PackedRows<'a> {
    /// `[cols / 4, tokens, 4]`.
    pub quants: &'a [u8],
    /// `[tokens]`, -128 · sum of quants and outliers.
    pub sums: &'a [i32],
    /// `[tokens]`.
    pub scales: &'a [f32],
    /// `[tokens]`.
    pub outliers: &'a [Outliers],
}

impl<'a> PackedRows<'a> {
    /// Bytes per token.
    pub fn bytes_per_token(cols: usize) -> usize {
        cols + 8 + size_of::<Outliers>()
    }

    /// The chunk of `tokens` tokens at the start of `bytes`.
    pub fn of(bytes: &'a [u8], cols: usize, tokens: usize) -> PackedRows<'a> {
        let (quants, rest) = bytes.split_at(cols * tokens);
        let (sums, rest) = rest.split_at(4 * tokens);
        let (scales, rest) = rest.split_at(4 * tokens);
        let outliers = &rest[..size_of::<Outliers>() * tokens];
        PackedRows {
            quants,
            sums: bytemuck::cast_slice(sums),
            scales: bytemuck::cast_slice(scales),
            outliers: bytemuck::cast_slice(outliers),
        }
    }
}
