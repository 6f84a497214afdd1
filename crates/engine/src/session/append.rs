//! The tokens of a step in the cache's book-keeping: appended before it runs, removed as far as it did not.

use bilayer_graph::PAGE_TOKENS;

use super::cache::Pages;
use super::{Run, Session, Wanted, batch};
use crate::Error;

impl Session {
    /// Appends the runs' tokens to their sequences and allocates cache pages.
    pub(super) fn append(&mut self, runs: &[Run<'_>]) -> Result<(), Error> {
        let vocab = self.vocab();
        let Session { cache, limits, starts, copies, are_copies_held, .. } = self;
        starts.clear();
        cache.begin();
        within("sequences", runs.len(), limits.sequences)?;
        // Nor may a later run write a page that an earlier one gets back if the step fails. A cache without room for a copy
        // in each run has none to spare for that.
        let repeated = |at: usize| runs[..at].iter().any(|run| run.sequence == runs[at].sequence);
        let needed = runs.iter().enumerate().map(|(at, run)| {
            cache.pages_needed(run.sequence, run.tokens.len()) + usize::from(repeated(at))
        });
        *are_copies_held = cache.free_pages() >= needed.sum();
        let outputs = runs.iter().map(|run| match run.wanted {
            Wanted::None => 0,
            Wanted::First | Wanted::Last => run.tokens.len().min(1),
            Wanted::All | Wanted::Verified => run.tokens.len(),
        });
        within("outputs", outputs.sum(), limits.outputs)?;
        for run in runs {
            if let Some(&token) = run.tokens.iter().find(|&&token| token as usize >= vocab) {
                return Err(Error::Token { token, vocab });
            }
            let known = copies.len();
            starts.push(cache.append(run.sequence, run.tokens, copies)?);
            if *are_copies_held {
                cache.hold_copied(&copies[known..]);
            }
        }
        for (run, &start) in runs.iter().zip(&*starts) {
            mark(cache, run, start);
        }
        Ok(())
    }

    /// Removes what was appended after the first `rows` rows of the step.
    pub(super) fn keep(&mut self, runs: &[Run<'_>], rows: usize) {
        let mut end: usize = batch::rows(&runs[..self.starts.len()]);
        // In reverse order, since a sequence may occur twice.
        for (run, &start) in runs.iter().zip(&self.starts).rev() {
            let first = end - run.tokens.len();
            let kept = rows.clamp(first, end) - first;
            self.cache.stop(run.sequence, start + kept);
            end = first;
        }
    }

    /// Removes what was appended for a step that could not be begun.
    pub(super) fn withdraw(&mut self, runs: &[Run<'_>]) {
        self.keep(runs, 0);
        self.share_again();
    }

    /// Removes what was appended for a step that failed.
    pub(super) fn fail(&mut self, runs: &[Run<'_>]) {
        for (run, &start) in runs.iter().zip(&self.starts).rev() {
            self.cache.fail(run.sequence, start);
        }
        self.share_again();
    }

    /// Gives sequences the pages back whose copies were not made, or only on some devices.
    fn share_again(&mut self) {
        self.copies.iter().rev().for_each(|&copy| self.cache.share_again(copy));
        self.forget_copies();
    }

    /// Notes that the copies of the step have been made, or are not wanted.
    pub(super) fn forget_copies(&mut self) {
        if std::mem::take(&mut self.are_copies_held) {
            self.cache.release_copied(&self.copies);
        }
        self.copies.clear();
    }
}

/// Adds the checkpoints of a run besides the one at its end: after each draft token; or at the last page boundary, and at
/// others before it at growing distances.
fn mark(cache: &mut Pages, run: &Run<'_>, start: usize) {
    let end = start + run.tokens.len();
    match run.wanted {
        Wanted::Verified => {
            (start + 1..end).for_each(|at| cache.mark(run.sequence, at));
            cache.pass(run.sequence, start);
        }
        _ => {
            let mut boundary = end.saturating_sub(1) / PAGE_TOKENS * PAGE_TOKENS;
            let mut distance = PAGE_TOKENS;
            while boundary > start {
                cache.mark(run.sequence, boundary);
                boundary = boundary.saturating_sub(distance);
                distance *= 2;
            }
        }
    }
}

/// Refuses more than a limit.
pub(super) fn within(what: &'static str, found: usize, limit: usize) -> Result<(), Error> {
    if found > limit {
        return Err(bilayer_graph::Error::Limit { what, limit, found }.into());
    }
    Ok(())
}
