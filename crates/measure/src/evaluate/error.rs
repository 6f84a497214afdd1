//! Why models cannot be evaluated.

/// Why models cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to ask.
    #[error("no cases; write one JSON object per line")]
    Empty,
    /// A line is no case.
    #[error("line {line}: {problem}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// A field of a case is wrong.
    #[error("line {line}: `{field}`: {problem}")]
    Case {
        /// From 1.
        line: usize,
        /// Its name.
        field: String,
        /// What is wrong.
        problem: String,
    },
}
