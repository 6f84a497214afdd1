//! Tokens with the part of the text that each stands for.

use std::ops::Range;

use crate::found::Found;
use crate::special::Fragment;
use crate::tokenizer::Model;
use crate::{Error, Tokenizer};

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSpan {
    /// Its id.
    pub id: u32,
    /// The bytes of the text that it stands for: whole characters, without white space around them; empty if it stands for
    /// white space alone. Several tokens have the same bytes where they divide a character.
    pub bytes: Range<usize>,
    /// Whether a word begins with it: as the vocabulary says if it tells pieces that begin words from others (WordPiece), or
    /// else behind white space.
    pub begins_word: bool,
}

impl Tokenizer {
    /// The tokens of `text`, without special tokens around it, with their places: the ids of
    /// [`encode`](Tokenizer::encode) by default options.
    ///
    /// # Errors
    /// Those of [`encode`](Tokenizer::encode).
    ///
    /// ```
    /// use bilayer_text::{Tokenizer, Vocabulary};
    ///
    /// let strings = |list: &[&'static str]| list.iter().map(|&item| item.into()).collect();
    /// let tokenizer = Tokenizer::new(Vocabulary {
    ///     model: "bert".into(),
    ///     tokens: strings(&["[UNK]", "[CLS]", "[SEP]", "▁caf", "e", "▁!"]),
    ///     types: vec![2, 3, 3, 1, 1, 1],
    ///     ..Vocabulary::default()
    /// })?;
    /// let text = "Café !";
    /// let tokens = tokenizer.spans(text)?;
    /// let parts: Vec<&str> = tokens.iter().map(|token| &text[token.bytes.clone()]).collect();
    /// assert_eq!(parts, ["Caf", "é", "!"]);
    /// assert!(tokens[0].begins_word && !tokens[1].begins_word);
    /// # Ok::<(), bilayer_text::Error>(())
    /// ```
    pub fn spans(&self, text: &str) -> Result<Vec<TokenSpan>, Error> {
        let mut found = Vec::with_capacity(text.len() / 3 + 2);
        let mut at = 0;
        for fragment in self.user_defined().split(text) {
            let first = found.len();
            match fragment {
                Fragment::Token(id) => {
                    let len = self.pieces().get(id).map_or(0, <[u8]>::len);
                    found.push(Found { id, bytes: at..at + len, begins_word: None });
                    at += len;
                    if self.user_defined().strips(id) {
                        at = text.len() - text[at..].trim_start().len();
                    }
                    continue;
                }
                Fragment::Text(part) => {
                    match self.model() {
                        Model::Spm(spm) => spm.find(part, &mut found)?,
                        Model::Bpe(bpe) => bpe.find(part, self.pieces(), &mut found)?,
                        Model::Words(words) => words.find(part, &mut found),
                        Model::Ids => return Err(Error::NoTokenizer),
                    }
                    for token in &mut found[first..] {
                        token.bytes = at + token.bytes.start..at + token.bytes.end;
                    }
                    at += part.len();
                }
            }
        }
        let mut spans: Vec<TokenSpan> = Vec::with_capacity(found.len());
        for Found { id, bytes, begins_word } in found {
            let bytes = trimmed(text, bytes);
            let before = spans.last().map_or(0, |last| last.bytes.end);
            let follows_space = || {
                let is_behind_space =
                    bytes.start == 0 || text[..bytes.start].ends_with(char::is_whitespace);
                before <= bytes.start && is_behind_space
            };
            let begins_word = begins_word.unwrap_or_else(follows_space);
            spans.push(TokenSpan { id, bytes, begins_word });
        }
        Ok(spans)
    }
}

/// Extends a range to whole characters, and leaves out white space around them.
fn trimmed(text: &str, bytes: Range<usize>) -> Range<usize> {
    let (mut start, mut end) = (bytes.start.min(text.len()), bytes.end.min(text.len()));
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    while !text.is_char_boundary(end) {
        end += 1;
    }
    let part = &text[start..end];
    let rest = part.trim_start();
    let start = end - rest.len();
    start..start + rest.trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vocabulary;

    fn found(tokenizer: &Tokenizer, text: &str) -> Vec<(u32, String, bool)> {
        let spans = tokenizer.spans(text).unwrap_or_else(|error| panic!("{error}"));
        let ids = tokenizer.encode(text, crate::Encode::default());
        let ids = ids.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(spans.iter().map(|span| span.id).collect::<Vec<_>>(), ids, "{text:?}");
        let part = |span: TokenSpan| (span.id, text[span.bytes].to_owned(), span.begins_word);
        spans.into_iter().map(part).collect()
    }

    fn is(found: &[(u32, String, bool)], expected: &[(u32, &str, bool)]) {
        let found: Vec<(u32, &str, bool)> =
            found.iter().map(|(id, text, begins)| (*id, text.as_str(), *begins)).collect();
        assert_eq!(found, expected);
    }

    fn made(vocabulary: Vocabulary<'_>) -> Tokenizer {
        Tokenizer::new(vocabulary).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn sentencepiece_has_the_places_of_its_pieces() {
        let bytes = [0xE2u8, 0x82, 0xAC].map(|byte| format!("<0x{byte:02X}>"));
        let plain = ["<unk>", "▁", "a", "b", "▁ab", "<x>"].map(str::to_owned);
        let types = vec![2, 1, 1, 1, 1, 4, 6, 6, 6, 1];
        let scores = vec![0.0; 10];
        let vocabulary = |squeezes| Vocabulary {
            model: "llama".into(),
            tokens: plain
                .iter()
                .chain(&bytes)
                .map(|t| t.as_str().into())
                .chain(["ab".into()])
                .collect(),
            types: types.clone(),
            scores: scores.clone(),
            unk: Some(0),
            remove_extra_whitespaces: Some(squeezes),
            ..Vocabulary::default()
        };
        // Three tokens for the bytes of a character, one for two unknown ones, a space before what follows a special token.
        let tokens = found(&made(vocabulary(false)), "ab €éüa<x>b");
        let euro = [(6, "€", true), (7, "€", false), (8, "€", false)];
        let mut expected = vec![(4, "ab", true), (1, "", true)];
        expected.extend(euro);
        expected.extend([(0, "éü", false), (2, "a", false), (5, "<x>", false)]);
        expected.extend([(1, "", false), (3, "b", false)]);
        is(&tokens, &expected);
        let tokens = found(&made(vocabulary(true)), "  ab   ab ");
        is(&tokens, &[(4, "ab", true), (4, "ab", true)]);
    }

    #[test]
    fn byte_pairs_have_the_places_of_their_bytes() {
        let alphabet = (0..=u8::MAX).map(|byte| crate::pieces::character(byte).to_string());
        let more = ["Ġa", "ÃĦ"].map(str::to_owned);
        let tokenizer = made(Vocabulary {
            model: "gpt2".into(),
            pre: Some("modern-bert".into()),
            tokens: alphabet.chain(more).map(std::borrow::Cow::Owned).collect(),
            types: vec![1; 258],
            merges: vec!["Ġ a".into(), "Ã Ħ".into()],
            ..Vocabulary::default()
        });
        let tokens = found(&tokenizer, "x a\n é");
        let expected = [
            (u32::from(b'x'), "x", true),
            (256, "a", true),
            (u32::from(b'\n'), "", true),
            (u32::from(b' '), "", true),
            (0xC3, "é", true),
            (0xA9, "é", false),
        ];
        is(&tokens, &expected);
        // Composed to one character of one token: the letter with its mark.
        let tokens = found(&tokenizer, "A\u{308}b");
        is(&tokens, &[(257, "A\u{308}", true), (u32::from(b'b'), "b", false)]);
    }

    #[test]
    fn tokens_that_do_not_spell_their_word_have_its_place() {
        let tokens = ["<unk>", "▁", "a", "b", "ab", "▁ab"].map(Into::into);
        let tokenizer = made(Vocabulary {
            model: "gemma4".into(),
            tokens: tokens.to_vec(),
            types: vec![2, 1, 1, 1, 1, 1],
            merges: vec!["a b".into(), "▁ ab".into()],
            unk: Some(0),
            ..Vocabulary::default()
        });
        // A space is one byte of the text and three of its spelling.
        is(&found(&tokenizer, "b ab"), &[(3, "b", true), (5, "ab", true)]);
        let whole = |id, begins| (id, "b ab é", begins);
        let expected = [whole(3, true), whole(5, false), whole(1, false), whole(0, false)];
        is(&found(&tokenizer, "b ab é"), &expected);
        // A byte without a token is left out.
        let letters = ["a", "c", "d", "cd"].map(Into::into);
        let tokenizer = made(Vocabulary {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: letters.to_vec(),
            types: vec![1; 4],
            merges: vec!["c d".into()],
            ..Vocabulary::default()
        });
        is(&found(&tokenizer, "a abcd"), &[(0, "a", true), (0, "abcd", true), (3, "abcd", false)]);
    }
}
