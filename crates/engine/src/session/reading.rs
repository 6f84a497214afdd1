//! Steps and prompts of which another value than the logits may be read.

use super::append::within;
use super::pipeline::{Beside, Calls, Pipeline, Reading};
use super::{Run, SequenceId, Session, Wanted, batch};
use crate::Error;
use crate::settings::Overlap;

impl Session {
    /// Like [`Session::step`], for rows of `reading`, `[rows, width]`.
    pub(crate) fn step_reading(
        &mut self,
        runs: &[Run<'_>],
        reading: Reading,
    ) -> Result<&[f32], Error> {
        self.step_beside(runs, reading, None)
    }

    /// Like [`Session::step_reading`]. Once, while the host computes its longest segment, `beside` uses other devices.
    pub(crate) fn step_beside(
        &mut self,
        runs: &[Run<'_>],
        reading: Reading,
        beside: Option<Beside<'_>>,
    ) -> Result<&[f32], Error> {
        let rows = batch::rows(runs);
        within("tokens", rows, self.limits.tokens)?;
        let micro_rows = match (runs.len(), self.overlap) {
            (_, Overlap::Always) => batch::of_sequences(rows, 1),
            (0 | 1, _) if self.divides => batch::of_prompt(rows),
            (_, Overlap::Auto) => batch::of_sequences(rows, batch::SEQUENCE_ROWS),
            (_, Overlap::Off) => rows,
        };
        self.pipeline.reading = reading;
        let beside = beside.map(|beside| beside as Beside<'_>);
        let each = &mut |_| true;
        let mut calls = Calls { beside, ..Calls::each(each) };
        let ran = self.run(runs, micro_rows, &mut calls)?;
        Ok(&self.pipeline.results[..ran.made])
    }

    /// Like [`Session::prefill`], for the row of `reading`, `[width]`.
    pub(crate) fn prefill_reading(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        each: &mut dyn FnMut(usize) -> bool,
        reading: Reading,
    ) -> Result<Option<&[f32]>, Error> {
        self.prefill_calling(sequence, tokens, reading, &mut Calls::each(each))
    }

    /// Like [`Session::prefill_reading`], with everything that may be called meanwhile.
    pub(crate) fn prefill_calling(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        reading: Reading,
        calls: &mut Calls<'_>,
    ) -> Result<Option<&[f32]>, Error> {
        let whole = self.limits.tokens;
        let micro_rows = if self.divides { batch::of_prompt(tokens.len()) } else { whole };
        let run = Run { sequence, tokens, wanted: Wanted::Last };
        self.pipeline.reading = reading;
        let ran = self.run(&[run], micro_rows.min(whole), calls)?;
        let is_whole = ran.rows == tokens.len();
        Ok(is_whole.then(|| &self.pipeline.results[..ran.made]))
    }

    /// What the last step read.
    pub(crate) fn results(&self) -> &[f32] {
        let Pipeline { results, filled, reading, .. } = &self.pipeline;
        &results[..filled * reading.width]
    }
}
