//! Errors in making model files.

use std::fmt::{self, Display};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bilayer_engine::Exit;
use bilayer_quant::Type;
use bilayer_settings::{Phrase, Setting};

/// Errors of this crate: `{:#}` names settings as programs do, in place of flags.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The shape is not in the table.
    #[error("`{name}` is no shape; known are {known}")]
    UnknownShape {
        /// The requested name.
        name: String,
        /// The names of all shapes, separated by commas.
        known: String,
    },
    /// The mix or type is not in the tables.
    #[error("`{name}` is no type; known are {known}")]
    UnknownType {
        /// The requested name.
        name: String,
        /// The names of all mixes and types, separated by commas.
        known: String,
    },
    /// A name that is no single type that can be written.
    #[error("`{name}` is no type of a single tensor; those that can be written are {known}")]
    UnknownSingleType {
        /// The requested name.
        name: String,
        /// The names of those types, separated by commas.
        known: String,
    },
    /// A checkpoint is not converted to the type.
    #[error("`{name}` is no type to convert to; choose {known}")]
    UnknownOuttype {
        /// The requested name.
        name: String,
        /// The names of those types, separated by commas.
        known: String,
    },
    /// A size is invalid for models of this shape.
    #[error("{what} is {found}; it must be {expected}")]
    Size {
        /// The size, by its flag.
        what: &'static str,
        /// The valid values.
        expected: String,
        /// The requested value.
        found: u64,
    },
    /// The type is meant for tables and indices, not for weights.
    #[error("weights are never stored as {ty}; choose a floating-point or quantized type")]
    NotForWeights {
        /// The type's name.
        ty: &'static str,
    },
    /// A tensor type rule cannot be parsed.
    #[error("--tensor-type {given}: {reason}")]
    Override {
        /// The given text.
        given: String,
        /// The problem.
        reason: String,
    },
    /// A tensor would get a type that this build can only read.
    #[error("tensor {tensor}: {ty} can be read but not made; choose another type")]
    Unwritable {
        /// The tensor's name.
        tensor: String,
        /// The type's name.
        ty: &'static str,
    },
    /// A tensor would get a type that is useless without importance.
    #[error(fmt = unweighted)]
    Unweighted {
        /// The tensor's name.
        tensor: String,
        /// The type's name.
        ty: &'static str,
    },
    /// A tensor is already quantized.
    #[error(fmt = requantize)]
    Requantize {
        /// The tensor's name.
        tensor: String,
        /// Its type.
        ty: &'static str,
    },
    /// A matrix that is sparse already has more nonzero weights in a group than a sparse type keeps.
    #[error(fmt = too_full)]
    Nonzeros {
        /// The tensor's name.
        tensor: String,
        /// Nonzero weights of its fullest group of 64.
        nonzeros: usize,
        /// The type.
        ty: Type,
    },
    /// A matrix cannot be pruned as requested.
    #[error("{tensor}: {reason}")]
    Prune {
        /// The tensor, or the input of the command.
        tensor: String,
        /// The problem and its remedy.
        reason: String,
    },
    /// The journal of an output cannot be used.
    #[error("{file} {reason}")]
    Journal {
        /// The journal.
        file: String,
        /// The problem and its remedy.
        reason: String,
    },
    /// A model cannot be smoothed.
    #[error("{what}: cannot be smoothed: {reason}")]
    Smooth {
        /// The model, or a tensor.
        what: String,
        /// The problem.
        reason: String,
    },
    /// Matrices cannot be rounded by GPTQ.
    #[error("{what}: cannot be rounded by GPTQ: {reason}")]
    Gptq {
        /// The type, or a file.
        what: String,
        /// The problem.
        reason: String,
    },
    /// The output would overwrite an input.
    #[error("{file}: input and output are the same file; write the new one under another name")]
    SameFile {
        /// The file's path.
        file: String,
    },
    /// A weight of the input is infinite or NaN.
    #[error("tensor {tensor}: {reason}")]
    Weight {
        /// The tensor's name.
        tensor: String,
        /// The weight and its value.
        reason: String,
    },
    /// A file of weights changed while it was read, or cannot be read to its end.
    #[error("{reason}")]
    Unreadable {
        /// The file, and what is wrong.
        reason: String,
    },
    /// A GGUF file is not an importance matrix.
    #[error(
        "{file}: expected an importance matrix (general.type = imatrix), found {found}, which is no importance matrix; \
         make one with `bilayer imatrix`"
    )]
    NoImatrix {
        /// The file.
        file: String,
        /// Its `general.type`.
        found: String,
    },
    /// A file is neither GGUF nor an importance matrix in llama.cpp's older format.
    #[error(
        "{file}: not a GGUF file, and no importance matrix of llama.cpp's older form: {reason}; make one with \
         `bilayer imatrix`"
    )]
    OldImatrix {
        /// The file.
        file: String,
        /// The problem.
        reason: String,
    },
    /// A tensor's entry in an importance matrix cannot be used.
    #[error("{tensor}: {reason}")]
    Sums {
        /// The tensor of the model.
        tensor: String,
        /// The problem and its remedy.
        reason: String,
    },
    /// The importance matrix belongs to another model.
    #[error(
        "tensor {tensor}: expected {} matrices of {} columns in the importance matrix, found {} of {}; it is of another \
         model", expected[0], expected[1], found[0], found[1]
    )]
    ImatrixShape {
        /// The tensor's name.
        tensor: String,
        /// Matrices and columns of the tensor.
        expected: [u64; 2],
        /// Those of the importance matrix.
        found: [u64; 2],
    },
    /// A file of a checkpoint is missing, damaged or of an unknown kind.
    #[error("{file}: {reason}")]
    Checkpoint {
        /// The file.
        file: String,
        /// The problem: the field and its valid values.
        reason: String,
    },
    /// A checkpoint's configuration does not describe a supported model.
    #[error("{file}: {source}")]
    OfCheckpoint {
        /// The file.
        file: String,
        /// The problem.
        source: Box<bilayer_models::Error>,
    },
    /// A tensor of a checkpoint cannot be converted.
    #[error("tensor {tensor}: {reason}")]
    Tensor {
        /// Its name in the checkpoint.
        tensor: String,
        /// The problem.
        reason: String,
    },
    /// A checkpoint's tensors do not form a complete model.
    #[error("the checkpoint is not complete: {source}")]
    Incomplete {
        /// The missing tensors, by their GGUF names.
        source: Box<bilayer_models::Error>,
    },
    /// A checkpoint's tokenizer is unusable.
    #[error("{file}: {source}")]
    Tokenizer {
        /// The file.
        file: String,
        /// The problem.
        source: Box<bilayer_text::Error>,
    },
    /// The folder does not exist.
    #[error("{folder}: no such folder; give the folder of a checkpoint")]
    NoFolder {
        /// The path as given.
        folder: String,
    },
    /// The folder has no tokenizer.
    #[error(fmt = no_tokenizer)]
    NoTokenizer {
        /// The folder.
        folder: String,
    },
    /// The sizes do not form a valid model.
    #[error(transparent)]
    Model(#[from] bilayer_models::Error),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] bilayer_gguf::Error),
    /// The worker threads cannot be started.
    #[error("{threads} threads cannot be started: {reason}; use fewer")]
    Threads {
        /// Number of threads.
        threads: usize,
        /// The operating system's reason.
        reason: String,
    },
    /// No choice of types meets the size target.
    #[error(
        "--target-bpw is {given}; with the smallest types it is {least:.3}: give at least that"
    )]
    Budget {
        /// The requested bits per weight.
        given: f64,
        /// Bits per weight with the smallest types.
        least: f64,
    },
    /// Something is wrong with an input file.
    #[error(fmt = in_file)]
    InFile {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        #[source]
        error: Box<Error>,
    },
    /// A text cannot calibrate or score the model.
    #[error("{flag}: {reason}")]
    Text {
        /// The text, by its flag.
        flag: &'static str,
        /// The problem and its remedy.
        reason: String,
    },
    /// What is asked for compares predictions, and the model is an encoder.
    #[error(
        "{what}: needs a model that predicts tokens; an encoder has no perplexity, and no divergence of predictions"
    )]
    NoPredictions {
        /// The flag, or the model.
        what: String,
    },
    /// A model or another input cannot be read, or a calibration run failed.
    #[error(transparent)]
    Calibration(bilayer_measure::Error),
    /// The logits of the unquantized model cannot be stored in a temporary file.
    #[error(
        "the logits cannot be kept in a temporary file: {0}; free space in the folder for temporary files"
    )]
    Scratch(#[source] std::io::Error),
    /// The caller requested a stop; nothing is left behind but the journal of what pruning has finished.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// This error, about that file.
    pub(crate) fn in_file(self, file: &Path) -> Error {
        Error::InFile { file: file.to_owned(), error: Box::new(self) }
    }

    /// The exit code.
    pub fn exit_code(&self) -> Exit {
        match self {
            Error::UnknownShape { .. } | Error::UnknownType { .. } | Error::Size { .. } => {
                Exit::Usage
            }
            Error::UnknownOuttype { .. } | Error::UnknownSingleType { .. } => Exit::Usage,
            Error::NotForWeights { .. } | Error::Model(_) | Error::Override { .. } => Exit::Usage,
            Error::Unwritable { .. } | Error::Unweighted { .. } => Exit::Usage,
            Error::Requantize { .. } | Error::SameFile { .. } => Exit::Usage,
            Error::Nonzeros { .. } => Exit::Usage,
            Error::Budget { .. } | Error::Gptq { .. } => Exit::Usage,
            Error::Prune { .. } | Error::Journal { .. } => Exit::Usage,
            Error::Text { .. } | Error::NoPredictions { .. } => Exit::Usage,
            Error::Checkpoint { .. } | Error::Tensor { .. } => Exit::BadModel,
            Error::OfCheckpoint { .. } | Error::Tokenizer { .. } => Exit::BadModel,
            Error::Incomplete { .. } | Error::Weight { .. } => Exit::BadModel,
            Error::NoImatrix { .. } | Error::Smooth { .. } => Exit::BadModel,
            Error::OldImatrix { .. } | Error::Sums { .. } => Exit::BadModel,
            Error::ImatrixShape { .. } => Exit::BadModel,
            Error::NoTokenizer { .. } | Error::NoFolder { .. } => Exit::NoFile,
            Error::Threads { .. } => Exit::DoesNotFit,
            Error::Scratch(_) | Error::Unreadable { .. } => Exit::Io,
            Error::Interrupted => Exit::Interrupted,
            Error::InFile { error, .. } => error.exit_code(),
            Error::Calibration(error) => error.exit_code(),
            Error::File(error) => of_written(error).0,
        }
    }

    /// The error of a calibration run.
    pub(crate) fn calibration(error: impl Into<bilayer_measure::Error>) -> Error {
        Error::Calibration(error.into())
    }

    /// The next step for the user, to be appended to the error; empty if the error contains it. `{:#}` names settings as
    /// programs do.
    pub fn advice(&self) -> Phrase {
        let plain = match self {
            Error::InFile { error, .. } => return error.advice(),
            Error::Calibration(error) => return error.advice(),
            Error::OfCheckpoint { .. } | Error::Tokenizer { .. } => {
                "; use a checkpoint of a supported kind"
            }
            Error::Incomplete { .. } => "; download it again",
            Error::ImatrixShape { .. } => "; give the one made from this model",
            Error::File(error) => of_written(error).1,
            _ => "",
        };
        plain.into()
    }
}

fn unweighted(tensor: &str, ty: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "tensor {tensor}: {ty} needs an importance matrix, and there is none for it; make one with `bilayer imatrix -m IN -f \
         TEXT -o imatrix.gguf`, then "
    )?;
    let add = Phrase::from("add ").value(Setting::Imatrix, "imatrix.gguf");
    add.text(", or choose a type of more bits").fmt(f)
}

fn requantize(tensor: &str, ty: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "tensor {tensor} is quantized already, to {ty}, and would lose more than once; start from an F16, BF16 or F32 \
         file, or "
    )?;
    Phrase::from("do it anyway with ").setting(Setting::AllowRequantize).fmt(f)
}

fn too_full(tensor: &str, nonzeros: &usize, ty: &Type, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let kept = ty.kept_of_64().unwrap_or(*nonzeros);
    let family = |ty: &Type| ty.name.split('_').next().unwrap_or_default();
    let of_family = bilayer_quant::all().iter().filter(|other| family(other) == family(ty));
    let more = of_family.filter_map(|ty| Some((ty.kept_of_64()?, ty.name)));
    let more = more.filter(|(kept, _)| kept >= nonzeros).min().map_or("Q8_0", |(_, name)| name);
    write!(
        f,
        "tensor {tensor}: it is sparse already, and a group of 64 has {nonzeros} nonzero weights, of which {ty} keeps {kept}; \
         remove more with `bilayer prune IN OUT --pattern {kept}:64`, or choose a type that keeps them, such as {more}"
    )
}

fn no_tokenizer(folder: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "{folder}: there is no tokenizer.json, SentencePiece model or vocab.txt; download the tokenizer too, or do "
    )?;
    let without = Phrase::from("without one with ").setting(Setting::NoVocab);
    without.text(", for a file that takes and gives token ids").fmt(f)
}

fn in_file(file: &Path, error: &Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}: ", file.display())?;
    error.fmt(f)
}

/// The code and the advice for a file that is written.
fn of_written(error: &bilayer_gguf::Error) -> (Exit, &'static str) {
    use bilayer_gguf::Error as File;
    match error {
        File::NotAFile { .. } | File::NoRoom { .. } => (Exit::NoOutput, ""),
        File::Io { source, .. } => match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                (Exit::Io, "; free some space, or write elsewhere")
            }
            ErrorKind::FileTooLarge | ErrorKind::WriteZero => (Exit::Io, "; write elsewhere"),
            _ => (Exit::NoOutput, "; choose a path that you can write to"),
        },
        File::Lost { .. } | File::Changed { .. } => (Exit::Io, ""),
        File::MissingKey { .. } | File::WrongType { .. } | File::Limit { .. } => {
            (Exit::BadModel, "")
        }
        _ => (Exit::Internal, "; this is a bug: please report it"),
    }
}
