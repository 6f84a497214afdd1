//! What can be wrong with a file that is to be made.

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody asked for a shape that is not in the table.
    #[error("`{name}` is no shape; known are {}", crate::synth::Shape::names())]
    UnknownShape {
        /// The name asked for.
        name: String,
    },
    /// Somebody asked for a mix or type that is not in the tables.
    #[error("`{name}` is no type; known are {}", crate::mix::Mix::names())]
    UnknownType {
        /// The name asked for.
        name: String,
    },
    /// A size that no model of the shape can have.
    #[error("{what} is {found}; it must be {expected}")]
    Size {
        /// The size, by its flag.
        what: &'static str,
        /// What it may be.
        expected: String,
        /// What was asked for.
        found: u64,
    },
    /// The type cannot hold random weights: it is made for tables and indices.
    #[error("weights are never stored as {ty}; choose a floating-point or quantized type")]
    NotForWeights {
        /// The type's name.
        ty: &'static str,
    },
    /// The sizes make no model that can be read back.
    #[error(transparent)]
    Model(#[from] bilayer_models::Error),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] bilayer_gguf::Error),
    /// The threads that make weights cannot be started.
    #[error("{threads} threads cannot be started: {reason}; use fewer")]
    Threads {
        /// How many.
        threads: usize,
        /// The operating system's reason.
        reason: String,
    },
    /// A file that holds no importance matrix.
    #[error("{file}: no importance matrix in GGUF form; make one with `bilayer imatrix`")]
    NoImatrix {
        /// The file.
        file: String,
    },
    /// A tensor's sums that cannot be used.
    #[error("{tensor}: {reason}")]
    Sums {
        /// The tensor of the model.
        tensor: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The caller asked to stop; nothing is left behind.
    #[error("interrupted")]
    Interrupted,
}
