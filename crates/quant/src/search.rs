//! Searches for the scale, or the scale and minimum, with which a run of weights loses least.
//!
//! All of them minimize the weighted squared error Σ w (x - x')² by the same two moves: given a
//! scale, each weight takes its nearest code; given the codes, the best scale is a least-squares
//! solution. A sweep of starting scales keeps them out of poor local minima. Sums are f32 in eight
//! lanes of fixed order, which compilers turn into SIMD and which give the same result on every
//! machine.

use crate::blocks::{f16_bits, f16_value};

/// Starting points of a search, evenly from `first` to `last`: for a scale the code on which the
/// largest weight lands, for a line the number of steps between the smallest and the largest.
#[derive(Clone, Copy)]
pub(crate) struct Sweep {
    pub first: f32,
    pub last: f32,
    pub count: u8,
}

impl Sweep {
    fn points(self) -> impl Iterator<Item = f32> {
        let step = (self.last - self.first) / f32::from(self.count - 1);
        (0..self.count).map(move |k| self.first + step * f32::from(k))
    }
}

/// How often the best scale of a sweep is fitted again to the codes it gives.
const REFINEMENTS: usize = 2;

/// `x' = scale · code + min`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    pub scale: f32,
    pub min: f32,
}

/// The value of largest magnitude, the first of equals.
pub(crate) fn peak<const N: usize>(values: &[f32; N]) -> f32 {
    values.iter().fold(0.0, |peak: f32, x| if x.abs() > peak.abs() { *x } else { peak })
}

/// `1 / value`, or 0 where that would not be finite: codes then are 0, and so are the weights.
#[inline(always)]
pub(crate) fn reciprocal(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0 } else { 1.0 / value }
}

/// The nearest whole number from `low` to `high`, ties to even.
#[inline(always)]
pub(crate) fn round(value: f32, low: f32, high: f32) -> f32 {
    // 1.5 · 2^23: beside it an f32 has no room for a fraction. Unlike `round`, this vectorizes
    // on every x86-64.
    const SHIFT: f32 = 12_582_912.0;
    (value.clamp(low, high) + SHIFT) - SHIFT
}

/// What a squared error costs at each of the values: positive, while squares do not overflow.
///
/// Beside the importance of the column, larger weights count more, as √(2 · mean square + x²): the
/// form llama.cpp uses with importance, found there by measuring perplexity. Columns without
/// importance keep a ten-thousandth of the mean, so that every search stays determined.
pub(crate) fn weights<const N: usize>(
    values: &[f32; N],
    importance: Option<&[f32; N]>,
) -> [f32; N] {
    let [total] = sums(values, values, |x, _| [lanes(|k| x[k] * x[k])]);
    let mean_square = total / N as f32;
    let inverse = reciprocal(mean_square);
    let mut weights = values.map(|x| (2.0 + x * x * inverse).sqrt());
    if let Some(importance) = importance {
        let importance = importance.map(|v| v.max(0.0));
        let [total] = sums(&importance, &importance, |v, _| [*v]);
        let inverse = reciprocal(total / N as f32);
        for (weight, importance) in weights.iter_mut().zip(importance) {
            *weight *= importance.min(f32::MAX) * inverse + 1e-4;
        }
    }
    weights
}

/// Eight neighbouring values; loops over them become SIMD.
type Lanes = [f32; 8];

#[inline(always)]
fn lanes(value: impl Fn(usize) -> f32) -> Lanes {
    let mut lanes = [0.0; 8];
    for (k, lane) in lanes.iter_mut().enumerate() {
        *lane = value(k);
    }
    lanes
}

/// `T` sums at once over two arrays, of `terms` that map eight values of each; `N` is a multiple
/// of eight.
#[inline(always)]
fn sums<const N: usize, const T: usize>(
    x: &[f32; N],
    w: &[f32; N],
    terms: impl Fn(&Lanes, &Lanes) -> [Lanes; T],
) -> [f32; T] {
    const { assert!(N.is_multiple_of(8)) };
    let mut totals = [[0.0; 8]; T];
    for (x, w) in x.as_chunks().0.iter().zip(w.as_chunks().0) {
        let terms = terms(x, w);
        for t in 0..T {
            totals[t] = lanes(|k| totals[t][k] + terms[t][k]);
        }
    }
    totals.map(|l| ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7])))
}

/// `Σ w (x - back(x))²`.
#[inline(always)]
pub(crate) fn loss<const N: usize>(x: &[f32; N], w: &[f32; N], back: impl Fn(f32) -> f32) -> f32 {
    let [loss] = sums(x, w, |x, w| {
        let error = lanes(|k| x[k] - back(x[k]));
        [lanes(|k| w[k] * error[k] * error[k])]
    });
    loss
}

/// `[Σ w x q, Σ w q²]` for the codes nearest under `1 / inverse`: their quotient is the best scale
/// for these codes, and `(Σ w x q)² / Σ w q²` is how much of `Σ w x²` it explains.
#[inline(always)]
pub(crate) fn scale_sums<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    inverse: f32,
    nearest: impl Fn(f32) -> f32,
) -> [f32; 2] {
    // All codes before all sums: mixed, compilers make no SIMD of either.
    let q = codes(x, |x| nearest(x * inverse));
    let wq = products(&q, w);
    let [xq] = sums(x, &wq, |x, wq| [lanes(|k| wq[k] * x[k])]);
    let [qq] = sums(&q, &wq, |q, wq| [lanes(|k| wq[k] * q[k])]);
    [xq, qq]
}

/// The code of each value.
#[inline(always)]
fn codes<const N: usize>(x: &[f32; N], nearest: impl Fn(f32) -> f32) -> [f32; N] {
    let mut q = [0.0; N];
    for (q, x) in q.iter_mut().zip(x) {
        *q = nearest(*x);
    }
    q
}

/// Code times cost.
#[inline(always)]
fn products<const N: usize>(q: &[f32; N], w: &[f32; N]) -> [f32; N] {
    let mut wq = [0.0; N];
    for k in 0..N {
        wq[k] = q[k] * w[k];
    }
    wq
}

/// What a line is fitted from: sums over the codes that another one gives.
#[derive(Clone, Copy)]
pub(crate) struct LineSums {
    /// Σ w.
    pub s: f32,
    /// Σ w x.
    pub sx: f32,
    /// Σ w q.
    pub sq: f32,
    /// Σ w q².
    pub sqq: f32,
    /// Σ w x q.
    pub sxq: f32,
}

/// The sums for the codes nearest on `line`.
#[inline(always)]
pub(crate) fn line_sums<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    line: Line,
    top: f32,
) -> LineSums {
    let inverse = reciprocal(line.scale);
    let q = codes(x, |x| round((x - line.min) * inverse, 0.0, top));
    let wq = products(&q, w);
    let [s, sx] = sums(x, w, |x, w| [*w, lanes(|k| w[k] * x[k])]);
    let [sq, sxq] = sums(x, &wq, |x, wq| [*wq, lanes(|k| wq[k] * x[k])]);
    let [sqq] = sums(&q, &wq, |q, wq| [lanes(|k| wq[k] * q[k])]);
    LineSums { s, sx, sq, sqq, sxq }
}

/// The scale for `x ≈ scale · nearest(x / scale)`; 0 for all-zero values.
#[inline(always)]
pub(crate) fn scale<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    nearest: impl Fn(f32) -> f32 + Copy,
    sweep: Sweep,
) -> f32 {
    let inverse_peak = reciprocal(peak(x));
    let (mut best, mut explained) = (0.0, 0.0);
    let mut consider = |inverse: f32| {
        let [xq, qq] = scale_sums(x, w, inverse, nearest);
        let better = qq > 0.0 && xq * xq > explained * qq;
        if better {
            (best, explained) = (xq / qq, xq * xq / qq);
        }
        (better, best)
    };
    let mut last = 0.0;
    for landing in sweep.points() {
        last = consider(landing * inverse_peak).1;
    }
    for _ in 0..REFINEMENTS {
        let (better, scale) = consider(reciprocal(last));
        if !better {
            break;
        }
        last = scale;
    }
    last
}

/// The line `x ≈ scale · q + min` with whole codes `0..=top`, `scale ≥ 0` and `min ≤ min_max`.
#[inline(always)]
pub(crate) fn line<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    top: f32,
    min_max: f32,
    sweep: Sweep,
) -> Line {
    let low = x.iter().fold(min_max, |low, x| x.min(low));
    let high = x.iter().fold(low, |high, x| x.max(high));
    let mut best = Line { scale: 0.0, min: low };
    if high <= low {
        return best;
    }
    // Sums are taken of x - low: far from zero, squares of x itself would drown the error.
    let x = x.map(|x| x - low);
    let mut least = f32::INFINITY;
    for span in sweep.points() {
        let mut line = Line { scale: (high - low) / span, min: 0.0 };
        for _ in 0..FITS {
            let (fitted, loss) = fit(&x, w, line, top, min_max - low);
            if loss < least {
                (best, least) = (Line { scale: fitted.scale, min: fitted.min + low }, loss);
            }
            line = fitted;
        }
    }
    best
}

/// How often a line of a sweep is fitted to the codes that the one before it gives.
const FITS: usize = 2;

/// The least-squares line through the codes that `start` gives, and what it loses with these codes.
///
/// The loss comes from the sums, short of the constant Σ w x², and so without another pass.
#[inline(always)]
fn fit<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    start: Line,
    top: f32,
    min_max: f32,
) -> (Line, f32) {
    let LineSums { s, sx, sq, sqq, sxq } = line_sums(x, w, start, top);
    let determinant = s * sqq - sq * sq;
    let min = (sqq * sx - sq * sxq) / determinant;
    let line = if determinant <= 0.0 {
        // One code for all: through it and zero, where x begins.
        Line { scale: (sxq * reciprocal(sqq)).max(0.0), min: 0.0 }
    } else if min > min_max {
        Line { scale: ((sxq - min_max * sq) / sqq).max(0.0), min: min_max }
    } else {
        Line { scale: ((s * sxq - sx * sq) / determinant).max(0.0), min }
    };
    let Line { scale, min } = line;
    let explained = scale * (2.0 * sxq - scale * sqq - 2.0 * min * sq) + min * (2.0 * sx - min * s);
    (line, -explained)
}

/// `Σ w (x - x')²` with the nearest codes on the line.
#[inline(always)]
pub(crate) fn line_loss<const N: usize>(x: &[f32; N], w: &[f32; N], line: Line, top: f32) -> f32 {
    let inverse = reciprocal(line.scale);
    loss(x, w, |x| line.scale * round((x - line.min) * inverse, 0.0, top) + line.min)
}

/// The nearest codes on the line.
pub(crate) fn line_codes<const N: usize>(x: &[f32; N], line: Line, top: f32) -> [u8; N] {
    let inverse = reciprocal(line.scale);
    x.map(|x| round((x - line.min) * inverse, 0.0, top) as u8)
}

/// Scale and minimum (f16 bits) and codes of a block with one line, as in Q4_1 and Q5_1: without
/// importance the whole range in even steps (halves up), with it the line that loses least.
pub(crate) fn single_line<const N: usize>(
    x: &[f32; N],
    importance: Option<&[f32; N]>,
    top: f32,
    sweep: Sweep,
) -> (u16, u16, [u8; N]) {
    if importance.is_some() {
        let weights = weights(x, importance);
        let line = line(x, &weights, top, f32::INFINITY, sweep);
        let (d, m) = halves(x, &weights, line, top);
        let line = Line { scale: f16_value(d), min: f16_value(m) };
        return (d, m, line_codes(x, line, top));
    }
    let min = x.iter().fold(f32::INFINITY, |a, b| a.min(*b));
    let max = x.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    let d = (max - min) / top;
    let inverse = reciprocal(d);
    let codes = x.map(|x| ((x - min) * inverse + 0.5).min(top) as u8);
    (f16_bits(d), f16_bits(min), codes)
}

/// Scale and minimum as the f16 bits with which least is lost.
///
/// Each may be rounded to either side, for what one loses the other may make up. And a line whose lowest codes are not
/// used may as well begin at the smallest weight, where the same points are rounded in another way.
fn halves<const N: usize>(x: &[f32; N], w: &[f32; N], line: Line, top: f32) -> (u16, u16) {
    let low = x.iter().fold(f32::INFINITY, |a, b| a.min(*b));
    let unused = round((low - line.min) * reciprocal(line.scale), 0.0, top);
    let begun = Line { scale: line.scale, min: line.min + line.scale * unused };
    let starts = 1 + usize::from(unused > 0.0);
    let (mut best, mut least) = ((f16_bits(line.scale), f16_bits(line.min)), f32::INFINITY);
    for start in &[line, begun][..starts] {
        for d in around(start.scale) {
            for m in around(start.min) {
                let line = Line { scale: f16_value(d), min: f16_value(m) };
                let loss = line_loss(x, w, line, top);
                if loss < least {
                    (best, least) = ((d, m), loss);
                }
            }
        }
    }
    best
}

/// The nearest f16 and those beside it, as far as they have its sign and are finite.
fn around(value: f32) -> [u16; 3] {
    const LARGEST: u16 = 0x7bff;
    let bits = f16_bits(value);
    let (sign, magnitude) = (bits & 0x8000, bits & 0x7fff);
    [bits, sign | magnitude.saturating_sub(1), sign | (magnitude + 1).min(LARGEST)]
}
