//! Super-blocks of 256 weights coded as points of a codebook: chooses shared scale, sub-block scales and points.
//!
//! Each sub-block first finds the scale that suits it: a sweep of scales, each with the exactly nearest points
//! (`nearest.rs`) and the least-squares scale of these. The shared scale is the one whose multiples come closest to
//! these scales. Then points and multiples are chosen again under the scales that the block can represent, each
//! sub-block trying the neighbours of its multiple, and the shared scale is fitted to the result. The best state seen
//! is returned. Everything is computed in f32 in a fixed order.

use crate::blocks::{f16_bits, f16_value};
use crate::nearest::{Codebook, Scratch, Unit, Weights};
use crate::search;

/// Multipliers of the shared scale: `first + step · code`.
#[derive(Clone, Copy)]
pub(crate) struct Multipliers {
    pub first: f32,
    pub step: f32,
    pub count: u8,
}

impl Multipliers {
    #[inline(always)]
    fn value(self, code: u8) -> f32 {
        self.first + self.step * f32::from(code)
    }

    /// The code of the multiplier nearest to `value`.
    #[inline(always)]
    fn nearest(self, value: f32) -> u8 {
        let code = (value - self.first) / self.step + 0.5;
        // A conversion to u8 saturates.
        (code as u8).min(self.count - 1)
    }
}

/// Scales tried first: the root mean square of a sub-block divided by `first`, .. `last`, in equal ratios.
#[derive(Clone, Copy)]
pub(crate) struct Ladder {
    pub first: f32,
    pub last: f32,
    pub count: u8,
}

/// How a type codes a super-block of `PARTS` sub-blocks.
pub(crate) struct Coding<const W: usize, const L: usize> {
    pub codebook: Codebook<W, L>,
    pub multipliers: Multipliers,
    pub ladder: Ladder,
}

/// A coded super-block: the shared scale (f16 bits), the code of each sub-block's multiplier, and points.
pub(crate) struct Coded<const PARTS: usize> {
    pub d: u16,
    pub scales: [u8; PARTS],
    pub units: [Unit; 32],
}

/// Refits of the best scale of a ladder.
const REFITS: u8 = 1;

/// Rounds of fitting the shared scale.
const ROUNDS: u8 = 2;

/// The codes of one sub-block at some scale: their error, and sums for the least-squares scale.
#[derive(Clone, Copy)]
struct Fit {
    cost: f32,
    /// Σ w x q.
    xq: f32,
    /// Σ w q².
    qq: f32,
    units: [Unit; 4],
}

impl Fit {
    const WORST: Fit = Fit {
        cost: f32::INFINITY,
        xq: 0.0,
        qq: 0.0,
        units: [Unit { points: [0; 2], signs: 0 }; 4],
    };

    /// The best scale for these codes; 0 is the limit of scales.
    #[inline(always)]
    fn scale(&self) -> f32 {
        if self.qq > 0.0 { (self.xq / self.qq).max(0.0) } else { 0.0 }
    }

    /// The part of `Σ w x²` that the codes explain at [`Fit::scale`].
    #[inline(always)]
    fn explained(&self) -> f32 {
        self.xq.max(0.0) * self.scale()
    }
}

/// One sub-block.
#[derive(Clone, Copy)]
struct Subblock<'a> {
    x: &'a [[f32; 8]],
    w: &'a [[f32; 8]],
}

impl<const W: usize, const L: usize> Coding<W, L> {
    /// The nearest codes at a scale, with the better shift.
    #[inline(always)]
    fn fit(&self, scratch: &mut Scratch, part: Subblock<'_>, scale: f32) -> Fit {
        let mut best = Fit::WORST;
        for shift in 0..self.codebook.shifts() {
            let mut fit = Fit { cost: 0.0, ..Fit::WORST };
            for (k, (x, w)) in part.x.iter().zip(part.w).enumerate() {
                let weights = Weights { x, w, scale };
                let (cost, unit) = self.codebook.nearest(scratch, weights, shift);
                let values = self.codebook.values(unit);
                fit.cost += cost;
                fit.units[k] = unit;
                for i in 0..8 {
                    let wq = w[i] * values[i];
                    fit.xq += wq * x[i];
                    fit.qq += wq * values[i];
                }
            }
            if fit.cost < best.cost {
                best = fit;
            }
        }
        best
    }

    /// The codes that explain most of a sub-block, whatever their scale.
    #[inline(always)]
    fn free(&self, scratch: &mut Scratch, part: Subblock<'_>) -> Fit {
        let (mut wxx, mut ww) = (0.0f32, 0.0f32);
        for (x, w) in part.x.as_flattened().iter().zip(part.w.as_flattened()) {
            wxx += w * x * x;
            ww += w;
        }
        let rms = (wxx / ww).sqrt();
        let mut best = Fit::WORST;
        if rms < 1e-12 || rms.is_nan() {
            return best;
        }
        let ladder = self.ladder;
        let ratio = (ladder.last / ladder.first).powf(1.0 / f32::from(ladder.count - 1));
        let mut divisor = ladder.first;
        for _ in 0..ladder.count {
            let fit = self.fit(scratch, part, rms / divisor);
            if fit.explained() > best.explained() {
                best = fit;
            }
            divisor *= ratio;
        }
        for _ in 0..REFITS {
            let fit = self.fit(scratch, part, best.scale());
            if fit.explained() <= best.explained() {
                break;
            }
            best = fit;
        }
        best
    }

    /// The best codes under multiples of a shared scale, and the multiplier: `centre` or up to `around` beside it.
    #[inline(always)]
    fn multiple(
        &self,
        scratch: &mut Scratch,
        part: Subblock<'_>,
        shared: f32,
        (centre, around): (u8, u8),
    ) -> (Fit, u8) {
        let mut best = (Fit::WORST, centre);
        let last = (centre + around).min(self.multipliers.count - 1);
        for code in centre.saturating_sub(around)..=last {
            let fit = self.fit(scratch, part, shared * self.multipliers.value(code));
            if fit.cost < best.0.cost {
                best = (fit, code);
            }
        }
        best
    }

    /// The shared scale whose multiples are closest to the scales of all sub-blocks.
    #[inline(always)]
    fn shared(&self, fits: &[Fit]) -> f32 {
        let multipliers = self.multipliers;
        let largest = fits.iter().map(Fit::scale).fold(0.0, f32::max);
        let top = multipliers.value(multipliers.count - 1);
        let (mut best, mut least) = (largest / top, f32::INFINITY);
        for k in 0..64u8 {
            let d = largest / top * (0.85 + 0.0125 * f32::from(k));
            let mut cost = 0.0;
            for fit in fits {
                let scale = fit.scale();
                let error = scale - d * multipliers.value(multipliers.nearest(scale / d));
                cost += fit.qq * error * error;
            }
            if cost < least {
                (best, least) = (d, cost);
            }
        }
        best
    }
}

/// Codes 256 weights.
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
pub(crate) fn code<const W: usize, const L: usize, const PARTS: usize>(
    coding: &Coding<W, L>,
    values: &[f32; 256],
    importance: Option<&[f32; 256]>,
) -> Coded<PARTS> {
    let mut coded = Coded { d: 0, scales: [0; PARTS], units: [Unit::default(); 32] };
    let peak = search::peak(values).abs();
    // Weights this small are below half of the smallest f16, whatever their codes.
    if peak < 1e-12 {
        return coded;
    }
    let w = search::weights(values, importance);
    let mut x = *values;
    for x in &mut x {
        *x /= peak;
    }
    let per_part = 32 / PARTS;
    let (x, w) = (x.as_chunks::<8>().0, w.as_chunks::<8>().0);
    let mut parts = [Subblock { x: &x[..0], w: &w[..0] }; PARTS];
    for (p, part) in parts.iter_mut().enumerate() {
        let range = p * per_part..(p + 1) * per_part;
        *part = Subblock { x: &x[range.clone()], w: &w[range] };
    }
    let scratch = &mut Scratch::new();
    let mut fits = [Fit::WORST; PARTS];
    for p in 0..PARTS {
        fits[p] = coding.free(scratch, parts[p]);
    }
    let mut d = f16_bits(coding.shared(&fits) * peak);
    let mut scales = fits.map(|fit| fit.scale());
    let mut least = f32::INFINITY;
    for round in 0..=ROUNDS {
        let shared = f16_value(d) / peak;
        if shared == 0.0 {
            break;
        }
        let (mut total, mut xq, mut qq) = (0.0, 0.0, 0.0);
        let mut codes = [0; PARTS];
        for p in 0..PARTS {
            // Later rounds change the shared scale by little.
            let around = u8::from(round == 0);
            let centre = coding.multipliers.nearest(scales[p] / shared);
            (fits[p], codes[p]) = coding.multiple(scratch, parts[p], shared, (centre, around));
            let multiplier = coding.multipliers.value(codes[p]);
            total += fits[p].cost;
            xq += multiplier * fits[p].xq;
            qq += multiplier * multiplier * fits[p].qq;
            scales[p] = multiplier;
        }
        if total < least {
            least = total;
            (coded.d, coded.scales) = (d, codes);
            for (units, fit) in coded.units.chunks_exact_mut(per_part).zip(&fits) {
                units.copy_from_slice(&fit.units[..per_part]);
            }
        }
        let fitted = f16_bits(xq / qq * peak);
        if qq <= 0.0 || xq <= 0.0 || fitted == d {
            break;
        }
        // The multiples stay; scales follow the shared one.
        for scale in &mut scales {
            *scale *= f16_value(fitted) / peak;
        }
        d = fitted;
    }
    coded
}

#[cfg(test)]
mod tests;
