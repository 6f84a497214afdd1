//! Errors from opening a file to generating text, with the exit code and advice for each.

use std::fmt::{self, Display};

use bilayer_settings::{Phrase, Setting};

use crate::sampling;
use crate::session::cache::Error as CacheError;

mod advice;

/// The exit codes of a program that runs models, by kind of failure; those of sysexits.h where it defines one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// An invalid command line or call.
    Usage = 2,
    /// An unusable model file.
    BadModel = 65,
    /// A missing file.
    NoFile = 66,
    /// A missing device.
    NoDevice = 69,
    /// An internal error.
    Internal = 70,
    /// Output that cannot be created.
    NoOutput = 73,
    /// An I/O failure.
    Io = 74,
    /// Insufficient memory.
    DoesNotFit = 75,
    /// Interrupted by the user.
    Interrupted = 130,
}

/// Errors of loading and running a model: `{:#}` names settings as programs do, in place of flags.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device is missing or does not work.
    #[error("{reason}")]
    Unavailable {
        /// The backend's message.
        reason: String,
    },
    /// The program was built for the CPU only.
    #[error("this build has no GPU support (feature `gpu`)")]
    NoGpuSupport,
    /// The file does not exist.
    #[error("{path}: no such file; give the path of a .gguf file")]
    NoSuchFile {
        /// The path as given.
        path: String,
    },
    /// The file cannot be read, or is not a well-formed GGUF file.
    #[error(transparent)]
    File(bilayer_gguf::Error),
    /// The file is a GGUF file but not a supported model.
    #[error("{file}: {source}")]
    Model {
        /// The file.
        file: String,
        /// What is missing, invalid or not supported.
        source: bilayer_models::Error,
    },
    /// The file's vocabulary is unusable.
    #[error("{file}: {source}")]
    Vocabulary {
        /// The file.
        file: String,
        /// What is missing, invalid or not supported.
        source: bilayer_text::Error,
    },
    /// An encoder is required, but the model is a decoder.
    #[error(
        "the model {name} generates text; embeddings and scores are what encoders such as BERT give"
    )]
    NoEncoder {
        /// The model.
        name: String,
    },
    /// An encoder needs a row to pool.
    #[error("a text has no tokens, of which there must be one for a vector or a score")]
    NoTokens,
    /// A decoder is required, but the model is an encoder.
    #[error(
        "the model {name} is an encoder, which generates no text; `embed`, `rerank`, `classify` and `extract` are made for it"
    )]
    NoDecoder {
        /// The model.
        name: String,
    },
    /// Scores are required, but the encoder has no classification head.
    #[error(
        "the model {name} has no head that scores texts (no tensor cls.output.weight); `embed` gives its embeddings"
    )]
    NoHead {
        /// The model.
        name: String,
    },
    /// Drafts of an MTP block are required, but the file has none.
    #[error(fmt = no_mtp)]
    NoMtp {
        /// The file.
        file: String,
        /// The key that counts such blocks.
        key: String,
    },
    /// A head that labels tokens is required.
    #[error(
        "the model {name} does not label tokens: `extract` needs a model converted from a checkpoint such as BertForTokenClassification"
    )]
    NoTokenHead {
        /// The model.
        name: String,
    },
    /// A head that scores texts is required, but the model's labels tokens.
    #[error("{name} labels each token instead of the text; `extract` gives the entities of a text")]
    TokenHead {
        /// The model.
        name: String,
    },
    /// A text exceeds the context.
    #[error("a text of {tokens} tokens is longer than the context of {context}")]
    TooLong {
        /// Tokens of the text, including special tokens.
        tokens: usize,
        /// Tokens available.
        context: usize,
    },
    /// The first text of a pair leaves no room for the second one, of which the beginning was asked for.
    #[error(
        "a query of {tokens} tokens, with what is around it, leaves no room for a document in the context of {context}"
    )]
    QueryTooLong {
        /// Tokens without the second text, including special tokens and those of a template.
        tokens: usize,
        /// Tokens available.
        context: usize,
    },
    /// A setting or an argument is out of range.
    #[error(fmt = out_of_range)]
    Setting {
        /// The setting, or what else is wrong.
        name: Phrase,
        /// The given value.
        found: String,
        /// The valid values.
        expected: Phrase,
    },
    /// The model does not fit the machine.
    #[error(transparent)]
    Plan(#[from] bilayer_scheduler::Error),
    /// The CPU cannot be used as requested.
    #[error(transparent)]
    Cpu(#[from] bilayer_cpu::Error),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] bilayer_graph::Error),
    /// A device failed, and the CPU could not take over.
    #[error(fmt = fallback)]
    Fallback {
        /// The device's error.
        lost: bilayer_graph::Error,
        /// Why the CPU could not.
        source: Box<Error>,
    },
    /// A text could not be tokenized.
    #[error(transparent)]
    Text(bilayer_text::Error),
    /// A prompt or an answer does not fit the context, or no sequence is free.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A saved sequence cannot be written, read or used.
    #[error("{file}: {problem}")]
    Saved {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// An adapter cannot be applied.
    #[error("{file}: {problem}")]
    Adapter {
        /// The adapter's file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A draft model has a different vocabulary.
    #[error("{draft} cannot draft for {model}: {what}; a draft model needs the same vocabulary")]
    Vocabularies {
        /// The draft model's file.
        draft: String,
        /// The target model's file.
        model: String,
        /// The difference.
        what: String,
    },
    /// A sampler's option is out of range.
    #[error(transparent)]
    SamplingOptions(#[from] sampling::OptionsError),
    /// No token could be selected.
    #[error(transparent)]
    Sampling(#[from] sampling::Error),
    /// A grammar or a schema cannot constrain answers.
    #[error(transparent)]
    Constraint(#[from] bilayer_constrain::Error),
    /// A list of functions is none, or nothing tells the model of it.
    #[error(transparent)]
    Tools(#[from] crate::tools::error::ToolsError),
    /// A conversation is not valid JSON, or its messages have another form.
    #[error(transparent)]
    Messages(#[from] crate::conversation::error::MessagesError),
    /// [`Cancel`](crate::Cancel) ended a call that has no partial result.
    #[error("interrupted")]
    Interrupted,
    /// The logits are not finite, and the op at fault could not be found.
    #[error("the logits are not finite: the weights or the file are damaged")]
    LogitsNotFinite,
    /// A token id outside the vocabulary.
    #[error("token {token} is not in the vocabulary of {vocab} tokens")]
    Token {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
}

impl Error {
    /// The error for a setting that is out of range.
    pub fn setting(
        name: impl Into<Phrase>,
        found: impl Display,
        expected: impl Into<Phrase>,
    ) -> Error {
        let found = found.to_string();
        Error::Setting { name: name.into(), found, expected: expected.into() }
    }
}

// Parts that name settings are written with the error's own formatter, which has their form.

fn no_mtp(file: &str, key: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let instead = Phrase::from("drafts can come from ").setting(Setting::Lookup).text(" or ");
    write!(f, "{file} has no block for multi-token prediction (key {key} is absent or 0); ")?;
    instead.noun("a draft model", Setting::DraftModel).fmt(f)
}

fn out_of_range(
    name: &Phrase,
    found: &str,
    expected: &Phrase,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    name.fmt(f)?;
    write!(f, " is {found}; it must be ")?;
    expected.fmt(f)
}

fn fallback(
    lost: &bilayer_graph::Error,
    source: &Error,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "{lost}; and the CPU cannot take over: ")?;
    source.fmt(f)
}
