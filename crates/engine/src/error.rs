//! What can go wrong between a path and a text, and the exit code and the advice for each.

use crate::sampling;
use crate::session::CacheError;

mod advice;

/// The exit codes of a program that runs models, by what went wrong. They are sysexits.h's where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// A command line or a call that makes no sense.
    Usage = 2,
    /// A model file that cannot be run.
    BadModel = 65,
    /// A file that is not there.
    NoFile = 66,
    /// A device that is not there.
    NoDevice = 69,
    /// Our own fault.
    Internal = 70,
    /// Output that cannot be made.
    NoOutput = 73,
    /// Input or output that failed half-way.
    Io = 74,
    /// What does not fit.
    DoesNotFit = 75,
    /// Interrupted by the user.
    Interrupted = 130,
}

/// Errors of loading and running a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device is not there or does not work.
    #[error("{reason}")]
    Unavailable {
        /// What its backend says.
        reason: String,
    },
    /// The program was built for the processor alone.
    #[error("this build has no graphics adapters (feature `gpu`)")]
    NoAdapters,
    /// There is no such file.
    #[error("{path}: no such file; give the path of a .gguf file with -m")]
    NoSuchFile {
        /// The path as given.
        path: String,
    },
    /// The file cannot be read, or is no well-formed GGUF file.
    #[error(transparent)]
    File(bilayer_gguf::Error),
    /// The file is GGUF but no model this program runs.
    #[error("{file}: {source}")]
    Model {
        /// The file.
        file: String,
        /// What is missing, odd or not supported.
        source: bilayer_models::Error,
    },
    /// The file's vocabulary cannot be used.
    #[error("{file}: {source}")]
    Vocabulary {
        /// The file.
        file: String,
        /// What is missing, odd or not supported.
        source: bilayer_text::Error,
    },
    /// A model that generates was to do what encoders do.
    #[error("{name} generates text; embeddings and scores are what encoders such as BERT give")]
    NoEncoder {
        /// The model.
        name: String,
    },
    /// An encoder was to generate.
    #[error(
        "{name} is an encoder, which generates no text; `embed`, `rerank` and `classify` are made for it"
    )]
    NoDecoder {
        /// The model.
        name: String,
    },
    /// An encoder without a head was to score.
    #[error(
        "{name} has no head that scores texts (no tensor cls.output.weight); `embed` gives its embeddings"
    )]
    NoHead {
        /// The model.
        name: String,
    },
    /// A text is longer than the model takes.
    #[error("a text of {tokens} tokens is longer than the context of {context}")]
    TooLong {
        /// Tokens of the text, with those around it.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// A setting of the session is out of range.
    #[error("{name} is {found}; it must be {expected}")]
    Setting {
        /// The setting as the command line spells it.
        name: &'static str,
        /// What was given.
        found: String,
        /// What may be given.
        expected: String,
    },
    /// The model does not fit the machine.
    #[error(transparent)]
    Plan(#[from] bilayer_scheduler::Error),
    /// The processor cannot be used as asked.
    #[error(transparent)]
    Cpu(#[from] bilayer_cpu::Error),
    /// A device refused or failed.
    #[error(transparent)]
    Device(#[from] bilayer_graph::Error),
    /// A device failed, and the processor could not take over.
    #[error("{lost}; and the processor cannot take over: {source}")]
    Fallback {
        /// What the device said.
        lost: bilayer_graph::Error,
        /// Why the processor cannot.
        source: Box<Error>,
    },
    /// A text could not be turned into tokens.
    #[error(transparent)]
    Text(bilayer_text::Error),
    /// A prompt or an answer does not fit the context, or no sequence is free.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A draft model does not speak of the same tokens.
    #[error("{draft} cannot draft for {model}: {what}; a draft model needs the same vocabulary")]
    Vocabularies {
        /// The draft model's file.
        draft: String,
        /// The file of the model it shall draft for.
        model: String,
        /// In what they differ.
        what: String,
    },
    /// A sampler's option is out of range.
    #[error(transparent)]
    SamplingOptions(#[from] sampling::OptionsError),
    /// No token could be chosen.
    #[error(transparent)]
    Sampling(#[from] sampling::Error),
    /// The logits are not finite and no op could be found that made them so.
    #[error("the logits are not finite: the weights or the file are damaged")]
    LogitsNotFinite,
    /// A token id outside the vocabulary.
    #[error("token {token} is not in the vocabulary of {vocab} tokens")]
    Token {
        /// The id.
        token: u32,
        /// Tokens there are.
        vocab: usize,
    },
}
