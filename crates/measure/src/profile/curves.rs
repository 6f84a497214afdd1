//! Curves of a model on the CPU alone: speed and read bandwidth by number of threads, speed by number of sequences.

use std::ops::ControlFlow;

use bilayer_engine::{Cancel, Model};
use serde::{Deserialize, Serialize};

use super::median::median;
use super::{SLACK, number_or_nan};
use crate::Error;
use crate::bench::{Bench, Method, Setup, Test};

/// Numbers of sequences that are measured.
const SEQUENCES: [usize; 5] = [1, 2, 4, 8, 16];

/// A model on the CPU alone.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Curves {
    /// One per number of threads, rising.
    pub threads: Vec<AtThreads>,
    /// One per number of sequences, rising, with all threads.
    pub sequences: Vec<AtSequences>,
}

/// Speed with one number of threads.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct AtThreads {
    /// Number of threads.
    pub threads: usize,
    /// Decoded tokens per second of one sequence.
    pub decode_tps: f64,
    /// Tokens of a prompt per second.
    pub prefill_tps: f64,
    /// Weights read in decode, GB/s.
    #[serde(deserialize_with = "number_or_nan")]
    pub weight_gbps: f64,
    /// Bandwidth at which the same threads read the model's file, GB/s.
    #[serde(deserialize_with = "number_or_nan")]
    pub read_gbps: f64,
}

/// Speed with one number of sequences.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct AtSequences {
    /// Number of sequences that decode together.
    pub sequences: usize,
    /// Decoded tokens per second, over all of them.
    pub decode_tps: f64,
}

/// The tests of each point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub prompt: usize,
    pub decode: usize,
    pub rounds: usize,
}

impl Curves {
    /// The fewest threads that decode as fast as any number of them, but for what cannot be told apart.
    pub fn recommended(&self) -> usize {
        let best = self.threads.iter().map(|at| at.decode_tps).fold(0.0, f64::max);
        let good = self.threads.iter().find(|at| at.decode_tps >= best * (1.0 - SLACK));
        good.map_or(1, |at| at.threads)
    }

    /// What the curves say, as a sentence.
    pub fn why(&self) -> String {
        let threads = self.recommended();
        let (Some(one), Some(chosen)) =
            (self.threads.first(), self.threads.iter().find(|at| at.threads == threads))
        else {
            return "nothing was measured".to_owned();
        };
        let alone = match threads {
            1 => format!("one thread decodes {} tok/s", Digits(chosen.decode_tps)),
            _ => format!(
                "{threads} threads decode {} tok/s, {:.1} times as many as one thread",
                Digits(chosen.decode_tps),
                chosen.decode_tps / one.decode_tps
            ),
        };
        let most = self.sequences.iter().max_by(|a, b| a.decode_tps.total_cmp(&b.decode_tps));
        match most.filter(|at| at.sequences > 1) {
            Some(at) => format!(
                "{alone}; {} sequences together {} tok/s",
                at.sequences,
                Digits(at.decode_tps)
            ),
            None => alone,
        }
    }
}

/// A number with three significant digits.
struct Digits(f64);

impl std::fmt::Display for Digits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places = match self.0 {
            size if size >= 100.0 => 0,
            size if size >= 10.0 => 1,
            _ => 2,
        };
        write!(f, "{:.places$}", self.0)
    }
}

/// Numbers of threads that are measured: powers of two, and all.
pub(super) fn counts(threads: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n < threads);
    powers.chain([threads.max(1)]).collect()
}

/// Numbers of sequences that are measured: a step of up to `step_tokens` decodes a token of each.
fn sequences(step_tokens: usize) -> impl Iterator<Item = usize> {
    SEQUENCES.into_iter().filter(move |&sequences| sequences <= step_tokens)
}

/// Number of points of the curves.
pub(super) fn points(threads: usize, step_tokens: usize) -> usize {
    counts(threads).len() + sequences(step_tokens).count()
}

/// Measures the curves. `progress` is called after each point, and stops the work by returning false.
///
/// # Errors
/// Those of [`Bench::ready`] and [`Bench::run`].
pub(super) fn measured(
    model: &Model,
    setup: &Setup,
    work: Work,
    progress: &mut dyn FnMut() -> bool,
) -> Result<Option<Curves>, Error> {
    let mut bench = Bench::new(model);
    let method =
        Method { repetitions: work.rounds, warm_up: true, batch_size: work.prompt, probe: true };
    let cancel = Cancel::new();
    let mut run = |setup: &Setup, test: Test| {
        bench.ready(setup, 0, &mut |_| ControlFlow::Continue(()))?;
        bench.run(test, &method, &mut |_| {}, &cancel)
    };
    let decode = Test { generate: work.decode, ..Test::default() };
    let most = setup.threads.unwrap_or(1);
    let mut curves = Curves { threads: Vec::new(), sequences: Vec::new() };
    for threads in counts(most) {
        let setup = Setup { threads: Some(threads), ..setup.clone() };
        let prompt = Test { prompt: work.prompt, ..Test::default() };
        let (Some(decode), Some(prompt)) = (run(&setup, decode)?, run(&setup, prompt)?) else {
            return Ok(None);
        };
        curves.threads.push(AtThreads {
            threads,
            decode_tps: median(decode.samples_ts()),
            prefill_tps: median(prompt.samples_ts()),
            weight_gbps: decode.weight_gbps().unwrap_or(f64::NAN),
            read_gbps: decode.probe_mean_gbps().unwrap_or(f64::NAN),
        });
        if !progress() {
            return Ok(None);
        }
    }
    let step_tokens = setup.ubatch_size;
    let setup = Setup { parallel: sequences(step_tokens).max().unwrap_or(1), ..setup.clone() };
    for sequences in sequences(step_tokens) {
        let Some(decode) = run(&setup, Test { parallel: sequences, ..decode })? else {
            return Ok(None);
        };
        curves.sequences.push(AtSequences { sequences, decode_tps: median(decode.samples_ts()) });
        if !progress() {
            return Ok(None);
        }
    }
    Ok(Some(curves))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted_in_powers_of_two_and_all() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(2), [1, 2]);
        assert_eq!(counts(6), [1, 2, 4, 6]);
        assert_eq!(points(6, 512), 4 + SEQUENCES.len());
    }

    #[test]
    fn a_step_has_a_token_of_each_sequence() {
        assert_eq!(sequences(8).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!((sequences(1).count(), points(2, 7)), (1, 2 + 3));
    }

    #[test]
    fn the_fewest_threads_of_equal_speed_are_recommended() {
        let at = |(threads, decode_tps): (usize, f64)| AtThreads {
            threads,
            decode_tps,
            prefill_tps: 1.0,
            weight_gbps: 1.0,
            read_gbps: 1.0,
        };
        let of = |threads: &[(usize, f64)], sequences: &[(usize, f64)]| Curves {
            threads: threads.iter().copied().map(at).collect(),
            sequences: sequences
                .iter()
                .map(|&(sequences, decode_tps)| AtSequences { sequences, decode_tps })
                .collect(),
        };
        let curves = of(&[(1, 5.0), (2, 9.95), (4, 10.0)], &[(1, 10.0), (8, 31.25)]);
        assert_eq!(curves.recommended(), 2);
        assert_eq!(
            curves.why(),
            "2 threads decode 9.95 tok/s, 2.0 times as many as one thread; 8 sequences together 31.2 tok/s"
        );
        let curves = of(&[(1, 5.0), (2, 4.0)], &[(1, 5.0), (2, 4.9)]);
        assert_eq!(
            (curves.recommended(), curves.why().as_str()),
            (1, "one thread decodes 5.00 tok/s")
        );
    }
}
