//! The parts of the search by hand, and its blocks against the best of all scales and integers near theirs.

use super::*;
use crate::Type;
use crate::samples::{costs, values};
use crate::search::tests::is_within;

#[test]
fn a_half_is_rounded_away_from_zero() {
    let step = 1.0 / 1024.0;
    let cases = [
        (1.0, 1.0),
        (1.0 + 0.1 * step, 1.0 + step),
        (1.0 + 0.9 * step, 1.0 + step),
        (-1.0 - 0.1 * step, -1.0 - step),
        (-1.0, -1.0),
        (0.0, 0.0),
        // The smallest half is 2^-24, about 6e-8.
        (1e-8, (-24f32).exp2()),
        (5e-8, (-24f32).exp2()),
        // The largest one stays.
        (65504.0, 65504.0),
        (65505.0, 65504.0),
        (-1e9, -65504.0),
    ];
    for (value, expected) in cases {
        assert_eq!(f16_value(f16_bits_outward(value)), expected, "{value}");
    }
}

#[test]
fn the_largest_is_at_least_zero() {
    assert_eq!(largest(Lanes([-1.0, 2.5, 2.0])), 2.5);
    assert_eq!(largest(Lanes([-1.0, -0.5])), 0.0);
}

#[test]
fn lines_are_those_that_blocks_read() {
    let integers = Integers {
        d: f16_bits(0.5),
        dmin: f16_bits(0.25),
        scales: Lanes([3.0, 0.0]),
        mins: Lanes([2.0, 5.0]),
    };
    let Line { scale, min } = integers.line();
    assert_eq!((scale.0, min.0), ([1.5, 0.0], [-0.5, -1.25]));
}

#[test]
fn normal_equations_are_sums_over_sub_blocks() {
    // Two sub-blocks: a = 2 q and 3 q, b = -1 and -4.
    let integers = Integers { d: 0, dmin: 0, scales: Lanes([2.0, 3.0]), mins: Lanes([1.0, 4.0]) };
    let totals = Totals { s: Lanes([5.0, 6.0]), sx: Lanes([7.0, 8.0]) };
    let sums = LineSums { sq: Lanes([1.0, 2.0]), sqq: Lanes([3.0, 4.0]), sxq: Lanes([5.0, 6.0]) };
    let System { aa, ab, bb, ax, bx } = System::new(totals, sums, integers);
    assert_eq!((aa, ab, bb), (4.0 * 3.0 + 9.0 * 4.0, -2.0 - 12.0 * 2.0, 5.0 + 16.0 * 6.0));
    assert_eq!((ax, bx), (2.0 * 5.0 + 3.0 * 6.0, -7.0 - 4.0 * 8.0));
}

#[test]
fn equations_are_solved_where_both_scales_are_positive() {
    let halves = |d: f32, dmin: f32| Some((f16_bits(d), f16_bits(dmin)));
    // 2 d + dmin = 5 and d + 3 dmin = 5.
    let system = System { aa: 2.0, ab: 1.0, bb: 3.0, ax: 5.0, bx: 5.0 };
    assert_eq!(system.solve(), halves(2.0, 1.0));
    // 4 d - 2 dmin = 4 and -2 d + 5 dmin = 6.
    let system = System { aa: 4.0, ab: -2.0, bb: 5.0, ax: 4.0, bx: 6.0 };
    assert_eq!(system.solve(), halves(2.0, 2.0));
    // Without minimums.
    let system = System { aa: 4.0, ab: 0.0, bb: 0.0, ax: 6.0, bx: 0.0 };
    assert_eq!(system.solve(), halves(1.5, 0.0));
    let unusable = [
        // dmin would be -1, d -1, d 0.
        System { aa: 2.0, ab: 1.0, bb: 3.0, ax: 3.0, bx: -1.0 },
        System { aa: 2.0, ab: 1.0, bb: 3.0, ax: -1.0, bx: 2.0 },
        System { aa: 2.0, ab: 1.0, bb: 3.0, ax: 1.0, bx: 3.0 },
        // Undetermined.
        System { aa: 1.0, ab: 1.0, bb: 1.0, ax: 1.0, bx: 1.0 },
        System::default(),
    ];
    for (k, system) in unusable.iter().enumerate() {
        assert_eq!(system.solve(), None, "{k}");
    }
}

/// A block's weights, their costs and what a type makes of them.
struct Trip {
    x: [f32; 256],
    w: [f32; 256],
    d: u16,
    dmin: u16,
    lost: f64,
}

/// `Σ w (x - x')²`.
fn loss(x: &[f32], w: &[f32], back: impl Fn(usize) -> f32) -> f64 {
    (0..x.len()).map(|i| f64::from(w[i]) * f64::from(x[i] - back(i)).powi(2)).sum()
}

/// `at` is the offset of the scale in the block, and of the scale of the minimums.
fn trip(ty: Type, seed: u64, at: [usize; 2]) -> Trip {
    // Sub-blocks of different size and mean.
    let mut x = values::<256>(seed);
    for (i, x) in x.iter_mut().enumerate() {
        *x = (*x + 0.3) * (1.0 + (i / 16 * 7 % 5) as f32 / 4.0);
    }
    let importance = costs::<256>(seed + 100);
    let mut bytes = vec![0; ty.block_bytes];
    ty.quantize(&x, Some(&importance), &mut bytes).expect("finite");
    let mut back = [0.0; 256];
    ty.dequantize(&bytes, &mut back).expect("a block");
    let w = search::weights(&x, Some(&importance));
    let [d, dmin] = at.map(|at| u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    Trip { lost: loss(&x, &w, |i| back[i]), x, w, d, dmin }
}

/// The least error of a sub-block at any multiple of `d`.
fn least_multiple(
    x: &[f32],
    w: &[f32],
    d: f32,
    integers: std::ops::RangeInclusive<i16>,
    nearest: impl Fn(f32) -> f32,
) -> f64 {
    let error = |integer: i16| {
        let scale = d * f32::from(integer);
        if scale == 0.0 {
            return loss(x, w, |_| 0.0);
        }
        loss(x, w, |i| scale * nearest(x[i] / scale))
    };
    integers.map(error).fold(f64::INFINITY, f64::min)
}

/// The error of a type's blocks over the least one, for scales up to a tenth beside theirs and all integers.
fn scales_against_best(
    (ty, part, at): (Type, usize, usize),
    lowest: i16,
    nearest: impl Fn(f32) -> f32 + Copy,
) -> f64 {
    let (mut found, mut best) = (0.0, 0.0);
    for seed in 0..6 {
        let Trip { x, w, d, lost, .. } = trip(ty, seed, [at; 2]);
        let mut least = f64::INFINITY;
        for step in -20..=20i16 {
            let d = f16_value(d.wrapping_add_signed(4 * step));
            let mut total = 0.0;
            for (x, w) in x.chunks(part).zip(w.chunks(part)) {
                total += least_multiple(x, w, d, lowest..=-lowest - 1, nearest);
            }
            least = least.min(total);
        }
        found += lost;
        best += least;
    }
    found / best
}

#[test]
fn shared_scales_have_nearly_the_least_error_there_is() {
    let rounded = |low: f32, high: f32| move |v: f32| v.round().clamp(low, high);
    let cases = [
        (scales_against_best((Type::Q3_K, 16, 108), -32, rounded(-4.0, 3.0)), 1.006),
        (scales_against_best((Type::Q6_K, 16, 208), -128, rounded(-32.0, 31.0)), 1.101),
        (scales_against_best((Type::IQ4_XS, 32, 0), -32, crate::iq4_nl::nearest), 1.068),
    ];
    is_within(&cases);
}

/// The least error of all sub-blocks with any integers, at these two scales.
fn least_lines(trip: &Trip, part: usize, [d, dmin]: [f32; 2], tops: [u8; 2]) -> f64 {
    let [top, integers] = tops;
    let mut total = 0.0;
    for (x, w) in trip.x.chunks(part).zip(trip.w.chunks(part)) {
        let mut least = f64::INFINITY;
        for scale in 0..=integers {
            let scale = d * f32::from(scale);
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            for min in 0..=integers {
                let min = -dmin * f32::from(min);
                let code = |i: usize| ((x[i] - min) * inverse).round().clamp(0.0, f32::from(top));
                least = least.min(loss(x, w, |i| scale * code(i) + min));
            }
        }
        total += least;
    }
    total
}

/// The error of a type's blocks over the least one of all integers, at their scales and at some beside them.
fn lines_against_best(
    (ty, part, at): (Type, usize, [usize; 2]),
    tops: [u8; 2],
    steps: &[i16],
    blocks: u64,
) -> f64 {
    let (mut found, mut best) = (0.0, 0.0);
    for seed in 0..blocks {
        let trip = trip(ty, seed, at);
        let mut least = f64::INFINITY;
        for d in steps {
            for dmin in steps {
                let near = |bits: u16, step: i16| f16_value(bits.wrapping_add_signed(step));
                let scales = [near(trip.d, *d), near(trip.dmin, *dmin)];
                least = least.min(least_lines(&trip, part, scales, tops));
            }
        }
        found += trip.lost;
        best += least;
    }
    found / best
}

#[test]
fn shared_lines_have_nearly_the_least_error_there_is() {
    let cases = [
        (lines_against_best((Type::Q2_K, 16, [80, 82]), [3, 15], &[-48, -24, 0, 24, 48], 4), 1.033),
        (lines_against_best((Type::Q4_K, 32, [0, 2]), [15, 63], &[-12, 0, 12], 2), 1.03),
        (lines_against_best((Type::Q5_K, 32, [0, 2]), [31, 63], &[-12, 0, 12], 2), 1.118),
    ];
    is_within(&cases);
}
