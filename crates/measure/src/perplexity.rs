//! Perplexity of a text, and divergence of a model from a base model, by llama.cpp's rules.
//!
//! The text is split into windows of equal length ([`Windows`]), which are independent. The logits of a window's
//! second half count, so that each scored token has at least half a window before it. No logits are computed for the
//! first half; several windows share a step, and a step computes at most as many rows of logits as fit
//! `LOGITS_BYTES`.
//!
//! Source of the rules and of the file format: llama.cpp, `tools/perplexity` (facts only).

use std::io::{Read, Write};
use std::ops::Range;

use rayon::prelude::*;

use bilayer_cpu::softmax::{self, LogSum};
use bilayer_engine::session::SequenceId;
use bilayer_engine::session::{Run, Session, Settings, Wanted};

pub(crate) mod error;
mod figures;
mod logits_file;
mod windows;

pub use error::Error;
pub use figures::{Divergence, Estimate, Mean, Pair};
pub use logits_file::Base;
pub use windows::Windows;

use logits_file::Row;

/// Maximum memory for the logits of a step.
const LOGITS_BYTES: usize = 128 << 20;

/// Maximum windows per step.
const SEQUENCES_MAX: usize = 64;

/// Tokens with a log-probability below this, in nats, do not contribute to a divergence.
const KL_LEAST: f32 = -16.0;

/// Log-probabilities of a base that are decoded together.
const RUN: usize = 1024;

/// The use of the logits besides scoring.
pub enum Logits<'a> {
    /// Nothing.
    Scored,
    /// They are written, for later comparison.
    Written(&'a mut dyn Write),
    /// They are compared with a base's, whose windows are run.
    Compared(&'a mut Base<&'a mut dyn Read>),
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The model's perplexity.
    pub estimate: Estimate,
    /// Its divergence from the base, if there is one.
    pub divergence: Option<Divergence>,
    /// Windows that were scored.
    pub windows: usize,
}

/// The settings of a session for `windows`, based on the given ones. At most `batch_size` tokens of several windows
/// are in progress at once.
pub fn settings<'s>(
    windows: &Windows,
    vocab: usize,
    batch_size: usize,
    settings: Settings<'s>,
) -> Settings<'s> {
    let len = windows.window_len();
    let sequences = (batch_size / len).clamp(1, SEQUENCES_MAX).min(windows.count().max(1));
    let rows = (LOGITS_BYTES / (4 * vocab)).clamp(1, settings.ubatch_size.max(1));
    let outputs = Some(rows.min(sequences * windows.scored()));
    Settings { ctx_size: Some(len), sequences, outputs, top_k: None, ..settings }
}

/// Scores all windows on a session prepared by [`settings`]. `each` receives the estimate after every step, and stops
/// the work by returning false; then nothing is returned.
///
/// # Errors
/// A device fails; base logits cannot be written or read.
pub fn score(
    session: &mut Session,
    windows: &Windows,
    logits: Logits<'_>,
    each: &mut dyn FnMut(&Report) -> bool,
) -> Result<Option<Report>, crate::Error> {
    let mut scorer =
        Scorer { vocab: session.vocab(), logits, report: Report::default(), bytes: Vec::new() };
    match &mut scorer.logits {
        Logits::Scored => {}
        Logits::Written(out) => logits_file::write_header(*out, windows, scorer.vocab)?,
        Logits::Compared(_) => scorer.report.divergence = Some(Divergence::default()),
    }
    let together = session.limits().sequences;
    for first in (0..windows.count()).step_by(together) {
        let group = first..windows.count().min(first + together);
        if !scorer.group(session, windows, group, each)? {
            return Ok(None);
        }
    }
    Ok(Some(scorer.report))
}

/// The part of a window that is run in one step.
struct Piece<'w> {
    sequence: SequenceId,
    tokens: &'w [u32],
    /// The tokens that their logits predict; as many as tokens if logits are requested.
    targets: &'w [u32],
}

struct Scorer<'a> {
    vocab: usize,
    logits: Logits<'a>,
    report: Report,
    /// Buffer for rows of a file.
    bytes: Vec<u8>,
}

impl Scorer<'_> {
    /// Runs some windows together. Returns whether to continue.
    fn group(
        &mut self,
        session: &mut Session,
        windows: &Windows,
        group: Range<usize>,
        each: &mut dyn FnMut(&Report) -> bool,
    ) -> Result<bool, crate::Error> {
        let texts: Vec<Vec<u32>> = group.clone().map(|window| windows.run(window)).collect();
        let open = |_| session.open();
        let sequences: Vec<SequenceId> = group.clone().map(open).collect::<Result<_, _>>()?;
        let (half, end) = (windows.first_scored(), windows.window_len() - 1);
        let parts = || sequences.iter().zip(&texts).zip(group.clone());
        let read = parts().map(|((&sequence, text), _)| (sequence, &text[..half], &[][..]));
        let said = parts().map(|((&sequence, text), window)| {
            (sequence, &text[half..end], windows.targets(window))
        });
        let limits = session.limits();
        let steps = [packed(read, limits.tokens), packed(said, limits.tokens.min(limits.outputs))];
        for step in steps.iter().flatten() {
            self.step(session, step)?;
            if !each(&self.report) {
                return Ok(false);
            }
        }
        sequences.into_iter().for_each(|sequence| session.close(sequence));
        self.report.windows += group.len();
        Ok(each(&self.report))
    }

    fn step(&mut self, session: &mut Session, step: &[Piece<'_>]) -> Result<(), crate::Error> {
        let runs = step.iter().map(|piece| Run {
            sequence: piece.sequence,
            tokens: piece.tokens,
            wanted: if piece.targets.is_empty() { Wanted::None } else { Wanted::All },
        });
        let logits = session.step(&runs.collect::<Vec<_>>())?;
        let targets: Vec<u32> = step.iter().flat_map(|piece| piece.targets).copied().collect();
        Ok(self.rows(logits, &targets)?)
    }

    /// Scores rows of logits `[targets, vocab]`.
    fn rows(&mut self, logits: &[f32], targets: &[u32]) -> Result<(), Error> {
        let vocab = self.vocab;
        let row_bytes = logits_file::row_bytes(vocab);
        let rows = || logits.par_chunks_exact(vocab).zip(targets);
        match &mut self.logits {
            Logits::Scored => {
                let nll: Vec<f64> =
                    rows().map(|(row, &token)| Spread::new(row).nll(token)).collect();
                nll.into_iter().for_each(|nll| self.report.estimate.add(nll));
            }
            Logits::Written(out) => {
                self.bytes.resize(targets.len() * row_bytes, 0);
                let nll: Vec<f64> = rows()
                    .zip(self.bytes.par_chunks_exact_mut(row_bytes))
                    .map(|((row, &token), bytes)| {
                        let spread = Spread::new(row);
                        logits_file::encode_row(row, spread.most, spread.ln_sum as f32, bytes);
                        spread.nll(token)
                    })
                    .collect();
                out.write_all(&self.bytes).map_err(Error::Write)?;
                nll.into_iter().for_each(|nll| self.report.estimate.add(nll));
            }
            Logits::Compared(base) => {
                self.bytes.resize(targets.len() * row_bytes, 0);
                base.rows(&mut self.bytes)?;
                let pairs: Vec<Pair> = rows()
                    .zip(self.bytes.par_chunks_exact(row_bytes))
                    .map(|((row, &token), bytes)| compare(row, Row::new(bytes, vocab), token))
                    .collect();
                let divergence = self.report.divergence.get_or_insert_default();
                for pair in &pairs {
                    divergence.add(pair);
                    self.report.estimate.add(pair.nll);
                }
            }
        }
        Ok(())
    }
}

/// Packs texts into steps of at most `limit` tokens, in order; a text that does not fit continues in the next step.
fn packed<'w>(
    texts: impl Iterator<Item = (SequenceId, &'w [u32], &'w [u32])>,
    limit: usize,
) -> Vec<Vec<Piece<'w>>> {
    let mut steps: Vec<Vec<Piece<'w>>> = Vec::new();
    let mut room = 0;
    for (sequence, mut tokens, mut targets) in texts {
        while !tokens.is_empty() {
            if room == 0 {
                steps.push(Vec::new());
                room = limit;
            }
            let (now, later) = tokens.split_at(tokens.len().min(room));
            let (now_targets, later_targets) = targets.split_at(targets.len().min(now.len()));
            if let Some(step) = steps.last_mut() {
                step.push(Piece { sequence, tokens: now, targets: now_targets });
            }
            room -= now.len();
            (tokens, targets) = (later, later_targets);
        }
    }
    steps
}

/// The normalization of a row of logits.
struct Spread<'a> {
    logits: &'a [f32],
    most: f32,
    /// Logarithm of the sum of `exp(logit - most)`.
    ln_sum: f64,
}

impl Spread<'_> {
    fn new(logits: &[f32]) -> Spread<'_> {
        let LogSum { largest, ln_sum } = softmax::log_sum(logits);
        Spread { logits, most: largest, ln_sum }
    }

    fn nll(&self, token: u32) -> f64 {
        f64::from(self.most) + self.ln_sum - f64::from(self.logits[token as usize])
    }
}

/// Compares one row of both models.
fn compare(logits: &[f32], base: Row<'_>, token: u32) -> Pair {
    let spread = Spread::new(logits);
    let whole = f64::from(spread.most) + spread.ln_sum;
    let mut kl = 0.0;
    let mut best = (0, f32::NEG_INFINITY);
    let (mut ln_p, mut p) = ([0.0; RUN], [0.0; RUN]);
    for (first, logits) in (0..).step_by(RUN).zip(logits.chunks(RUN)) {
        let (ln_p, p) = (&mut ln_p[..logits.len()], &mut p[..logits.len()]);
        base.read(first, ln_p);
        softmax::exp(ln_p, p);
        for (place, ((&ln_p, &p), &logit)) in (first..).zip(ln_p.iter().zip(&*p).zip(logits)) {
            if ln_p > best.1 {
                best = (place, ln_p);
            }
            if ln_p > KL_LEAST {
                kl += f64::from(p) * (f64::from(ln_p) - f64::from(logit) + whole);
            }
        }
    }
    let first_best = logits.iter().position(|&logit| logit == spread.most);
    Pair {
        nll: spread.nll(token),
        base_nll: -f64::from(base.ln_p(token as usize)),
        kl,
        is_same_top: first_best == Some(best.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece's sequence, tokens and targets.
    type Shown<'a> = (u32, &'a [u32], &'a [u32]);

    #[test]
    fn steps_are_full_and_keep_the_order() {
        let mut pages = bilayer_engine::session::Pages::new(2, 2, 32);
        let (a, b) = (pages.open().unwrap(), pages.open().unwrap());
        let texts = [(a, &[1, 2, 3, 4, 5][..], &[2, 3, 4, 5, 6][..]), (b, &[7, 8, 9], &[8, 9, 10])];
        let steps = packed(texts.into_iter(), 4);
        let shown: Vec<Vec<Shown<'_>>> = steps
            .iter()
            .map(|step| {
                step.iter().map(|p| (u32::from(p.sequence == b), p.tokens, p.targets)).collect()
            })
            .collect();
        let expected: [Vec<Shown<'_>>; 2] = [
            vec![(0, &[1, 2, 3, 4], &[2, 3, 4, 5])],
            vec![(0, &[5], &[6]), (1, &[7, 8, 9], &[8, 9, 10])],
        ];
        assert_eq!(shown, expected);
        let unread = packed([(a, &[1, 2][..], &[][..])].into_iter(), 4);
        assert!(unread[0][0].targets.is_empty());
    }
}
