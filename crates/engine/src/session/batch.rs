//! Splits the rows of a step into micro-batches, and builds their arrays.

use std::ops::Range;

use bilayer_graph::{Exactness, Limits, PageCopy, Rows, Span, StateSpan, Step};

use super::cache::Pages;
use super::checkpoints::Checkpoint;
use super::strengths::{Given, Strengths};
use super::{Run, SequenceId, Wanted};

/// Minimum rows per micro-batch of a prompt: below, unpacking weights costs more than overlap saves.
const PROMPT_ROWS: usize = 32;

/// Number of rows from which a prompt is split further, and the minimum number of micro-batches. With `n` of them,
/// two equally fast devices take `(n + 1) / 2n` of the sequential time: 5/8 for four.
const WIDE_ROWS: usize = 64;
const WIDE_PARTS: usize = 4;

/// Maximum number of micro-batches of a prompt.
pub const PARTS_MAX: usize = WIDE_PARTS;

/// Minimum rows of each half of a step of several sequences: fewer are bound by reading weights, which each half
/// repeats.
pub const SEQUENCE_ROWS: usize = 16;

/// The arrays of a micro-batch, reused between steps to avoid allocation.
pub struct Batch {
    tokens: Vec<u32>,
    spans: Vec<Span>,
    pages: Vec<u32>,
    outputs: Vec<u32>,
    states: Vec<StateSpan>,
    copies: Vec<PageCopy>,
    /// Of each adapter for each row, `[rows, adapters]`.
    strengths: Vec<f32>,
    exactness: Exactness,
    /// Number of best tokens that are searched for in each requested row.
    pub top_k: usize,
    /// Rows of the step before its own.
    pub first_row: usize,
}

impl Batch {
    /// Allocates for the limits.
    pub fn reserved(limits: &Limits) -> Batch {
        Batch {
            tokens: Vec::with_capacity(limits.tokens),
            spans: Vec::with_capacity(limits.sequences),
            pages: Vec::with_capacity(limits.page_entries),
            outputs: Vec::with_capacity(limits.outputs),
            states: Vec::with_capacity(limits.states + limits.sequences),
            copies: Vec::with_capacity(2 * limits.sequences),
            strengths: Vec::new(),
            exactness: Exactness::Fastest,
            top_k: 0,
            first_row: 0,
        }
    }

    /// The step for a backend.
    pub fn step(&self) -> Step<'_> {
        Step {
            tokens: &self.tokens,
            spans: &self.spans,
            pages: &self.pages,
            outputs: &self.outputs,
            states: &self.states,
            copies: &self.copies,
            top_k: self.top_k,
            exactness: self.exactness,
        }
    }

    /// Number of rows of a value.
    pub fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.tokens.len(),
            Rows::Outputs => self.outputs.len(),
        }
    }

    /// Writes the rows of a given value `[rows, width]`.
    pub fn give(&self, given: &Given, (rows, width): (Rows, usize), out: &mut [f32]) {
        let adapters = self.strengths.len() / self.tokens.len().max(1);
        let strength = |row: usize| given.factor * self.strengths[row * adapters + given.adapter];
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            out.fill(match rows {
                Rows::Tokens => strength(row),
                Rows::Outputs => strength(self.outputs[row] as usize),
            });
        }
    }

    /// Replaces the contents by the rows `stretch` of all runs' rows, each run with the position of its first token and its
    /// sequence's checkpoints, and page copies to be performed before.
    pub fn fill<'r>(
        &mut self,
        runs: impl Iterator<Item = (Run<'r>, usize, &'r [Checkpoint])>,
        stretch: Range<usize>,
        (cache, strengths, copies): (&Pages, &Strengths, &[PageCopy]),
    ) {
        self.clear();
        self.first_row = stretch.start;
        self.copies.extend_from_slice(copies);
        let mut first = 0;
        for (run, start, checkpoints) in runs {
            let end = first + run.tokens.len();
            let part = stretch.start.clamp(first, end)..stretch.end.clamp(first, end);
            if !part.is_empty() {
                let own = part.start - first..part.end - first;
                if !checkpoints.is_empty() {
                    self.carry(start, own.clone(), checkpoints);
                }
                self.push(&run, start, own, cache.table(run.sequence));
                let strengths = strengths.of(run.sequence);
                part.for_each(|_| self.strengths.extend_from_slice(strengths));
            }
            first = end;
        }
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
        self.pages.clear();
        self.outputs.clear();
        self.states.clear();
        self.copies.clear();
        self.strengths.clear();
        self.exactness = Exactness::Fastest;
        self.top_k = 0;
    }

    /// Adds the spans of state of the tokens `part` of a run that begins at position `start`: each ends at the next
    /// checkpoint, or continues in the same slot in the next micro-batch.
    fn carry(&mut self, start: usize, part: Range<usize>, checkpoints: &[Checkpoint]) {
        let mut first_row = self.tokens.len() as u32;
        let (mut position, end) = (start + part.start, start + part.end);
        while position < end {
            let next = checkpoints.partition_point(|at| at.position <= position);
            let Checkpoint { position: until, slot: to, .. } = checkpoints[next];
            let before = next.checked_sub(1).map(|before| checkpoints[before]);
            let from = match (position, before) {
                (0, _) => None,
                (_, Some(at)) if at.position == position => Some(at.slot),
                // An earlier micro-batch of this run has brought the slot up to here.
                _ => Some(to),
            };
            let rows = (until.min(end) - position) as u32;
            self.states.push(StateSpan { first_row, rows, from, to });
            first_row += rows;
            position += rows as usize;
        }
    }

    /// Adds the tokens `part` of a run that begins at position `start`.
    fn push(&mut self, run: &Run<'_>, start: usize, part: Range<usize>, table: &[u32]) {
        let first_row = self.tokens.len() as u32;
        let span = Span {
            first_row,
            rows: part.len() as u32,
            first_position: (start + part.start) as u32,
            first_page: self.pages.len() as u32,
        };
        let wanted = match run.wanted {
            Wanted::None => 0..0,
            Wanted::First => 0..u32::from(part.start == 0),
            Wanted::Last => span.rows - u32::from(part.end == run.tokens.len())..span.rows,
            Wanted::All | Wanted::Verified => 0..span.rows,
        };
        if run.wanted == Wanted::Verified {
            self.exactness = Exactness::PerRow;
        }
        self.outputs.extend(wanted.map(|row| first_row + row));
        self.tokens.extend_from_slice(&run.tokens[part]);
        self.pages.extend_from_slice(table);
        self.spans.push(span);
    }
}

/// Runs whose tokens are in the cache's book-keeping, and the split of their rows.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// The runs.
    pub runs: &'a [Run<'a>],
    /// Position of each run's first token.
    pub starts: &'a [usize],
    /// The page tables.
    pub cache: &'a Pages,
    /// Page copies performed first.
    pub copies: &'a [PageCopy],
    /// Of the adapters.
    pub strengths: &'a Strengths,
    /// The split of the rows.
    pub cut: Cut,
    /// Number of best tokens that are searched for in each requested row.
    pub top_k: usize,
}

/// The split of rows into micro-batches.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Maximum rows per micro-batch; all but the last have exactly this many if runs may be split.
    pub rows: usize,
    /// Runs are not split: a micro-batch has as many as fit, and a run longer than `rows` is alone.
    pub whole_runs: bool,
}

impl Work<'_> {
    /// Number of micro-batches.
    pub fn count(&self) -> usize {
        match self.cut.whole_runs {
            true => self.ends().count(),
            false => rows(self.runs).div_ceil(self.cut.rows),
        }
    }

    /// Rows of the first `count` micro-batches.
    pub fn rows_of(&self, count: usize) -> usize {
        match (self.cut.whole_runs, count) {
            (false, _) => (count * self.cut.rows).min(rows(self.runs)),
            (true, 0) => 0,
            (true, _) => self.ends().nth(count - 1).unwrap_or_else(|| rows(self.runs)),
        }
    }

    /// Rows up to the end of each micro-batch of whole runs.
    fn ends(&self) -> impl Iterator<Item = usize> + '_ {
        let most = self.cut.rows;
        let mut next = 0;
        std::iter::from_fn(move || {
            let first: usize = rows(&self.runs[..next]);
            let mut end = first;
            while let Some(run) = self.runs.get(next)
                && (end == first || end + run.tokens.len() - first <= most)
            {
                end += run.tokens.len();
                next += 1;
            }
            (end > first).then_some(end)
        })
    }

    /// The sequences with tokens in some micro-batches, and the positions of these tokens.
    pub fn spans(
        &self,
        micro_batches: Range<usize>,
    ) -> impl Iterator<Item = (SequenceId, Range<usize>)> + '_ {
        let stretch = self.rows_of(micro_batches.start)..self.rows_of(micro_batches.end);
        let mut first = 0;
        self.runs.iter().zip(self.starts).filter_map(move |(run, &start)| {
            let end = first + run.tokens.len();
            let part = stretch.start.clamp(first, end)..stretch.end.clamp(first, end);
            let positions = start + part.start - first..start + part.end - first;
            first = end;
            (!part.is_empty()).then_some((run.sequence, positions))
        })
    }

    /// Fills `batch` with the rows of a micro-batch: a contiguous range of all runs' rows.
    pub fn fill(&self, micro_batch: usize, batch: &mut Batch) {
        let stretch = self.rows_of(micro_batch)..self.rows_of(micro_batch + 1);
        let runs = self.runs.iter().zip(self.starts);
        let runs = runs.map(|(&run, &start)| (run, start, self.cache.checkpoints(run.sequence)));
        let copies = if micro_batch == 0 { self.copies } else { &[] };
        batch.fill(runs, stretch, (self.cache, self.strengths, copies));
        batch.top_k = self.top_k;
    }
}

/// Total rows of all runs.
pub fn rows(runs: &[Run<'_>]) -> usize {
    runs.iter().map(|run| run.tokens.len()).sum()
}

/// Rows per micro-batch if as few as possible of at most `most` rows are made, of equal size.
pub fn even(rows: usize, most: usize) -> usize {
    rows.div_ceil(rows.div_ceil(most).max(1))
}

/// Rows per micro-batch for one sequence's `rows`: at least two micro-batches unless too small.
pub fn of_prompt(rows: usize) -> usize {
    let parts = if rows < 2 * PROMPT_ROWS { 1 } else { (rows / WIDE_ROWS).clamp(2, WIDE_PARTS) };
    rows.div_ceil(parts)
}

/// Rows per micro-batch for several sequences' `rows`: two halves, unless they would have less than `least`.
pub fn of_sequences(rows: usize, least: usize) -> usize {
    if rows < 2 * least { rows } else { rows.div_ceil(2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_runs_are_packed_and_never_cut() {
        let tokens = [7; 9];
        let runs = [5, 3, 9, 2].map(|len| Run {
            sequence: SequenceId(0),
            tokens: &tokens[..len],
            wanted: Wanted::Last,
        });
        let (pages, strengths) = (Pages::new(1, 1, 1), Strengths::default());
        let work = |rows, whole_runs| Work {
            runs: &runs,
            starts: &[0; 4],
            cache: &pages,
            copies: &[],
            strengths: &strengths,
            cut: Cut { rows, whole_runs },
            top_k: 0,
        };
        let ends = |work: Work<'_>| (0..=work.count()).map(|n| work.rows_of(n)).collect::<Vec<_>>();
        assert_eq!(ends(work(8, true)), [0, 8, 17, 19]);
        assert_eq!(ends(work(1, true)), [0, 5, 8, 17, 19]);
        assert_eq!(ends(work(64, true)), [0, 19]);
        assert_eq!(ends(work(8, false)), [0, 8, 16, 19]);
    }
}
