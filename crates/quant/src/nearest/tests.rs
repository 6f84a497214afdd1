//! The search of each codebook against all of its points.

use super::*;
use crate::grids;
use crate::samples::{costs, values};

/// The sum that a code minimizes.
fn cost(x: &[f32], w: &[f32], scale: f32, code: &[f32]) -> f64 {
    let off = |i: usize| f64::from(x[i]) - f64::from(scale) * f64::from(code[i]);
    (0..x.len()).map(|i| f64::from(w[i]) * off(i).powi(2)).sum()
}

/// The least cost of any point with any signs, by whether the number of negatives is odd.
fn signed_costs<const W: usize>(points: &[[i8; W]], x: &[f32], w: &[f32], scale: f32) -> [f64; 2] {
    let mut least = [f64::INFINITY; 2];
    for point in points {
        let mut costs = [0.0, f64::INFINITY];
        for i in 0..W {
            let level = f32::from(point[i]);
            let one = |level: f32| cost(&x[i..=i], &w[i..=i], scale, &[level]);
            let (plus, minus) = (one(level), one(-level));
            let [even, odd] = costs;
            costs = [(even + plus).min(odd + minus), (odd + plus).min(even + minus)];
        }
        least = [least[0].min(costs[0]), least[1].min(costs[1])];
    }
    least
}

/// The least cost of eight weights, by trying everything.
fn least_cost<const W: usize>(
    points: &'static [[i8; W]],
    signs: Signs,
    x: &[f32; 8],
    w: &[f32; 8],
    (scale, shift): (f32, u8),
) -> f64 {
    let shifted = |by: f32| {
        let codes = points.iter().map(|point| point.map(|level| f32::from(level) + by));
        codes.map(|code| cost(x, w, scale, &code)).fold(f64::INFINITY, f64::min)
    };
    match signs {
        Signs::ShiftOfPart(by) => shifted(if shift == 1 { -by } else { by }),
        Signs::ShiftOfUnit(by) => shifted(by).min(shifted(-by)),
        Signs::Free | Signs::Even => {
            let halves = x.chunks(W).zip(w.chunks(W));
            let costs: Vec<[f64; 2]> =
                halves.map(|(x, w)| signed_costs(points, x, w, scale)).collect();
            let free = |of: &[f64; 2]| of[0].min(of[1]);
            match (signs, &costs[..]) {
                (Signs::Free, _) => costs.iter().map(free).sum(),
                (_, [one]) => one[0],
                (_, [a, b]) => (a[0] + b[0]).min(a[1] + b[1]),
                _ => unreachable!("one or two points"),
            }
        }
    }
}

fn is_exact<const W: usize, const L: usize>(
    points: &'static [[i8; W]],
    signs: Signs,
    scales: [f32; 3],
) {
    let codebook = Codebook::<W, L>::new(points, signs);
    let scratch = &mut Scratch::new();
    assert_eq!(codebook.shifts(), if matches!(signs, Signs::ShiftOfPart(_)) { 2 } else { 1 });
    for seed in 0..8 {
        let (x, w) = (values::<8>(seed), costs::<8>(seed + 50));
        for scale in scales {
            for shift in 0..codebook.shifts() {
                let weights = Weights { x: &x, w: &w, scale };
                let (found, unit) = codebook.nearest(scratch, weights, shift);
                let least = least_cost(points, signs, &x, &w, (scale, shift));
                let what = format!("{signs:?}, {W} coordinates, row {seed}, scale {scale}");
                let own = cost(&x, &w, scale, &codebook.values(unit));
                let close = |a: f64| (a - least).abs() <= 1e-5 * (1.0 + least);
                assert!(close(own) && close(f64::from(found)), "{what}: {found} {own} {least}");
                match signs {
                    Signs::Even => {
                        assert_eq!(unit.signs.count_ones() % 2, 0, "{what}");
                        assert_eq!(even_signs(unit.seven_signs()), unit.signs, "{what}");
                    }
                    Signs::ShiftOfPart(_) => assert_eq!(unit.signs, shift, "{what}"),
                    Signs::Free | Signs::ShiftOfUnit(_) => {}
                }
            }
        }
    }
}

/// Scales at which weights of variance 1 have small, middle and large levels.
#[test]
fn the_nearest_code_is_the_best_of_all() {
    is_exact::<8, 3>(&grids::IQ1, Signs::ShiftOfPart(0.125), [0.5, 1.0, 2.0]);
    is_exact::<8, 3>(&grids::IQ1, Signs::ShiftOfUnit(0.125), [0.5, 1.0, 2.0]);
    is_exact::<8, 3>(&grids::IQ2_XXS, Signs::Even, [0.02, 0.05, 0.2]);
    is_exact::<8, 3>(&grids::IQ2_S, Signs::Free, [0.02, 0.05, 0.2]);
    is_exact::<4, 8>(&grids::IQ3_XXS, Signs::Even, [0.02, 0.04, 0.2]);
    is_exact::<4, 8>(&grids::IQ3_S, Signs::Free, [0.07, 0.15, 0.8]);
}

#[test]
fn values_of_a_code_have_its_signs_or_its_shift() {
    let free = Codebook::<8, 3>::new(&grids::IQ2_S, Signs::Free);
    let unit = Unit { points: [1, 0], signs: 0b1000_0001 };
    let mut expected = grids::IQ2_S[1].map(f32::from);
    (expected[0], expected[7]) = (-expected[0], -expected[7]);
    assert_eq!(free.values(unit), expected);
    let pairs = Codebook::<4, 8>::new(&grids::IQ3_S, Signs::Free);
    let unit = Unit { points: [3, 500], signs: 0b0001_0000 };
    let [a, b] = [3, 500].map(|number| grids::IQ3_S[number].map(f32::from));
    assert_eq!(pairs.values(unit), [a[0], a[1], a[2], a[3], -b[0], b[1], b[2], b[3]]);
    let shifted = Codebook::<8, 3>::new(&grids::IQ1, Signs::ShiftOfPart(0.125));
    for (signs, by) in [(0, 0.125), (1, -0.125)] {
        let unit = Unit { points: [77, 0], signs };
        assert_eq!(shifted.values(unit), grids::IQ1[77].map(|level| f32::from(level) + by));
    }
}

#[test]
fn weights_on_the_codebook_cost_nothing() {
    let codebook = Codebook::<8, 3>::new(&grids::IQ2_XS, Signs::Even);
    for (number, point) in grids::IQ2_XS.iter().enumerate() {
        let mut x = point.map(f32::from);
        (x[2], x[5]) = (-x[2], -x[5]);
        let weights = Weights { x: &x, w: &[1.0; 8], scale: 1.0 };
        let (cost, unit) = codebook.nearest(&mut Scratch::new(), weights, 0);
        let expected = Unit { points: [number as u16, 0], signs: 1 << 2 | 1 << 5 };
        assert_eq!((cost, unit), (0.0, expected));
    }
}
