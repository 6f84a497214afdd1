//! Super-blocks of 256 weights whose parts share one f16 scale: choosing the small integers too.
//!
//! First each part finds its own scale. Then the shared scale and the parts' integers are settled
//! together: with the shared scale rounded to f16, each part tries its integer and the neighbours
//! (rounding to the nearest integer is not what loses least); with the integers and codes fixed,
//! the shared scale is a least-squares solution again. The best state seen is kept.
//!
//! Both searches are compiled for AVX2 too and what they call is inlined into them: half the time. Nothing is fused or
//! summed in another order, so every processor finds the same bits.

use crate::blocks::{f16_bits, f16_value};
use crate::search::{self, Line, LineSums, Sweep};

/// Weights beyond this would overflow the sums; no super-block can represent a tenth of it.
const LARGEST: f32 = (1u32 << 30) as f32;
/// How often shared scale and integers are settled in turn.
const ROUNDS: usize = 2;

/// The weights of a super-block by part, and what an error costs at each.
pub(crate) struct Parts<const N: usize, const PARTS: usize> {
    pub x: [[f32; N]; PARTS],
    pub w: [[f32; N]; PARTS],
}

impl<const N: usize, const PARTS: usize> Parts<N, PARTS> {
    pub fn new(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Self {
        const { assert!(N * PARTS == 256) };
        let values = values.map(|x| x.clamp(-LARGEST, LARGEST));
        let weights = search::weights(&values, importance);
        let part = |all: &[f32; 256]| {
            std::array::from_fn(|part| std::array::from_fn(|i| all[part * N + i]))
        };
        Self { x: part(&values), w: part(&weights) }
    }
}

/// A shared scale (f16 bits) and the integer by which each part multiplies it.
#[derive(Clone, Copy)]
pub(crate) struct Scales<const PARTS: usize> {
    pub d: u16,
    pub scales: [i8; PARTS],
}

/// Chooses `x ≈ d · scale[part] · nearest(..)`, integers from `lowest` to `-lowest - 1`.
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
pub(crate) fn scales<const N: usize, const PARTS: usize, F: Fn(f32) -> f32 + Copy>(
    parts: &Parts<N, PARTS>,
    lowest: f32,
    nearest: F,
    sweep: Sweep,
) -> Scales<PARTS> {
    let Parts { x, w } = parts;
    let wanted: [f32; PARTS] =
        std::array::from_fn(|part| search::scale(&x[part], &w[part], nearest, sweep));
    let peak = search::peak(&wanted);
    let mut best = Scales { d: 0, scales: [0; PARTS] };
    if peak == 0.0 {
        return best;
    }
    let mut d = f16_bits_outward(peak / lowest);
    let mut centres = wanted.map(|scale| scale / f16_value(d));
    let mut least = f32::INFINITY;
    for _ in 0..ROUNDS {
        let shared = f16_value(d);
        let (mut total, mut xq, mut qq) = (0.0, 0.0, 0.0);
        for part in 0..PARTS {
            let (x, w) = (&x[part], &w[part]);
            let centre = search::round(centres[part], lowest, -lowest - 1.0);
            let (scale, loss) = least_of(
                &[0.0, -1.0, 1.0].map(|step| (centre + step).clamp(lowest, -lowest - 1.0)),
                |scale| scale_loss(x, w, shared * scale, nearest),
            );
            centres[part] = scale;
            total += loss;
            let sums = search::scale_sums(x, w, search::reciprocal(shared * scale), nearest);
            xq += f64::from(scale) * f64::from(sums[0]);
            qq += f64::from(scale * scale) * f64::from(sums[1]);
        }
        if total < least {
            (best, least) = (Scales { d, scales: centres.map(|scale| scale as i8) }, total);
        }
        let fitted = f16_bits((xq / qq) as f32);
        if qq <= 0.0 || fitted == d || f16_value(fitted) == 0.0 {
            break;
        }
        d = fitted;
    }
    best
}

#[inline(always)]
fn scale_loss<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    scale: f32,
    nearest: impl Fn(f32) -> f32,
) -> f32 {
    let inverse = search::reciprocal(scale);
    search::loss(x, w, |x| scale * nearest(x * inverse))
}

/// A shared scale and a shared minimum (f16 bits), and each part's integers for both.
#[derive(Clone, Copy)]
pub(crate) struct Lines<const PARTS: usize> {
    pub d: u16,
    pub dmin: u16,
    pub scales: [u8; PARTS],
    pub mins: [u8; PARTS],
}

impl<const PARTS: usize> Lines<PARTS> {
    /// The line of one part, exactly as dequantizing has it.
    pub fn line(&self, part: usize) -> Line {
        Line {
            scale: f16_value(self.d) * f32::from(self.scales[part]),
            min: -(f16_value(self.dmin) * f32::from(self.mins[part])),
        }
    }
}

/// Chooses `x ≈ d · scale[part] · q - dmin · min[part]`, codes `0..=top`, integers
/// `0..=integer_top`.
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
pub(crate) fn lines<const N: usize, const PARTS: usize>(
    parts: &Parts<N, PARTS>,
    top: f32,
    integer_top: f32,
    sweep: Sweep,
) -> Lines<PARTS> {
    let Parts { x, w } = parts;
    let wanted: [Line; PARTS] =
        std::array::from_fn(|part| search::line(&x[part], &w[part], top, 0.0, sweep));
    let largest_scale = wanted.iter().fold(0.0, |a: f32, b| a.max(b.scale));
    let largest_min = wanted.iter().fold(0.0, |a: f32, b| a.max(-b.min));
    let mut d = f16_bits_outward(largest_scale / integer_top);
    let mut dmin = f16_bits_outward(largest_min / integer_top);
    let nearest = |v: f32, unit: u16| {
        search::round(v * search::reciprocal(f16_value(unit)), 0.0, integer_top)
    };
    let mut centres = wanted.map(|line| (nearest(line.scale, d), nearest(-line.min, dmin)));
    let mut best = Lines { d: 0, dmin: 0, scales: [0; PARTS], mins: [0; PARTS] };
    let mut least = f32::INFINITY;
    for _ in 0..ROUNDS {
        let mut total = 0.0;
        let mut system = System::default();
        for part in 0..PARTS {
            let (x, w) = (&x[part], &w[part]);
            let line = |(scale, min): (f32, f32)| Line {
                scale: f16_value(d) * scale,
                min: -(f16_value(dmin) * min),
            };
            let (integers, loss) = least_of(&neighbours(centres[part], integer_top), |integers| {
                search::line_loss(x, w, line(integers), top)
            });
            centres[part] = integers;
            total += loss;
            system.add(search::line_sums(x, w, line(integers), top), integers);
        }
        if total < least {
            let scales = centres.map(|(scale, _)| scale as u8);
            (best, least) =
                (Lines { d, dmin, scales, mins: centres.map(|(_, min)| min as u8) }, total);
        }
        match system.solve() {
            Some(fitted) if fitted != (d, dmin) => (d, dmin) = fitted,
            _ => break,
        }
    }
    best
}

/// The f16 next to `value`, away from zero: with a shared scale rounded inward the largest part
/// would want an integer beyond the last, by much where f16 is subnormal, as for small weights.
fn f16_bits_outward(value: f32) -> u16 {
    const LARGEST: u16 = 0x7bff;
    let bits = f16_bits(value);
    let inward = f16_value(bits).abs() < value.abs() && bits & 0x7fff < LARGEST;
    bits + u16::from(inward)
}

/// The pair of integers and those one step away, but for the two that move a line up or down at both its ends: scale and
/// minimum make up for each other, so these lose more, always nearly.
fn neighbours((scale, min): (f32, f32), top: f32) -> [(f32, f32); 7] {
    const STEPS: [(f32, f32); 7] =
        [(0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0), (-1.0, -1.0), (1.0, 1.0)];
    std::array::from_fn(|k| {
        ((scale + STEPS[k].0).clamp(0.0, top), (min + STEPS[k].1).clamp(0.0, top))
    })
}

/// The candidate with the least loss, the first of equals.
#[inline(always)]
fn least_of<T: Copy>(candidates: &[T], loss: impl Fn(T) -> f32) -> (T, f32) {
    let mut best = (candidates[0], f32::INFINITY);
    for candidate in candidates {
        let loss = loss(*candidate);
        if loss < best.1 {
            best = (*candidate, loss);
        }
    }
    best
}

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
    /// Adds a part with its integers.
    fn add(&mut self, part: LineSums, (scale, min): (f32, f32)) {
        let LineSums { s, sx, sq, sqq, sxq } = part;
        let (a, b) = (f64::from(scale), -f64::from(min));
        self.aa += a * a * f64::from(sqq);
        self.ab += a * b * f64::from(sq);
        self.bb += b * b * f64::from(s);
        self.ax += a * f64::from(sxq);
        self.bx += b * f64::from(sx);
    }

    /// `(d, dmin)` as f16 bits, where both are determined and positive.
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
