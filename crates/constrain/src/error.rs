//! Errors: what is wrong with a grammar, and where.

/// Errors of compiling a grammar and of following it.
///
/// All but [`Error::Stuck`] and [`Error::NotAllowed`] are errors of the grammar's author: the text says where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The source is longer than [`Limits::source_bytes`](crate::Limits::source_bytes).
    #[error("{what} has {bytes} bytes; at most {most} are allowed")]
    TooLong {
        /// What the source is, such as "the schema".
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// The schema is not JSON.
    #[error("the schema is not JSON: {reason}")]
    Json {
        /// What was expected, with line and column.
        reason: String,
    },
    /// The schema is invalid, uses a keyword that is not supported, or cannot be satisfied.
    #[error("schema at {path}: {reason}")]
    Schema {
        /// JSON pointer to the part at fault, as a fragment: `#/properties/a`.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The text of a grammar or of a regular expression is invalid.
    #[error("{what}, line {line}, column {column}: {reason}")]
    Syntax {
        /// What the source is, such as "the GBNF grammar".
        what: &'static str,
        /// The line, counted from 1.
        line: usize,
        /// The column in characters, counted from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// The grammar cannot be compiled, for a reason that concerns all of it.
    #[error("{what}: {reason}")]
    Grammar {
        /// What the source is, such as "the GBNF grammar".
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The vocabulary is too large for the token trie.
    #[error("output cannot be constrained with this vocabulary: {reason}")]
    Vocabulary {
        /// The limit that it exceeds.
        reason: String,
    },
    /// A token was accepted that the mask does not allow.
    #[error("token {token} is not allowed here by the grammar")]
    NotAllowed {
        /// The token.
        token: u32,
    },
    /// The grammar cannot be followed any further from the text so far.
    #[error("the answer cannot go on as its grammar demands: {reason}")]
    Stuck {
        /// Why not.
        reason: String,
    },
}

/// The first line of an error of llguidance, without its notes to developers.
pub(crate) fn reason(message: &str) -> String {
    let message = message.split("\n<").next().unwrap_or(message);
    let lines = || message.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines().next().unwrap_or("it cannot be compiled");
    if first.contains("oneOf constraints are not supported") {
        return "the options of `oneOf` must exclude each other, and these may not; use `anyOf`"
            .into();
    }
    // Errors of regular expressions are drawn over several lines.
    let inner = lines().find_map(|line| line.strip_prefix("error: "));
    match inner {
        Some(inner) => format!("{} {inner}", first.trim_end_matches(|c| c != ':')),
        None => first.to_owned(),
    }
}
