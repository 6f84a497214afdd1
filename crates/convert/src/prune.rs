//! Prunes a model file: sets weights of the layers' matrices to zero, tensor by tensor, and measures the change.
//!
//! [`Method::Magnitude`] needs no data. [`Method::Wanda`] scores a weight by its magnitude times the root mean square of
//! its column's activations (Sun et al. 2023). [`Method::SparseGpt`] removes weights column by column and corrects the
//! remaining weights of the row by the inverse of X^T X (Frantar and Alistarh 2023); the products of a matrix take 4 ·
//! cols² bytes, and as many matrices share a run of the calibration text as fit [`PRODUCTS_BYTES`].
//!
//! Activations are those of the unpruned model. Embedding, head and everything that is no matrix keep their weights.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use bilayer_engine::Model;
use bilayer_gguf::{Metadata, NewTensor, SourceError, Tensor};
use bilayer_measure::imatrix::{Collector, Scope};
use bilayer_measure::perplexity::Windows;
use bilayer_quant::Type;
use rayon::prelude::*;

use crate::calibration::{self, Calibration, Runs};
use crate::imatrix::Imatrix;
use crate::stream::{self, Progress, Reporter};
use crate::{Error, overwrite};

mod rows;

use rows::{Inverse, Scores};

/// Most bytes of products of columns in memory, unless one matrix takes more.
pub const PRODUCTS_BYTES: usize = 512 << 20;

/// Rows that are pruned and written at once.
const ROWS_AT_ONCE: usize = 256;

/// Columns of a row among which SparseGPT chooses without a pattern of its own.
const GROUP: usize = 128;

/// How weights are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The largest are kept.
    Magnitude,
    /// Those of largest magnitude times activation are kept.
    Wanda,
    /// Those whose removal changes the output least are removed, and the others make up for them.
    SparseGpt,
}

impl Method {
    /// All methods with their names.
    pub const ALL: [(Method, &'static str); 3] = [
        (Method::Magnitude, "magnitude"),
        (Method::Wanda, "wanda"),
        (Method::SparseGpt, "sparsegpt"),
    ];
}

impl FromStr for Method {
    type Err = String;

    fn from_str(name: &str) -> Result<Method, String> {
        let found = Method::ALL.into_iter().find(|(_, known)| *known == name);
        found.map(|(method, _)| method).ok_or_else(|| {
            let known = Method::ALL.map(|(_, known)| known).join(", ");
            format!("no method of pruning; known are {known}")
        })
    }
}

/// Which zeros a matrix gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// This share of each row, anywhere.
    Share(f64),
    /// `keep` weights of every `of` consecutive ones of a row are kept.
    Groups {
        /// Kept weights.
        keep: usize,
        /// Weights of a group.
        of: usize,
    },
}

impl FromStr for Pattern {
    type Err = String;

    /// Parses `0.5` (a share of zeros) or `16:64` (kept of every 64).
    fn from_str(text: &str) -> Result<Pattern, String> {
        let wrong = || {
            "expected a share of zeros from 0 to 1, such as 0.5, or kept weights per group, such as \
             16:64"
                .to_owned()
        };
        let Some((keep, of)) = text.split_once(':') else {
            let share: f64 = text.parse().map_err(|_| wrong())?;
            return if (0.0..1.0).contains(&share) {
                Ok(Pattern::Share(share))
            } else {
                Err(wrong())
            };
        };
        match (keep.parse(), of.parse()) {
            (Ok(keep), Ok(of)) if (1..=of).contains(&keep) => Ok(Pattern::Groups { keep, of }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Share(share) => write!(f, "{share}"),
            Pattern::Groups { keep, of } => write!(f, "{keep}:{of}"),
        }
    }
}

impl Pattern {
    /// Columns of a group in rows of `cols`, and how many of `len` columns are kept.
    fn groups(self, cols: usize, method: Method) -> (usize, impl Fn(usize) -> usize) {
        let of = match self {
            Pattern::Groups { of, .. } => of,
            Pattern::Share(_) if method == Method::SparseGpt => GROUP.min(cols),
            Pattern::Share(_) => cols,
        };
        let kept = move |len: usize| match self {
            Pattern::Groups { keep, .. } => keep,
            Pattern::Share(share) => (len as f64 * (1.0 - share)).round() as usize,
        };
        (of, kept)
    }
}

/// Options of pruning.
#[derive(Clone, Copy, Debug)]
pub struct Prune {
    /// How weights are chosen.
    pub method: Method,
    /// Which zeros a matrix gets.
    pub pattern: Pattern,
    /// The type of the pruned matrices; by default each keeps its own.
    pub ty: Option<Type>,
    /// Allow matrices that are already quantized, which lose more than once.
    pub requantize: bool,
    /// Number of threads; by default one per logical CPU.
    pub threads: Option<usize>,
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
}

impl Pruned {
    fn add(&mut self, more: Pruned) {
        self.matrices += more.matrices;
        self.weights += more.weights;
        self.zeros += more.zeros;
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
    /// Writes the pruned model under a temporary name beside `path` and renames it when complete. The calibration text
    /// is not used by [`Method::Magnitude`].
    ///
    /// # Errors
    /// [`Error::SameFile`], [`Error::Requantize`], [`Error::Unwritable`], [`Error::Prune`] for a matrix whose rows
    /// the pattern or the type does not fit; [`Error::Calibration`] for a text that is missing or too short, and for
    /// activations that are not finite; [`Error::File`], [`Error::Interrupted`]. On error nothing is left behind.
    pub fn write(
        &self,
        Source { model, metadata }: Source<'_>,
        calibration: Option<&Calibration<'_>>,
        path: &Path,
        progress: Progress<'_>,
    ) -> Result<Pruned, Error> {
        let file = model.file();
        overwrite::check(path, file.shard_names().map(Path::new))?;
        let named = matrices(model);
        let is_pruned = |tensor: &Tensor| named.contains(tensor.name());
        for tensor in file.tensors().iter().filter(|tensor| is_pruned(tensor)) {
            self.check(tensor)?;
        }
        let pool = stream::pool(self.threads)?;
        let total = file.tensors().iter().map(|tensor| tensor.layout().len_bytes()).sum();
        let reporter = Reporter::new(progress, total);
        let mut input = Input::default();
        if self.method != Method::Magnitude {
            let calibration = calibration.ok_or_else(|| Error::Prune {
                tensor: "calibration".into(),
                reason: "this method needs a text; give one".into(),
            })?;
            input.windows = Some(calibration::windows(model, calibration)?);
        }
        let work = Work { prune: self, model, input: RefCell::new(input), pool: &pool };
        if self.method == Method::Wanda {
            work.gather(&BTreeSet::new(), &reporter)?;
        }
        let done = RefCell::new(Pruned::default());
        let (work, done, reporter) = (&work, &done, &reporter);
        let new = file.tensors().iter().map(|tensor| {
            let layout = tensor.layout();
            if !is_pruned(tensor) {
                return NewTensor::copied(file, tensor);
            }
            let ty = self.ty.unwrap_or(layout.ty());
            NewTensor::stream(tensor.name(), ty, layout.shape(), move |out| {
                let more = work.tensor(Matrix { tensor, ty }, out, reporter)?;
                done.borrow_mut().add(more);
                file.release(tensor);
                file.check_unchanged()?;
                Ok(reporter.step(layout.len_bytes() as usize)?)
            })
        });
        let mut metadata = metadata.clone();
        for key in ["split.no", "split.count", "split.tensors.count"] {
            metadata.remove(key);
        }
        if self.ty.is_some() {
            metadata.remove("general.file_type");
        }
        bilayer_gguf::write(path, &metadata, new).map_err(prune_error)?;
        Ok(*done.borrow())
    }

    /// Checks that a matrix can have the pattern and the type.
    fn check(&self, tensor: &Tensor) -> Result<(), Error> {
        let (name, layout) = (tensor.name(), tensor.layout());
        let (from, to, cols) = (layout.ty(), self.ty.unwrap_or(layout.ty()), layout.cols());
        let wrong = |reason: String| Err(Error::Prune { tensor: name.into(), reason });
        if let Pattern::Groups { of, .. } = self.pattern
            && !cols.is_multiple_of(of as u64)
        {
            return wrong(format!("rows of {cols} weights are not whole groups of {of}"));
        }
        if !cols.is_multiple_of(to.block_weights as u64) {
            let block = to.block_weights;
            return wrong(format!("rows of {cols} weights are not whole {to} blocks of {block}"));
        }
        if from.block_weights > 1 && !self.requantize {
            return Err(Error::Requantize { tensor: name.into(), ty: from.name });
        }
        if to.quantize.is_none() {
            return Err(Error::Unwritable { tensor: name.into(), ty: to.name });
        }
        match (self.pattern, to.kept_of_64()) {
            (Pattern::Groups { keep, of: 64 }, Some(kept)) if keep <= kept => Ok(()),
            (_, None) => Ok(()),
            (pattern, Some(kept)) => {
                wrong(format!("{to} needs the pattern {kept}:64 or fewer of 64, not {pattern}"))
            }
        }
    }
}

/// The names of the layers' matrices.
fn matrices(model: &Model) -> BTreeSet<String> {
    let collector = Collector::new(model.graph(), Scope::Layers);
    collector.sums().map(|sums| sums.name.to_owned()).collect()
}

/// What is known of the activations.
#[derive(Default)]
struct Input {
    windows: Option<Windows>,
    /// Sums of squares by column.
    squares: Imatrix,
    /// Inverses of the products of columns; matrices with one input share one.
    inverses: BTreeMap<String, Arc<Inverse>>,
}

/// A matrix and the type it is written as.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    tensor: &'a Tensor,
    ty: Type,
}

struct Work<'a> {
    prune: &'a Prune,
    model: &'a Model,
    input: RefCell<Input>,
    pool: &'a rayon::ThreadPool,
}

impl Work<'_> {
    /// Prunes a matrix and writes it as `ty`.
    fn tensor(
        &self,
        pruned: Matrix<'_>,
        out: &mut dyn Write,
        reporter: &Reporter<'_>,
    ) -> Result<Pruned, SourceError> {
        let Matrix { tensor, ty } = pruned;
        let (name, layout) = (tensor.name(), tensor.layout());
        if self.prune.method == Method::SparseGpt
            && !self.input.borrow().inverses.contains_key(name)
        {
            self.gather(&self.next(name), reporter)?;
        }
        let input = self.input.borrow();
        let inverse = input.inverses.get(name);
        let means = input.squares.get(name).map(|entry| entry.means());
        // The tensor is in memory, so its sizes fit a usize.
        let (rows, cols) = (layout.rows() as usize, layout.cols() as usize);
        let shape = layout.shape();
        let expert_rows = if shape.len() > 1 { shape[shape.len() - 2] as usize } else { 1 };
        let scores = |row: usize| match (self.prune.method, inverse, &means) {
            (Method::Magnitude, ..) | (_, None, None) => Scores::Magnitude,
            (_, Some(inverse), _) => Scores::Inverse(inverse),
            (_, None, Some(means)) => {
                let expert = (row / expert_rows * cols) % means.len();
                Scores::Columns(&means[expert..expert + cols])
            }
        };
        let (of, kept) = self.prune.pattern.groups(cols, self.prune.method);
        let bytes = self.model.file().bytes(tensor);
        let (from_bytes, to_bytes) = (layout.row_bytes() as usize, ty.row_bytes(cols)?);
        let mut done = Pruned { matrices: 1, weights: layout.elements(), zeros: 0 };
        for first in (0..rows).step_by(ROWS_AT_ONCE) {
            let count = ROWS_AT_ONCE.min(rows - first);
            let mut values = vec![0.0; count * cols];
            let mut made = vec![0; count * to_bytes];
            layout
                .ty()
                .dequantize(&bytes[first * from_bytes..][..count * from_bytes], &mut values)?;
            if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                let (quant, value) = (ty, values[index].to_string());
                let index = first * cols + index;
                return Err(bilayer_quant::Error::NotFinite { quant, index, value }.into());
            }
            self.pool.install(|| {
                let rows =
                    values.par_chunks_exact_mut(cols).zip(made.par_chunks_exact_mut(to_bytes));
                rows.enumerate().try_for_each(|(row, (values, made))| {
                    rows::prune(values, of, &kept, scores(first + row));
                    ty.quantize(values, None, made)
                })
            })?;
            done.zeros += values.iter().filter(|value| **value == 0.0).count() as u64;
            out.write_all(&made)?;
        }
        Ok(done)
    }

    /// The matrices from `name` on, in the file's order, whose products fit in memory together.
    fn next(&self, name: &str) -> BTreeSet<String> {
        let collector = Collector::new(self.model.graph(), Scope::Layers);
        let tensors = self.model.file().tensors().iter().map(Tensor::name);
        let (mut chosen, mut inputs, mut bytes) = (BTreeSet::new(), BTreeSet::new(), 0);
        for tensor in tensors.skip_while(|tensor| *tensor != name) {
            let Some((input, cols)) = collector.input(tensor) else { continue };
            // Products, and the inverse of each input.
            let more = if inputs.contains(&input) { 0 } else { 8 * cols * cols };
            if bytes + more > PRODUCTS_BYTES && !chosen.is_empty() {
                break;
            }
            bytes += more;
            inputs.insert(input);
            chosen.insert(tensor.to_owned());
        }
        chosen
    }

    /// Runs the text for the squares of all matrices and the products of some.
    fn gather(&self, products: &BTreeSet<String>, reporter: &Reporter<'_>) -> Result<(), Error> {
        let mut input = self.input.borrow_mut();
        let mut collector = Collector::new(self.model.graph(), Scope::Layers);
        collector.want_products(&|name| products.contains(name));
        if let Some(windows) = &input.windows {
            let goes_on = &mut || reporter.goes_on();
            calibration::collect(self.model, windows, self.prune.threads, &mut collector, goes_on)?;
        }
        input.squares = calibration::imatrix(&collector)?;
        input.inverses.clear();
        let mut of_input: BTreeMap<usize, Arc<Inverse>> = BTreeMap::new();
        for name in products {
            let of = collector.input(name).zip(collector.products(name));
            let Some(((place, _), products)) = of else { continue };
            let inverse = match of_input.get(&place) {
                Some(inverse) => inverse.clone(),
                None => {
                    let made = self.pool.install(|| Inverse::of(products));
                    let reason = "its activations give no usable X^T X; use another text";
                    let made = made.ok_or_else(|| Error::Prune {
                        tensor: name.clone(),
                        reason: reason.into(),
                    })?;
                    of_input.entry(place).or_insert(Arc::new(made)).clone()
                }
            };
            input.inverses.insert(name.clone(), inverse);
        }
        Ok(())
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
