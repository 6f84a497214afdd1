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

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts, what they become, and the bytes of each part with those of the text that it was made of.
    #[test]
    fn spaces_are_added_collapsed_and_spelled() {
        type Parts = &'static [(usize, Range<usize>)];
        let cases: &[(bool, bool, &str, &str, Parts)] = &[
            // (a space is added, runs are collapsed, text, normalized text, parts)
            (false, false, "", "", &[]),
            (true, false, "", "", &[]),
            (true, true, "  ", "", &[]),
            (false, false, " é", "▁é", &[(3, 0..1), (2, 1..3)]),
            (true, false, " a", "▁▁a", &[(3, 0..0), (3, 0..1), (1, 1..2)]),
            (
                true,
                true,
                "  a  b ",
                "▁a▁b",
                &[(3, 2..2), (1, 2..3), (3, 3..4), (0, 4..5), (1, 5..6), (3, 6..7)],
            ),
            (false, true, " a ", "a", &[(1, 1..2), (3, 2..3)]),
            (false, false, "a  ", "a▁▁", &[(1, 0..1), (3, 1..2), (3, 2..3)]),
            // Only spaces are.
            (false, true, "\n\na", "\n\na", &[(1, 0..1), (1, 1..2), (1, 2..3)]),
        ];
        for (adds, squeezes, text, expected, parts) in cases {
            let normalizer = Normalizer::new(&Vocabulary {
                model: "llama".into(),
                add_space_prefix: Some(*adds),
                remove_extra_whitespaces: Some(*squeezes),
                ..Vocabulary::default()
            });
            let mut found = Vec::new();
            let normalizer = normalizer.expect("no rules");
            let normalized = normalizer.normalize(text, &mut |len, range| found.push((len, range)));
            assert_eq!(normalized, *expected, "{text:?}");
            assert_eq!(found, *parts, "{text:?}");
        }
    }
}
