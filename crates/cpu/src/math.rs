//! Vectorized exponential and the functions built on it: SiLU, tanh, both forms of GELU.

use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};

/// `exp(v)` with a relative error below 2e-7; 0 below about -87.7, infinity above about 88.4.
///
/// `exp(v) = 2^n * exp(r)`, where `n` is the integer nearest to `v / ln 2` and `|r| <= ln 2 / 2`. For `r`, `ln 2` is
/// split in two parts so that `n * ln 2` is exact (Cody and Waite 1980). `exp(r)` is a polynomial of degree 6 with
/// the coefficients of Cephes' `expf` (Moshier).
#[inline(always)]
pub(crate) fn exp<L: Lanes>(l: L, v: L::F) -> L::F {
    // Clamping first preserves NaN.
    let v = l.min(l.splat(88.8), l.max(l.splat(-87.9), v));
    let n = l.round(l.mul(v, l.splat(std::f32::consts::LOG2_E)));
    let r = l.fma(n, l.splat(-0.693_359_4), v);
    let r = l.fma(n, l.splat(2.121_944_4e-4), r);
    let mut p = l.splat(1.987_569_1e-4);
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = l.fma(p, r, l.splat(coefficient));
    }
    let p = l.fma(l.mul(r, r), p, l.add(r, l.splat(1.0)));
    l.mul(p, l.exp2_whole(n))
}

/// `2^v` for `v <= 0`, with a relative error below 2e-7; 0 below -126.5.
///
/// Computed as [`exp`], with a polynomial of degree 6 for `2^r`, `|r| <= 1/2`, of minimal relative error (8e-8 in
/// f32).
#[inline(always)]
pub(crate) fn exp2_falling<L: Lanes>(l: L, v: L::F) -> L::F {
    use std::f32::consts::LN_2;
    // Clamping first preserves NaN.
    let v = l.max(l.splat(-127.0), v);
    let n = l.round(v);
    let r = l.sub(v, n);
    let mut p = l.splat(1.534_585_2e-4);
    for coefficient in [1.339_993_2e-3, 9.618_489e-3, 5.550_328_6e-2, 0.240_226_46, LN_2, 1.0] {
        p = l.fma(p, r, l.splat(coefficient));
    }
    l.mul(p, l.exp2_whole(n))
}

/// `tanh(v) = 1 - 2 / (exp(2 v) + 1)`; absolute error below 3e-7.
#[inline(always)]
pub(crate) fn tanh<L: Lanes>(l: L, v: L::F) -> L::F {
    let e = exp(l, l.add(v, v));
    l.sub(l.splat(1.0), l.div(l.splat(2.0), l.add(e, l.splat(1.0))))
}

/// `v / (1 + exp(-v))`.
#[inline(always)]
pub(crate) fn silu<L: Lanes>(l: L, v: L::F) -> L::F {
    logistic_part(l, v, 1.0)
}

/// `1 / (1 + exp(-v))`.
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(l: L, v: L::F) -> L::F {
    let e = exp(l, l.sub(l.splat(0.0), v));
    l.div(l.splat(1.0), l.add(l.splat(1.0), e))
}

/// `v / (1 + exp(-slope v))`.
#[inline(always)]
pub(crate) fn logistic_part<L: Lanes>(l: L, v: L::F, slope: f32) -> L::F {
    let e = exp(l, l.mul(v, l.splat(-slope)));
    l.div(v, l.add(l.splat(1.0), e))
}

/// `0.5 v (1 + tanh(sqrt(2/pi) (v + 0.044715 v^3)))`.
#[inline(always)]
pub(crate) fn gelu_tanh<L: Lanes>(l: L, v: L::F) -> L::F {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let cube = l.mul(l.mul(v, v), v);
    let inner = l.mul(l.splat(SQRT_2_OVER_PI), l.fma(cube, l.splat(0.044_715), v));
    let half = l.mul(l.splat(0.5), v);
    l.fma(half, tanh(l, inner), half)
}

/// `0.5 v (1 + erf(v / sqrt(2)))`; absolute error below 1e-6, relative below 4e-6 down to -5.
///
/// Computed as `max(v, 0) - |v| E / 2` with `E = erfc(|v| / sqrt(2))`, which avoids cancellation. `E` is the
/// polynomial times `exp` of Abramowitz and Stegun 7.1.26, whose own error is 1.5e-7.
#[inline(always)]
pub(crate) fn gelu<L: Lanes>(l: L, v: L::F) -> L::F {
    let size = l.abs(v);
    let z = l.mul(size, l.splat(std::f32::consts::FRAC_1_SQRT_2));
    let t = l.div(l.splat(1.0), l.fma(l.splat(0.327_591_1), z, l.splat(1.0)));
    let mut p = l.splat(1.061_405_4);
    for coefficient in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = l.fma(p, t, l.splat(coefficient));
    }
    let tail = exp(l, l.mul(l.mul(v, v), l.splat(-0.5)));
    let part = l.mul(l.mul(l.mul(p, t), tail), l.mul(l.splat(0.5), size));
    l.sub(l.max(v, l.splat(0.0)), part)
}

/// An elementwise function of one variable, applied by [`map`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    /// `factor * x`.
    Scale(f32),
    /// `cap * tanh(x / cap)`.
    SoftCap(f32),
    /// The exponential alone.
    Exp,
    /// 2 to a power of 0 or less.
    #[cfg(test)]
    Exp2Falling,
}

/// `out[i] = function(input[i])`; slices of equal length.
pub(crate) fn map(level: Level, function: Function, input: &[f32], out: &mut [f32]) {
    dispatch(level, Map { function, input, out });
}

struct Map<'a> {
    function: Function,
    input: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Map<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        assert_eq!(self.input.len(), self.out.len());
        let whole = self.input.len() / L::N * L::N;
        for at in (0..whole).step_by(L::N) {
            // SAFETY: `at + N` is within both slices.
            unsafe {
                let y = self.function.apply(l, l.load(self.input.as_ptr().add(at)));
                l.store(y, self.out.as_mut_ptr().add(at));
            }
        }
        let mut rest = [0.0; 32];
        let tail = self.input.len() - whole;
        rest[..tail].copy_from_slice(&self.input[whole..]);
        // SAFETY: N <= 32.
        unsafe {
            let y = self.function.apply(l, l.load(rest.as_ptr()));
            l.store(y, rest.as_mut_ptr());
        }
        self.out[whole..].copy_from_slice(&rest[..tail]);
    }
}

impl Function {
    #[inline(always)]
    fn apply<L: Lanes>(self, l: L, x: L::F) -> L::F {
        match self {
            Function::Scale(factor) => l.mul(l.splat(factor), x),
            Function::SoftCap(cap) => l.mul(l.splat(cap), tanh(l, l.mul(x, l.splat(1.0 / cap)))),
            Function::Exp => exp(l, x),
            #[cfg(test)]
            Function::Exp2Falling => exp2_falling(l, x),
        }
    }
}

/// Rounds to f16, ties to even; a number out of range becomes the largest, an infinity NaN. Slices of equal length.
pub(crate) fn to_f16(level: Level, input: &[f32], out: &mut [u16]) {
    dispatch(level, ToF16 { input, out });
}

struct ToF16<'a> {
    input: &'a [f32],
    out: &'a mut [u16],
}

impl Kernel for ToF16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        assert_eq!(self.input.len(), self.out.len());
        let whole = self.input.len() / L::N * L::N;
        for at in (0..whole).step_by(L::N) {
            // SAFETY: `at + N` is within both slices.
            unsafe {
                let x = l.load(self.input.as_ptr().add(at));
                let bounded = l.min(l.splat(65504.0), l.max(l.splat(-65504.0), x));
                // Adding 0 times an infinity gives NaN.
                let shown = l.fma(x, l.splat(0.0), bounded);
                l.store_f16(shown, self.out.as_mut_ptr().add(at));
            }
        }
        for (out, &x) in self.out[whole..].iter_mut().zip(&self.input[whole..]) {
            *out = half::f16::from_f32_const(x.clamp(-65504.0, 65504.0) + x * 0.0).to_bits();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_tanh_are_within_their_stated_errors() {
        let x: Vec<f32> = (-87_000..88_000).map(|i| i as f32 * 1e-3 + 3.7e-4).collect();
        let mut y = vec![0.0; x.len()];
        for level in Level::available() {
            map(level, Function::Exp, &x, &mut y);
            let error = |(&x, &y): (&f32, &f32)| (f64::from(y) / f64::from(x).exp() - 1.0).abs();
            let worst = x.iter().zip(&y).map(error).fold(0.0, f64::max);
            assert!(worst < 2e-7, "{level}: {worst}");

            let falling: Vec<f32> = (-126_000..=0).map(|i| i as f32 * 1e-3).collect();
            let mut powers = vec![0.0; falling.len()];
            map(level, Function::Exp2Falling, &falling, &mut powers);
            let error = |(&x, &y): (&f32, &f32)| (f64::from(y) / f64::from(x).exp2() - 1.0).abs();
            let worst = falling.iter().zip(&powers).map(error).fold(0.0, f64::max);
            assert!(worst < 2e-7, "{level}: {worst}");

            map(level, Function::SoftCap(2.0), &x, &mut y);
            let error =
                |(&x, &y): (&f32, &f32)| (f64::from(y) / 2.0 - (f64::from(x) / 2.0).tanh()).abs();
            let worst = x.iter().zip(&y).map(error).fold(0.0, f64::max);
            assert!(worst < 3e-7, "{level}: {worst}");
        }
    }

    #[test]
    fn exp_ends_in_zero_and_infinity() {
        let x = [f32::NEG_INFINITY, -1e30, -100.0, 0.0, 100.0, f32::INFINITY, f32::MIN];
        for level in Level::available() {
            let mut y = [7.0; 7];
            map(level, Function::Exp, &x, &mut y);
            assert_eq!(y, [0.0, 0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY, 0.0], "{level}");

            let x = [f32::NEG_INFINITY, f32::MIN, -126.6, -1.0, -0.0, 0.0];
            let mut y = [7.0; 6];
            map(level, Function::Exp2Falling, &x, &mut y);
            assert_eq!(y, [0.0, 0.0, 0.0, 0.5, 1.0, 1.0], "{level}");
        }
    }
}
