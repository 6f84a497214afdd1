//! The way of a product's results to their places: plus bias and residual in one pass.

use crate::lanes::{Kernel, Lanes};

/// What is added to results besides the bias.
#[derive(Clone, Copy)]
pub(super) enum Residual<R> {
    /// What is in their places.
    Place,
    /// Another value's elements: those of a token, or by token.
    Of(R),
}

/// Stores the results of some rows of a matrix for all tokens.
pub(super) struct Store<'a, 'b, R, P> {
    /// `[tokens, rows]`.
    pub(super) results: &'a [f32],
    pub(super) rows: usize,
    /// `[rows]`.
    pub(super) bias: Option<&'b [f32]>,
    pub(super) residual: Option<Residual<R>>,
    /// Where the results of a token go, `rows` elements.
    pub(super) place: P,
}

impl<'a, R, P> Kernel for Store<'a, '_, R, P>
where
    R: Fn(usize) -> &'a [f32],
    P: Fn(usize) -> &'a mut [f32],
{
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for (token, results) in self.results.chunks_exact(self.rows).enumerate() {
            let residual = self.residual.as_ref().map(|residual| match residual {
                Residual::Place => Residual::Place,
                Residual::Of(of) => Residual::Of(of(token)),
            });
            store(l, results, self.bias, residual, (self.place)(token));
        }
    }
}

/// The results of one token.
#[inline(always)]
fn store<L: Lanes>(
    l: L,
    results: &[f32],
    bias: Option<&[f32]>,
    residual: Option<Residual<&[f32]>>,
    to: &mut [f32],
) {
    let whole = to.len() / L::N * L::N;
    for at in (0..whole).step_by(L::N) {
        let mut sum = l.read(&results[at..]);
        if let Some(bias) = bias {
            sum = l.add(sum, l.read(&bias[at..]));
        }
        sum = match residual {
            None => sum,
            Some(Residual::Place) => l.add(l.read(&to[at..]), sum),
            Some(Residual::Of(residual)) => l.add(sum, l.read(&residual[at..])),
        };
        l.write(sum, &mut to[at..]);
    }
    for at in whole..to.len() {
        let sum = results[at] + bias.map_or(0.0, |bias| bias[at]);
        to[at] = match residual {
            None => sum,
            Some(Residual::Place) => to[at] + sum,
            Some(Residual::Of(residual)) => sum + residual[at],
        };
    }
}
