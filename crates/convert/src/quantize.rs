//! Quantizes a model file: chooses each tensor's type, then converts tensor by tensor from the mapped file.
//!
//! [`Quantize::plan`] reads only the tensor directory and predicts the whole result, sizes included;
//! [`Plan::write`] executes it. Matrices are split into pieces of whole rows, quantized on all threads and
//! written in order, so memory use is bounded whatever the model's size. Tensors that keep their type are
//! copied.

use std::path::Path;

use bilayer_gguf::{File, Metadata, MetadataOverride, NewTensor, Tensor};
use bilayer_quant::Type;
use regex::Regex;

use crate::Error;
use crate::imatrix::Imatrix;
use crate::mix::{Facts, Mix, attention, fitting, takes_importance};
use crate::overwrite;
use crate::stream::{self, Progress, Reporter};

mod dropped;
pub mod gptq;
pub mod job;
pub mod mixed;
pub mod sensitivity;
mod weights;

pub use dropped::Dropped;
use gptq::Rounded;
use weights::Weights;

/// Options of a quantization.
#[derive(Clone, Debug)]
pub struct Quantize {
    /// Types of tensors without a rule below.
    pub mix: Mix,
    /// Types of tensors by name; the first matching pattern wins.
    pub overrides: Vec<Override>,
    /// The type of the output head, and of an embedding that is the head if [`embedding`](Self::embedding) is `None`.
    pub output: Option<Type>,
    /// The type of the token embedding.
    pub embedding: Option<Type>,
    /// Allow tensors that are already quantized, which loses more than quantizing once.
    pub requantize: bool,
    /// Number of threads; by default one per logical CPU.
    pub threads: Option<usize>,
}

/// A type for tensors whose names match a pattern.
#[derive(Clone, Debug)]
pub struct Override {
    pattern: Regex,
    ty: Type,
}

impl Override {
    /// Parses `PATTERN=TYPE`, where the pattern is a regular expression.
    ///
    /// # Errors
    /// [`Error::Override`], [`Error::UnknownSingleType`], [`Error::NotForWeights`].
    pub fn parse(text: &str) -> Result<Override, Error> {
        let wrong = |reason: String| Error::Override { given: text.to_owned(), reason };
        let Some((pattern, ty)) = text.rsplit_once('=').filter(|(pattern, _)| !pattern.is_empty())
        else {
            return Err(wrong("it is to be like ffn_down=Q6_K".into()));
        };
        let pattern = Regex::new(pattern).map_err(|error| wrong(error.to_string()))?;
        Ok(Override { pattern, ty: weight_type(ty)? })
    }

    /// Parses several rules separated by white space, as in llama-quantize's `--tensor-type-file`.
    ///
    /// # Errors
    /// Those of [`Override::parse`].
    pub fn parse_all(text: &str) -> Result<Vec<Override>, Error> {
        text.split_whitespace().map(Override::parse).collect()
    }

    /// A rule for the tensor `name` only.
    fn of(name: &str, ty: Type) -> Override {
        let pattern = Regex::new(&format!("^{}$", regex::escape(name)));
        Override { pattern: pattern.expect("an escaped name is a pattern"), ty }
    }

    /// The type.
    #[must_use]
    pub fn ty(&self) -> Type {
        self.ty
    }
}

/// The text that [`Override::parse`] accepts.
impl std::fmt::Display for Override {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.pattern, self.ty)
    }
}

/// Finds a weight type by name, which is that of no mix of several types.
///
/// # Errors
/// [`Error::UnknownSingleType`], [`Error::NotForWeights`].
pub fn weight_type(name: &str) -> Result<Type, Error> {
    let unknown = |_| Error::UnknownSingleType { name: name.to_owned(), known: type_names() };
    let ty = bilayer_quant::by_name(name).map_err(unknown)?;
    Mix::pure(ty).map(|pure| pure.base)
}

/// The types that can be written, separated by commas.
fn type_names() -> String {
    let all = bilayer_quant::all().iter().filter(|ty| ty.quantize.is_some());
    all.map(|ty| ty.name).collect::<Vec<_>>().join(", ")
}

/// The mix that llama-quantize makes under this name or number; `Q4_K` and 15 are `Q4_K_M`.
///
/// # Errors
/// [`Error::UnknownType`], [`Error::NotForWeights`].
pub fn mix(name: &str) -> Result<Mix, Error> {
    if let Ok(number) = name.parse::<u32>() {
        let mix = Mix::all().iter().find(|mix| mix.file_type == Some(number));
        let unknown = || Error::UnknownType { name: name.to_owned(), known: Mix::names() };
        return mix.copied().ok_or_else(unknown);
    }
    let medium = ["Q3_K", "Q4_K", "Q5_K"].into_iter().find(|k| k.eq_ignore_ascii_case(name));
    Mix::find(&medium.map_or_else(|| name.to_owned(), |k| format!("{k}_M")))
}

/// One tensor of a plan.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// `[.., rows, cols]`.
    pub shape: Vec<u64>,
    /// Its current type.
    pub from: Type,
    /// Its type after quantization.
    pub to: Type,
    /// The type assigned first, if the rows do not fit it ([`misfit`](crate::mix::misfit)).
    pub preferred: Option<Type>,
    /// Whether the importance matrix decides how it is rounded: it has an entry, and the type depends on importance.
    pub weighted: bool,
    /// Its current size.
    pub from_bytes: u64,
    /// Its size after quantization.
    pub to_bytes: u64,
}

/// Everything that will be done to a file.
pub struct Plan<'a> {
    file: &'a File,
    imatrix: Option<&'a Imatrix>,
    rounded: Option<&'a Rounded>,
    metadata: Metadata,
    threads: Option<usize>,
    tensors: Vec<Planned>,
    unmatched: Vec<String>,
}

impl Quantize {
    /// Quantizes to `mix` with default options.
    #[must_use]
    pub fn new(mix: Mix) -> Quantize {
        Quantize {
            mix,
            overrides: Vec::new(),
            output: None,
            embedding: None,
            requantize: false,
            threads: None,
        }
    }

    /// Decides the type of every tensor.
    ///
    /// # Errors
    /// [`Error::Requantize`], [`Error::Unwritable`], [`Error::Unweighted`], [`Error::ImatrixShape`]; [`Error::File`] if metadata that
    /// a mix depends on is missing.
    pub fn plan<'a>(
        &self,
        file: &'a File,
        imatrix: Option<&'a Imatrix>,
    ) -> Result<Plan<'a>, Error> {
        let facts = facts(file, imatrix)?;
        let mut used = vec![false; self.overrides.len()];
        let tensors = file.tensors().iter().map(|tensor| {
            let (to, preferred) = self.choose(tensor, &facts, &mut used);
            self.planned(tensor, to, preferred, imatrix)
        });
        let tensors = tensors.collect::<Result<Vec<_>, Error>>()?;
        let unmatched = self.overrides.iter().zip(used).filter(|(_, used)| !used);
        Ok(Plan {
            file,
            imatrix,
            rounded: None,
            metadata: self.metadata(file),
            threads: self.threads,
            unmatched: unmatched.map(|(rule, _)| rule.pattern.to_string()).collect(),
            tensors,
        })
    }

    /// The type of a tensor, and the one assigned first if that does not fit its rows.
    fn choose(&self, tensor: &Tensor, facts: &Facts, used: &mut [bool]) -> (Type, Option<Type>) {
        let (name, layout) = (tensor.name(), tensor.layout());
        if self.mix.tensor(name, layout.shape(), facts).is_none() {
            return (layout.ty(), None);
        }
        let matching = self.overrides.iter().position(|rule| rule.pattern.is_match(name));
        let special = self.special(name, facts);
        if let Some(index) = matching {
            used[index] = true;
        }
        let preferred = special.or_else(|| matching.map(|index| self.overrides[index].ty));
        let preferred =
            preferred.unwrap_or_else(|| self.mix.preferred(name, layout.shape(), facts));
        let to = fitting(preferred, layout.cols());
        (to, (to != preferred).then_some(preferred))
    }

    /// The type asked for by name for the embedding or the head; a tied head is the embedding.
    fn special(&self, name: &str, facts: &Facts) -> Option<Type> {
        match name {
            "output.weight" => self.output,
            "token_embd.weight" if facts.tied => self.embedding.or(self.output),
            "token_embd.weight" | "per_layer_token_embd.weight" => self.embedding,
            _ => None,
        }
    }

    /// Whether a tensor's type may be chosen freely: it does not keep full precision, and no rule names a type
    /// for it.
    fn is_free(&self, tensor: &Tensor, facts: &Facts) -> bool {
        let name = tensor.name();
        self.mix.tensor(name, tensor.layout().shape(), facts).is_some()
            && self.special(name, facts).is_none()
            && !self.overrides.iter().any(|rule| rule.pattern.is_match(name))
    }

    fn planned(
        &self,
        tensor: &Tensor,
        to: Type,
        preferred: Option<Type>,
        imatrix: Option<&Imatrix>,
    ) -> Result<Planned, Error> {
        let (name, layout) = (tensor.name(), tensor.layout());
        let from = layout.ty();
        if from != to {
            if to.quantize.is_none() {
                return Err(Error::Unwritable { tensor: name.into(), ty: to.name });
            }
            if from.block_weights > 1 && !self.requantize {
                return Err(Error::Requantize { tensor: name.into(), ty: from.name });
            }
        }
        let entry = imatrix.and_then(|imatrix| imatrix.get(name)).filter(|_| from != to);
        if let Some(entry) = entry {
            let experts = experts(layout.shape());
            let (expected, found) =
                ([experts, layout.cols()], [entry.experts(), entry.cols()].map(|n| n as u64));
            // Older files do not separate the columns of experts.
            let whole = [1, experts.saturating_mul(layout.cols())];
            if found != expected && found != whole {
                return Err(Error::ImatrixShape { tensor: name.into(), expected, found });
            }
        }
        if from != to && entry.is_none() && self.mix.is_weighted(name, to) {
            return Err(Error::Unweighted { tensor: name.into(), ty: to.name });
        }
        let row_bytes = to
            .row_bytes(layout.cols() as usize)
            .map_err(|source| Error::Weight { tensor: name.into(), reason: source.to_string() })?;
        Ok(Planned {
            name: name.into(),
            shape: layout.shape().to_vec(),
            from,
            to,
            preferred,
            weighted: entry.is_some() && takes_importance(to),
            from_bytes: layout.len_bytes(),
            to_bytes: layout.rows() * row_bytes as u64,
        })
    }

    /// The file's metadata with llama-quantize's changes.
    fn metadata(&self, file: &File) -> Metadata {
        let mut metadata = file.metadata().clone();
        for key in ["split.no", "split.count", "split.tensors.count"] {
            metadata.remove(key);
        }
        if self.mix.copies {
            return metadata;
        }
        // They say how the tensors of the input were made.
        forget_imatrix(&mut metadata);
        match self.mix.file_type {
            Some(file_type) => metadata.set("general.file_type", file_type),
            None => drop(metadata.remove("general.file_type")),
        }
        metadata.set("general.quantization_version", 2u32);
        metadata
    }
}

impl<'a> Plan<'a> {
    /// Takes matrices that were rounded for this plan.
    pub fn take(&mut self, rounded: &'a Rounded) {
        self.rounded = Some(rounded);
    }

    /// The file that has the most of a tensor's work done, and its tensor there.
    fn source<'s>(&'s self, planned: &Planned, tensor: &'s Tensor) -> (&'s File, &'s Tensor) {
        let rounded = self.rounded.map(|rounded| &rounded.file);
        let found = rounded.and_then(|file| Some((file, file.tensor(&planned.name)?)));
        found
            .filter(|(_, tensor)| tensor.layout().ty() == planned.to)
            .unwrap_or((self.file, tensor))
    }

    /// The tensors in the order of the file.
    #[must_use]
    pub fn tensors(&self) -> &[Planned] {
        &self.tensors
    }

    /// Patterns of rules that matched no tensor.
    #[must_use]
    pub fn unmatched(&self) -> &[String] {
        &self.unmatched
    }

    /// Number of weights in all tensors.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.shape.iter().product::<u64>()).sum()
    }

    /// Bytes of all tensors before quantization.
    #[must_use]
    pub fn from_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.from_bytes).sum()
    }

    /// Bytes of all tensors after quantization.
    #[must_use]
    pub fn to_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.to_bytes).sum()
    }

    /// Checks that writing to `path` would not overwrite an input, whose weights are more precise.
    ///
    /// # Errors
    /// [`Error::SameFile`].
    pub fn check_output(&self, path: &Path) -> Result<(), Error> {
        overwrite::check(path, self.file.shard_names().map(Path::new))
    }

    /// Records the origin of the importance matrix in the metadata, as llama-quantize does, if any tensor is weighted.
    pub fn cite(&mut self, imatrix_file: &Path) {
        let is_used = self.tensors.iter().any(|tensor| tensor.weighted);
        let Some(imatrix) = self.imatrix.filter(|_| is_used) else { return };
        let set = &mut self.metadata;
        set.set("quantize.imatrix.file", imatrix_file.display().to_string());
        if let Some(dataset) = imatrix.datasets.first() {
            set.set("quantize.imatrix.dataset", dataset.as_str());
        }
        set.set("quantize.imatrix.entries_count", imatrix.entries().len() as u32);
        set.set("quantize.imatrix.chunks_count", imatrix.chunk_count);
    }

    /// Replaces values of the metadata, those that quantizing sets included.
    ///
    /// # Errors
    /// [`Error::File`]: a value is of another kind than the one that it replaces.
    pub fn override_metadata(&mut self, overrides: &[MetadataOverride]) -> Result<(), Error> {
        let name = self.file.name();
        overrides.iter().try_for_each(|one| one.apply(name, &mut self.metadata))?;
        Ok(())
    }

    /// Writes the file under a temporary name beside `path` and renames it when complete.
    /// Of a matrix that gets a sparse type only the weights that the type keeps are written; [`Plan::dropped`] checks what is lost.
    ///
    /// # Errors
    /// [`Error::SameFile`], [`Error::File`], [`Error::Size`], [`Error::Threads`]; [`Error::Weight`] if a weight
    /// is infinite or NaN; [`Error::Interrupted`] if `progress` breaks. On error nothing is left behind, and an
    /// existing file at `path` is unchanged.
    pub fn write(&self, path: &Path, progress: Progress<'_>) -> Result<(), Error> {
        self.check_output(path)?;
        let pool = stream::pool(self.threads)?;
        let reporter = Reporter::new(progress, self.to_bytes());
        let (pool, reporter) = (&pool, &reporter);
        let new = self.tensors.iter().zip(self.file.tensors()).map(|(planned, tensor)| {
            let stream = move |out: &mut dyn std::io::Write| {
                let (file, tensor) = self.source(planned, tensor);
                file.prefetch(tensor);
                let entry = self.imatrix.and_then(|imatrix| imatrix.get(&planned.name));
                let weights = Weights::new(
                    file.bytes(tensor),
                    tensor.layout(),
                    planned.to,
                    entry.map(|entry| entry.means()),
                );
                let written = weights.pieces().write(pool, out, reporter);
                drop(weights);
                file.release(tensor);
                // A lost page comes first: it may be the reason of an error.
                file.check_unchanged()?;
                written
            };
            NewTensor::stream(&planned.name, planned.to, &planned.shape, stream)
        });
        bilayer_gguf::write(path, &self.metadata, new).map_err(|error| match error {
            bilayer_gguf::Error::Source { tensor, source, .. }
                if source.is::<bilayer_quant::Error>() =>
            {
                Error::Weight { tensor, reason: source.to_string() }
            }
            error => stream::writer_error(error),
        })
    }
}

/// Removes what the metadata says of an importance matrix that other tensors were quantized with.
pub(crate) fn forget_imatrix(metadata: &mut Metadata) {
    for key in ["file", "dataset", "entries_count", "chunks_count"] {
        metadata.remove(&format!("quantize.imatrix.{key}"));
    }
}

/// Number of matrices in a stack: the product of all dimensions before the last two.
fn experts(shape: &[u64]) -> u64 {
    shape.iter().rev().skip(2).product()
}

/// The properties of a model that the rules of a mix depend on.
fn facts(file: &File, imatrix: Option<&Imatrix>) -> Result<Facts, Error> {
    let metadata = file.metadata();
    let architecture = metadata.str("general.architecture")?;
    let key = |name: &str| format!("{architecture}.{name}");
    let layers = metadata.opt_count(&key("block_count"))?.unwrap_or(0);
    // The first layer with attention represents all.
    let heads = |name: &str| -> Result<Option<usize>, Error> {
        let heads = metadata.opt_u32_each(&key(name), layers)?.unwrap_or_default();
        Ok(heads.into_iter().find(|heads| *heads > 0).map(|heads| heads as usize))
    };
    let query = heads("attention.head_count")?.unwrap_or(1);
    Ok(Facts {
        layers,
        heads: query,
        kv_heads: heads("attention.head_count_kv")?.unwrap_or(query),
        experts: metadata.opt_usize(&key("expert_count"))?.unwrap_or(0),
        attention: attention(file.tensors().iter().map(Tensor::name)),
        is_falcon: bilayer_models::has_falcon_mixes(architecture),
        tied: file.tensor("output.weight").is_none(),
        importance: imatrix.is_some(),
    })
}
