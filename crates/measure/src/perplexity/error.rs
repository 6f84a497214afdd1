//! Errors of scoring a text.

use std::fmt::{self, Display};
use std::io;

use bilayer_settings::{Phrase, Setting};

/// Errors of scoring a text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text has less than two windows.
    #[error(fmt = too_short)]
    TooShort {
        /// Tokens of the text.
        found: usize,
        /// Tokens of a window.
        len: usize,
    },
    /// Base logits cannot be written.
    #[error("base logits cannot be written: {0}")]
    Write(#[source] io::Error),
    /// Base logits cannot be read.
    #[error("base logits cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The file has another format.
    #[error("no file of base logits; write one with --kl-base")]
    Magic,
    /// A size is invalid.
    #[error("the {name} is {found}; write the file again with --kl-base")]
    Size {
        /// Name of the size.
        name: &'static str,
        /// The value in the file.
        found: i32,
    },
    /// The file was truncated or extended.
    #[error(
        "{found} bytes where its header asks for {expected}; write the file again with --kl-base"
    )]
    Length {
        /// Expected bytes of header, tokens and rows.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The file belongs to a model with another vocabulary.
    #[error(
        "base logits over {found} tokens, and the model has {known}; compare models of one vocabulary"
    )]
    Vocabulary {
        /// Tokens of the file.
        found: usize,
        /// Tokens of the model.
        known: usize,
    },
    /// A token outside the file's own vocabulary.
    #[error(
        "token {found} is not in the vocabulary of {vocab}; write the file again with --kl-base"
    )]
    Token {
        /// The token.
        found: i32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The base logits are not finite.
    #[error("base logits that are not finite; write the file again with --kl-base")]
    NotFinite,
    /// A number exceeds the file format's range.
    #[error("{found} does not fit into a file of base logits")]
    Large {
        /// The number.
        found: usize,
    },
}

fn too_short(found: &usize, len: &usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "the text has {found} tokens; two windows of {len} need {}: ", 2 * len)?;
    let advice = Phrase::from("give a longer text or a smaller ");
    advice.noun("context", Setting::Context).fmt(f)
}
