//! What can go wrong while measuring.

use bilayer_engine::session::Warning;

use crate::perplexity;

/// Errors of measuring.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Loading or running the model failed.
    #[error(transparent)]
    Engine(#[from] bilayer_engine::Error),
    /// A text could not be scored.
    #[error(transparent)]
    Perplexity(#[from] perplexity::Error),
    /// A device failed, and another took over: the placement that was to be measured is gone.
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
