//! Prunes a model file: sets weights of the layers' matrices to zero, tensor by tensor, and measures the change.
//!
//! [`Method::Magnitude`] needs no data. [`Method::Wanda`] scores a weight by its magnitude times the root mean square of
//! its column's activations (Sun et al. 2023). [`Method::SparseGpt`] removes weights column by column and corrects the
//! remaining weights of the row by the inverse of X^T X (Frantar and Alistarh 2023); if the output's type has a
//! [grid](bilayer_quant::Grid), its correction includes the rounding of each weight to that type (`prune/rows.rs`). Without
//! zeros that is GPTQ, which [`Quantize`](crate::quantize::Quantize) uses.
//!
//! Activations are those of the layers that are already pruned: the calibration text runs through the model layer by
//! layer, twice through each, once more for each further group of inputs whose products fit in memory together, and the files'
//! tensors are in that order (`prune/walk.rs`). Memory holds the pruned matrices of one layer, the products of columns of a
//! group and their inverses (8 · cols² bytes per input, more while one is inverted in f64) and the hidden states of the text.
//! Embedding, head, routers and everything that is no matrix keep their weights.
//!
//! Finished matrices are kept in a journal beside the output (`prune/journal.rs`). A run that was interrupted or killed goes
//! on by them: it prunes what is missing, after one run of the text through the layers before it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bilayer_engine::{Exit, Model};
use bilayer_files::Draft;
use bilayer_gguf::{Metadata, NewTensor, Tensor};
use bilayer_measure::imatrix::{Collector, Scope};
use bilayer_quant::Type;

use crate::calibration::{self, Calibration, Runs};
use crate::mix::{is_quantized, misfit};
use crate::quantize::forget_imatrix;
use crate::stream::{self, Progress, Reporter};
use crate::{Error, overwrite};

pub mod drop;
pub mod job;
mod journal;
mod pattern;
pub mod ratios;
mod rows;
mod walk;

pub use journal::place as journal_of;
pub use pattern::{Method, Pattern};

use journal::Journal;
use walk::{Matrix, Work};

/// Most bytes of products of columns in memory, unless one matrix takes more.
pub const PRODUCTS_BYTES: usize = 512 << 20;

/// Options of pruning.
#[derive(Clone, Debug)]
pub struct Prune {
    /// How weights are chosen.
    pub method: Method,
    /// Which zeros a matrix gets, unless a rule says otherwise.
    pub pattern: Pattern,
    /// The type of the pruned matrices; by default each keeps its own.
    pub ty: Option<Type>,
    /// Matrices with another pattern.
    pub rules: Vec<MatrixPattern>,
    /// Allow matrices that are already quantized, which lose more than once.
    pub requantize: bool,
    /// Number of threads; by default one per logical CPU.
    pub threads: Option<usize>,
}

/// The pattern of one matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixPattern {
    /// The tensor.
    pub tensor: String,
    /// Its zeros; a share of 0 leaves it dense.
    pub pattern: Pattern,
    /// Its type; by default it keeps its own.
    pub ty: Option<Type>,
}

/// A model to prune.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The model.
    pub model: &'a Model,
    /// The metadata of its file with the vocabulary, which the file of a loaded model lacks.
    pub metadata: &'a Metadata,
}

/// What was pruned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pruned {
    /// Matrices with the pattern.
    pub matrices: usize,
    /// Their weights.
    pub weights: u64,
    /// How many of these are zero.
    pub zeros: u64,
    /// How many of the matrices an earlier run had finished.
    pub resumed: usize,
}

impl Pruned {
    fn add(&mut self, more: Pruned) {
        self.matrices += more.matrices;
        self.weights += more.weights;
        self.zeros += more.zeros;
        self.resumed += more.resumed;
    }
}

/// A model before and after pruning, on a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Perplexity of the model before.
    pub before: f64,
    /// Perplexity after.
    pub after: f64,
    /// Mean Kullback-Leibler divergence from the model before, nats per token.
    pub kl: f64,
}

/// Scores two models of one vocabulary on a text. `progress` receives the number of finished runs and their total.
///
/// # Errors
/// [`Error::Calibration`] if the text is too short or a device fails; [`Error::Scratch`]; [`Error::Interrupted`].
pub fn compare(
    before: &Model,
    after: &Model,
    text: &Calibration<'_>,
    threads: Option<usize>,
    progress: Progress<'_>,
) -> Result<Comparison, Error> {
    let mut runs = Runs::new(before, text, threads, 3, progress)?;
    let perplexity = runs.base()?;
    let (pruned, kl) = runs.scored(after)?;
    runs.step()?;
    Ok(Comparison { before: perplexity, after: pruned, kl })
}

impl Prune {
    /// A method and a pattern for all matrices, each of which keeps its type.
    #[must_use]
    pub fn new(method: Method, pattern: Pattern) -> Prune {
        let (ty, rules, threads) = (None, Vec::new(), None);
        Prune { method, pattern, ty, rules, requantize: false, threads }
    }

    /// Writes the pruned model under a temporary name beside `path` and renames it when complete. The calibration text
    /// is not used by [`Method::Magnitude`]; of an encoder every line of it is a text of its own.
    ///
    /// Finished matrices are kept in a journal ([`journal_of`]) until the file is complete. If the callback stops the run, the
    /// process is killed or the disk is full, the next run with this input, these options and this text takes them from there.
    ///
    /// # Errors
    /// [`Error::SameFile`], [`Error::Requantize`], [`Error::Unwritable`], [`Error::Prune`] for a matrix whose rows
    /// the pattern or the type does not fit, for a rule that names no matrix, and of [`Prune::check_types`];
    /// [`Error::Calibration`] for a text that is missing or too short, and for activations that are not finite;
    /// [`Error::Journal`] for that of another run;
    /// [`Error::File`], [`Error::Interrupted`]. On error nothing is left behind but the journal: if interrupted, and if it has a
    /// matrix and the error is none of the input or the options, with which no run would finish.
    pub fn write(
        &self,
        source: Source<'_>,
        calibration: Option<&Calibration<'_>>,
        path: &Path,
        progress: Progress<'_>,
    ) -> Result<Pruned, Error> {
        self.check_output(source, path)?;
        let matrices = self.matrices(source.model)?;
        self.check_types(matrices.values().map(|matrix| matrix.ty))?;
        let text = calibration.filter(|_| self.method != Method::Magnitude);
        let header = journal::header(self, source, text, progress)?;
        let journal = Journal::open(path, &header)?;
        let journal = RefCell::new(journal);
        let written = self.write_with(source, text, (path, Some(&journal)), progress);
        let written = written.and_then(|(pruned, draft)| {
            bilayer_gguf::put_in_place(draft, path)?;
            Ok(pruned)
        });
        let journal = journal.into_inner();
        let is_kept = match &written {
            Ok(_) => false,
            Err(Error::Interrupted) => true,
            Err(error) => journal.has_matrices() && !is_of_input(error),
        };
        if !is_kept {
            journal.remove();
        }
        written
    }

    /// Checks that [`Method::SparseGpt`] changes matrices of these types: it removes weights by a pattern, or rounds by GPTQ to a
    /// type that has a [grid](bilayer_quant::Grid).
    ///
    /// # Errors
    /// [`Error::Prune`] if there is neither a pattern nor such a type.
    pub fn check_types(&self, types: impl IntoIterator<Item = Type>) -> Result<(), Error> {
        let removes = !self.pattern.is_dense() || !self.rules.is_empty();
        let mut types = types.into_iter().peekable();
        let Some(&first) = types.peek() else { return Ok(()) };
        if self.method != Method::SparseGpt || removes || types.any(|ty| ty.grid().is_some()) {
            return Ok(());
        }
        let reason = format!(
            "no weights are removed, and {first} is no type for GPTQ; give --pattern, or --type with one of {}",
            grid_types()
        );
        Err(Error::Prune { tensor: "--method sparsegpt".into(), reason })
    }

    /// [`Prune::write`] without a journal, up to the complete file under its temporary name.
    fn draft(
        &self,
        source: Source<'_>,
        calibration: &Calibration<'_>,
        path: &Path,
        progress: Progress<'_>,
    ) -> Result<(Pruned, Draft), Error> {
        self.check_output(source, path)?;
        self.write_with(source, Some(calibration), (path, None), progress)
    }

    /// Writes the matrices that have a rule, alone.
    pub(crate) fn write_matrices(
        &self,
        model: &Model,
        metadata: &Metadata,
        calibration: &Calibration<'_>,
        path: &Path,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        let mut matrices = self.matrices(model)?;
        matrices.retain(|name, _| self.rules.iter().any(|rule| rule.tensor == *name));
        let tensors = matrices.values().map(|matrix| matrix.tensor).collect();
        let what = (model, &matrices, tensors);
        let (_, draft) =
            self.write_some(what, metadata, Some(calibration), (path, None), progress)?;
        Ok(bilayer_gguf::put_in_place(draft, path)?)
    }

    fn check_output(&self, Source { model, .. }: Source<'_>, path: &Path) -> Result<(), Error> {
        overwrite::check(path, model.file().shard_names().map(Path::new))
    }

    fn write_with(
        &self,
        Source { model, metadata }: Source<'_>,
        calibration: Option<&Calibration<'_>>,
        place: (&Path, Option<&RefCell<Journal>>),
        progress: Progress<'_>,
    ) -> Result<(Pruned, Draft), Error> {
        let mut metadata = metadata.clone();
        for key in ["split.no", "split.count", "split.tensors.count"] {
            metadata.remove(key);
        }
        let matrices = self.matrices(model)?;
        if matrices.values().any(|matrix| matrix.ty != matrix.tensor.layout().ty()) {
            metadata.remove("general.file_type");
            forget_imatrix(&mut metadata);
        }
        let what = (model, &matrices, model.file().tensors().iter().collect());
        self.write_some(what, &metadata, calibration, place, progress)
    }

    /// Writes some tensors: pruned, those that are among the matrices.
    fn write_some(
        &self,
        (model, matrices, mut tensors): (&Model, &BTreeMap<&str, Matrix<'_>>, Vec<&Tensor>),
        metadata: &Metadata,
        calibration: Option<&Calibration<'_>>,
        (path, journal): (&Path, Option<&RefCell<Journal>>),
        progress: Progress<'_>,
    ) -> Result<(Pruned, Draft), Error> {
        let file = model.file();
        let pool = stream::pool(self.threads)?;
        let layers = layers(model);
        // In the order in which the layers are pruned: those of no layer first.
        tensors.sort_by_key(|tensor| layers.get(tensor.name()));
        let total = tensors.iter().map(|tensor| tensor.layout().len_bytes()).sum();
        let reporter = Reporter::new(progress, total);
        let work = Work::new(self, model, (matrices, &layers, journal), (&pool, &reporter));
        if self.method != Method::Magnitude {
            let calibration = calibration.ok_or_else(|| Error::Prune {
                tensor: "calibration".into(),
                reason: "this method needs a text; give one".into(),
            })?;
            work.begin(calibration::sequences(model, calibration)?)?;
        }
        let done = RefCell::new(Pruned::default());
        let (work, done) = (&work, &done);
        let new = tensors.into_iter().map(|tensor| {
            let layout = tensor.layout();
            let Some(&matrix) = matrices.get(tensor.name()) else {
                return NewTensor::copied(file, tensor);
            };
            NewTensor::stream(tensor.name(), matrix.ty, layout.shape(), move |out| {
                let more = work.write(matrix, out)?;
                done.borrow_mut().add(more);
                file.release(tensor);
                file.check_unchanged()?;
                Ok(work.reporter().step(layout.len_bytes() as usize)?)
            })
        });
        let draft = bilayer_gguf::write_draft(path, metadata, new).map_err(prune_error)?;
        Ok((*done.borrow(), draft))
    }

    /// The matrices to prune by name, checked: each can have its pattern and type.
    fn matrices<'m>(&self, model: &'m Model) -> Result<BTreeMap<&'m str, Matrix<'m>>, Error> {
        let named = matrices(model);
        if let Some(rule) = self.rules.iter().find(|rule| !named.contains(&rule.tensor)) {
            let (tensor, reason) = (rule.tensor.clone(), "the layers have no such matrix".into());
            return Err(Error::Prune { tensor, reason });
        }
        let tensors = model.file().tensors().iter();
        let pruned = tensors.filter(|tensor| named.contains(tensor.name())).map(|tensor| {
            let rule = self.rules.iter().find(|rule| rule.tensor == tensor.name());
            let (pattern, ty) =
                rule.map_or((self.pattern, self.ty), |rule| (rule.pattern, rule.ty));
            let matrix = Matrix { tensor, pattern, ty: ty.unwrap_or(tensor.layout().ty()) };
            self.check(matrix)?;
            Ok((tensor.name(), matrix))
        });
        pruned.collect()
    }

    /// Checks that a matrix can have the pattern and the type.
    fn check(&self, Matrix { tensor, pattern, ty: to }: Matrix<'_>) -> Result<(), Error> {
        let (name, layout) = (tensor.name(), tensor.layout());
        let (from, cols) = (layout.ty(), layout.cols());
        let wrong = |reason: String| Err(Error::Prune { tensor: name.into(), reason });
        if let Pattern::Groups { of, .. } = pattern
            && !cols.is_multiple_of(of as u64)
        {
            return wrong(format!("rows of {cols} weights are not whole groups of {of}"));
        }
        if let Some(reason) = misfit(to, cols) {
            return wrong(reason);
        }
        if from.block_weights > 1 && !self.requantize && !(pattern.is_dense() && from == to) {
            return Err(Error::Requantize { tensor: name.into(), ty: from.name });
        }
        if to.quantize.is_none() {
            return Err(Error::Unwritable { tensor: name.into(), ty: to.name });
        }
        if !pattern.is_dense() && !to.holds_zero {
            return wrong(format!(
                "{to} cannot hold zeros, so the removed weights would come back as others; give --type a type that can, such \
                 as F16, Q8_0 or Q4_0"
            ));
        }
        match (pattern, to.kept_of_64()) {
            (Pattern::Groups { keep, of: 64 }, Some(kept)) if keep <= kept => Ok(()),
            (_, None) => Ok(()),
            (pattern, Some(kept)) => {
                wrong(format!("{to} needs the pattern {kept}:64 or fewer of 64, not {pattern}"))
            }
        }
    }
}

/// The types that have a [grid](bilayer_quant::Grid), to which GPTQ rounds, as a list for messages.
pub(crate) fn grid_types() -> String {
    let types = bilayer_quant::all().iter().filter(|ty| ty.grid().is_some());
    types.map(|ty| ty.name).collect::<Vec<_>>().join(", ")
}

/// The names of the layers' matrices, without those that keep full precision when a file is quantized, such as routers.
pub(crate) fn matrices(model: &Model) -> BTreeSet<String> {
    let collector = Collector::new(model.graph(), Scope::Layers);
    let is_quantized = |name: &str| {
        let tensor = model.file().tensor(name);
        tensor.is_none_or(|tensor| is_quantized(name, tensor.layout().shape()))
    };
    let names = collector.sums().map(|sums| sums.name).filter(|name| is_quantized(name));
    names.map(str::to_owned).collect()
}

/// The layer that reads a tensor first, for those that layers read.
fn layers(model: &Model) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for weight in &model.graph().weights {
        if let Some(layer) = weight.layer {
            let first = found.entry(weight.name.clone()).or_insert(layer);
            *first = layer.min(*first);
        }
    }
    found
}

/// Whether an error is one of the input or the options, so that the same run would meet it again.
fn is_of_input(error: &Error) -> bool {
    match error {
        Error::Prune { .. } | Error::Weight { .. } => true,
        // The journal is that of what the input was before.
        Error::File(bilayer_gguf::Error::Changed { .. }) => true,
        // Values that are not finite, but not a device that failed.
        Error::Calibration(error) => error.exit_code() == Exit::BadModel,
        _ => false,
    }
}

/// The error of a matrix, which the writer has wrapped.
fn prune_error(error: bilayer_gguf::Error) -> Error {
    match error {
        bilayer_gguf::Error::Source { source, .. } if source.is::<Error>() => {
            *source.downcast().expect("it was looked at above")
        }
        bilayer_gguf::Error::Source { tensor, source, .. }
            if source.is::<bilayer_quant::Error>() =>
        {
            Error::Weight { tensor, reason: source.to_string() }
        }
        error => stream::writer_error(error),
    }
}
