//! Fixed-size vectors of numbers: the search state of several blocks at once, one block per lane.
//!
//! All operations are loops over arrays that are inlined into their callers and compiled to the caller's SIMD level.
//! Lanes never interact, so the result of each lane is the same on every CPU.

use std::ops::{Add, Div, Mul, Sub};

/// Weights beyond this would overflow the sums; no block can represent a tenth of it.
const LARGEST: f32 = (1u32 << 30) as f32;

/// 1.5 · 2^23: adding it to an f32 leaves no room for a fraction and rounds to an integer in the low bits.
const SHIFT: f32 = 12_582_912.0;

/// `L` numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes<const L: usize>(pub [f32; L]);

impl<const L: usize> Lanes<L> {
    pub const ZERO: Self = Self([0.0; L]);

    #[inline(always)]
    pub fn all(value: f32) -> Self {
        Self([value; L])
    }

    #[inline(always)]
    pub fn map(mut self, f: impl Fn(f32) -> f32) -> Self {
        for k in 0..L {
            self.0[k] = f(self.0[k]);
        }
        self
    }

    #[inline(always)]
    fn with(mut self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        for k in 0..L {
            self.0[k] = f(self.0[k], other.0[k]);
        }
        self
    }

    #[inline(always)]
    pub fn min(self, other: Self) -> Self {
        self.with(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    pub fn max(self, other: Self) -> Self {
        self.with(other, |a, b| if a > b { a } else { b })
    }

    /// Clamps to `low..=high`.
    #[inline(always)]
    pub fn clamp(self, low: f32, high: f32) -> Self {
        self.max(Self::all(low)).min(Self::all(high))
    }

    /// Rounds to the nearest integers within `low..=high`, ties to even.
    #[inline(always)]
    pub fn round(self, low: f32, high: f32) -> Self {
        self.map(|value| round(value, low, high))
    }

    /// `1 / value`, or 0 if that is not finite: then codes and weights are 0.
    #[inline(always)]
    pub fn reciprocal(self) -> Self {
        self.map(reciprocal)
    }

    /// Selects per lane: `then` if `a < b`, otherwise `other`.
    #[inline(always)]
    pub fn if_less(a: Self, b: Self, then: Self, other: Self) -> Self {
        let mut chosen = other;
        for k in 0..L {
            chosen.0[k] = if a.0[k] < b.0[k] { then.0[k] } else { other.0[k] };
        }
        chosen
    }

    /// The lanes in order.
    #[inline(always)]
    pub fn sum(self) -> f32 {
        let mut sum = 0.0;
        for k in 0..L {
            sum += self.0[k];
        }
        sum
    }
}

impl<const L: usize> Add for Lanes<L> {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }
}

impl<const L: usize> Sub for Lanes<L> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.with(other, |a, b| a - b)
    }
}

impl<const L: usize> Mul for Lanes<L> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.with(other, |a, b| a * b)
    }
}

impl<const L: usize> Div for Lanes<L> {
    type Output = Self;
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.with(other, |a, b| a / b)
    }
}

/// `1 / value`, or 0 if that is not finite.
#[inline(always)]
pub(crate) fn reciprocal(value: f32) -> f32 {
    let inverse = 1.0 / value;
    if value.abs() < f32::MIN_POSITIVE { 0.0 } else { inverse }
}

/// Rounds to the nearest integer within `low..=high`, ties to even.
#[inline(always)]
pub(crate) fn round(value: f32, low: f32, high: f32) -> f32 {
    let value = if value > low { value } else { low };
    let value = if value < high { value } else { high };
    // Unlike `f32::round`, this compiles to SIMD on every x86-64 level.
    (value + SHIFT) - SHIFT
}

/// Rounds to the nearest integer, halves away from zero, as `f32::round` does; for magnitudes up to 2^22.
#[inline(always)]
pub(crate) fn round_away(value: f32) -> f32 {
    // Unlike `f32::round`, this compiles to SIMD on every x86-64 level.
    let even = (value + SHIFT) - SHIFT;
    // The difference is exact. A half that was rounded toward zero goes to the other side.
    let rest = value - even;
    let is_inward = rest.abs() == 0.5 && (rest > 0.0) == (value > 0.0);
    if is_inward { even + 2.0 * rest } else { even }
}

/// Rounds a number from 0 to 2^22 down.
#[inline(always)]
pub(crate) fn floor(value: f32) -> f32 {
    let whole = (value + SHIFT) - SHIFT;
    if whole > value { whole - 1.0 } else { whole }
}

/// Converts an integer from -128 to 255 to a byte, a negative one in two's complement.
#[inline(always)]
pub(crate) fn byte(whole: f32) -> u8 {
    (whole + SHIFT).to_bits() as u8
}

/// `L` groups of `N` weights, one group per lane, and the cost of an error at each weight.
pub(crate) struct Groups<const N: usize, const L: usize> {
    pub x: [Lanes<L>; N],
    pub w: [Lanes<L>; N],
}

impl<const N: usize, const L: usize> Groups<N, L> {
    /// Transposes `[L, N]` weights and costs.
    #[inline(always)]
    pub fn new(x: &[[f32; N]], w: &[[f32; N]]) -> Self {
        assert!(x.len() == L && w.len() == L);
        let mut groups = Self { x: [Lanes::ZERO; N], w: [Lanes::ZERO; N] };
        for i in 0..N {
            for l in 0..L {
                groups.x[i].0[l] = x[l][i];
                groups.w[i].0[l] = w[l][i];
            }
            groups.x[i] = groups.x[i].clamp(-LARGEST, LARGEST);
        }
        groups
    }
}

/// `[L, N]` integers plus `bias`, each sum from 0 to 255, as bytes.
#[inline(always)]
pub(crate) fn bytes<const N: usize, const L: usize>(q: &[Lanes<L>; N], bias: f32) -> [[u8; N]; L] {
    let mut bytes = [[0; N]; L];
    for (l, bytes) in bytes.iter_mut().enumerate() {
        for (byte, q) in bytes.iter_mut().zip(q) {
            *byte = self::byte(q.0[l] + bias);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Lanes<4> = Lanes([1.0, -2.0, 3.5, 0.25]);
    const B: Lanes<4> = Lanes([2.0, -4.0, 3.5, -1.0]);

    #[test]
    fn operations_act_on_each_lane() {
        assert_eq!((A + B).0, [3.0, -6.0, 7.0, -0.75]);
        assert_eq!((A - B).0, [-1.0, 2.0, 0.0, 1.25]);
        assert_eq!((A * B).0, [2.0, 8.0, 12.25, -0.25]);
        assert_eq!((A / B).0, [0.5, 0.5, 1.0, -0.25]);
        assert_eq!(A.min(B).0, [1.0, -4.0, 3.5, -1.0]);
        assert_eq!(A.max(B).0, [2.0, -2.0, 3.5, 0.25]);
        assert_eq!(A.clamp(-1.0, 2.0).0, [1.0, -1.0, 2.0, 0.25]);
        assert_eq!(A.map(|x| 10.0 * x).0, [10.0, -20.0, 35.0, 2.5]);
        assert_eq!(A.sum(), 2.75);
        let chosen = Lanes::if_less(A, B, Lanes::all(7.0), Lanes::all(9.0));
        assert_eq!(chosen.0, [7.0, 9.0, 9.0, 9.0]);
        assert_eq!(Lanes([1.5, 2.5, -2.5, 0.4]).round(-2.0, 1.0).0, [1.0, 1.0, -2.0, 0.0]);
        assert_eq!(Lanes([2.0, -0.5, 0.0, 8.0]).reciprocal().0, [0.5, -2.0, 0.0, 0.125]);
    }

    #[test]
    fn numbers_round_to_the_nearest_even_integer_within_bounds() {
        let cases = [
            (0.5, 0.0),
            (1.5, 2.0),
            (2.5, 2.0),
            (2.51, 3.0),
            (-0.5, 0.0),
            (-1.5, -2.0),
            (-3.49, -3.0),
            (6.9, 7.0),
            (7.6, 7.0),
            (1e9, 7.0),
            (-8.4, -8.0),
            (-9.0, -8.0),
            (-1e9, -8.0),
        ];
        for (value, expected) in cases {
            assert_eq!(round(value, -8.0, 7.0), expected, "{value}");
        }
    }

    /// The floats beside a number, and itself.
    fn around(value: f32) -> [f32; 3] {
        [value.next_down(), value, value.next_up()]
    }

    #[test]
    fn halves_round_away_from_zero() {
        let check = |value: f32| {
            for value in [value, -value] {
                assert_eq!(round_away(value), value.round(), "{value:e}");
            }
        };
        for half in 0..=1024u16 {
            around(f32::from(half) / 2.0).into_iter().for_each(check);
        }
        for exponent in -149..22 {
            let power = (exponent as f32).exp2();
            for value in [power, power * 1.25, power * 1.999, power + 0.5] {
                around(value).into_iter().for_each(check);
            }
        }
        // 2^22, the largest, and below it numbers with halves.
        [4_194_304.0, 4_194_303.5, 4_194_302.5, 2_097_151.8].into_iter().for_each(check);
        // All floats from 126 to 128, where the largest weight of a block of Q8_0 is; in Miri, which takes minutes for them,
        // one of 1021.
        let step = if cfg!(miri) { 1021 } else { 1 };
        (126f32.to_bits()..=128f32.to_bits()).step_by(step).map(f32::from_bits).for_each(check);
    }

    #[test]
    fn numbers_round_down() {
        for half in 0..=1024u16 {
            for value in around(f32::from(half) / 2.0).into_iter().filter(|value| *value >= 0.0) {
                assert_eq!(floor(value), value.floor(), "{value:e}");
            }
        }
        assert_eq!((floor(4_194_303.5), floor(4_194_304.0)), (4_194_303.0, 4_194_304.0));
    }

    #[test]
    fn a_reciprocal_that_is_not_finite_is_zero() {
        assert_eq!(reciprocal(4.0), 0.25);
        assert_eq!(reciprocal(-0.125), -8.0);
        // 2^-126, the smallest normal number.
        assert_eq!(reciprocal(f32::MIN_POSITIVE), 126f32.exp2());
        for value in [0.0, -0.0, 1e-40, -1e-40] {
            assert_eq!(reciprocal(value), 0.0, "{value}");
        }
    }

    #[test]
    fn groups_are_transposed_and_kept_from_overflowing() {
        let x = [[1.0, 2.0, f32::MAX], [4.0, f32::MIN, 6.0]];
        let w = [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]];
        let groups = Groups::<3, 2>::new(&x, &w);
        let limit = 1_073_741_824.0;
        assert_eq!(groups.x.map(|lanes| lanes.0), [[1.0, 4.0], [2.0, -limit], [limit, 6.0]]);
        assert_eq!(groups.w.map(|lanes| lanes.0), [[0.1, 0.4], [0.2, 0.5], [0.3, 0.6]]);
        let codes = [Lanes([-8.0, 0.0]), Lanes([7.0, 1.0]), Lanes([247.0, -1.0])];
        assert_eq!(bytes(&codes, 8.0), [[0, 15, 255], [8, 9, 7]]);
        for whole in 0..=255u8 {
            assert_eq!(byte(f32::from(whole)), whole);
            assert_eq!(byte(f32::from(whole.cast_signed())), whole);
        }
    }
}
