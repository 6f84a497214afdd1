//! Runs of a calibration text: activations of the matrices, reference logits, and divergence of a changed model.

use std::fs;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::ops::ControlFlow;

use bilayer_engine::layers::{Layers, Then};
use bilayer_engine::session::{Session, Settings};
use bilayer_engine::{Encode, Model};
use bilayer_measure::imatrix::{Collector, Moment, Scope};
use bilayer_measure::perplexity::{self, Base, Logits, Report, Windows, score};

use crate::imatrix::Imatrix;
use crate::{Error, Progress};

/// A calibration run.
#[derive(Clone, Copy, Debug)]
pub struct Calibration<'a> {
    /// The text.
    pub text: &'a str,
    /// Tokens per window.
    pub window_len: usize,
    /// Maximum number of windows; half of each one's tokens are scored.
    pub windows: usize,
}

/// Runs of a calibration text over a model and changed copies of it.
pub(crate) struct Runs<'a> {
    model: &'a Model,
    windows: Windows,
    threads: Option<usize>,
    /// The unchanged model's logits.
    base: fs::File,
    base_bytes: u64,
    /// Divergence of the unchanged model from its own stored logits, due to their rounding.
    floor: f64,
    progress: Progress<'a>,
    done: u64,
    total: u64,
}

impl<'a> Runs<'a> {
    /// `progress` receives the number of finished runs and `total`.
    ///
    /// # Errors
    /// [`Error::Text`] if the text is too short, [`Error::NoPredictions`] for an encoder, [`Error::Scratch`].
    pub fn new(
        model: &'a Model,
        calibration: &Calibration<'_>,
        threads: Option<usize>,
        total: u64,
        progress: Progress<'a>,
    ) -> Result<Runs<'a>, Error> {
        predicts(model, &model.name())?;
        let windows = windows(model, calibration)?;
        let base = tempfile::tempfile().map_err(Error::Scratch)?;
        let (base_bytes, floor, done) = (0, 0.0, 0);
        Ok(Runs { model, windows, threads, base, base_bytes, floor, progress, done, total })
    }

    fn settings(&self, model: &Model) -> Settings<'static> {
        let batch = 4 * self.windows.window_len();
        perplexity::settings(&self.windows, model.config().vocab, batch, on_cpu(self.threads))
    }

    /// Counts steps that were done before.
    pub fn skip(&mut self, steps: u64) {
        self.done += steps;
    }

    /// Counts a finished run.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `progress` breaks.
    pub fn step(&mut self) -> Result<(), Error> {
        self.done += 1;
        match (self.progress)(self.done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        }
    }

    /// The sums of squared activations by column.
    ///
    /// # Errors
    /// [`Error::Calibration`] if a device fails or an activation is not finite, [`Error::Interrupted`].
    pub fn activations(&mut self) -> Result<Imatrix, Error> {
        let mut collector = Collector::new(self.model.graph(), Scope::LayersAndHead);
        let (done, total) = (self.done, self.total);
        let goes_on = &mut || (self.progress)(done, total).is_continue();
        collect(self.model, &self.windows, self.threads, &mut collector, goes_on)?;
        self.step()?;
        Imatrix::collected(&collector, Vec::new(), [0; 2])
    }

    /// Stores the logits of the unchanged model; returns its perplexity.
    ///
    /// # Errors
    /// [`Error::Calibration`], [`Error::Scratch`], [`Error::Interrupted`].
    pub fn base(&mut self) -> Result<f64, Error> {
        let mut session =
            Session::new(self.model, self.settings(self.model)).map_err(Error::calibration)?;
        let mut out = BufWriter::new(&self.base);
        let (done, total) = (self.done, self.total);
        let goes_on = &mut |_: &Report| (self.progress)(done, total).is_continue();
        let report = score(&mut session, &self.windows, Logits::Written(&mut out), goes_on);
        let report = report.map_err(Error::calibration)?.ok_or(Error::Interrupted)?;
        out.flush().map_err(Error::Scratch)?;
        drop(out);
        self.base_bytes = self.base.metadata().map_err(Error::Scratch)?.len();
        self.step()?;
        self.floor = kl(&self.compared(self.model)?);
        self.step()?;
        Ok(report.estimate.perplexity().value)
    }

    /// Mean divergence of `model` from the unchanged one, nats per token.
    ///
    /// # Errors
    /// [`Error::Calibration`], [`Error::Scratch`], [`Error::Interrupted`].
    pub fn divergence(&mut self, model: &Model) -> Result<f64, Error> {
        Ok(kl(&self.compared(model)?) - self.floor)
    }

    /// Perplexity of `model`, and its mean divergence from the unchanged one, nats per token.
    ///
    /// # Errors
    /// Those of [`Runs::divergence`].
    pub fn scored(&mut self, model: &Model) -> Result<(f64, f64), Error> {
        let report = self.compared(model)?;
        Ok((report.estimate.perplexity().value, kl(&report) - self.floor))
    }

    /// The scores of `model` compared with the unchanged one's logits.
    fn compared(&mut self, model: &Model) -> Result<Report, Error> {
        let mut session = Session::new(model, self.settings(model)).map_err(Error::calibration)?;
        self.base.rewind().map_err(Error::Scratch)?;
        let mut input = BufReader::with_capacity(1 << 20, &self.base);
        let input: &mut dyn Read = &mut input;
        let mut base = Base::new(input, self.base_bytes, model).map_err(Error::calibration)?;
        let (done, total) = (self.done, self.total);
        let goes_on = &mut |_: &Report| (self.progress)(done, total).is_continue();
        let report = score(&mut session, &self.windows, Logits::Compared(&mut base), goes_on);
        report.map_err(Error::calibration)?.ok_or(Error::Interrupted)
    }
}

/// Refuses an encoder where predictions are compared. `what` is the flag that asks for it: the divergence of what an encoder
/// returns, taken as logits, says nothing.
///
/// # Errors
/// [`Error::NoPredictions`].
pub(crate) fn predicts(model: &Model, what: &str) -> Result<(), Error> {
    match model.config().encoder {
        Some(_) => Err(Error::NoPredictions { what: what.to_owned() }),
        None => Ok(()),
    }
}

/// The windows of a calibration text.
///
/// # Errors
/// [`Error::Text`] if it is too short; [`Error::Calibration`] if the vocabulary cannot express it.
pub(crate) fn windows(model: &Model, calibration: &Calibration<'_>) -> Result<Windows, Error> {
    let len = calibration.window_len.min(model.config().context);
    let windows = Windows::of_text(model, calibration.text, len, Windows::ENCODE);
    let mut windows = windows.map_err(|error| match error {
        bilayer_measure::Error::Perplexity(error) => unfit(error.to_string()),
        error => Error::calibration(error),
    })?;
    windows.truncate(calibration.windows.max(1));
    Ok(windows)
}

/// The sequences of a calibration text: its windows, or for an encoder its lines, each a text of its own.
///
/// # Errors
/// [`Error::Text`] if it is too short, or has less than two lines for an encoder; [`Error::Calibration`] if the vocabulary
/// cannot express it.
pub(crate) fn sequences(
    model: &Model,
    calibration: &Calibration<'_>,
) -> Result<Vec<Vec<u32>>, Error> {
    if model.config().encoder.is_none() {
        let windows = windows(model, calibration)?;
        return Ok((0..windows.count()).map(|window| windows.run(window)).collect());
    }
    let longest = calibration.window_len.clamp(1, model.config().context);
    let encode = Encode { add_special: true, parse_special: false };
    let lines = calibration.text.lines().map(str::trim).filter(|line| !line.is_empty());
    let found = lines.clone().count();
    if found < 2 {
        return Err(unfit(format!(
            "the text has too few lines ({found}): of an encoder each line is a text of its own; give at least two, better \
             hundreds"
        )));
    }
    let sequences = lines.take(calibration.windows.max(1)).map(|line| {
        let tokens = model.tokenizer().encode(line, encode);
        let mut tokens =
            tokens.map_err(|error| Error::calibration(bilayer_engine::Error::Text(error)))?;
        tokens.truncate(longest);
        Ok(tokens)
    });
    sequences.collect()
}

/// The error of a calibration text.
fn unfit(reason: String) -> Error {
    Error::Text { flag: "--calibration", reason }
}

/// Runs all windows through the model for a collector; `goes_on` is asked after every step.
///
/// # Errors
/// [`Error::Calibration`] if a device fails or an activation is not finite; [`Error::Interrupted`].
pub(crate) fn collect(
    model: &Model,
    windows: &Windows,
    threads: Option<usize>,
    collector: &mut Collector,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<(), Error> {
    let settings = collector.settings(windows.window_len(), on_cpu(threads));
    let mut session = Session::new(model, settings).map_err(Error::calibration)?;
    let mut each = |moment: Moment<&Collector>| match moment {
        Moment::Tokens(_) => Ok(goes_on()),
        Moment::Windows(..) => Ok(true),
    };
    match collector.run(&mut session, windows, &mut each).map_err(Error::Calibration)? {
        true => Ok(()),
        false => Err(Error::Interrupted),
    }
}

/// Runs the next layer of a walk for the inputs of some of its matrices; `goes_on` is asked after every sequence.
///
/// # Errors
/// [`Error::Calibration`] if a device fails or an activation is not finite; [`Error::Interrupted`].
pub(crate) fn collect_layer(
    model: &Model,
    (layers, then): (&mut Layers, Then),
    (collector, is_wanted): (&mut Collector, &dyn Fn(&str) -> bool),
    pool: &rayon::ThreadPool,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let watched = collector.values_of(is_wanted);
    let mut wrong = None;
    let whole = layers.run(model, &watched, then, &mut |_, values| {
        wrong = pool.install(|| collector.add_values(&|value| values.get(value))).err();
        wrong.is_none() && goes_on()
    });
    match (whole.map_err(Error::calibration)?, wrong) {
        (_, Some(error)) => Err(Error::Calibration(error)),
        (false, None) => Err(Error::Interrupted),
        (true, None) => Ok(()),
    }
}

fn on_cpu(threads: Option<usize>) -> Settings<'static> {
    let placing = bilayer_engine::placement::Placing::cpu();
    Settings { threads, placing, ..Settings::default() }
}

fn kl(report: &Report) -> f64 {
    report.divergence.as_ref().map_or(0.0, |divergence| divergence.kl().value)
}
