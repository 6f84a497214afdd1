//! Pruning a file from end to end: layers removed, patterns chosen, matrices pruned, both models scored.

use std::ops::ControlFlow;
use std::path::Path;

use bilayer_engine::{Exit, Model, open_file};
use bilayer_gguf::Metadata;

use super::drop::{self, Dropped, LayerChoice};
use super::ratios::{ChosenPattern, Goal, PatternCosts, SparseFamily};
use super::{Comparison, Prune, Pruned, Source, compare};
use crate::calibration::{predicts, windows};
use crate::convert::{check_back, write_back};
use crate::{Calibration, Error};

/// What is done to a file.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The model file, or the first of its shards.
    pub input: &'a Path,
    /// The file to write; one that exists is replaced once the new one is complete.
    pub out: &'a Path,
    /// The options of pruning.
    pub prune: Prune,
    /// Layers to remove first.
    pub dropped: Option<Dropped>,
    /// What a pattern for every matrix is chosen by, in place of the options' pattern.
    pub goal: Option<Goal>,
    /// The types of which each matrix gets the one of its chosen pattern.
    pub family: Option<SparseFamily>,
    /// The text whose activations decide.
    pub calibration: Option<Calibration<'a>>,
    /// A text that both models are scored on.
    pub test: Option<Calibration<'a>>,
    /// The folder of the checkpoint that the input was converted from, and one to write with the pruned weights.
    pub checkpoint: Option<(&'a Path, &'a Path)>,
}

/// What is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Layers are compared; counts runs.
    Layers,
    /// Patterns are compared; counts runs.
    Patterns,
    /// Matrices are pruned and written; counts bytes of the input.
    Pruning,
    /// Both models are scored; counts runs.
    Scoring,
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Done {
    /// What was pruned.
    pub pruned: Pruned,
    /// The patterns of the matrices, if they were chosen, with how many times fewer bytes decode reads.
    pub chosen: Option<(Vec<ChosenPattern>, f64)>,
    /// The divergence on the calibration text, nats per token, if it was the goal.
    pub kl: Option<f64>,
    /// The removed layers.
    pub dropped: Option<LayerChoice>,
    /// The models before and after on the test text.
    pub scored: Option<Comparison>,
}

/// Called with what is going on, how much of it is done, and its total; may stop the rest.
pub type Told<'a> = &'a mut dyn FnMut(Step, u64, u64) -> ControlFlow<()>;

/// A model and the metadata of its file, vocabulary included.
struct Opened {
    model: Model,
    metadata: Metadata,
}

impl Opened {
    fn source(&self) -> Source<'_> {
        Source { model: &self.model, metadata: &self.metadata }
    }
}

impl<'a> Job<'a> {
    /// Pruning alone.
    #[must_use]
    pub fn new(input: &'a Path, out: &'a Path, prune: Prune) -> Job<'a> {
        let (dropped, goal, family) = (None, None, None);
        let (calibration, test, checkpoint) = (None, None, None);
        Job { input, out, prune, dropped, goal, family, calibration, test, checkpoint }
    }

    /// Does it all. What [`Prune::write`] says of interrupted runs holds, but for [`Goal::Kl`], which prunes several times
    /// and keeps no journal.
    ///
    /// # Errors
    /// Those of [`Prune::write`], [`Dropped::choose`], [`PatternCosts::measure`], [`PatternCosts::write`], [`compare`] and
    /// [`write_back`], those about the input as [`Error::InFile`]; [`Error::NoPredictions`] for an encoder and what compares
    /// predictions; [`Error::Calibration`] if the input cannot be opened.
    pub fn run(&self, told: Told<'_>) -> Result<Done, Error> {
        let file = open_file(self.input).map_err(Error::calibration)?;
        if let Some((folder, out)) = self.checkpoint {
            // Before the work, which may take hours.
            check_back(folder, &file, out)?;
        }
        let metadata = file.metadata().clone();
        let opened = Opened { metadata, model: Model::new(file).map_err(Error::calibration)? };
        self.pruned(&opened, told).map_err(|error| match error {
            Error::Weight { .. }
            | Error::Prune { .. }
            | Error::Requantize { .. }
            | Error::NoPredictions { .. }
            | Error::Model(_) => error.in_file(self.input),
            // Activations that are not finite come of its weights.
            Error::Calibration(ref cause) if cause.exit_code() == Exit::BadModel => {
                error.in_file(self.input)
            }
            error => error,
        })
    }

    /// Checks what needs no run of the model.
    fn check(&self, model: &Model) -> Result<(), Error> {
        let compares = [
            (self.test.is_some(), "--test"),
            (matches!(self.goal, Some(Goal::Kl(_))), "--target-kl"),
            (matches!(self.goal, Some(Goal::Speed(_))), "--target-speed"),
            (matches!(self.dropped, Some(Dropped::Auto { .. })), "--drop-layers auto"),
        ];
        let mut flags = compares.into_iter().filter(|(is_asked, _)| *is_asked);
        flags.try_for_each(|(_, flag)| predicts(model, flag))?;
        if let Some(text) = &self.test {
            windows(model, text).map_err(|error| match error {
                Error::Text { reason, .. } => Error::Text { flag: "--test", reason },
                error => error,
            })?;
        }
        Ok(())
    }

    fn pruned(&self, opened: &Opened, told: Told<'_>) -> Result<Done, Error> {
        self.check(&opened.model)?;
        let mut reduced = None;
        if let Some(dropped) = &self.dropped {
            let told = &mut |done, total| told(Step::Layers, done, total);
            let text = self.calibration.as_ref();
            let choice = dropped.choose(opened.source(), text, self.prune.threads, told)?;
            let file = drop::without(opened.source(), &choice.layers)?;
            let metadata = file.metadata().clone();
            let model = Model::new(file).map_err(Error::calibration)?;
            reduced = Some((choice, Opened { metadata, model }));
        }
        let source = reduced.as_ref().map_or(opened, |(_, reduced)| reduced).source();
        let mut done = self.write(source, told)?;
        if let Some((folder, out)) = self.checkpoint {
            // Before scoring, which may fail or be stopped.
            write_back(folder, &open_file(self.out).map_err(Error::calibration)?, out)?;
        }
        if let Some(text) = &self.test {
            let after = open_file(self.out).and_then(Model::new).map_err(Error::calibration)?;
            let told = &mut |done, total| told(Step::Scoring, done, total);
            done.scored = Some(compare(&opened.model, &after, text, self.prune.threads, told)?);
        }
        done.dropped = reduced.map(|(choice, _)| choice);
        Ok(done)
    }

    /// Prunes and writes.
    fn write(&self, source: Source<'_>, told: Told<'_>) -> Result<Done, Error> {
        let (prune, text) = (&self.prune, self.calibration.as_ref());
        let done = |pruned, chosen, kl| Done { pruned, chosen, kl, dropped: None, scored: None };
        let Some(goal) = self.goal else {
            let told = &mut |done, total| told(Step::Pruning, done, total);
            return Ok(done(prune.write(source, text, self.out, told)?, None, None));
        };
        let text = text.ok_or_else(|| Error::Prune {
            tensor: "calibration".into(),
            reason: "a goal needs a text; give one".into(),
        })?;
        let measuring = &mut |done, total| told(Step::Patterns, done, total);
        let costs = PatternCosts::measure(prune, self.family, source.model, text, measuring)?;
        let pruning = &mut |done, total| told(Step::Pruning, done, total);
        let (pruned, chosen, kl) = costs.write(prune, goal, (source, text), self.out, pruning)?;
        let speed = costs.speed(&chosen);
        Ok(done(pruned, Some((chosen, speed)), kl))
    }
}
