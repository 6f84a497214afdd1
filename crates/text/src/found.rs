//! What the tokenizers find in a fragment of a text.

use std::ops::Range;

/// A token in a fragment of a text, as the tokenizers make it.
pub(crate) struct Found {
    pub id: u32,
    /// Bytes of the fragment, not always whole characters.
    pub bytes: Range<usize>,
    /// As in [`TokenSpan`](crate::TokenSpan); `None` if the vocabulary does not say.
    pub begins_word: Option<bool>,
}
