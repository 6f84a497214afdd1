//! The visible text of tokens.

use crate::pieces::Pieces;

/// The visible bytes of tokens.
#[derive(Debug)]
pub(crate) struct View {
    pub show_control: bool,
    /// Whether a leading space would still be the one added by encoding.
    pub drops_space: bool,
}

impl View {
    /// The visible bytes of token `id`; the first such token loses the space added by encoding.
    pub fn bytes<'a>(&mut self, pieces: &'a Pieces, id: u32) -> Option<&'a [u8]> {
        let bytes = pieces.get(id)?;
        let kind = pieces.kind(id)?;
        if kind.is_hidden() {
            return self.show_control.then_some(bytes);
        }
        if std::mem::take(&mut self.drops_space) && !kind.is_plain() {
            return Some(bytes.strip_prefix(b" ").unwrap_or(bytes));
        }
        Some(bytes)
    }
}

/// The bytes of all `ids` as text.
pub(crate) fn decode(pieces: &Pieces, ids: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(ids.len() * 4);
    let mut view = View { show_control: false, drops_space: pieces.adds_space };
    for &id in ids {
        bytes.extend_from_slice(view.bytes(pieces, id).unwrap_or_default());
    }
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
