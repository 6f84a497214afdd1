//! SentencePiece's normalization: rules for characters, then spaces.
//!
//! Source: `normalizer.cc` of SentencePiece.

use std::ops::Range;

use super::UNIGRAM;
use super::charsmap::Charsmap;
use crate::pieces::SPACE;
use crate::{Error, Vocabulary};

#[derive(Debug)]
pub(super) struct Normalizer {
    rules: Option<Charsmap>,
    /// Whether a space is added before a text.
    pub adds_space: bool,
    /// Whether runs of spaces are collapsed, and those around a text removed.
    squeezes: bool,
}

impl Normalizer {
    pub fn new(vocabulary: &Vocabulary<'_>) -> Result<Normalizer, Error> {
        // llama.cpp's defaults.
        let adds_space = vocabulary.add_space_prefix.unwrap_or(vocabulary.model != UNIGRAM);
        Ok(Normalizer {
            rules: Charsmap::new(&vocabulary.charsmap)?,
            adds_space,
            squeezes: vocabulary.remove_extra_whitespaces.unwrap_or(false),
        })
    }

    /// Applies the rules, collapses spaces if the vocabulary requires it, adds a leading one, and escapes all. `each` is
    /// given the number of bytes of every result, and the bytes of `text` that it was.
    pub fn normalize(&self, text: &str, each: &mut impl FnMut(usize, Range<usize>)) -> String {
        let mut normalized = String::with_capacity(text.len() + text.len() / 4 + 3);
        let mut at = 0;
        while self.squeezes && at < text.len() {
            let (made, len) = self.first(&text[at..]);
            if made != " " {
                break;
            }
            at += len;
        }
        if self.adds_space && at < text.len() {
            normalized.push(SPACE);
            each(SPACE.len_utf8(), at..at);
        }
        let mut after_space = self.squeezes;
        while at < text.len() {
            let (made, len) = self.first(&text[at..]);
            let made = if after_space { made.trim_start_matches(' ') } else { made };
            let before = normalized.len();
            normalized.extend(made.chars().map(|c| if c == ' ' { SPACE } else { c }));
            each(normalized.len() - before, at..at + len);
            if !made.is_empty() {
                after_space = self.squeezes && made.ends_with(' ');
            }
            at += len;
        }
        if self.squeezes {
            normalized.truncate(normalized.trim_end_matches(SPACE).len());
        }
        normalized
    }

    /// What the first characters of a text that is not empty become, and their number of bytes.
    fn first<'a>(&'a self, text: &'a str) -> (&'a str, usize) {
        let rule = self.rules.as_ref().and_then(|rules| rules.longest(text));
        rule.unwrap_or_else(|| {
            let len = text.chars().next().map_or(0, char::len_utf8);
            (&text[..len], len)
        })
    }
}
