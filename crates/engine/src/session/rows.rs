//! Rows that a step was run for, kept until all were looked at: logits, or the best tokens where they are enough.

use super::cache::SequenceId;
use super::{Run, Session};
use crate::Error;
use crate::sampling::{Options, Row};

/// The wanted rows of the last step.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Elements of a row: the vocabulary, or how many of the best.
    width: usize,
    /// `[rows, vocab]`, unless the best are read.
    logits: Vec<f32>,
    /// `[rows, width]`, where they are read.
    best: Vec<(u32, f32)>,
    is_best: bool,
}

impl Rows {
    /// Room for `rows` rows of `session` from which tokens are chosen by `options`.
    pub fn new(session: &Session, options: &Options, rows: usize) -> Rows {
        let needs = options.needs().map(|needs| needs.min(session.vocab()));
        let best = session.top_k().filter(|&k| needs.is_some_and(|needs| needs <= k));
        match best {
            Some(k) => {
                let best = Vec::with_capacity(rows * k);
                Rows { width: k, logits: Vec::new(), best, is_best: true }
            }
            None => Rows::all(session, rows),
        }
    }

    /// The same with all logits.
    pub fn all(session: &Session, rows: usize) -> Rows {
        let width = session.vocab();
        let logits = Vec::with_capacity(rows * width);
        Rows { width, logits, best: Vec::new(), is_best: false }
    }

    /// Runs a prompt for the row after it. False where `each` stopped it.
    pub fn prefill(
        &mut self,
        session: &mut Session,
        sequence: SequenceId,
        tokens: &[u32],
        each: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, Error> {
        self.clear();
        if self.is_best {
            let top = session.prefill_top(sequence, tokens, each)?;
            return Ok(top.map(|top| self.best.extend(top.row(0))).is_some());
        }
        let row = session.prefill(sequence, tokens, each)?;
        Ok(row.map(|row| self.logits.extend_from_slice(row)).is_some())
    }

    /// Runs a step for the rows it wants.
    pub fn step(&mut self, session: &mut Session, run: Run<'_>) -> Result<(), Error> {
        self.clear();
        if self.is_best {
            let top = session.step_top(&[run])?;
            (0..top.rows()).for_each(|row| self.best.extend(top.row(row)));
        } else {
            self.logits.extend_from_slice(session.step(&[run])?);
        }
        Ok(())
    }

    /// A row of the last step.
    pub fn row(&self, at: usize) -> Row<'_> {
        let range = at * self.width..(at + 1) * self.width;
        if self.is_best { Row::Best(&self.best[range]) } else { Row::Logits(&self.logits[range]) }
    }

    /// Its logits, where they were read.
    pub fn logits(&self, at: usize) -> &[f32] {
        &self.logits[at * self.width..][..self.width]
    }

    fn clear(&mut self) {
        self.logits.clear();
        self.best.clear();
    }
}
