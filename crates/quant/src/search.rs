//! Searches for the scale, or the scale and minimum, that minimize the error of a group of weights.
//!
//! All searches minimize the weighted squared error Σ w (x - x')² by alternating two steps: given a scale, each
//! weight takes its nearest code; given the codes, the best scale is a least-squares solution. A sweep of starting
//! scales avoids poor local minima. Several groups are searched at once, one per SIMD lane, so sums are plain f32
//! sums in weight order and give the same result on every machine.

use crate::blocks::{F16_LARGEST, GROUP, f16_bits, f16_value};
use crate::lanes::{Groups, Lanes, byte, bytes, floor, reciprocal};

/// Starting points of a search, evenly spaced from `first` to `last`: for a scale, the code of the largest weight;
/// for a line, the number of steps between the smallest and the largest.
#[derive(Clone, Copy)]
pub(crate) struct Sweep {
    pub first: f32,
    pub last: f32,
    pub count: u8,
}

impl Sweep {
    #[inline(always)]
    fn point(self, k: u8) -> f32 {
        let step = (self.last - self.first) / f32::from(self.count - 1);
        self.first + step * f32::from(k)
    }
}

/// Refits of the best scale of a sweep to its codes.
const REFINEMENTS: u8 = 2;

/// Fits of each line of a sweep to the codes of the previous fit.
const FITS: u8 = 2;

/// `x' = scale · code + min` in each lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<const L: usize> {
    pub scale: Lanes<L>,
    pub min: Lanes<L>,
}

impl<const L: usize> Line<L> {
    /// The nearest integer codes.
    #[inline(always)]
    pub fn codes<const N: usize>(self, x: &[Lanes<L>; N], top: f32) -> [Lanes<L>; N] {
        let inverse = self.scale.reciprocal();
        let mut codes = [Lanes::ZERO; N];
        for i in 0..N {
            codes[i] = ((x[i] - self.min) * inverse).round(0.0, top);
        }
        codes
    }

    #[inline(always)]
    fn if_less(a: Lanes<L>, b: Lanes<L>, then: Self, other: Self) -> Self {
        Line {
            scale: Lanes::if_less(a, b, then.scale, other.scale),
            min: Lanes::if_less(a, b, then.min, other.min),
        }
    }
}

/// The smallest and the largest of values, in eight lanes; `N` is a multiple of eight. The sign of a zero is that of any.
#[inline(always)]
fn extremes<const N: usize>(values: &[f32; N]) -> [f32; 2] {
    const { assert!(N.is_multiple_of(8)) };
    let (mut low, mut high) = (Lanes::<8>::all(f32::INFINITY), Lanes::all(f32::NEG_INFINITY));
    for chunk in values.as_chunks().0 {
        (low, high) = (Lanes(*chunk).min(low), Lanes(*chunk).max(high));
    }
    let least = |a: f32, b: f32| if b < a { b } else { a };
    let most = |a: f32, b: f32| if b > a { b } else { a };
    [low.0.into_iter().fold(f32::INFINITY, least), high.0.into_iter().fold(f32::NEG_INFINITY, most)]
}

/// The value of largest magnitude, the first one on ties; `N` is a multiple of eight.
#[inline(always)]
pub(crate) fn peak<const N: usize>(values: &[f32; N]) -> f32 {
    let [low, high] = extremes(values);
    if high != -low {
        return if high > -low { high } else { low };
    }
    let mut peak = 0.0f32;
    for x in values {
        peak = if x.abs() > peak.abs() { *x } else { peak };
    }
    peak
}

/// The cost of a squared error at each value: positive, as long as squares do not overflow.
///
/// Besides the column's importance, larger weights count more, by √(2 · mean square + x²): llama.cpp's formula with
/// importance, found there by measuring perplexity. Activations without importance get a ten-thousandth of the mean, so
/// that every search is well-defined.
#[inline(always)]
pub(crate) fn weights<const N: usize>(
    values: &[f32; N],
    importance: Option<&[f32; N]>,
) -> [f32; N] {
    let mut weights = *values;
    for weight in &mut weights {
        *weight *= *weight;
    }
    let inverse = reciprocal(mean(&weights));
    for weight in &mut weights {
        *weight = (2.0 + *weight * inverse).sqrt();
    }
    if let Some(importance) = importance {
        let mut importance = *importance;
        for v in &mut importance {
            *v = if *v > 0.0 { *v } else { 0.0 };
        }
        let inverse = reciprocal(mean(&importance));
        for k in 0..N {
            weights[k] *= importance[k].min(f32::MAX) * inverse + 1e-4;
        }
    }
    weights
}

/// The mean, summed in eight lanes; `N` is a multiple of eight.
#[inline(always)]
fn mean<const N: usize>(values: &[f32; N]) -> f32 {
    const { assert!(N.is_multiple_of(8)) };
    let mut total = Lanes::<8>::ZERO;
    for chunk in values.as_chunks().0 {
        total = total + Lanes(*chunk);
    }
    total.sum() / N as f32
}

/// `[Σ w x q, Σ w q²]` for the nearest codes under `1 / inverse`: the quotient is the best scale for these codes, and
/// `(Σ w x q)² / Σ w q²` is the part of `Σ w x²` that it explains.
#[inline(always)]
pub(crate) fn scale_sums<const N: usize, const L: usize>(
    groups: &Groups<N, L>,
    inverse: Lanes<L>,
    nearest: impl Fn(f32) -> f32,
) -> [Lanes<L>; 2] {
    let (mut xq, mut qq) = (Lanes::ZERO, Lanes::ZERO);
    for i in 0..N {
        let q = (groups.x[i] * inverse).map(&nearest);
        let wq = groups.w[i] * q;
        xq = xq + wq * groups.x[i];
        qq = qq + wq * q;
    }
    [xq, qq]
}

/// `Σ w (x - x')²` with `x' = scale · nearest(x / scale)`.
#[inline(always)]
pub(crate) fn scale_loss<const N: usize, const L: usize>(
    groups: &Groups<N, L>,
    scale: Lanes<L>,
    nearest: impl Fn(f32) -> f32,
) -> Lanes<L> {
    let inverse = scale.reciprocal();
    let mut loss = Lanes::ZERO;
    for i in 0..N {
        let error = groups.x[i] - scale * (groups.x[i] * inverse).map(&nearest);
        loss = loss + groups.w[i] * error * error;
    }
    loss
}

/// `[L, N]`: the codes nearest to `x / scale`, plus `bias`.
#[inline(always)]
pub(crate) fn scale_codes<const N: usize, const L: usize>(
    groups: &Groups<N, L>,
    scale: Lanes<L>,
    nearest: impl Fn(f32) -> f32,
    bias: f32,
) -> [[u8; N]; L] {
    let inverse = scale.reciprocal();
    let mut q = groups.x;
    for q in &mut q {
        *q = (*q * inverse).map(&nearest);
    }
    bytes(&q, bias)
}

/// The scale for `x ≈ scale · nearest(x / scale)`; 0 for all-zero values.
#[inline(always)]
pub(crate) fn scale<const N: usize, const L: usize>(
    groups: &Groups<N, L>,
    nearest: impl Fn(f32) -> f32,
    sweep: Sweep,
) -> Lanes<L> {
    let mut peak = Lanes::<L>::ZERO;
    for x in &groups.x {
        peak = Lanes::if_less(peak.map(f32::abs), x.map(f32::abs), *x, peak);
    }
    let inverse_peak = peak.reciprocal();
    let (mut best, mut explained) = (Lanes::ZERO, Lanes::ZERO);
    for k in 0..sweep.count + REFINEMENTS {
        let inverse = match k < sweep.count {
            true => Lanes::all(sweep.point(k)) * inverse_peak,
            false => best.reciprocal(),
        };
        let [xq, qq] = scale_sums(groups, inverse, &nearest);
        // All-zero codes give 0 < 0, which is false.
        let (before, now) = (explained * qq, xq * xq);
        best = Lanes::if_less(before, now, xq / qq, best);
        explained = Lanes::if_less(before, now, now / qq, explained);
    }
    best
}

/// Sums for fitting a line, over the codes of a previous line.
#[derive(Clone, Copy)]
pub(crate) struct LineSums<const L: usize> {
    /// Σ w q.
    pub sq: Lanes<L>,
    /// Σ w q².
    pub sqq: Lanes<L>,
    /// Σ w x q.
    pub sxq: Lanes<L>,
}

/// The sums over the nearest codes on `line`.
#[inline(always)]
pub(crate) fn line_sums<const N: usize, const L: usize>(
    groups: &Groups<N, L>,
    line: Line<L>,
    top: f32,
) -> LineSums<L> {
    let inverse = line.scale.reciprocal();
    let (mut sq, mut sqq, mut sxq) = (Lanes::ZERO, Lanes::ZERO, Lanes::ZERO);
    for i in 0..N {
        let q = ((groups.x[i] - line.min) * inverse).round(0.0, top);
        let wq = groups.w[i] * q;
        sq = sq + wq;
        sqq = sqq + wq * q;
        sxq = sxq + wq * groups.x[i];
    }
    LineSums { sq, sqq, sxq }
}

/// Sums that do not depend on the line.
#[derive(Clone, Copy)]
pub(crate) struct Totals<const L: usize> {
    /// Σ w.
    pub s: Lanes<L>,
    /// Σ w x.
    pub sx: Lanes<L>,
}

impl<const N: usize, const L: usize> Groups<N, L> {
    /// The sums of these weights.
    #[inline(always)]
    pub fn totals(&self) -> Totals<L> {
        let (mut s, mut sx) = (Lanes::ZERO, Lanes::ZERO);
        for i in 0..N {
            s = s + self.w[i];
            sx = sx + self.w[i] * self.x[i];
        }
        Totals { s, sx }
    }
}

/// Fits the line `x ≈ scale · q + min` with integer codes `0..=top`, `scale ≥ 0` and `min ≤ min_max`.
#[inline(always)]
pub(crate) fn line<const N: usize, const L: usize>(
    groups: &Groups<N, L>,
    top: f32,
    min_max: f32,
    sweep: Sweep,
) -> Line<L> {
    let mut low = Lanes::all(min_max);
    for x in &groups.x {
        low = x.min(low);
    }
    // The sums use x - low: far from zero, squares of x itself would swamp the error.
    let mut moved = Groups { x: groups.x, w: groups.w };
    let mut width = Lanes::ZERO;
    for x in &mut moved.x {
        *x = *x - low;
        width = width.max(*x);
    }
    let (totals, min_max) = (moved.totals(), Lanes::all(min_max) - low);
    let mut best = Line { scale: Lanes::ZERO, min: Lanes::ZERO };
    let mut least = Lanes::all(f32::INFINITY);
    for k in 0..sweep.count {
        let mut line = Line { scale: width / Lanes::all(sweep.point(k)), min: Lanes::ZERO };
        for _ in 0..FITS {
            let (fitted, loss) = fit(totals, line_sums(&moved, line, top), min_max);
            best = Line::if_less(loss, least, fitted, best);
            least = loss.min(least);
            line = fitted;
        }
    }
    Line { scale: best.scale, min: best.min + low }
}

/// The least-squares line through the codes of these sums, and its error.
///
/// The error is computed from the sums, except for the constant Σ w x², so no further pass is needed.
#[inline(always)]
fn fit<const L: usize>(
    totals: Totals<L>,
    sums: LineSums<L>,
    min_max: Lanes<L>,
) -> (Line<L>, Lanes<L>) {
    let (Totals { s, sx }, LineSums { sq, sqq, sxq }) = (totals, sums);
    let two = Lanes::all(2.0);
    let determinant = s * sqq - sq * sq;
    let min = (sqq * sx - sq * sxq) / determinant;
    let free = Line { scale: (s * sxq - sx * sq) / determinant, min };
    let held = Line { scale: (sxq - min_max * sq) / sqq, min: min_max };
    // If all codes are equal, the line goes through that code and zero, where x starts.
    let single = Line { scale: sxq * sqq.reciprocal(), min: Lanes::ZERO };
    let line = Line::if_less(min_max, min, held, free);
    let line = Line::if_less(Lanes::ZERO, determinant, line, single);
    let (scale, min) = (line.scale.max(Lanes::ZERO), line.min);
    let explained = scale * (two * sxq - scale * sqq - two * min * sq) + min * (two * sx - min * s);
    (Line { scale, min }, Lanes::ZERO - explained)
}

/// `Σ w (x - x')²` for the nearest codes on the line.
#[inline(always)]
pub(crate) fn line_loss<const N: usize, const L: usize>(
    groups: &Groups<N, L>,
    line: Line<L>,
    top: f32,
) -> Lanes<L> {
    let Line { scale, min } = line;
    let inverse = scale.reciprocal();
    let mut loss = Lanes::ZERO;
    for i in 0..N {
        let x = groups.x[i];
        let error = x - (scale * ((x - min) * inverse).round(0.0, top) + min);
        loss = loss + groups.w[i] * error * error;
    }
    loss
}

/// A block with one scale, as in Q4_0 and IQ4_NL: scale (f16 bits) and codes.
#[derive(Clone, Copy)]
pub(crate) struct ScaleBlock<const N: usize> {
    pub d: u16,
    pub codes: [u8; N],
}

/// Eight blocks with the scales that minimize the error; `bias` is added to the codes.
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
pub(crate) fn scales<const N: usize, F: Fn(f32) -> f32 + Copy>(
    x: &[[f32; N]; GROUP],
    importance: Option<&[[f32; N]; GROUP]>,
    nearest: F,
    bias: f32,
    sweep: Sweep,
) -> [ScaleBlock<N>; GROUP] {
    let groups = group(x, importance);
    let d = scale(&groups, nearest, sweep).map(|scale| f16_value(f16_bits(scale)));
    let codes = scale_codes(&groups, d, nearest, bias);
    let mut blocks = [ScaleBlock { d: 0, codes: [0; N] }; GROUP];
    for k in 0..GROUP {
        blocks[k] = ScaleBlock { d: f16_bits(d.0[k]), codes: codes[k] };
    }
    blocks
}

/// A block with one line, as in Q4_1 and Q5_1: scale and minimum (f16 bits) and codes.
#[derive(Clone, Copy)]
pub(crate) struct LineBlock<const N: usize> {
    pub d: u16,
    pub m: u16,
    pub codes: [u8; N],
}

/// The value of largest magnitude has code 0 of `2^bits`, and the rest are rounded (halves up).
#[inline(always)]
pub(crate) fn signed<const N: usize>(values: &[f32; N], bits: usize) -> ScaleBlock<N> {
    let half = (1 << (bits - 1)) as f32;
    let d = peak(values) / -half;
    let inverse = reciprocal(d);
    let exact = |x: f32| x * inverse + (half + 0.5);
    ScaleBlock { d: f16_bits(d), codes: codes_down(values, exact, 2.0 * half - 1.0) }
}

/// Even steps over the full range of a block (halves up). Of zeros as the smallest or largest value, the sign of the first
/// counts.
#[inline(always)]
pub(crate) fn range<const N: usize>(x: &[f32; N], top: f32) -> LineBlock<N> {
    let [mut min, mut max] = extremes(x);
    if min == 0.0 || max == 0.0 {
        (min, max) = (f32::INFINITY, f32::NEG_INFINITY);
        for x in x {
            min = if *x < min { *x } else { min };
            max = if *x > max { *x } else { max };
        }
    }
    let d = (max - min) / top;
    let inverse = reciprocal(d);
    let codes = codes_down(x, |x| (x - min) * inverse + 0.5, top);
    LineBlock { d: f16_bits(d), m: f16_bits(min), codes }
}

/// Numbers from 0 on rounded down, at most `top`; NaN becomes `top`.
#[inline(always)]
fn codes_down<const N: usize>(x: &[f32; N], exact: impl Fn(f32) -> f32, top: f32) -> [u8; N] {
    let mut codes = [0; N];
    for (code, x) in codes.iter_mut().zip(x) {
        let exact = exact(*x);
        *code = byte(floor(if exact < top { exact } else { top }));
    }
    codes
}

/// Eight blocks with the lines that minimize the error.
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
pub(crate) fn lines<const N: usize>(
    x: &[[f32; N]; GROUP],
    importance: Option<&[[f32; N]; GROUP]>,
    top: f32,
    sweep: Sweep,
) -> [LineBlock<N>; GROUP] {
    let groups = group(x, importance);
    let line = halves(&groups, line(&groups, top, f32::INFINITY, sweep), top);
    let codes = bytes(&line.codes(&groups.x, top), 0.0);
    let mut blocks = [LineBlock { d: 0, m: 0, codes: [0; N] }; GROUP];
    for k in 0..GROUP {
        let (d, m) = (f16_bits(line.scale.0[k]), f16_bits(line.min.0[k]));
        blocks[k] = LineBlock { d, m, codes: codes[k] };
    }
    blocks
}

/// Blocks with their own costs.
#[inline(always)]
fn group<const N: usize>(
    x: &[[f32; N]; GROUP],
    importance: Option<&[[f32; N]; GROUP]>,
) -> Groups<N, GROUP> {
    let mut w = *x;
    for k in 0..GROUP {
        w[k] = weights(&x[k], importance.map(|importance| &importance[k]));
    }
    Groups::new(x, &w)
}

/// The line with f16 scale and minimum that minimizes the error.
///
/// Both neighbours of scale and minimum are tried, since the errors of the two can cancel. A line whose lowest codes
/// are unused may also start at the smallest weight, where the same points round differently.
#[inline(always)]
fn halves<const N: usize, const L: usize>(
    groups: &Groups<N, L>,
    line: Line<L>,
    top: f32,
) -> Line<L> {
    let mut low = Lanes::all(f32::INFINITY);
    for x in &groups.x {
        low = x.min(low);
    }
    let unused = ((low - line.min) * line.scale.reciprocal()).round(0.0, top);
    let begun = Line { scale: line.scale, min: line.min + line.scale * unused };
    let (mut best, mut least) = (line, Lanes::all(f32::INFINITY));
    for start in [line, begun] {
        for scale in around(start.scale) {
            for min in around(start.min) {
                let line = Line { scale, min };
                let loss = line_loss(groups, line, top);
                best = Line::if_less(loss, least, line, best);
                least = loss.min(least);
            }
        }
    }
    best
}

/// The nearest f16 and its neighbours, if they have the same sign and are finite.
#[inline(always)]
fn around<const L: usize>(values: Lanes<L>) -> [Lanes<L>; 3] {
    let mut around = [values; 3];
    for k in 0..L {
        let bits = f16_bits(values.0[k]);
        let (sign, magnitude) = (bits & 0x8000, bits & 0x7fff);
        around[0].0[k] = f16_value(bits);
        around[1].0[k] = f16_value(sign | magnitude.saturating_sub(1));
        around[2].0[k] = f16_value(sign | (magnitude + 1).min(F16_LARGEST));
    }
    around
}

#[cfg(test)]
pub(crate) mod tests;
