//! Activations with one scale per token ([`Format::Q8Row`](super::Format::Q8Row)): columns and packed chunks.
//!
//! **The idea.** A few activations of a token may be many times larger than the others: encoders carry them through all
//! layers, and gates make them. One scale for all would leave the others few steps. So up to [`OUTLIERS`] activations of
//! a token are stored apart, as multiples of its scale in 16 bits, and the scale is that of the others. A product stays
//! one exact sum of integers, `Σ w · q + Σ w · outlier`, so every level returns the same bits.
//!
//! Activation functions such as GELU have results of one sign, but for small ones: half the steps would be without use.
//! Where the others of a token lie between `-a` and `b`, of which one is much larger, `x ≈ scale · (q + zero)` with an
//! integer zero point, so that the steps cover `-a..=b`. The sum gets `zero · Σ w`: one more outlier, whose weight in a row
//! is the sum of the row.
//!
//! **Price.** A pass over the activations for their mean square, per outlier a column of weights multiplied once
//! more, of which most tokens have one or two, and with zero points the sums of the rows.
//!
//! ```text
//! column:  quants [cols, padded with zeros to a multiple of 64] i8, 0 where outliers are
//!          scale f32, sum of quants i32, zero point i32, outliers [8] { column u32, value i32 }, padding to 128 bytes
//! chunk:   quants [cols / 4, n, 4] i8     n tokens
//!          sums   [n] i32                 -128 · sum of quants and outliers
//!          scales [n] f32
//!          zeros  [n] i32                 the zero points
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

/// What half the range of activations is at most, of the largest magnitude, where a token has a zero point: steps are then
/// three quarters as large, or less. With normally distributed activations hardly any token has one.
const HALF_MAX: f32 = 0.75;

/// An activation that is stored apart.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Outlier {
    pub column: u32,
    /// The multiple of the token's scale beyond the zero point; 0 after the last outlier.
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
    /// What is added to every quant and outlier.
    pub zero: i32,
    outliers: &'a Outliers,
}

impl<'a> RowColumn<'a> {
    /// The column in these bytes.
    #[inline(always)]
    pub fn of(bytes: &'a [u8]) -> RowColumn<'a> {
        let (quants, tail) = bytes.split_at(bytes.len() - TAIL);
        let word = |at: usize| [tail[at], tail[at + 1], tail[at + 2], tail[at + 3]];
        let (scale, sum) = (f32::from_ne_bytes(word(0)), i32::from_ne_bytes(word(4)));
        let zero = i32::from_ne_bytes(word(8));
        let outliers = bytemuck::from_bytes(&tail[12..12 + size_of::<Outliers>()]);
        RowColumn { quants, scale, sum, zero, outliers }
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
        let Parted { scale, outliers } = Parted::of(l, self.0, Zero::Any);
        l.quantize(self.0, scale, used);
        for outlier in outliers.iter().take_while(|outlier| outlier.value != 0) {
            used[outlier.column as usize] = 0;
        }
        let sum = l.sum_quants(used);
        tail.fill(0);
        tail[..4].copy_from_slice(&scale.value.to_ne_bytes());
        tail[4..8].copy_from_slice(&sum.to_ne_bytes());
        tail[8..12].copy_from_slice(&scale.zero.to_ne_bytes());
        tail[12..12 + size_of::<Outliers>()].copy_from_slice(bytemuck::bytes_of(&outliers));
    }
}

/// Which zero points tokens may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zero {
    /// Those that make steps smaller.
    Any,
    /// None: for products with weights whose sums are not known.
    Never,
}

/// The largest magnitudes of activations above zero and below; 0 where there are none.
#[derive(Clone, Copy)]
struct Range {
    above: f32,
    below: f32,
}

impl Range {
    /// The largest magnitude.
    #[inline(always)]
    fn peak(self) -> f32 {
        // Also that of -0.
        self.above.max(self.below).abs()
    }

    /// The range with one activation more.
    #[inline(always)]
    fn with(self, x: f32) -> Range {
        Range { above: self.above.max(x), below: self.below.max(-x) }
    }

    /// The scale of the range, at least that of the peak `least`.
    #[inline(always)]
    fn scale(self, least: f32, zero: Zero) -> Scale {
        let (half, middle) =
            (0.5 * self.above + 0.5 * self.below, 0.5 * self.above - 0.5 * self.below);
        let half = half.max(least);
        if zero == Zero::Any && half <= HALF_MAX * self.peak() {
            Scale::around(middle, half)
        } else {
            Scale::of(self.peak().max(least).to_bits(), PEAK_8)
        }
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
    fn of<L: Lanes>(l: L, x: &[f32], zero: Zero) -> Parted {
        let (range, mean_square) = survey(l, x);
        let limit = OUTLIER_FACTOR * mean_square.sqrt();
        // False if a square is too large for the mean, or all are too small.
        if limit > 0.0 && range.peak() > limit {
            return Parted::with_outliers(l, x, limit, zero);
        }
        // Squares that are too large for the mean hide no activation that is not finite.
        let scale = match mean_square.is_finite() {
            true => range.scale(0.0, zero),
            false => Scale::of(l.peak(x), PEAK_8),
        };
        Parted { scale, outliers: [Outlier::default(); OUTLIERS] }
    }

    /// The largest activations above a limit become outliers, which some are.
    #[inline(always)]
    fn with_outliers<L: Lanes>(l: L, x: &[f32], limit: f32, zero: Zero) -> Parted {
        // Sorted from the largest to the smallest, equal ones in order.
        let mut largest = [(0.0f32, 0u32); OUTLIERS];
        let mut rest = Range { above: 0.0, below: 0.0 };
        let (mut aboves, mut belows) = (l.splat(0.0), l.splat(0.0));
        for (step, of_step) in x.as_chunks::<STEP>().0.iter().enumerate() {
            let (mut above, mut below) = (l.splat(0.0), l.splat(0.0));
            for x in of_step.chunks_exact(L::N) {
                let x = l.read(x);
                (above, below) = (l.max(above, x), l.min(below, x));
            }
            below = l.sub(l.splat(0.0), below);
            if !l.any_above(l.max(above, below), limit) {
                (aboves, belows) = (l.max(aboves, above), l.max(belows, below));
                continue;
            }
            let (mut places, mut above, mut below) = (0u32, 0i32, 0i32);
            for (at, x) in of_step.iter().enumerate() {
                let is_outlier = x.to_bits() & MAGNITUDE > limit.to_bits();
                places |= u32::from(is_outlier) << at;
                let kept = if is_outlier { 0 } else { x.to_bits() };
                // Bits of floats with a sign are negative integers.
                above = above.max(kept.cast_signed());
                below = below.max((kept ^ !MAGNITUDE).cast_signed());
            }
            rest = rest.with(f32::from_bits(above.cast_unsigned()));
            rest = rest.with(-f32::from_bits(below.cast_unsigned()));
            while places != 0 {
                let at = places.trailing_zeros() as usize;
                places &= places - 1;
                let mut next = (of_step[at].abs(), (step * STEP + at) as u32);
                for kept in &mut largest {
                    if next.0 > kept.0 {
                        std::mem::swap(kept, &mut next);
                    }
                }
                // What is left is no outlier.
                if next.0 > 0.0 {
                    rest = rest.with(x[next.1 as usize]);
                }
            }
        }
        let (above, below) = (l.largest(aboves), l.largest(belows));
        let rest = rest.with(above).with(-below);
        // So that the largest outlier has 16 bits.
        let least = largest[0].0 * (PEAK_8 / PEAK_16);
        let scale = rest.scale(least, zero);
        let mut outliers = Outliers::default();
        let found = largest.iter().take_while(|(size, _)| *size > 0.0);
        for (outlier, &(_, column)) in outliers.iter_mut().zip(found) {
            *outlier = Outlier { column, value: scale.quant(x[column as usize]) };
        }
        Parted { scale, outliers }
    }
}

/// The range, arbitrary if there is a NaN, and the mean square. Its sum is that of 32 parts, which are added
/// in the same order at all levels: halves, then halves of that.
#[inline(always)]
fn survey<L: Lanes>(l: L, x: &[f32]) -> (Range, f32) {
    let zeros = [l.splat(0.0); VECTORS_MAX];
    let (mut above, mut below, mut sums) = (zeros, zeros, zeros);
    for x in x.as_chunks::<STEP>().0 {
        let parts = above.iter_mut().zip(&mut below).zip(&mut sums).zip(x.chunks_exact(L::N));
        for (((above, below), sum), x) in parts {
            let x = l.read(x);
            (*above, *below) = (l.max(*above, x), l.min(*below, x));
            *sum = l.add(*sum, l.mul(x, x));
        }
    }
    let mut count = STEP / L::N;
    while count > 1 {
        count /= 2;
        for at in 0..count {
            above[at] = l.max(above[at], above[at + count]);
            below[at] = l.min(below[at], below[at + count]);
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
    let below = l.largest(l.sub(l.splat(0.0), below[0]));
    let range = Range { above: l.largest(above[0]), below };
    (range, parts[0] / x.len() as f32)
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
pub(crate) fn pack_rows(level: Level, x: &[f32], cols: usize, zero: Zero, out: &mut [u8]) {
    assert!(cols.is_multiple_of(STEP), "{cols} columns are not whole blocks");
    transform(level, Pack { x, cols, zero }, out);
}

struct Pack<'a> {
    x: &'a [f32],
    cols: usize,
    zero: Zero,
}

impl Transform for Pack<'_> {
    type Out = [u8];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, out: &mut [u8]) {
        let Pack { x, cols, zero } = self;
        let n = x.len() / cols;
        assert!(n <= TOKENS_MAX, "{n} tokens in a chunk of at most {TOKENS_MAX}");
        let (quants, rest) = out.split_at_mut(n * cols);
        let (sums, rest) = rest.split_at_mut(4 * n);
        let (scales, rest) = rest.split_at_mut(4 * n);
        let (zeros, rest) = rest.split_at_mut(4 * n);
        let sums = bytemuck::cast_slice_mut::<u8, i32>(sums);
        let scales = bytemuck::cast_slice_mut::<u8, f32>(scales);
        let zeros = bytemuck::cast_slice_mut::<u8, i32>(zeros);
        let outliers = &mut rest[..n * size_of::<Outliers>()];
        let outliers = bytemuck::cast_slice_mut::<u8, Outliers>(outliers);
        // All scales first: what one takes to find overlaps with the next, and rows arrive before they are needed.
        let mut scale = [Scale::default(); TOKENS_MAX];
        for (token, row) in x.chunks_exact(cols).enumerate() {
            let next = x[(token + 1) * cols..].chunks(LINE).take(cols.div_ceil(LINE));
            next.for_each(|line| l.prefetch(line.as_ptr().cast()));
            let parted = Parted::of(l, row, zero);
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
            (scales[token], zeros[token]) = (scale[token].value, scale[token].zero);
            sums[token] = (-128i32).wrapping_mul(sum);
        }
    }
}

/// Floats of a cache line.
const LINE: usize = 16;

/// A packed chunk.
#[derive(Clone, Copy)]
pub(crate) struct PackedRows<'a> {
    /// `[cols / 4, tokens, 4]`, and all bytes of the chunk after them.
    pub quants: &'a [u8],
    /// `[tokens]`, -128 · sum of quants and outliers.
    pub sums: &'a [i32],
    /// `[tokens]`.
    pub scales: &'a [f32],
    /// `[tokens]`, what is added to every quant and outlier.
    pub zeros: &'a [i32],
    /// `[tokens]`.
    pub outliers: &'a [Outliers],
}

impl<'a> PackedRows<'a> {
    /// Bytes per token.
    pub fn bytes_per_token(cols: usize) -> usize {
        cols + 12 + size_of::<Outliers>()
    }

    /// The chunk of `tokens` tokens at the start of `bytes`.
    pub fn of(bytes: &'a [u8], cols: usize, tokens: usize) -> PackedRows<'a> {
        let (sums, rest) = bytes[cols * tokens..].split_at(4 * tokens);
        let (scales, rest) = rest.split_at(4 * tokens);
        let (zeros, rest) = rest.split_at(4 * tokens);
        let outliers = &rest[..size_of::<Outliers>() * tokens];
        PackedRows {
            quants: bytes,
            sums: bytemuck::cast_slice(sums),
            scales: bytemuck::cast_slice(scales),
            zeros: bytemuck::cast_slice(zeros),
            outliers: bytemuck::cast_slice(outliers),
        }
    }
}
