//! The way of a product's results to their places: plus bias, through an activation or gate, plus residual, in one pass.

use std::ops::Range;

use bilayer_graph::Activation;

use crate::lanes::{Kernel, Lanes};
use crate::memory::LINE_BYTES;
use crate::ops::gate;
use crate::stage::{Buffer, Context};

/// Distance of the places that are prefetched.
const TOKENS_AHEAD: usize = 12;

/// What is added to results besides the bias.
#[derive(Clone, Copy)]
pub(super) enum Residual<'a> {
    /// What is in their places.
    Place,
    /// Another value, `[tokens, width]`.
    Of(&'a [f32]),
}

/// Some columns of the output, which a chunk alone writes.
pub(super) struct Place<'a, 'c> {
    pub(super) context: &'a Context<'c>,
    pub(super) out: Buffer,
    pub(super) columns: Range<usize>,
}

impl<'c> Place<'_, 'c> {
    /// Those of the first tokens; to be asked for once.
    #[inline(always)]
    pub(super) fn tokens(&self, count: usize) -> impl Iterator<Item = &'c mut [f32]> + use<'c> {
        // SAFETY: each chunk writes different columns, and asks for them once.
        unsafe { self.out.columns_mut(self.context, self.columns.clone(), count) }
    }
}

/// Stores the results of some rows of a matrix for all tokens.
pub(super) struct Store<'a, 'c> {
    /// `[tokens, rows]`.
    pub(super) results: &'a [f32],
    /// What the activation's results are multiplied with, `[tokens, rows]`.
    pub(super) up: Option<&'a [f32]>,
    /// `[rows]`.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) activation: Option<Activation>,
    pub(super) residual: Option<Residual<'a>>,
    pub(super) place: &'a Place<'a, 'c>,
}

impl Kernel for Store<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        // Each a loop of its own, without branches between the vectors.
        match self.activation {
            None => self.all(l, Identity),
            Some(Activation::Gelu) => self.all(l, Gelu),
            Some(Activation::Silu) => self.all(l, Silu),
            Some(activation) => self.all(l, activation),
        }
    }
}

impl Store<'_, '_> {
    /// A loop of its own for each kind of sum, without branches between the vectors.
    #[inline(always)]
    fn all<L: Lanes, A: Activate>(&self, l: L, activate: A) {
        match (self.bias, self.residual) {
            (None, None) => self.each(l, activate, None, None),
            (Some(bias), None) => self.each(l, activate, Some(bias), None),
            (None, Some(Residual::Place)) => self.each(l, activate, None, Some(Residual::Place)),
            (Some(bias), Some(Residual::Place)) => {
                self.each(l, activate, Some(bias), Some(Residual::Place));
            }
            (bias, of) => self.each(l, activate, bias, of),
        }
    }

    #[inline(always)]
    fn each<L: Lanes, A: Activate>(
        &self,
        l: L,
        activate: A,
        bias: Option<&[f32]>,
        residual: Option<Residual<'_>>,
    ) {
        let (columns, width) = (&self.place.columns, self.place.out.width);
        let results = self.results.chunks_exact(columns.len());
        let places = self.place.tokens(results.len());
        assert!(self.up.is_none_or(|up| up.len() == self.results.len()));
        assert!(bias.is_none_or(|bias| bias.len() == columns.len()));
        for (token, (results, to)) in results.zip(places).enumerate() {
            // Rows are too far apart for hardware prefetchers.
            let later = to.as_ptr().wrapping_add(TOKENS_AHEAD * width);
            for at in (0..to.len()).step_by(LINE_BYTES / 4) {
                l.prefetch(later.wrapping_add(at).cast());
            }
            let residual = residual.map(|residual| match residual {
                Residual::Place => None,
                Residual::Of(all) => Some(&all[token * width..][columns.clone()]),
            });
            let up = self.up.map(|up| &up[token * results.len()..][..results.len()]);
            store(l, activate, Row { results, up, bias, residual }, to);
        }
    }
}

/// A function of results plus bias and, of a gate, of what they are multiplied with.
trait Activate: Copy {
    fn apply<L: Lanes>(self, l: L, x: L::F, up: Option<L::F>) -> L::F;
}

#[derive(Clone, Copy)]
struct Identity;

impl Activate for Identity {
    #[inline(always)]
    fn apply<L: Lanes>(self, _: L, x: L::F, _: Option<L::F>) -> L::F {
        x
    }
}

#[derive(Clone, Copy)]
struct Gelu;

impl Activate for Gelu {
    #[inline(always)]
    fn apply<L: Lanes>(self, l: L, x: L::F, up: Option<L::F>) -> L::F {
        gate::apply(l, Activation::Gelu, x, up)
    }
}

#[derive(Clone, Copy)]
struct Silu;

impl Activate for Silu {
    #[inline(always)]
    fn apply<L: Lanes>(self, l: L, x: L::F, up: Option<L::F>) -> L::F {
        gate::apply(l, Activation::Silu, x, up)
    }
}

impl Activate for Activation {
    #[inline(always)]
    fn apply<L: Lanes>(self, l: L, x: L::F, up: Option<L::F>) -> L::F {
        gate::apply(l, self, x, up)
    }
}

/// What makes the results of one token; slices of equal length.
#[derive(Clone, Copy)]
struct Row<'a> {
    results: &'a [f32],
    up: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    /// `Some(None)` is what is in their places.
    residual: Option<Option<&'a [f32]>>,
}

impl Row<'_> {
    /// Slices as long as the place, so that vectors within it are within them.
    #[inline(always)]
    fn of(self, len: usize) -> Self {
        let all = |of: Option<_>| of.map(|of: &[f32]| &of[..len]);
        let residual = self.residual.map(all);
        Row { results: &self.results[..len], up: all(self.up), bias: all(self.bias), residual }
    }

    /// The vector of columns from `at` on, where `to` is.
    #[inline(always)]
    fn vector<L: Lanes>(&self, l: L, activate: impl Activate, at: usize, to: &[f32]) -> L::F {
        let sum = l.read(&self.results[at..]);
        let sum = match self.bias {
            Some(bias) => l.add(sum, l.read(&bias[at..])),
            None => sum,
        };
        let sum = activate.apply(l, sum, self.up.map(|up| l.read(&up[at..])));
        match self.residual {
            None => sum,
            Some(None) => l.add(l.read(to), sum),
            Some(Some(residual)) => l.add(sum, l.read(&residual[at..])),
        }
    }
}

/// The results of one token.
#[inline(always)]
fn store<L: Lanes>(l: L, activate: impl Activate, row: Row<'_>, to: &mut [f32]) {
    let row = row.of(to.len());
    let whole = to.len() / L::N * L::N;
    let mut at = 0;
    while at + L::N <= to.len() {
        let to = &mut to[at..];
        l.write(row.vector(l, activate, at, to), to);
        at += L::N;
    }
    if whole == to.len() {
        return;
    }
    // The last columns are those of a vector filled up with zeros.
    let fill = |from: &[f32]| {
        let mut filled = [0.0; 32];
        filled[..from.len() - whole].copy_from_slice(&from[whole..]);
        filled
    };
    let (results, mut last) = (fill(row.results), fill(to));
    let (bias, residual) = (row.bias.map(fill), row.residual.map(|of| of.map(fill)));
    let up = row.up.map(fill);
    let row = Row {
        results: &results,
        up: up.as_ref().map(|up| up.as_slice()),
        bias: bias.as_ref().map(|bias| bias.as_slice()),
        residual: residual.as_ref().map(|of| of.as_ref().map(|of| of.as_slice())),
    };
    l.write(row.vector(l, activate, 0, &last), &mut last);
    let rest = to.len() - whole;
    to[whole..].copy_from_slice(&last[..rest]);
}
