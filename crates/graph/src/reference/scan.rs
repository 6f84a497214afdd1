//! A linear recurrence over time, each head by itself.

use super::state::States;
use crate::{Scan, Step, Update};

/// Columns of a value's rows.
#[derive(Clone, Copy)]
pub(super) struct RowColumns<'a> {
    /// `[T, stride]`.
    pub rows: &'a [f32],
    /// Elements per row.
    pub stride: usize,
    /// The first column.
    pub first: usize,
}

impl<'a> RowColumns<'a> {
    fn get(&self, row: usize, at: usize, len: usize) -> &'a [f32] {
        &self.rows[row * self.stride + self.first + at..][..len]
    }
}

/// The inputs of the op.
pub(super) struct Inputs<'a> {
    /// `[T, heads * head_dim]`.
    pub x: RowColumns<'a>,
    /// `[T, groups * state_dim]`.
    pub b: RowColumns<'a>,
    /// `[T, groups * state_dim]`.
    pub c: RowColumns<'a>,
    /// `[T, heads]`.
    pub dt: &'a [f32],
    /// `[T, heads]`.
    pub beta: Option<&'a [f32]>,
    /// `[heads]`.
    pub bias: &'a [f32],
    /// `[heads]`.
    pub decay: &'a [f32],
    /// `[heads]`.
    pub skip: Option<&'a [f32]>,
}

/// Computes `out [T, heads * head_dim]`; the state is `[heads, head_dim, state_dim]`, rounded to f32 after each row. Sums
/// are f64.
pub(super) fn scan(
    op: &Scan,
    inputs: &Inputs<'_>,
    states: &mut States,
    step: &Step<'_>,
    out: &mut [f32],
) {
    let len = op.head_dim * op.state_dim;
    for span in step.states {
        states.carry(span, |state, row| {
            for (head, state) in state.chunks_exact_mut(len).enumerate() {
                let at = row * op.heads * op.head_dim + head * op.head_dim;
                advance(op, inputs, (row, head), state, &mut out[at..at + op.head_dim]);
            }
        });
    }
}

/// Takes the state of one head, `[head_dim, state_dim]`, through one row; `out [head_dim]`.
fn advance(
    op: &Scan,
    inputs: &Inputs<'_>,
    (row, head): (usize, usize),
    state: &mut [f32],
    out: &mut [f32],
) {
    let Scan { heads, groups, neighbours, head_dim, state_dim, .. } = *op;
    let group = head / neighbours % groups;
    let scaled = |columns: &RowColumns<'_>, factor: f32| -> Vec<f64> {
        let columns = columns.get(row, group * state_dim, state_dim);
        columns.iter().map(|&x| f64::from(x) * f64::from(factor)).collect()
    };
    let (b, c) = (scaled(&inputs.b, op.b_factor), scaled(&inputs.c, op.c_factor));
    let dt = f64::from(inputs.dt[row * heads + head]) + f64::from(inputs.bias[head]);
    // softplus(dt), which is dt itself where exp overflows.
    let dt = if dt > 40.0 { dt } else { dt.exp().ln_1p() };
    let kept = (dt * f64::from(inputs.decay[head])).exp();
    let beta = inputs.beta.map_or(0.0, |beta| f64::from(beta[row * heads + head]));
    let skip = inputs.skip.map_or(0.0, |skip| f64::from(skip[head]));
    let x = inputs.x.get(row, head * head_dim, head_dim);
    for ((state, &x), out) in state.chunks_exact_mut(state_dim).zip(x).zip(out) {
        let (x, dot) = (f64::from(x), |state: &[f32], by: &[f64]| -> f64 {
            state.iter().zip(by).map(|(&s, by)| f64::from(s) * by).sum()
        });
        let added = match op.update {
            Update::Sum { .. } => dt * x,
            Update::Delta { .. } => (x - kept * dot(state, &b)) / (1.0 + (-beta).exp()),
        };
        for (s, b) in state.iter_mut().zip(&b) {
            *s = (kept * f64::from(*s) + added * b) as f32;
        }
        *out = (dot(state, &c) + skip * x) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::{Inputs, RowColumns, scan};
    use crate::reference::state::States;
    use crate::reference::tests::assert_near;
    use crate::{
        Columns as Of, Exactness, Scan, StateId, StateSpan, Step, Update, Value, WeightId,
    };

    /// One head of one row of two elements; softplus of the bias is 1, and the state halves with each row.
    fn run(update: Update, beta: Option<&[f32]>, skip: Option<&[f32]>) -> (Vec<f32>, Vec<f32>) {
        let of = |first| Of { value: Value(0), first };
        let op = Scan {
            x: of(0),
            b: of(1),
            c: of(3),
            b_factor: 0.5,
            c_factor: 10.0,
            dt: Value(1),
            bias: WeightId(0),
            decay: WeightId(1),
            update,
            heads: 1,
            groups: 1,
            neighbours: 1,
            head_dim: 1,
            state_dim: 2,
            state: StateId(0),
            out: Value(3),
        };
        // Of two rows x, b and c.
        let rows = [1.0, 2.0, 20.0, 0.1, 0.1, 2.0, 2.0, 0.0, 10.0, 0.1];
        let columns = |first| RowColumns { rows: &rows, stride: 5, first };
        let inputs = Inputs {
            x: columns(0),
            b: columns(1),
            c: columns(3),
            dt: &[0.0, 0.0],
            beta,
            bias: &[(std::f32::consts::E - 1.0).ln()],
            decay: &[-std::f32::consts::LN_2],
            skip,
        };
        let step = Step {
            tokens: &[0; 2],
            spans: &[],
            pages: &[],
            outputs: &[],
            states: &[StateSpan { first_row: 0, rows: 2, from: None, to: 0 }],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        let mut states = States::new(2, 1);
        let mut out = [f32::NAN; 2];
        scan(&op, &inputs, &mut states, &step, &mut out);
        (out.to_vec(), states.save(&[0]))
    }

    #[test]
    fn the_state_decays_and_takes_up_each_row() {
        let (out, state) = run(Update::Sum { skip: WeightId(2) }, None, Some(&[3.0]));
        // State 1 10, then 0.5 + 2 and 5.
        assert_near(&out, &[11.0 + 3.0, 255.0 + 6.0], 1e-5);
        assert_near(&state, &[2.5, 5.0], 1e-5);
    }

    #[test]
    fn the_delta_rule_adds_what_the_state_lacks() {
        // Rates 1/2 and nearly 1.
        let beta = [0.0, 100.0];
        let (out, state) = run(Update::Delta { beta: Value(2) }, Some(&beta), None);
        // State 0.5 5, then 0.25 + (2 - 0.25) and 2.5: the key of the second row has the value 2.
        assert_near(&out, &[5.5, 200.0 + 2.5], 1e-5);
        assert_near(&state, &[2.0, 2.5], 1e-5);
    }
}
