//! Numbers side by side: what a search knows of several runs of weights at once, a lane for each.
//!
//! Everything is loops over arrays that are inlined to where they are used, and become the SIMD of the function around
//! them. A lane never meets another, so that each finds what it would find alone, on every processor.

use std::ops::{Add, Div, Mul, Sub};

/// Weights beyond this would overflow the sums; no block can represent a tenth of it.
const LARGEST: f32 = (1u32 << 30) as f32;

/// 1.5 · 2^23: beside it an f32 has no room for a fraction, and its lowest bits count.
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

    /// From `low` to `high`.
    #[inline(always)]
    pub fn clamp(self, low: f32, high: f32) -> Self {
        self.max(Self::all(low)).min(Self::all(high))
    }

    /// The nearest whole numbers from `low` to `high`, ties to even.
    #[inline(always)]
    pub fn round(self, low: f32, high: f32) -> Self {
        self.map(|value| round(value, low, high))
    }

    /// `1 / value`, or 0 where that would not be finite: codes then are 0, and so are the weights.
    #[inline(always)]
    pub fn reciprocal(self) -> Self {
        self.map(reciprocal)
    }

    /// In each lane `then` where `a < b`, otherwise `other`.
    #[inline(always)]
    pub fn if_less(a: Self, b: Self, then: Self, other: Self) -> Self {
        let mut chosen = other;
        for k in 0..L {
            chosen.0[k] = if a.0[k] < b.0[k] { then.0[k] } else { other.0[k] };
        }
        chosen
    }

    /// From the first lane to the last.
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

/// `1 / value`, or 0 where that would not be finite.
#[inline(always)]
pub(crate) fn reciprocal(value: f32) -> f32 {
    let inverse = 1.0 / value;
    if value.abs() < f32::MIN_POSITIVE { 0.0 } else { inverse }
}

/// The nearest whole number from `low` to `high`, ties to even.
#[inline(always)]
pub(crate) fn round(value: f32, low: f32, high: f32) -> f32 {
    let value = if value > low { value } else { low };
    let value = if value < high { value } else { high };
    // Unlike `f32::round`, this is SIMD on every x86-64.
    (value + SHIFT) - SHIFT
}

/// A whole number from 0 to 255 as a byte.
#[inline(always)]
pub(crate) fn byte(whole: f32) -> u8 {
    (whole + SHIFT).to_bits() as u8
}

/// `L` runs of `N` weights, a lane for each, and what an error costs at each weight.
pub(crate) struct Runs<const N: usize, const L: usize> {
    pub x: [Lanes<L>; N],
    pub w: [Lanes<L>; N],
}

impl<const N: usize, const L: usize> Runs<N, L> {
    /// From `[L, N]` weights and costs.
    #[inline(always)]
    pub fn new(x: &[[f32; N]], w: &[[f32; N]]) -> Self {
        assert!(x.len() == L && w.len() == L);
        let mut runs = Self { x: [Lanes::ZERO; N], w: [Lanes::ZERO; N] };
        for i in 0..N {
            for l in 0..L {
                runs.x[i].0[l] = x[l][i];
                runs.w[i].0[l] = w[l][i];
            }
            runs.x[i] = runs.x[i].clamp(-LARGEST, LARGEST);
        }
        runs
    }
}

/// `[L, N]` whole numbers, each and `bias` together from 0 to 255, as bytes.
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
