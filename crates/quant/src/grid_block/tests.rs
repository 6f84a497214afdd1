//! The parts of the search against plain arithmetic, and coded blocks against the best of all scales near theirs.

use super::*;
use crate::grids;
use crate::nearest::Signs;
use crate::samples::{costs, values};
use crate::search::tests::is_within;

/// As of IQ2_S, IQ3_S and IQ1_S.
fn twos() -> Coding<8, 3> {
    Coding {
        codebook: Codebook::new(&grids::IQ2_S, Signs::Free),
        multipliers: Multipliers { first: 0.125, step: 0.25, count: 16 },
        ladder: Ladder { first: 5.0, last: 26.0, count: 6 },
    }
}

fn threes() -> Coding<4, 8> {
    Coding {
        codebook: Codebook::new(&grids::IQ3_S, Signs::Free),
        multipliers: Multipliers { first: 1.0, step: 2.0, count: 16 },
        ladder: Ladder { first: 1.5, last: 8.0, count: 8 },
    }
}

fn ones() -> Coding<8, 3> {
    Coding {
        codebook: Codebook::new(&grids::IQ1, Signs::ShiftOfPart(0.125)),
        multipliers: Multipliers { first: 1.0, step: 2.0, count: 8 },
        ladder: Ladder { first: 0.4, last: 1.2, count: 5 },
    }
}

#[test]
fn multipliers_are_evenly_spaced() {
    let multipliers = Multipliers { first: 0.125, step: 0.25, count: 16 };
    assert_eq!([0, 1, 15].map(|code| multipliers.value(code)), [0.125, 0.375, 3.875]);
    let cases =
        [(0.125, 0), (0.24, 0), (0.26, 1), (3.74, 14), (3.76, 15), (1e9, 15), (-3.0, 0), (2.0, 8)];
    for (value, code) in cases {
        assert_eq!(multipliers.nearest(value), code, "{value}");
    }
}

#[test]
fn a_fit_knows_its_best_scale() {
    let fit = |xq: f32, qq: f32| Fit { xq, qq, ..Fit::WORST };
    let cases = [(6.0, 3.0, 2.0, 12.0), (-6.0, 3.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)];
    for (xq, qq, scale, explained) in cases {
        let fit = fit(xq, qq);
        assert_eq!((fit.scale(), fit.explained()), (scale, explained), "{xq} {qq}");
    }
}

/// `Σ w (x - scale · code)²`, `Σ w x code` and `Σ w code²`.
fn sums<const W: usize, const L: usize>(
    coding: &Coding<W, L>,
    part: Subblock<'_>,
    scale: f32,
    units: &[Unit],
) -> [f64; 3] {
    let mut sums = [0.0; 3];
    for ((x, w), unit) in part.x.iter().zip(part.w).zip(units) {
        for (i, code) in coding.codebook.values(*unit).into_iter().map(f64::from).enumerate() {
            let (x, w) = (f64::from(x[i]), f64::from(w[i]));
            sums[0] += w * (x - f64::from(scale) * code).powi(2);
            sums[1] += w * x * code;
            sums[2] += w * code * code;
        }
    }
    sums
}

/// [`Coding::fit`], compiled once.
#[inline(never)]
fn fit<const W: usize, const L: usize>(
    coding: &Coding<W, L>,
    part: Subblock<'_>,
    scale: f32,
) -> Fit {
    coding.fit(&mut Scratch::new(), part, scale)
}

/// The parts of the search for one sub-block of 16 or 32 weights.
fn is_fitted<const W: usize, const L: usize>(coding: &Coding<W, L>, units: usize, middle: f32) {
    let scratch = &mut Scratch::new();
    for seed in 0..6 {
        let (x, w) = (values::<32>(seed), costs::<32>(seed + 50));
        let (x, w) = (&x.as_chunks().0[..units], &w.as_chunks().0[..units]);
        let part = Subblock { x, w };
        let found = fit(coding, part, middle);
        let expected = sums(coding, part, middle, &found.units);
        for (found, expected) in [found.cost, found.xq, found.qq].into_iter().zip(expected) {
            assert!((f64::from(found) / expected - 1.0).abs() < 1e-4, "{found} {expected}");
        }
        // Either shift alone is no better.
        for shift in 0..coding.codebook.shifts() {
            let nearest =
                |(x, w)| coding.codebook.nearest(scratch, Weights { x, w, scale: middle }, shift);
            let cost: f32 = x.iter().zip(w).map(nearest).map(|(cost, _)| cost).sum();
            assert!(found.cost <= cost * 1.0001);
        }
        let free = coding.free(scratch, part).explained();
        let mut most = 0.0f32;
        for step in 0..100 {
            let scale = middle * (0.2 + 0.03 * step as f32);
            most = most.max(fit(coding, part, scale).explained());
        }
        let total: f32 =
            x.as_flattened().iter().zip(w.as_flattened()).map(|(x, w)| w * x * x).sum();
        assert!(free <= total && total - free < 1.15 * (total - most), "{free} {most}");
        // The best of all multiples, or of those beside the centre.
        let shared = middle / coding.multipliers.value(4);
        let costs: Vec<f32> = (0..coding.multipliers.count)
            .map(|code| fit(coding, part, shared * coding.multipliers.value(code)).cost)
            .collect();
        for (centre, around) in [(4u8, 0u8), (4, 1), (0, 1), (7, 3), (5, 8)] {
            let (found, code) = coding.multiple(scratch, part, shared, (centre, around));
            let end = costs.len().min(usize::from(centre + around) + 1);
            let begin = usize::from(centre.saturating_sub(around));
            let least = costs[begin..end].iter().copied().fold(f32::INFINITY, f32::min);
            assert_eq!((found.cost, costs[usize::from(code)]), (least, least));
        }
    }
}

#[test]
fn a_sub_block_has_the_codes_and_the_multiple_of_least_cost() {
    is_fitted(&twos(), 2, 0.05);
    is_fitted(&threes(), 4, 0.15);
    is_fitted(&ones(), 4, 1.2);
}

#[test]
fn a_sub_block_of_zeros_explains_nothing() {
    let part = Subblock { x: &[[0.0; 8]; 2], w: &[[1.0; 8]; 2] };
    let fit = twos().free(&mut Scratch::new(), part);
    assert_eq!((fit.scale(), fit.explained()), (0.0, 0.0));
}

#[test]
fn the_shared_scale_is_the_one_whose_multiples_are_closest() {
    let coding = ones();
    let fits = |scales: &[f32], qq: f32| -> Vec<Fit> {
        scales.iter().map(|scale| Fit { xq: scale * qq, qq, ..Fit::WORST }).collect()
    };
    // Of 15 multiples the largest in use is 13: the scale is one of 64 that are 1.25 % of a 15th apart.
    let exact = fits(&[3.9, 0.9, 2.1, 0.3, 2.7, 1.5, 3.3], 2.0);
    assert!((coding.shared(&exact) / 0.3 - 1.0).abs() < 0.006, "{}", coding.shared(&exact));
    let full = fits(&[4.5, 0.3, 2.1, 1.5], 2.0);
    assert!((coding.shared(&full) / 0.3 - 1.0).abs() < 1e-5);
    // Sub-blocks count by the squares of their codes: few multiples of 0.35 outweigh many of 0.3.
    let mut mixed = fits(&[4.2, 0.9, 2.1, 2.7, 1.5, 3.3], 1.0);
    mixed.extend(fits(&[4.55, 1.05, 2.45], 1000.0));
    assert!((coding.shared(&mixed) / 0.35 - 1.0).abs() < 0.006, "{}", coding.shared(&mixed));
    assert_eq!(coding.shared(&fits(&[0.0; 4], 0.0)), 0.0);
}

/// The error of coded blocks over the least one, for scales up to a sixth beside theirs and all multiples.
fn against_best<const W: usize, const L: usize, const PARTS: usize>(coding: &Coding<W, L>) -> f64 {
    let (mut found, mut best) = (0.0, 0.0);
    for seed in 0..4 {
        // Sub-blocks of different size; the whole block is far from 1.
        let mut x = values::<256>(seed);
        for (i, x) in x.iter_mut().enumerate() {
            *x *= 40.0 + 10.0 * (i / 16 * 7 % 5) as f32;
        }
        let importance = costs::<256>(seed + 100);
        let w = search::weights(&x, Some(&importance));
        let coded = code::<W, L, PARTS>(coding, &x, Some(&importance));
        let (x, w) = (x.as_chunks::<8>().0, w.as_chunks::<8>().0);
        let units = 32 / PARTS;
        let part = |p: usize| {
            let range = p * units..(p + 1) * units;
            Subblock { x: &x[range.clone()], w: &w[range] }
        };
        let d = f16_value(coded.d);
        for p in 0..PARTS {
            let scale = d * coding.multipliers.value(coded.scales[p]);
            found += sums(coding, part(p), scale, &coded.units[p * units..][..units])[0];
        }
        let mut least = f64::INFINITY;
        for step in -10..=10i16 {
            let d = f16_value(coded.d.wrapping_add_signed(16 * step));
            let mut total = 0.0;
            for p in 0..PARTS {
                let costs = (0..coding.multipliers.count)
                    .map(|code| fit(coding, part(p), d * coding.multipliers.value(code)).cost);
                total += f64::from(costs.fold(f32::INFINITY, f32::min));
            }
            least = least.min(total);
        }
        best += least;
    }
    found / best
}

#[test]
fn coded_blocks_have_nearly_the_least_error_there_is() {
    let cases = [
        (against_best::<8, 3, 16>(&twos()), 1.105),
        (against_best::<4, 8, 8>(&threes()), 1.076),
        (against_best::<8, 3, 8>(&ones()), 1.0005),
    ];
    is_within(&cases);
}
