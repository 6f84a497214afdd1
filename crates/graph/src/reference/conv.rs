//! Causal convolution over time, each channel by itself.

use super::state::States;
use crate::Step;

/// The inputs of the op.
pub(super) struct Inputs<'a> {
    /// `[T, channels]`.
    pub rows: &'a [f32],
    /// `[channels, taps]`; the last tap is the current row's.
    pub weight: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
}

/// Computes `out [T, channels]`; the state is the last `taps - 1` rows, oldest first. Sums are f64.
pub(super) fn conv(inputs: &Inputs<'_>, states: &mut States, step: &Step<'_>, out: &mut [f32]) {
    let channels = out.len() / step.tokens.len();
    let taps = inputs.weight.len() / channels;
    for span in step.states {
        states.carry(span, |past, row| {
            let input = &inputs.rows[row * channels..][..channels];
            for c in 0..channels {
                let weight = &inputs.weight[c * taps..][..taps];
                let mut sum = inputs.bias.map_or(0.0, |bias| f64::from(bias[c]));
                for j in 0..taps - 1 {
                    sum += f64::from(weight[j]) * f64::from(past[j * channels + c]);
                }
                sum += f64::from(weight[taps - 1]) * f64::from(input[c]);
                out[row * channels + c] = sum as f32;
            }
            past.copy_within(channels.., 0);
            past[(taps - 2) * channels..].copy_from_slice(input);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Inputs, conv};
    use crate::reference::state::States;
    use crate::{Exactness, StateSpan, Step};

    /// Runs rows `[T, 1]` with taps 1, 10, 100.
    fn run(rows: &[f32], states: &mut States, spans: &[StateSpan]) -> Vec<f32> {
        let step = Step {
            tokens: &vec![0; rows.len()],
            spans: &[],
            pages: &[],
            outputs: &[],
            states: spans,
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        let mut out = vec![f32::NAN; rows.len()];
        let inputs = Inputs { rows, weight: &[1.0, 10.0, 100.0], bias: Some(&[0.5]) };
        conv(&inputs, states, &step, &mut out);
        out
    }

    #[test]
    fn rows_see_those_before_them_in_their_own_sequence() {
        let mut states = States::new(2, 3);
        let span = |first_row, rows, from, to| StateSpan { first_row, rows, from, to };
        // Two sequences, the first in two spans.
        let spans = [span(0, 1, None, 0), span(1, 2, Some(0), 1), span(3, 1, None, 2)];
        let out = run(&[1.0, 2.0, 3.0, 4.0], &mut states, &spans);
        assert_eq!(out, [100.5, 210.5, 321.5, 400.5]);
        assert_eq!(states.save(&[0, 1, 2]), [0.0, 1.0, 2.0, 3.0, 0.0, 4.0]);
        // Again from the state after the first row.
        let out = run(&[5.0], &mut states, &[span(0, 1, Some(0), 0)]);
        assert_eq!((out[0], states.save(&[0])), (510.5, vec![1.0, 5.0]));
    }
}
