//! Converts a checkpoint folder to GGUF: metadata, tokenizer, and tensors one by one.
//!
//! [`Convert::plan`] reads configuration, tokenizer and the headers of the weights, and checks that the model
//! is complete; [`Plan::write`] streams the weights. Differences between architectures are in `bilayer-models`,
//! in each one's own file.

use std::path::Path;

use bilayer_gguf::{Metadata, NewTensor};
use bilayer_models::{Architecture, Config, Made, add_mtp_blocks, draft, limits, of_checkpoint};
use bilayer_quant::Type;
use bilayer_text::Vocabulary;
use serde_json::Value;

use crate::Error;
use crate::checkpoint::{Checkpoint, templates, tokenizer};
use crate::mix::Mix;
use crate::overwrite;
use crate::stream::{self, Progress, Reporter};

mod back;
mod lora;
mod metadata;
mod mtp;
mod reranker;
mod rows;
mod tensors;

pub use back::{check_back, write_back};
use reranker::Reranker;
use rows::RowReader;
use tensors::{Planned, Tensors};

/// Options of a conversion.
#[derive(Clone, Debug, Default)]
pub struct Convert {
    /// Type of matrices; by default their type in the checkpoint, which is lossless.
    pub outtype: Option<Type>,
    /// `general.name`; by default derived from the folder's name.
    pub name: Option<String>,
    /// Omit the tokenizer: the model takes and returns token ids.
    pub no_vocab: bool,
    /// Number of threads; by default one per logical CPU.
    pub threads: Option<usize>,
}

/// Everything that will be written.
pub struct Plan {
    checkpoint: Checkpoint,
    metadata: Metadata,
    tensors: Tensors,
    outtype: Type,
    threads: Option<usize>,
}

/// One tensor of a plan.
#[derive(Clone, Debug)]
pub struct PlannedTensor<'p> {
    /// GGUF's name.
    pub name: &'p str,
    /// `[.., rows, cols]`.
    pub shape: &'p [u64],
    /// Its type in the file.
    pub ty: Type,
}

/// Finds the type of [`Convert::outtype`] by name, in upper or lower case.
///
/// # Errors
/// [`Error::UnknownOuttype`].
pub fn outtype(name: &str) -> Result<Type, Error> {
    let found = Convert::TYPES.into_iter().find(|ty| ty.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| Error::UnknownOuttype {
        name: name.to_owned(),
        known: Convert::TYPES.map(|ty| ty.name).join(", "),
    })
}

impl Convert {
    /// The types accepted as [`Convert::outtype`].
    pub const TYPES: [Type; 4] = [Type::F32, Type::F16, Type::BF16, Type::Q8_0];

    /// Reads everything but the weights, and checks that the model is complete.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], [`Error::Tokenizer`], [`Error::NoTokenizer`] and [`Error::OfCheckpoint`]; each
    /// names the file and the field, key or tensor.
    pub fn plan(&self, folder: &Path) -> Result<Plan, Error> {
        let checkpoint = Checkpoint::open(folder)?;
        let Described { architecture, mut metadata, made } =
            described(&checkpoint, self.name.as_deref())?;
        let tokenizer_config = checkpoint.json("tokenizer_config.json")?.unwrap_or_default();
        let generation = checkpoint.json("generation_config.json")?.unwrap_or_default();
        metadata::sampling(&generation, &mut metadata);
        let both = (&tokenizer_config, &generation);
        let vocabulary = self.vocabulary(&checkpoint, architecture, &metadata, both)?;
        let mut templates = templates(&checkpoint, &tokenizer_config)?;
        let reranker = Reranker::find(&checkpoint, vocabulary.as_ref(), &templates)?;
        match vocabulary {
            Some(vocabulary) => metadata::vocabulary(vocabulary, &mut metadata),
            // llama.cpp's name for a missing tokenizer.
            None => metadata.set("tokenizer.ggml.model", "no_vocab"),
        }
        if let Some(reranker) = &reranker {
            reranker.join(&mut templates);
            reranker.describe(architecture.name, &mut metadata);
        }
        metadata::templates(templates, &mut metadata);
        metadata::sentence_transformer(&checkpoint, architecture.name, &mut metadata)?;
        let config = config(&checkpoint, &metadata)?;
        let class = checkpoint.settings().0["architectures"][0].as_str().unwrap_or_default();
        let has_head = !class.ends_with("Model") || class.ends_with("LMHeadModel");
        if !has_head && config.encoder.is_none() {
            let reason = format!(
                "`architectures`: {class} has no head that generates text, and no modules.json says how its rows are pooled"
            );
            return Err(checkpoint.wrong("config.json", &reason));
        }
        let scored = reranker.map(|reranker| reranker.tokens).unwrap_or_default();
        if !scored.is_empty() && config.logit_scale.or(config.logit_softcap).is_some() {
            let reason = "scales or bounds its logits, by which pairs would be scored; that is not supported";
            return Err(checkpoint.wrong("config.json", reason));
        }
        let tensors = Tensors::plan(&checkpoint, architecture, &config, made)?.scored(&scored)?;
        let outtype = self.outtype.unwrap_or_else(|| tensors.usual());
        let mix = Mix::pure(outtype)?;
        let tensors = tensors.typed(&mix, &metadata)?;
        metadata::sizes(&tensors, &config, &mix, &mut metadata);
        Ok(Plan { checkpoint, metadata, tensors, outtype, threads: self.threads })
    }

    fn vocabulary(
        &self,
        checkpoint: &Checkpoint,
        architecture: &Architecture,
        metadata: &Metadata,
        files: (&Value, &Value),
    ) -> Result<Option<Vocabulary<'static>>, Error> {
        if self.no_vocab {
            return Ok(None);
        }
        let rows = metadata.usize(&format!("{}.vocab_size", architecture.name))?;
        if rows > limits::VOCAB {
            let reason = format!("`vocab_size` is {rows}; it must be at most {}", limits::VOCAB);
            return Err(checkpoint.wrong("config.json", &reason));
        }
        let mut vocabulary =
            tokenizer(checkpoint, architecture.name, rows, files)?.ok_or_else(|| {
                Error::NoTokenizer { folder: checkpoint.folder().display().to_string() }
            })?;
        vocabulary.name = metadata.opt_str("general.name")?.unwrap_or_default().to_owned();
        Ok(Some(vocabulary))
    }
}

/// What a checkpoint's `config.json` says.
struct Described {
    architecture: &'static Architecture,
    /// Without the vocabulary.
    metadata: Metadata,
    made: Vec<Made>,
}

fn described(checkpoint: &Checkpoint, name: Option<&str>) -> Result<Described, Error> {
    let in_config = |source| in_config(checkpoint, source);
    let settings = checkpoint.settings();
    let architecture = of_checkpoint(settings).map_err(in_config)?;
    let (drafted, made) = draft(architecture, settings).map_err(in_config)?;
    let mut metadata = metadata::general(checkpoint, name)?;
    for (key, value) in drafted.iter() {
        metadata.set(key, value.clone());
    }
    let layers = metadata.opt_usize(&format!("{}.block_count", architecture.name))?.unwrap_or(0);
    let count = mtp::mtp_blocks(checkpoint, architecture, layers);
    if count > 0 {
        add_mtp_blocks(&mut metadata, architecture, count);
    }
    Ok(Described { architecture, metadata, made })
}

/// The configuration that complete metadata gives.
fn config(checkpoint: &Checkpoint, metadata: &Metadata) -> Result<Config, Error> {
    bilayer_models::config(metadata).map_err(|source| in_config(checkpoint, source))
}

fn in_config(checkpoint: &Checkpoint, source: bilayer_models::Error) -> Error {
    let file = checkpoint.folder().join("config.json").display().to_string();
    Error::OfCheckpoint { file, source: Box::new(source) }
}

impl Plan {
    /// The metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The type of matrices.
    #[must_use]
    pub fn outtype(&self) -> Type {
        self.outtype
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> impl Iterator<Item = PlannedTensor<'_>> {
        self.tensors.iter().map(|Planned { name, shape, ty, .. }| PlannedTensor {
            name,
            shape,
            ty: *ty,
        })
    }

    /// Number of weights in all tensors.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.shape.iter().product::<u64>()).sum()
    }

    /// Bytes of all tensors in the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(Planned::bytes).sum()
    }

    /// Checks that writing to `path` would not overwrite an input.
    ///
    /// # Errors
    /// [`Error::SameFile`].
    pub fn check_output(&self, path: &Path) -> Result<(), Error> {
        overwrite::check(path, self.checkpoint.inputs())
    }

    /// Writes the file under a temporary name beside `path` and renames it when complete.
    ///
    /// # Errors
    /// [`Error::SameFile`], [`Error::File`], [`Error::Size`], [`Error::Threads`]; [`Error::Weight`] if a weight
    /// is infinite, NaN, or too large for its type; [`Error::Interrupted`] if `progress` breaks. On error
    /// nothing is left behind, and an existing file at `path` is unchanged.
    pub fn write(&self, path: &Path, progress: Progress<'_>) -> Result<(), Error> {
        self.check_output(path)?;
        let reporter = Reporter::new(progress, self.bytes());
        let pool = stream::pool(self.threads)?;
        bilayer_gguf::write(path, &self.metadata, self.streams(&pool, &reporter))
            .map_err(writer_error)
    }

    /// Produces the file in memory.
    ///
    /// # Errors
    /// Those of [`Plan::write`].
    pub fn to_bytes(&self) -> Result<bytes::Bytes, Error> {
        let mut silent = |_, _| std::ops::ControlFlow::Continue(());
        let reporter = Reporter::new(&mut silent, self.bytes());
        let pool = stream::pool(self.threads)?;
        bilayer_gguf::to_bytes(&self.metadata, self.streams(&pool, &reporter)).map_err(writer_error)
    }

    fn streams<'p>(
        &'p self,
        pool: &'p rayon::ThreadPool,
        reporter: &'p Reporter<'_>,
    ) -> impl Iterator<Item = NewTensor<'p>> {
        self.tensors.iter().map(move |planned| {
            let stream = move |out: &mut dyn std::io::Write| {
                let shards = &self.checkpoint.shards;
                RowReader::new(shards, planned).pieces().write(pool, out, reporter)?;
                Ok(shards.check_unchanged()?)
            };
            NewTensor::stream(&planned.name, planned.ty, &planned.shape, stream)
        })
    }
}

/// Maps an error of the writer.
fn writer_error(error: bilayer_gguf::Error) -> Error {
    match error {
        bilayer_gguf::Error::Source { tensor, source, .. } if source.is::<rows::Bad>() => {
            Error::Weight { tensor, reason: source.to_string() }
        }
        // Those of the output are not of a source.
        bilayer_gguf::Error::Source { source, .. } if source.is::<std::io::Error>() => {
            Error::Unreadable { reason: source.to_string() }
        }
        error => stream::writer_error(error),
    }
}
