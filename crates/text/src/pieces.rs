//! The bytes that each token stands for, and the alphabets in which vocabularies spell them.

use std::borrow::Cow;

use crate::Error;
use crate::vocabulary::{TokenType, byte};

/// SentencePiece's spelling of a space, U+2581.
pub(crate) const SPACE: char = '▁';

/// The spelling of normal tokens in a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alphabet {
    /// Text with [`SPACE`] for spaces.
    Escaped,
    /// One character for each byte ([`character`]).
    Bytes,
}

/// The concatenated bytes of all tokens; built once, shared by tokenizer and decoders.
#[derive(Debug)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    /// `ends[id]`: where the bytes of token `id` end; they start where those of `id - 1` end.
    ends: Vec<usize>,
    types: Vec<TokenType>,
    /// Whether encoding adds a space before the text, which decoding removes.
    pub adds_space: bool,
}

impl Pieces {
    /// Spells out `tokens`, whose types are `types`.
    pub fn new(
        tokens: &[Cow<'_, str>],
        types: Vec<TokenType>,
        alphabet: Alphabet,
    ) -> Result<Self, Error> {
        let mut bytes = Vec::with_capacity(tokens.iter().map(|token| token.len()).sum());
        let mut ends = Vec::with_capacity(tokens.len());
        let decoded = alphabet_bytes();
        for (id, (token, &kind)) in tokens.iter().zip(&types).enumerate() {
            match kind {
                TokenType::Byte => bytes.push(
                    byte(token)
                        .ok_or_else(|| Error::Byte { id: id as u32, token: token.to_string() })?,
                ),
                kind if kind.is_plain() => bytes.extend_from_slice(token.as_bytes()),
                _ if alphabet == Alphabet::Bytes => decode(token, &decoded, &mut bytes),
                _ => {
                    let mut encoded = [0; 4];
                    for character in token.chars() {
                        let character = if character == SPACE { ' ' } else { character };
                        bytes.extend_from_slice(character.encode_utf8(&mut encoded).as_bytes());
                    }
                }
            }
            ends.push(bytes.len());
        }
        Ok(Self { bytes, ends, types, adds_space: false })
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.bytes[start..end])
    }

    pub fn kind(&self, id: u32) -> Option<TokenType> {
        self.types.get(id as usize).copied()
    }
}

/// The character for `byte` in byte-level vocabularies: itself if it is a printable Latin-1 character, otherwise the
/// next free one from U+0100 on.
///
/// Source: `bytes_to_unicode` of OpenAI's GPT-2.
pub(crate) fn character(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0..=0x20 => offset(byte, 0),
        0x7F..=0xA0 => offset(byte - 0x7F, 0x21),
        0xAD => offset(0, 0x43),
    }
}

/// The character U+0100 + `index` + `base`; all of these are letters.
fn offset(index: u8, base: u32) -> char {
    char::from_u32(0x100 + base + u32::from(index)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The inverse of [`character`]: the byte for each character below U+0144.
fn alphabet_bytes() -> [Option<u8>; 0x144] {
    let mut bytes = [None; 0x144];
    for byte in 0..=u8::MAX {
        bytes[character(byte) as usize] = Some(byte);
    }
    bytes
}

/// Appends the bytes of `token`; a token with a character outside the alphabet is plain text.
fn decode(token: &str, alphabet: &[Option<u8>; 0x144], bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in token.chars() {
        let Some(byte) = alphabet.get(character as usize).copied().flatten() else {
            bytes.truncate(start);
            bytes.extend_from_slice(token.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_that_of_gpt_2() {
        let known =
            [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'\t', 'ĉ'), (0x7F, 'ġ'), (0xA0, 'ł'), (0xAD, 'Ń')];
        for (byte, expected) in known {
            assert_eq!(character(byte), expected);
        }
        let bytes = alphabet_bytes();
        assert_eq!(bytes.iter().flatten().count(), 256, "every byte has a character of its own");
    }
}
