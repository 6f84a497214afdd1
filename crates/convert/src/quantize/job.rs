//! Quantizing a file from end to end: types chosen, outliers moved, matrices rounded, the file written.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use bilayer_engine::Model;
use bilayer_gguf::{File, MetadataOverride};

use super::gptq::Rounded;
use super::mixed::Coarse;
use super::sensitivity::{Choices, Sensitivity};
use super::{Dropped, Plan, Planned, Quantize, mix};
use crate::calibration::predicts;
use crate::imatrix::Imatrix;
use crate::smooth::{Alpha, Smooth, Smoothed};
use crate::{Calibration, Error};

/// What is done to a file.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The model file, or the first of its shards.
    pub input: &'a Path,
    /// The file to write; one that exists is replaced once the new one is complete.
    pub out: &'a Path,
    /// The types.
    pub quantize: Quantize,
    /// What else decides how weights are rounded.
    pub method: Method<'a>,
    /// Leave the output head in its type; a head that is the embedding is not affected.
    pub keep_head: bool,
    /// Values of the metadata to replace.
    pub metadata: Vec<MetadataOverride>,
    /// Decide everything and write nothing; GPTQ, which writes a temporary file, is left out.
    pub dry_run: bool,
}

/// What decides how weights are rounded.
#[derive(Clone, Copy, Debug)]
pub enum Method<'a> {
    /// Each block alone.
    Blocks {
        /// An importance matrix, which weights the error of each column.
        imatrix: Option<&'a Path>,
    },
    /// Each block alone, in the types with which predictions change least within a size ([`Sensitivity`]).
    Budget {
        /// An importance matrix, which weights the error of each column.
        imatrix: Option<&'a Path>,
        /// The average size of a weight.
        bits_per_weight: f64,
        /// Runs through the model once per tensor.
        text: Calibration<'a>,
    },
    /// By the activations of a text.
    Activations {
        /// Move outliers of activations into the weights first ([`Smooth`]).
        smooth: Option<Alpha>,
        /// Let later columns of a row make up for the error of earlier ones ([`gptq`](super::gptq)).
        gptq: bool,
        /// Give matrices for which `W8A8` is too coarse `Q8_0` ([`mixed`](super::mixed)).
        refine: bool,
        /// Runs through the model once to smooth, once to refine, and twice for GPTQ; of an encoder each line is a text of its own.
        text: Calibration<'a>,
    },
}

/// A step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Types are compared; counts runs.
    Measuring,
    /// Outliers are moved; counts inputs of matrices.
    Smoothing,
    /// Matrices for which the type is too coarse are searched; counts layers.
    Comparing,
    /// Matrices are rounded by GPTQ; counts bytes.
    Rounding,
    /// The file is written; counts bytes.
    Writing,
}

/// What a caller is told while a job runs.
pub enum Event<'e> {
    /// A step has done so much of its total.
    Progress(Step, u64, u64),
    /// Types were chosen for a size.
    Chosen(&'e Choices),
    /// Outliers were moved.
    Smoothed(&'e Smoothed),
    /// These matrices get a finer type.
    Refined(&'e [Coarse]),
    /// Matrices were rounded by GPTQ.
    Rounded(&'e Rounded),
    /// Everything is decided; what follows is written.
    Planned(&'e Plan<'e>),
    /// Dense matrices lose weights in sparse types.
    Dropped(&'e [Dropped]),
}

/// Called with each event; may stop the rest.
pub type Told<'a> = &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>;

/// What was done, or would be.
#[derive(Clone, Debug)]
pub struct Done {
    /// The tensors in the order of the file.
    pub tensors: Vec<Planned>,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of all tensors before.
    pub from_bytes: u64,
    /// Bytes of all tensors after.
    pub to_bytes: u64,
    /// The types of [`Method::Budget`].
    pub chosen: Option<Choices>,
    /// The outliers that were moved.
    pub smoothed: Option<Smoothed>,
    /// Matrices that got a finer type.
    pub refined: Vec<Coarse>,
    /// What dense matrices lose in sparse types.
    pub dropped: Vec<Dropped>,
    /// How long writing took; `None` if nothing was written.
    pub wrote: Option<Duration>,
}

/// What measurements have changed.
#[derive(Default)]
struct Found {
    chosen: Option<Choices>,
    smoothed: Option<Smoothed>,
    refined: Vec<Coarse>,
}

impl<'a> Job<'a> {
    /// A job with [`Method::Blocks`] and no other option.
    #[must_use]
    pub fn new(input: &'a Path, out: &'a Path, quantize: Quantize) -> Job<'a> {
        Job {
            input,
            out,
            quantize,
            method: Method::Blocks { imatrix: None },
            keep_head: false,
            metadata: Vec::new(),
            dry_run: false,
        }
    }

    /// Does it all. On an error nothing is left behind, and an existing file at the output's path is unchanged.
    ///
    /// # Errors
    /// Those of [`Quantize::plan`], [`Plan::dropped`], [`Sensitivity::measure`], [`Sensitivity::choose`], [`Smooth::measure`],
    /// [`Quantize::too_coarse`], [`Quantize::gptq`] and [`Plan::write`], those about the input as [`Error::InFile`];
    /// [`Error::Calibration`] if a file cannot be read; [`Error::Interrupted`] if `told` breaks.
    pub fn run(&self, told: Told<'_>) -> Result<Done, Error> {
        let mut quantize = self.quantize.clone();
        let file = self.open()?;
        let head = file.tensor("output.weight").filter(|_| self.keep_head);
        quantize.output = head.map(|head| head.layout().ty()).or(quantize.output);
        let path = match self.method {
            Method::Blocks { imatrix } | Method::Budget { imatrix, .. } => imatrix,
            Method::Activations { .. } => None,
        };
        let imatrix = path.map(Imatrix::open).transpose()?;
        if !matches!(self.method, Method::Blocks { .. }) {
            // An invalid output path, and a mask that a type does not hold, are reported before measuring.
            let plan = quantize.plan(&file, imatrix.as_ref());
            let plan = plan.map_err(|error| self.of_input(error))?;
            plan.check_output(self.out)?;
            plan.dropped().map_err(|error| self.of_input(error))?;
        }
        let mut found = Found::default();
        let file = self.measured((file, imatrix.as_ref()), (&mut quantize, &mut found), told)?;
        let rounded = if self.runs_model(&quantize) {
            let model = model_of(&file)?;
            self.rounded(&model, (&mut quantize, &mut found), told)?
        } else {
            None
        };
        let mut plan =
            quantize.plan(&file, imatrix.as_ref()).map_err(|error| self.of_input(error))?;
        if let Some(path) = path {
            plan.cite(path);
        }
        if let Some(rounded) = &rounded {
            plan.take(rounded);
        }
        plan.override_metadata(&self.metadata).map_err(|error| self.of_input(error))?;
        plan.check_output(self.out)?;
        let dropped = plan.dropped().map_err(|error| self.of_input(error))?;
        goes_on(told(Event::Planned(&plan)))?;
        goes_on(told(Event::Dropped(&dropped)))?;
        let wrote = if self.dry_run { None } else { Some(self.write(&plan, told)?) };
        let Found { chosen, smoothed, refined } = found;
        let (parameters, from_bytes, to_bytes) =
            (plan.parameters(), plan.from_bytes(), plan.to_bytes());
        let tensors = plan.tensors().to_vec();
        Ok(Done {
            tensors,
            parameters,
            from_bytes,
            to_bytes,
            chosen,
            smoothed,
            refined,
            dropped,
            wrote,
        })
    }

    /// Opens the input.
    fn open(&self) -> Result<File, Error> {
        let file = File::open(self.input).and_then(|file| file.overridden(&self.metadata));
        file.map_err(|error| Error::calibration(bilayer_engine::Error::File(error)))
    }

    /// Chooses types or moves outliers; returns the file to quantize.
    fn measured(
        &self,
        (file, imatrix): (File, Option<&Imatrix>),
        (quantize, found): (&mut Quantize, &mut Found),
        told: Told<'_>,
    ) -> Result<File, Error> {
        match &self.method {
            Method::Budget { bits_per_weight, text, .. } => {
                let model = model_of(&file)?;
                predicts(&model, "--target-bpw").map_err(|error| self.of_input(error))?;
                Sensitivity::check(quantize, &model, imatrix, *bits_per_weight)?;
                let told_of =
                    &mut |done, total| told(Event::Progress(Step::Measuring, done, total));
                let sensitivity = Sensitivity::measure(quantize, &model, imatrix, text, told_of);
                let sensitivity = sensitivity.map_err(|error| self.of_input(error))?;
                let chosen = sensitivity.choose(*bits_per_weight)?;
                goes_on(told(Event::Chosen(&chosen)))?;
                if let Some(base) = chosen.base() {
                    // The file declares the mix of the type of most weights.
                    quantize.mix = mix(base.name)?;
                }
                quantize.overrides.extend(chosen.rules());
                found.chosen = Some(chosen);
                Ok(file)
            }
            Method::Activations { smooth: Some(alpha), text, .. } => {
                let (alpha, ty) = (*alpha, quantize.mix.base);
                let smooth = Smooth { alpha, ty, threads: quantize.threads };
                let model = model_of(&file)?;
                let told_of =
                    &mut |done, total| told(Event::Progress(Step::Smoothing, done, total));
                let smoothed = smooth.measure(&model, text, told_of);
                let smoothed = smoothed.map_err(|error| self.of_input(error))?;
                goes_on(told(Event::Smoothed(&smoothed)))?;
                let file = smoothed.apply(file).map_err(|error| self.of_input(error))?;
                found.smoothed = Some(smoothed);
                Ok(file)
            }
            Method::Blocks { .. } | Method::Activations { smooth: None, .. } => Ok(file),
        }
    }

    /// Whether the model must run once more before it is quantized.
    fn runs_model(&self, quantize: &Quantize) -> bool {
        match self.method {
            Method::Activations { gptq, refine, .. } => {
                gptq && !self.dry_run || refine && quantize.may_be_too_coarse()
            }
            Method::Blocks { .. } | Method::Budget { .. } => false,
        }
    }

    /// Gives matrices a finer type, then rounds.
    fn rounded(
        &self,
        model: &Model,
        (quantize, found): (&mut Quantize, &mut Found),
        told: Told<'_>,
    ) -> Result<Option<Rounded>, Error> {
        let Method::Activations { gptq, refine, text, .. } = &self.method else { return Ok(None) };
        if *refine && quantize.may_be_too_coarse() {
            let told_of = &mut |done, total| told(Event::Progress(Step::Comparing, done, total));
            let coarse = quantize.too_coarse(model, text, told_of);
            found.refined = coarse.map_err(|error| self.of_input(error))?;
            goes_on(told(Event::Refined(&found.refined)))?;
            quantize.refine(&found.refined);
        }
        if !*gptq || self.dry_run {
            return Ok(None);
        }
        let told_of = &mut |done, total| told(Event::Progress(Step::Rounding, done, total));
        let rounded =
            quantize.gptq(model, text, self.out, told_of).map_err(|error| match error {
                // The temporary file cannot be written.
                Error::File(_) => error,
                error => self.of_input(error),
            })?;
        goes_on(told(Event::Rounded(&rounded)))?;
        Ok(Some(rounded))
    }

    fn write(&self, plan: &Plan<'_>, told: Told<'_>) -> Result<Duration, Error> {
        let began = Instant::now();
        let told_of = &mut |done, total| told(Event::Progress(Step::Writing, done, total));
        plan.write(self.out, told_of).map_err(|error| match error {
            Error::Weight { .. } => self.of_input(error),
            error => error,
        })?;
        Ok(began.elapsed())
    }

    /// Attributes an error to the input.
    fn of_input(&self, error: Error) -> Error {
        match error {
            Error::Interrupted | Error::Text { .. } => error,
            Error::File(error) => Error::calibration(bilayer_engine::Error::File(error)),
            error => error.in_file(self.input),
        }
    }
}

/// The model of a file, over the same weights: it takes the vocabulary out of the file that it is given, and splits tensors of
/// older ones.
fn model_of(file: &File) -> Result<Model, Error> {
    let shared = file.renamed(file.metadata().clone(), &|name| Some(name.to_owned()))?;
    Model::new(shared).map_err(Error::calibration)
}

fn goes_on(flow: ControlFlow<()>) -> Result<(), Error> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Interrupted),
    }
}
