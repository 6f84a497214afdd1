//! The float tile: `V` vectors of rows x some tokens of multiply-adds, a panel in passes over its rows. One body for all
//! levels with vectors, whose registers hold the sums.

use crate::lanes::{Lanes, Transform};
use crate::panel::ROWS;
use crate::stream::prefetch_lines;
use crate::tile::{FloatActivations, by_tokens, check_strip, in_order};

/// How products are added.
pub(super) trait Multiply<L: Lanes>: Copy {
    /// `weights` x `x` + `sums`.
    fn add(self, l: L, weights: L::F, x: L::F, sums: L::F) -> L::F;
}

/// [`Lanes::fma`].
#[derive(Clone, Copy)]
struct Fma;

impl<L: Lanes> Multiply<L> for Fma {
    #[inline(always)]
    fn add(self, l: L, weights: L::F, x: L::F, sums: L::F) -> L::F {
        l.fma(weights, x, sums)
    }
}

/// See [`crate::tile::FloatTile`]: `V` vectors of rows x up to `TOKENS`. With `SPREAD`, activations are prefetched during
/// the products instead of before them.
///
/// # Safety
/// The CPU has the instructions of `L`.
pub(super) unsafe fn tile<L: Lanes, const V: usize, const TOKENS: usize, const SPREAD: bool>(
    panel: &[[f32; ROWS]],
    columns: FloatActivations<'_>,
    strip: &mut [f32],
    stride: usize,
) {
    let product = FloatProduct::<V, TOKENS, SPREAD> { panel, columns: &columns, stride };
    // SAFETY: guaranteed by the caller.
    unsafe { L::enter(product, strip) };
}

/// A panel x activations.
pub(super) struct FloatProduct<'a, const V: usize, const TOKENS: usize, const SPREAD: bool> {
    pub panel: &'a [[f32; ROWS]],
    /// A reference: a copy of what has just been written would wait for it.
    pub columns: &'a FloatActivations<'a>,
    /// Distance from a token's 32 results to those of the next.
    pub stride: usize,
}

impl<const V: usize, const TOKENS: usize, const SPREAD: bool> Transform
    for FloatProduct<'_, V, TOKENS, SPREAD>
{
    type Out = [f32];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, strip: &mut [f32]) {
        self.add(l, Fma, strip);
    }
}

impl<const V: usize, const TOKENS: usize, const SPREAD: bool> FloatProduct<'_, V, TOKENS, SPREAD> {
    /// Adds the product to the strip.
    #[inline(always)]
    pub fn add<L: Lanes>(&self, l: L, m: impl Multiply<L>, strip: &mut [f32]) {
        if !SPREAD {
            self.columns.fetch();
        }
        for first in (0..ROWS).step_by(V * L::N) {
            let strip = &mut strip[first..];
            by_tokens!(self.columns.tokens, N up to TOKENS => {
                self.pass::<L, N>(l, m, first, strip);
            });
        }
    }

    /// Rows from `first` on x `N` tokens.
    #[inline(always)]
    fn pass<L: Lanes, const N: usize>(
        &self,
        l: L,
        m: impl Multiply<L>,
        first: usize,
        strip: &mut [f32],
    ) {
        let FloatProduct { panel, columns, stride } = *self;
        assert!(columns.values.len() == panel.len() * N && first + V * L::N <= ROWS);
        check_strip(strip, stride, N, V * L::N);
        let mut sums = [[l.splat(0.0); V]; N];
        for (t, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = l.read(&strip[t * stride + v * L::N..]);
            }
        }
        let (mut w, mut x) =
            (panel.as_ptr().cast::<f32>().wrapping_add(first), columns.values.as_ptr());
        // A macro, because a nested loop would spill the sums.
        macro_rules! column {
            () => {
                (w, x) = in_order(w, x);
                let mut column = [l.splat(0.0); V];
                for (v, column) in column.iter_mut().enumerate() {
                    // SAFETY: the panel has 32 weights a column, these from `first` on.
                    *column = unsafe { l.load(w.add(v * L::N)) };
                }
                for (t, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: there are `panel.len()` x N values.
                    let x = l.splat(unsafe { *x.add(t) });
                    for (sum, column) in sums.iter_mut().zip(column) {
                        *sum = m.add(l, column, x, *sum);
                    }
                }
                (w, x) = (w.wrapping_add(ROWS), x.wrapping_add(N));
            };
        }
        let fours = if SPREAD { panel.len() / 4 } else { 0 };
        for _ in 0..fours {
            // Four columns of six tokens are one and a half lines; each of two passes prefetches some of them.
            let wanted = x.cast::<u8>().wrapping_add(columns.ahead + first * N / 2);
            prefetch_lines(wanted, 1);
            column!();
            column!();
            column!();
            column!();
        }
        for _ in 4 * fours..panel.len() {
            column!();
        }
        for (t, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                l.write(*sum, &mut strip[t * stride + v * L::N..]);
            }
        }
    }
}
