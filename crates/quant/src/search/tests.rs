//! Each sum against plain arithmetic in f64, and each search against the best of all codes there are.

use super::*;
use crate::Type;
use crate::samples::{costs, values};

/// Levels from `low` to `high`, one apart.
fn whole(low: i8, high: i8) -> Vec<f64> {
    (low..=high).map(f64::from).collect()
}

fn nearest_level(levels: &[f64], v: f64) -> f64 {
    let far = |level: &f64| (level - v).abs();
    levels.iter().copied().min_by(|a, b| far(a).total_cmp(&far(b))).expect("levels")
}

/// `Σ w x²`.
fn squares(x: &[f32], w: &[f32]) -> f64 {
    x.iter().zip(w).map(|(x, w)| f64::from(*w) * f64::from(*x).powi(2)).sum()
}

/// `Σ w (x - x')²`.
fn loss(x: &[f32], w: &[f32], back: impl Fn(usize) -> f64) -> f64 {
    (0..x.len()).map(|i| f64::from(w[i]) * (f64::from(x[i]) - back(i)).powi(2)).sum()
}

/// The least `Σ w (x - scale · level)²` of any scale: codes change only where a quotient is halfway between two levels, so
/// one scale between any two neighbours of these is enough, and its codes tell the best one.
pub(crate) fn least_loss(x: &[f32], w: &[f32], levels: &[f64]) -> f64 {
    let mut edges = vec![];
    for x in x {
        for pair in levels.windows(2) {
            edges.push(2.0 * f64::from(*x) / (pair[0] + pair[1]));
        }
    }
    edges.retain(|edge| edge.is_finite());
    edges.sort_by(f64::total_cmp);
    let mut explained = 0.0f64;
    for pair in edges.windows(2) {
        let scale = (pair[0] + pair[1]) / 2.0;
        let (mut xq, mut qq) = (0.0, 0.0);
        for (x, w) in x.iter().zip(w) {
            let q = nearest_level(levels, f64::from(*x) / scale);
            xq += f64::from(*w) * f64::from(*x) * q;
            qq += f64::from(*w) * q * q;
        }
        explained = explained.max(if qq > 0.0 { xq * xq / qq } else { 0.0 });
    }
    squares(x, w) - explained
}

fn is_near(found: f32, expected: f64, what: &str) {
    let off = (f64::from(found) - expected).abs();
    assert!(off <= 2e-5 * (1.0 + expected.abs()), "{what}: {found} for {expected}");
}

/// Two groups of 24 weights with their costs.
fn two() -> ([[f32; 24]; 2], [[f32; 24]; 2], Groups<24, 2>) {
    let (x, w) = ([values(1), values(2).map(|x| 3.0 * x + 1.0)], [costs(3), costs(4)]);
    (x, w, Groups::new(&x, &w))
}

#[test]
fn a_sweep_goes_from_its_first_to_its_last_point_in_even_steps() {
    let sweep = Sweep { first: -9.0, last: -7.0, count: 5 };
    assert_eq!([0, 1, 2, 3, 4].map(|k| sweep.point(k)), [-9.0, -8.5, -8.0, -7.5, -7.0]);
}

#[test]
fn the_peak_is_the_first_value_of_largest_magnitude() {
    let at = |[a, b, c]: [f32; 3]| peak(&[a, 0.5, 0.0, -1.0, 0.0, b, 0.0, c]);
    assert_eq!(at([1.0, -3.0, 3.0]), -3.0);
    assert_eq!(at([1.0, 3.0, -3.0]), 3.0);
    assert_eq!(at([-2.0, 1.5, -0.25]), -2.0);
    assert_eq!(at([0.0, -1.0, 2.5]), 2.5);
    for zero in [0.0f32, -0.0] {
        assert_eq!(peak(&[zero; 8]).to_bits(), 0);
    }
}

#[test]
fn costs_grow_with_the_weight_and_the_importance_of_its_column() {
    let x: [f32; 16] = values(5);
    let mut importance: [f32; 16] = costs(6);
    (importance[2], importance[7]) = (-5.0, f32::NAN);
    let square = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 16.0;
    let counted = |i: usize| if matches!(i, 2 | 7) { 0.0 } else { f64::from(importance[i]) };
    let mean = (0..16).map(counted).sum::<f64>() / 16.0;
    let (plain, weighed) = (weights(&x, None), weights(&x, Some(&importance)));
    for i in 0..16 {
        let own = (2.0 + f64::from(x[i]).powi(2) / square).sqrt();
        is_near(plain[i], own, "without importance");
        is_near(weighed[i], own * (counted(i) / mean + 1e-4), "with importance");
        // Relative, as the costs of columns without importance are small.
        assert!((f64::from(weighed[i]) / (own * (counted(i) / mean + 1e-4)) - 1.0).abs() < 1e-4);
    }
    assert_eq!(weights(&[0.0; 8], None), [2f32.sqrt(); 8]);
    assert_eq!(weights(&[-4.0; 8], None), [3f32.sqrt(); 8]);
}

#[test]
fn sums_of_a_scale_are_those_of_its_nearest_codes() {
    let (x, w, groups) = two();
    let nearest = |v| crate::lanes::round(v, -4.0, 3.0);
    let levels = whole(-4, 3);
    let scales = Lanes([0.37f32, -1.3]);
    let [xq, qq] = scale_sums(&groups, scales.reciprocal(), nearest);
    let lost = scale_loss(&groups, scales, nearest);
    let codes = scale_codes(&groups, scales, nearest, 4.0);
    for l in 0..2 {
        let scale = f64::from(scales.0[l]);
        let q = |i: usize| nearest_level(&levels, f64::from(x[l][i]) / scale);
        let sum = |of: &dyn Fn(usize) -> f64| -> f64 {
            (0..24).map(|i| f64::from(w[l][i]) * of(i)).sum()
        };
        is_near(xq.0[l], sum(&|i| f64::from(x[l][i]) * q(i)), "Σ w x q");
        is_near(qq.0[l], sum(&|i| q(i) * q(i)), "Σ w q²");
        is_near(lost.0[l], loss(&x[l], &w[l], |i| scale * q(i)), "loss");
        for (i, code) in codes[l].iter().enumerate() {
            assert_eq!(f64::from(*code), q(i) + 4.0);
        }
    }
}

#[test]
fn sums_of_a_line_are_those_of_its_nearest_codes() {
    let (x, w, groups) = two();
    let line = Line { scale: Lanes([0.9f32, 1.7]), min: Lanes([-1.2f32, -2.0]) };
    let (sums, totals) = (line_sums(&groups, line, 3.0), groups.totals());
    let (lost, codes) = (line_loss(&groups, line, 3.0), line.codes(&groups.x, 3.0));
    for l in 0..2 {
        let (scale, min) = (f64::from(line.scale.0[l]), f64::from(line.min.0[l]));
        let q = |i: usize| ((f64::from(x[l][i]) - min) / scale).round().clamp(0.0, 3.0);
        let sum = |of: &dyn Fn(usize) -> f64| -> f64 {
            (0..24).map(|i| f64::from(w[l][i]) * of(i)).sum()
        };
        is_near(sums.sq.0[l], sum(&q), "Σ w q");
        is_near(sums.sqq.0[l], sum(&|i| q(i) * q(i)), "Σ w q²");
        is_near(sums.sxq.0[l], sum(&|i| f64::from(x[l][i]) * q(i)), "Σ w x q");
        is_near(totals.s.0[l], sum(&|_| 1.0), "Σ w");
        is_near(totals.sx.0[l], sum(&|i| f64::from(x[l][i])), "Σ w x");
        is_near(lost.0[l], loss(&x[l], &w[l], |i| scale * q(i) + min), "loss");
        for (i, code) in codes.iter().enumerate() {
            assert_eq!(f64::from(code.0[l]), q(i));
        }
    }
}

/// Fits the line to codes from the sums, compares the error with that of plain arithmetic, and shifts it a little.
fn fits(x: &[f32; 24], w: &[f32; 24], line: Line<1>, min_max: f32) -> Line<1> {
    let groups = Groups::new(&[*x], &[*w]);
    let codes = line.codes(&groups.x, 7.0);
    let sums = line_sums(&groups, line, 7.0);
    let (fitted, error) = fit(groups.totals(), sums, Lanes::all(min_max));
    let lost = |scale: f64, min: f64| loss(x, w, |i| scale * f64::from(codes[i].0[0]) + min);
    let (scale, min) = (f64::from(fitted.scale.0[0]), f64::from(fitted.min.0[0]));
    is_near(error.0[0], lost(scale, min) - squares(x, w), "the error without Σ w x²");
    for (more, up) in [(0.01, 0.0), (-0.01, 0.0), (0.0, 0.01), (0.0, -0.01)] {
        let (scale, min) = (scale + more, min + up);
        let is_allowed = scale >= 0.0 && min <= f64::from(min_max);
        assert!(!is_allowed || lost(scale, min) > error_of(lost, fitted), "{scale} {min}");
    }
    fitted
}

fn error_of(lost: impl Fn(f64, f64) -> f64, line: Line<1>) -> f64 {
    lost(f64::from(line.scale.0[0]), f64::from(line.min.0[0]))
}

#[test]
fn a_fitted_line_has_the_least_error_of_its_codes() {
    let (x, w) = (values::<24>(7), costs::<24>(8));
    let line = |scale: f32, min: f32| Line { scale: Lanes([scale]), min: Lanes([min]) };
    let free = fits(&x, &w, line(0.6, -2.0), f32::INFINITY);
    assert!(free.min.0[0] < -1.0);
    // All weights are above the highest minimum, which then is the minimum.
    let high = x.map(|x| x + 9.0);
    let held = fits(&high, &w, line(1.8, 0.0), 0.0);
    assert_eq!(held.min.0, [0.0]);
    // Equal codes: a line through zero.
    let ones = Groups::new(&[[1.5f32; 24]], &[w]);
    let start = line(1.5, 0.0);
    let (single, _) = fit(ones.totals(), line_sums(&ones, start, 7.0), Lanes::all(0.0));
    assert!((single.scale.0[0] - 1.5).abs() < 1e-5 && single.min.0 == [0.0]);
    // Codes that fall where weights rise would need a negative scale.
    let falling = line_sums(&ones, start, 7.0);
    let sums = LineSums { sxq: Lanes([-1.0]), ..falling };
    assert_eq!(fit(ones.totals(), sums, Lanes::all(0.0)).0.scale.0, [0.0]);
}

#[test]
fn neighbours_of_a_half_keep_its_sign_and_are_finite() {
    let steps = around(Lanes([1.0f32, -1.0, 65504.0, 0.0, 1.0001]));
    assert_eq!(steps[0].0, [1.0, -1.0, 65504.0, 0.0, 1.0]);
    let (below, above) = (1.0 - 0.5 / 1024.0, 1.0 + 1.0 / 1024.0);
    assert_eq!(steps[1].0, [below, -below, 65472.0, 0.0, below]);
    assert_eq!(steps[2].0, [above, -above, 65504.0, (-24f32).exp2(), above]);
}

#[test]
fn a_line_of_halves_is_the_best_of_its_neighbours() {
    let (x, w) = (values::<24>(9).map(|x| 0.01 * x + 2.0), costs::<24>(10));
    let groups = Groups::new(&[x], &[w]);
    // The first starts two codes below the smallest weight, so that it may begin there as well.
    let low = x.iter().copied().fold(f32::INFINITY, f32::min);
    for min in [low - 2.0 * 0.0031, low] {
        let line = Line { scale: Lanes([0.0031f32]), min: Lanes([min]) };
        let found = halves(&groups, line, 15.0);
        let least = line_loss(&groups, found, 15.0).0[0];
        for start in [min, low] {
            for scale in around(line.scale) {
                for min in around(Lanes([start])) {
                    let tried = line_loss(&groups, Line { scale, min }, 15.0).0[0];
                    assert!(least <= tried * 1.0001, "{least} {tried}");
                }
            }
        }
        for part in [found.scale, found.min] {
            assert_eq!(f16_value(f16_bits(part.0[0])), part.0[0], "a half");
        }
    }
}

#[test]
fn fixed_rules_give_the_extremes_their_codes() {
    // The largest magnitude is 4 and becomes code 0 of 16: the scale is -1/2, and 3.75 is 7.5 steps from it.
    let mut x = [0.0f32; 8];
    x[1..5].copy_from_slice(&[4.0, -3.75, 1.0, -0.3]);
    let ScaleBlock { d, codes } = signed(&x, 4);
    assert_eq!((f16_value(d), codes), (-0.5, [8, 0, 15, 6, 9, 8, 8, 8]));
    // From -1 to 2 in 15 steps of a fifth.
    let x = [-1.0f32, 2.0, 0.0, 0.09, 0.11, 1.0, -0.71, 1.95];
    let LineBlock { d, m, codes } = range(&x, 15.0);
    assert_eq!((f16_value(m), codes), (-1.0, [0, 15, 5, 5, 6, 10, 1, 15]));
    assert_eq!(d, f16_bits(0.2));
}

/// Ratios to the least error and their bounds, which are measured: nothing below 1 but by the rounding of scales.
pub(crate) fn is_within(ratios: &[(f64, f64)]) {
    let is_right = |(ratio, bound): &(f64, f64)| (0.999..*bound).contains(ratio);
    assert!(ratios.iter().all(is_right), "{ratios:?}");
}

/// The error of a type's blocks over that of the best scale, for 16 rows of `N` weights.
fn against_best<const N: usize>(ty: Type, levels: &[f64]) -> f64 {
    let (mut found, mut least) = (0.0, 0.0);
    for seed in 0..16 {
        let (x, importance) = (values::<N>(seed), costs::<N>(seed + 100));
        let mut bytes = vec![0; ty.row_bytes(N).expect("a block")];
        ty.quantize(&x, Some(&importance), &mut bytes).expect("finite");
        let mut back = [0.0; N];
        ty.dequantize(&bytes, &mut back).expect("a block");
        let w = weights(&x, Some(&importance));
        found += loss(&x, &w, |i| f64::from(back[i]));
        least += least_loss(&x, &w, levels);
    }
    found / least
}

#[test]
fn blocks_with_a_scale_have_nearly_the_least_error_there_is() {
    let codebook = crate::iq4_nl::CODEBOOK.map(f64::from);
    let cases = [
        (against_best::<32>(Type::Q4_0, &whole(-8, 7)), 1.01),
        (against_best::<32>(Type::Q5_0, &whole(-16, 15)), 1.001),
        (against_best::<32>(Type::IQ4_NL, &codebook), 1.03),
        (against_best::<256>(Type::TQ1_0, &whole(-1, 1)), 1.02),
        (against_best::<256>(Type::TQ2_0, &whole(-1, 1)), 1.02),
    ];
    is_within(&cases);
}

/// The least error of a line with codes up to `top`, from a dense grid of lines, each fitted to its codes until they
/// stay the same.
fn least_line(x: &[f32], w: &[f32], top: f64) -> f64 {
    let low = x.iter().copied().map(f64::from).fold(f64::INFINITY, f64::min);
    let high = x.iter().copied().map(f64::from).fold(f64::NEG_INFINITY, f64::max);
    let mut least = f64::INFINITY;
    for step in 0..60 {
        for shift in 0..12 {
            let mut scale = (high - low) / (top * (0.8 + 0.01 * f64::from(step)));
            let mut min = low + scale * (f64::from(shift) / 6.0 - 1.0);
            for _ in 0..6 {
                let q = |i: usize| ((f64::from(x[i]) - min) / scale).round().clamp(0.0, top);
                least = least.min(loss(x, w, |i| scale * q(i) + min));
                let mut sums = [0.0; 5];
                for i in 0..x.len() {
                    let (x, w, q) = (f64::from(x[i]), f64::from(w[i]), q(i));
                    for (sum, of) in sums.iter_mut().zip([1.0, x, q, q * q, x * q]) {
                        *sum += w * of;
                    }
                }
                let [s, sx, sq, sqq, sxq] = sums;
                scale = (s * sxq - sx * sq) / (s * sqq - sq * sq);
                min = (sx - scale * sq) / s;
            }
        }
    }
    least
}

#[test]
fn blocks_with_a_line_have_nearly_the_least_error_there_is() {
    let mut ratios = vec![];
    for (ty, top, bound) in [(Type::Q4_1, 15.0, 1.06), (Type::Q5_1, 31.0, 1.06)] {
        let (mut found, mut least) = (0.0, 0.0);
        for seed in 0..16 {
            let (x, importance) = (values::<32>(seed).map(|x| x + 0.5), costs::<32>(seed + 100));
            let mut bytes = vec![0; ty.row_bytes(32).expect("a block")];
            ty.quantize(&x, Some(&importance), &mut bytes).expect("finite");
            let mut back = [0.0; 32];
            ty.dequantize(&bytes, &mut back).expect("a block");
            let w = weights(&x, Some(&importance));
            found += loss(&x, &w, |i| f64::from(back[i]));
            least += least_line(&x, &w, top);
        }
        ratios.push((found / least, bound));
    }
    is_within(&ratios);
}
