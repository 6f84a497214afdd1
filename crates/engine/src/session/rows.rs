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
}

impl OutputRows {
    /// Allocates `rows` rows of `session`, of which so many of the best tokens suffice, or all are needed.
    pub fn new(session: &Session, needs: Option<usize>, rows: usize) -> OutputRows {
        let reading = session.reading(needs);
        let width = reading.top_k.unwrap_or(reading.width);
        let (best, logits) = match reading.top_k {
            Some(_) => (Vec::with_capacity(rows * width), Vec::new()),
            None => (Vec::new(), Vec::with_capacity(rows * width)),
        };
        OutputRows { reading, best, logits, width }
    }

    /// Allocates `rows` rows with all logits.
    pub fn all(session: &Session, rows: usize) -> OutputRows {
        OutputRows::new(session, None, rows)
    }

    /// Replaces the rows by those that a step has read, `[rows, reading.width]`.
    pub fn fill(&mut self, data: &[f32]) {
        self.logits.clear();
        self.best.clear();
        if self.reading.top_k.is_some() {
            let top = Top::new(self.reading, data);
            (0..top.rows()).for_each(|row| self.best.extend(top.row(row)));
        } else {
            self.logits.extend_from_slice(data);
        }
    }

    /// A row of the last step.
    pub fn row(&self, at: usize) -> Row<'_> {
        let range = at * self.width..(at + 1) * self.width;
        match self.reading.top_k {
            Some(_) => Row::Best(&self.best[range]),
            None => Row::Logits(&self.logits[range]),
        }
    }

    /// Its logits, if they were read.
    pub fn logits(&self, at: usize) -> &[f32] {
        &self.logits[at * self.width..][..self.width]
    }
}
