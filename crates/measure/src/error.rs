//! Errors of measuring.

use bilayer_engine::Exit;
use bilayer_engine::session::Warning;
use bilayer_settings::Phrase;

use crate::evaluate::error::Error as Evaluating;
use crate::perplexity::error::Error as Scoring;

/// Errors of measuring: `{:#}` names settings as programs do, in place of flags.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Loading or running the model failed.
    #[error(transparent)]
    Engine(#[from] bilayer_engine::Error),
    /// A text could not be scored.
    #[error(transparent)]
    Perplexity(#[from] Scoring),
    /// Cases are wrong, or not for a model.
    #[error(transparent)]
    Evaluate(#[from] Evaluating),
    /// A device failed and another took over, so the placement to be measured is gone.
    #[error("{0}; a measurement needs the placement it was asked for")]
    Displaced(Box<Warning>),
}

impl From<bilayer_graph::Error> for Error {
    fn from(error: bilayer_graph::Error) -> Error {
        Error::Engine(error.into())
    }
}

impl From<bilayer_cpu::Error> for Error {
    fn from(error: bilayer_cpu::Error) -> Error {
        Error::Engine(error.into())
    }
}

impl Error {
    /// The exit code.
    pub fn exit_code(&self) -> Exit {
        match self {
            Error::Engine(error) => error.exit_code(),
            Error::Evaluate(_) => Exit::Usage,
            Error::Displaced(_) => Exit::DoesNotFit,
            Error::Perplexity(error) => match error {
                Scoring::TooShort { .. } | Scoring::Vocabulary { .. } | Scoring::Large { .. } => {
                    Exit::Usage
                }
                Scoring::Write(_) | Scoring::Read(_) => Exit::Io,
                Scoring::Magic
                | Scoring::Size { .. }
                | Scoring::Length { .. }
                | Scoring::Token { .. }
                | Scoring::NotFinite => Exit::BadModel,
            },
        }
    }

    /// The next step for the user, to be appended to the error; empty if the error contains it. `{:#}` names settings as
    /// programs do.
    pub fn advice(&self) -> Phrase {
        match self {
            Error::Engine(error) => error.advice(),
            Error::Perplexity(Scoring::Write(_)) => "; make room".into(),
            Error::Perplexity(Scoring::Read(_)) => "; write the file again with --kl-base".into(),
            Error::Perplexity(_) | Error::Evaluate(_) | Error::Displaced(_) => Phrase::default(),
        }
    }
}
