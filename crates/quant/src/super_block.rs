//! Super-blocks of 256 weights whose sub-blocks share one f16 scale: chooses the small integers as well.
//!
//! Each sub-block first finds its own scale. Then the shared scale and the integers are optimized together: with the
//! shared scale rounded to f16, each sub-block tries its integer and the neighbours (rounding to the nearest integer
//! does not minimize the error); with integers and codes fixed, the shared scale is again a least-squares solution.
//! The best state seen is returned.
//!
//! Each sub-block is one lane, and both searches are also compiled for AVX2, with all callees inlined. Nothing is
//! fused or summed in another order, so every CPU computes the same bits.

use crate::blocks::{F16_LARGEST, f16_bits, f16_value};
use crate::lanes::{Groups, Lanes, bytes};
use crate::search::{self, Line, LineSums, Sweep, Totals};

/// Rounds of alternating between shared scale and integers.
const ROUNDS: usize = 2;

/// The weights of a super-block by sub-block, and the cost of an error at each.
#[inline(always)]
fn parts<const N: usize, const PARTS: usize>(
    values: &[f32; 256],
    importance: Option<&[f32; 256]>,
) -> Groups<N, PARTS> {
    const { assert!(N * PARTS == 256) };
    let weights = search::weights(values, importance);
    Groups::new(values.as_chunks().0, weights.as_chunks().0)
}

/// A shared scale (f16 bits), each sub-block's integer multiplier, and the codes.
#[derive(Clone, Copy)]
pub(crate) struct Scales<const N: usize, const PARTS: usize> {
    pub d: u16,
    pub scales: [i8; PARTS],
    /// By sub-block, with the bias added.
    pub codes: [[u8; N]; PARTS],
}

/// The rounding of a sub-block's weights.
#[derive(Clone, Copy)]
pub(crate) struct Codes<F> {
    /// The code nearest to a quotient.
    pub nearest: F,
    /// Added to make codes start at 0.
    pub bias: f32,
}

/// Chooses `x ≈ d · scale[part] · nearest(..)`, integers from `lowest` to `-lowest - 1`.
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
pub(crate) fn scales<const N: usize, const PARTS: usize, F: Fn(f32) -> f32 + Copy>(
    values: &[f32; 256],
    importance: Option<&[f32; 256]>,
    lowest: f32,
    codes: Codes<F>,
    sweep: Sweep,
) -> Scales<N, PARTS> {
    let groups = parts::<N, PARTS>(values, importance);
    let nearest = codes.nearest;
    let wanted = search::scale(&groups, nearest, sweep);
    let peak = search::peak(&wanted.0);
    let mut d = if peak == 0.0 { 0 } else { f16_bits_outward(peak / lowest) };
    let mut centres = wanted * Lanes::all(f16_value(d)).reciprocal();
    let (mut best, mut least) = ((0, Lanes::ZERO), f32::INFINITY);
    for _ in 0..ROUNDS {
        let shared = Lanes::all(f16_value(d));
        let centre = centres.round(lowest, -lowest - 1.0);
        let mut losses = Lanes::all(f32::INFINITY);
        for step in [0.0, -1.0, 1.0] {
            let scale = (centre + Lanes::all(step)).clamp(lowest, -lowest - 1.0);
            let loss = search::scale_loss(&groups, shared * scale, nearest);
            centres = Lanes::if_less(loss, losses, scale, centres);
            losses = loss.min(losses);
        }
        let total = losses.sum();
        if total < least {
            (best, least) = ((d, centres), total);
        }
        let sums = search::scale_sums(&groups, (shared * centres).reciprocal(), nearest);
        let (mut xq, mut qq) = (0.0, 0.0);
        for part in 0..PARTS {
            let scale = f64::from(centres.0[part]);
            xq += scale * f64::from(sums[0].0[part]);
            qq += scale * scale * f64::from(sums[1].0[part]);
        }
        let fitted = f16_bits((xq / qq) as f32);
        if qq <= 0.0 || fitted == d || f16_value(fitted) == 0.0 {
            break;
        }
        d = fitted;
    }
    let (d, integers) = best;
    let scales = integers.0.map(|integer| integer as i8);
    let codes =
        search::scale_codes(&groups, Lanes::all(f16_value(d)) * integers, nearest, codes.bias);
    Scales { d, scales, codes }
}

/// A shared scale and a shared minimum (f16 bits), each sub-block's integers for both, and the codes.
#[derive(Clone, Copy)]
pub(crate) struct Lines<const N: usize, const PARTS: usize> {
    pub d: u16,
    pub dmin: u16,
    pub scales: [u8; PARTS],
    pub mins: [u8; PARTS],
    /// By sub-block.
    pub codes: [[u8; N]; PARTS],
}

/// The two f16 values and the sub-blocks' integers of [`Lines`].
#[derive(Clone, Copy)]
struct Integers<const PARTS: usize> {
    d: u16,
    dmin: u16,
    scales: Lanes<PARTS>,
    mins: Lanes<PARTS>,
}

impl<const PARTS: usize> Integers<PARTS> {
    /// The line of each sub-block, exactly as dequantization computes it.
    #[inline(always)]
    fn line(self) -> Line<PARTS> {
        Line {
            scale: Lanes::all(f16_value(self.d)) * self.scales,
            min: Lanes::all(-f16_value(self.dmin)) * self.mins,
        }
    }
}

/// Chooses `x ≈ d · scale[part] · q - dmin · min[part]`, codes `0..=top`, integers
/// `0..=integer_top`.
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
pub(crate) fn lines<const N: usize, const PARTS: usize>(
    values: &[f32; 256],
    importance: Option<&[f32; 256]>,
    top: f32,
    integer_top: f32,
    sweep: Sweep,
) -> Lines<N, PARTS> {
    let groups = parts::<N, PARTS>(values, importance);
    let wanted = search::line(&groups, top, 0.0, sweep);
    let mins = Lanes::ZERO - wanted.min;
    let d = f16_bits_outward(largest(wanted.scale) / integer_top);
    let dmin = f16_bits_outward(largest(mins) / integer_top);
    let integers =
        |v: Lanes<PARTS>, unit: Lanes<PARTS>| (v * unit.reciprocal()).round(0.0, integer_top);
    let scales = integers(wanted.scale, Lanes::all(f16_value(d)));
    let mut now = Integers { d, dmin, scales, mins: integers(mins, Lanes::all(f16_value(dmin))) };
    let (mut best, mut least) = (now, f32::INFINITY);
    let totals = groups.totals();
    for _ in 0..ROUNDS {
        let (centre, mut losses) = (now, Lanes::all(f32::INFINITY));
        for (scale, min) in STEPS {
            let tried = Integers {
                scales: (centre.scales + Lanes::all(scale)).clamp(0.0, integer_top),
                mins: (centre.mins + Lanes::all(min)).clamp(0.0, integer_top),
                ..centre
            };
            let loss = search::line_loss(&groups, tried.line(), top);
            now.scales = Lanes::if_less(loss, losses, tried.scales, now.scales);
            now.mins = Lanes::if_less(loss, losses, tried.mins, now.mins);
            losses = loss.min(losses);
        }
        let total = losses.sum();
        if total < least {
            (best, least) = (now, total);
        }
        match System::new(totals, search::line_sums(&groups, now.line(), top), now).solve() {
            Some(fitted) if fitted != (now.d, now.dmin) => (now.d, now.dmin) = fitted,
            _ => break,
        }
    }
    Lines {
        d: best.d,
        dmin: best.dmin,
        scales: best.scales.0.map(|scale| scale as u8),
        mins: best.mins.0.map(|min| min as u8),
        codes: bytes(&best.line().codes(&groups.x, top), 0.0),
    }
}

/// The largest value, if it is above 0.
#[inline(always)]
fn largest<const L: usize>(values: Lanes<L>) -> f32 {
    let mut largest = 0.0;
    for value in values.0 {
        largest = if value > largest { value } else { largest };
    }
    largest
}

/// The next f16 away from zero: if the shared scale were rounded toward zero, the largest sub-block would need an
/// integer beyond the last one, by a wide margin where f16 is subnormal.
fn f16_bits_outward(value: f32) -> u16 {
    let bits = f16_bits(value);
    let inward = f16_value(bits).abs() < value.abs() && bits & 0x7fff < F16_LARGEST;
    bits + u16::from(inward)
}

/// Offsets from a pair of integers to itself and its neighbours, without the two that shift a line up or down at both
/// ends: scale and minimum compensate each other, so these almost always increase the error.
const STEPS: [(f32, f32); 7] =
    [(0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0), (-1.0, -1.0), (1.0, 1.0)];

/// The normal equations of `x ≈ d · a - dmin · b` with `a = scale · q` and `b = min`, in f64.
#[derive(Default)]
struct System {
    aa: f64,
    ab: f64,
    bb: f64,
    ax: f64,
    bx: f64,
}

impl System {
    /// Sums over all sub-blocks with their integers.
    #[inline(always)]
    fn new<const PARTS: usize>(
        totals: Totals<PARTS>,
        sums: LineSums<PARTS>,
        integers: Integers<PARTS>,
    ) -> System {
        let mut system = System::default();
        for part in 0..PARTS {
            let (a, b) = (f64::from(integers.scales.0[part]), -f64::from(integers.mins.0[part]));
            system.aa += a * a * f64::from(sums.sqq.0[part]);
            system.ab += a * b * f64::from(sums.sq.0[part]);
            system.bb += b * b * f64::from(totals.s.0[part]);
            system.ax += a * f64::from(sums.sxq.0[part]);
            system.bx += b * f64::from(totals.sx.0[part]);
        }
        system
    }

    /// `(d, dmin)` as f16 bits, if both are determined and positive.
    fn solve(&self) -> Option<(u16, u16)> {
        let determinant = self.aa * self.bb - self.ab * self.ab;
        let (d, dmin) = if self.bb == 0.0 {
            (self.ax / self.aa, 0.0)
        } else {
            (
                (self.bb * self.ax - self.ab * self.bx) / determinant,
                (self.aa * self.bx - self.ab * self.ax) / determinant,
            )
        };
        let usable = |v: f64| v.is_finite() && v >= 0.0;
        (usable(d) && usable(dmin) && d > 0.0).then(|| (f16_bits(d as f32), f16_bits(dmin as f32)))
    }
}

#[cfg(test)]
mod tests;
