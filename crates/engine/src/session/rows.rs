//! The requested rows of a step, stored until all are sampled: logits, or only the best tokens if these suffice.

use super::top::Top;
use super::{Reading, Session};
use crate::sampling::Row;

/// The requested rows of the last step.
#[derive(Debug)]
pub(crate) struct OutputRows {
    /// The value that a step reads for them.
    pub reading: Reading,
    /// `[rows, width]`; empty if logits are read.
    best: Vec<(u32, f32)>,
    /// `[rows, width]`; empty if only the best tokens are read.
    logits: Vec<f32>,
    /// Elements per row: the vocabulary, or the number of best tokens.
    width: usize,
    is_best: bool,
}

impl OutputRows {
    /// Allocates `rows` rows of `session`, of which so many of the best tokens suffice, or all are needed.
    pub fn new(session: &Session, needs: Option<usize>, rows: usize) -> OutputRows {
        let needs = needs.map(|needs| needs.min(session.vocab()));
        match session.best().filter(|(k, _)| needs.is_some_and(|needs| needs <= *k)) {
            Some((k, reading)) => {
                let best = Vec::with_capacity(rows * k);
                OutputRows { reading, best, logits: Vec::new(), width: k, is_best: true }
            }
            None => OutputRows::all(session, rows),
        }
    }

    /// Allocates `rows` rows with all logits.
    pub fn all(session: &Session, rows: usize) -> OutputRows {
        let width = session.vocab();
        let logits = Vec::with_capacity(rows * width);
        OutputRows { reading: session.logits(), best: Vec::new(), logits, width, is_best: false }
    }

    /// Replaces the rows by those that a step has read, `[rows, reading.width]`.
    pub fn fill(&mut self, data: &[f32]) {
        self.logits.clear();
        self.best.clear();
        if self.is_best {
            let top = Top { k: self.width, data };
            (0..top.rows()).for_each(|row| self.best.extend(top.row(row)));
        } else {
            self.logits.extend_from_slice(data);
        }
    }

    /// A row of the last step.
    pub fn row(&self, at: usize) -> Row<'_> {
        let range = at * self.width..(at + 1) * self.width;
        if self.is_best { Row::Best(&self.best[range]) } else { Row::Logits(&self.logits[range]) }
    }

    /// Its logits, if they were read.
    pub fn logits(&self, at: usize) -> &[f32] {
        &self.logits[at * self.width..][..self.width]
    }
}
