//! BPE vocabularies: byte-level (`gpt2`) and with byte fallback (`gemma4`).

use std::borrow::Cow;
use std::ops::Range;

use fancy_regex::Regex;
use unicode_normalization::char::canonical_combining_class;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::alignment::Alignment;
use crate::found::Found;
use crate::pieces::{Alphabet, Pieces, SPACE, character};
use crate::pre::Pre;
use crate::spellings::Spellings;
use crate::vocabulary::{TokenType, byte};
use crate::{Error, Vocabulary};
use merges::{Merges, Word};
use threes::Threes;

mod merges;
mod threes;

/// Splits text into words by patterns, spells them in the vocabulary's alphabet, and merges.
pub(crate) struct Bpe {
    spellings: Spellings,
    merges: Merges,
    /// The token of each byte: its letter, or its fallback for characters without a token.
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    /// Whether a word that is itself a token skips merging.
    whole_words: bool,
    words: Words,
    alphabet: Alphabet,
    nfc: bool,
}

/// Splits text into words by the patterns of a pre-tokenizer.
pub(crate) struct Words {
    stages: Vec<Stage>,
}

enum Stage {
    Pattern {
        pattern: Regex,
        /// Whether every character is part of some match, so that an early end is a failure.
        covers: bool,
    },
    Threes(Threes),
}

/// Receives the place of a word and its tokens.
type EachWord<'e> = dyn FnMut(Range<usize>, &mut dyn Iterator<Item = u32>) + 'e;

impl Bpe {
    /// Builds it from the tokens and merges of `vocabulary`.
    pub fn new(
        vocabulary: &Vocabulary<'_>,
        types: &[TokenType],
        pre: &Pre,
        alphabet: Alphabet,
    ) -> Result<Self, Error> {
        let missing = |key| Error::Missing { key, model: vocabulary.model.clone() };
        if vocabulary.merges.is_empty() {
            return Err(missing("merges"));
        }
        let mut spellings = Spellings::new(vocabulary.tokens.len());
        let mut bytes = Box::new([None; 256]);
        for ((token, id), &kind) in vocabulary.tokens.iter().zip(0..).zip(types) {
            let fallback = alphabet == Alphabet::Escaped
                && (kind == TokenType::Byte || Some(id) == vocabulary.unk);
            if !fallback && (kind.is_plain() || kind == TokenType::Byte) {
                spellings.skip();
                continue;
            }
            spellings.push(token);
            if let (Alphabet::Escaped, Some(byte)) = (alphabet, byte(token)) {
                bytes[usize::from(byte)].get_or_insert(id);
            }
        }
        let mut unknown = None;
        match alphabet {
            Alphabet::Escaped => {
                unknown = vocabulary.unk;
                if unknown.is_none() && !has_all_bytes(&bytes) {
                    return Err(missing("unknown_token_id"));
                }
            }
            Alphabet::Bytes => {
                for (byte, token) in (0..=u8::MAX).zip(bytes.iter_mut()) {
                    *token = spellings.find(character(byte).encode_utf8(&mut [0; 4]));
                }
            }
        }
        Ok(Self {
            merges: Merges::new(&vocabulary.merges, &spellings)?,
            spellings,
            bytes,
            unknown,
            whole_words: pre.whole_words,
            words: Words::new(pre)?,
            alphabet,
            nfc: pre.nfc,
        })
    }

    /// Appends the tokens of `text` to `ids`. A byte missing from a byte-level vocabulary (Falcon lacks some control
    /// characters) is dropped, as by the original tokenizer.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Error> {
        let text = self.normalize(text);
        self.each_word(&text, &mut |_, tokens| ids.extend(tokens))
    }

    /// Appends the tokens of `text` with their places to `found`. Where a vocabulary does not have all of a word, the word
    /// is the place of each of its tokens.
    pub fn find(&self, text: &str, pieces: &Pieces, found: &mut Vec<Found>) -> Result<(), Error> {
        let (normalized, alignment) = self.align(text);
        let len = |id: u32| pieces.get(id).map_or(0, <[u8]>::len);
        let mut ids: Vec<u32> = Vec::new();
        self.each_word(&normalized, &mut |word, tokens| {
            ids.clear();
            ids.extend(tokens);
            let all: usize = ids.iter().map(|&id| len(id)).sum();
            let original = alignment.original(word.clone());
            let in_normalized = all == word.len();
            let in_original = all == original.len();
            let mut at = 0;
            found.extend(ids.iter().map(|&id| {
                let start = at;
                at += len(id);
                let bytes = match (in_normalized, in_original) {
                    (true, _) => alignment.original(word.start + start..word.start + at),
                    (false, true) => original.start + start..original.start + at,
                    (false, false) => original.clone(),
                };
                Found { id, bytes, begins_word: None }
            }));
        })
    }

    /// Gives `each` the words of a normalized text and their tokens.
    fn each_word(&self, text: &str, each: &mut EachWord<'_>) -> Result<(), Error> {
        let (mut word, mut spelled) = (Word::default(), String::new());
        for range in self.words.of(text)? {
            let piece = &text[range.clone()];
            if let Some(token) = self.whole(piece, &mut spelled) {
                each(range, &mut std::iter::once(token));
                continue;
            }
            word.clear();
            match self.alphabet {
                Alphabet::Bytes => self.letters(piece).for_each(|token| word.push(token)),
                Alphabet::Escaped => self.characters(piece, &mut word),
            }
            word.merge(&self.merges);
            each(range, &mut word.symbols());
        }
        Ok(())
    }

    /// The normalized text, and what of `text` its parts were made of.
    fn align<'t>(&self, text: &'t str) -> (Cow<'t, str>, Alignment) {
        let normalized = self.normalize(text);
        let mut alignment = Alignment::default();
        if let Cow::Borrowed(_) = normalized {
            alignment.push(text.len(), 0..text.len());
            return (normalized, alignment);
        }
        // Before such a character nothing changes what is behind it.
        let is_start = |character: char| {
            canonical_combining_class(character) == 0
                && is_nfc_quick(std::iter::once(character)) == IsNormalized::Yes
        };
        let starts = text.char_indices().skip(1).filter(|&(_, character)| is_start(character));
        let mut start = 0;
        for end in starts.map(|(at, _)| at).chain([text.len()]) {
            alignment.push(self.normalize(&text[start..end]).len(), start..end);
            start = end;
        }
        (normalized, alignment)
    }

    /// The token of a whole word, if such words skip merging. `spelled` is a scratch buffer.
    fn whole(&self, piece: &str, spelled: &mut String) -> Option<u32> {
        if !self.whole_words {
            return None;
        }
        match self.alphabet {
            Alphabet::Escaped => self.spellings.find(piece),
            Alphabet::Bytes => {
                spelled.clear();
                spelled.extend(piece.bytes().map(character));
                self.spellings.find(spelled)
            }
        }
    }

    fn letters(&self, piece: &str) -> impl Iterator<Item = u32> {
        piece.bytes().filter_map(|byte| self.bytes[usize::from(byte)])
    }

    /// One token per character; an unknown character becomes its bytes' tokens or, if some are missing, one unknown
    /// token per run of such characters.
    fn characters(&self, piece: &str, word: &mut Word) {
        let mut after_unknown = false;
        for (at, character) in piece.char_indices() {
            let text = &piece[at..at + character.len_utf8()];
            let known = self.spellings.find(text);
            let has_bytes = || text.bytes().all(|byte| self.bytes[usize::from(byte)].is_some());
            let is_unknown = known.is_none() && !has_bytes();
            match known {
                Some(token) => word.push(token),
                None if !is_unknown => self.letters(text).for_each(|token| word.push(token)),
                None if after_unknown => {}
                None => self.unknown.into_iter().for_each(|token| word.push(token)),
            }
            after_unknown = is_unknown;
        }
    }

    fn normalize<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.alphabet == Alphabet::Escaped {
            let mut encoded = [0; 4];
            return Cow::Owned(text.replace(' ', SPACE.encode_utf8(&mut encoded)));
        }
        if self.nfc && !text.is_ascii() {
            return Cow::Owned(text.nfc().collect());
        }
        Cow::Borrowed(text)
    }
}

impl Words {
    /// Compiles the patterns of `pre`.
    pub fn new(pre: &Pre) -> Result<Self, Error> {
        let stages = pre.patterns.iter().map(|pattern| Stage::new(pattern));
        Ok(Self { stages: stages.collect::<Result<_, _>>()? })
    }

    /// The words of `text`, in order and without gaps.
    pub fn of(&self, text: &str) -> Result<Vec<Range<usize>>, Error> {
        let whole = 0..text.len();
        self.stages.iter().try_fold(vec![whole], |words, stage| {
            let mut cut = Vec::with_capacity(words.len());
            words.into_iter().try_for_each(|word| stage.cut(text, word, &mut cut))?;
            Ok(cut)
        })
    }
}

impl Stage {
    fn new(pattern: &str) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Library(error.to_string());
        if let Some(threes) = Threes::of(pattern).map_err(|error| failed(&error))? {
            return Ok(Self::Threes(threes));
        }
        // Patterns of this form match letters, digits, white space, and everything else.
        let covers = pattern.contains(r"[^\s\p{L}") || pattern.contains(r"[^\n]");
        let pattern = Regex::new(pattern).map_err(|error| failed(&error))?;
        Ok(Self::Pattern { pattern, covers })
    }

    /// Appends the matches within `word`, and the gaps between them, to `cut`.
    fn cut(
        &self,
        text: &str,
        word: Range<usize>,
        cut: &mut Vec<Range<usize>>,
    ) -> Result<(), Error> {
        let (pattern, covers) = match self {
            Self::Pattern { pattern, covers } => (pattern, *covers),
            Self::Threes(threes) => {
                threes.cut(text, word, cut);
                return Ok(());
            }
        };
        let mut end = word.start;
        // An early end, where the engine gives up, is seen below.
        for found in pattern.find_iter(&text[word.clone()]).map_while(Result::ok) {
            let (from, to) = (word.start + found.start(), word.start + found.end());
            cut.extend([end..from, from..to].into_iter().filter(|range| !range.is_empty()));
            end = to;
        }
        if end < word.end {
            if covers {
                return Err(Error::Pattern { at: end - word.start, len: word.len() });
            }
            cut.push(end..word.end);
        }
        Ok(())
    }
}

/// Whether each byte that occurs in UTF-8 has a token, so that any text can be encoded.
fn has_all_bytes(tokens: &[Option<u32>; 256]) -> bool {
    (0..0xF5).filter(|byte| !matches!(byte, 0xC0 | 0xC1)).all(|byte| tokens[byte].is_some())
}

#[cfg(test)]
mod tests {
    use tokenizers::Model;
    use tokenizers::models::bpe::{BPE, Vocab};

    use super::*;
    use crate::pre::{self, TABLE};

    /// Every 13th character of Unicode, adjacent characters from many scripts, and runs of white space.
    fn text() -> String {
        let all = (0..0x30000).step_by(13).filter_map(char::from_u32);
        let spaces = ["a  b\n\n c\r\n\t d's 'LL 12345 x1 \u{200d}\u{0}", &" ".repeat(600), "é\n  "];
        all.chain(spaces.concat().chars()).collect()
    }

    #[test]
    fn every_row_compiles_and_loses_nothing() {
        let text = text();
        for pre in TABLE {
            let bytes = (0..=u8::MAX).map(|byte| character(byte).to_string());
            let vocabulary = Vocabulary {
                tokens: bytes.chain(["ĠĠ".to_owned()]).map(Cow::Owned).collect(),
                merges: vec!["Ġ Ġ".into()],
                ..Vocabulary::default()
            };
            let types = vec![TokenType::Normal; 257];
            let bpe = Bpe::new(&vocabulary, &types, pre, Alphabet::Bytes);
            let bpe = bpe.unwrap_or_else(|error| panic!("{:?}: {error}", pre.names));
            let mut ids = Vec::new();
            bpe.encode(&text, &mut ids).unwrap_or_else(|error| panic!("{:?}: {error}", pre.names));
            let spell = |id: u32| u8::try_from(id).map_or(vec![b' '; 2], |byte| vec![byte]);
            let decoded: Vec<u8> = ids.into_iter().flat_map(spell).collect();
            let expected = bpe.normalize(&text);
            assert!(decoded == expected.as_bytes(), "{:?}", pre.names);
        }
    }

    #[test]
    fn numbers_and_lines_are_cut_by_name() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("tiny_aya", "a 1234567 12345x", &["a", " ", "1", "234", "567", " ", "123", "45", "x"]),
            ("cohere2moe", "12345", &["12", "345"]),
            ("superbpe", "a 1234567 b 123 1", &["a ", "1", "234", "567", " b ", "123", " ", "1"]),
            ("afmoe", "x12345678y ½1234", &["x", "12", "345", "678", "y", " ", "½1", "234"]),
            ("afmoe", "日本ไทย a한국", &["日本ไทย", " a", "한국"]),
            ("laguna", "a\n\n b 12", &["a", "\n\n", " b", " ", "1", "2"]),
            ("granite-embed-multi-97m", "aB 1234", &["a", "B", " ", "123", "4"]),
            ("spark2_5", "a!\n\n12 b", &["a", "!", "\n", "\n", "1", "2", " b"]),
        ];
        for (name, text, expected) in cases {
            let words = Words::new(pre::find(name).expect(name)).and_then(|words| words.of(text));
            let words: Vec<&str> = words.expect(name).into_iter().map(|it| &text[it]).collect();
            assert_eq!(words, *expected, "{name}");
        }
    }

    /// A pattern that matches all text fails where it ends early; others leave the rest as a word.
    #[test]
    fn text_behind_the_last_match_is_a_word_or_a_failure() {
        for covers in [false, true] {
            let pattern = Regex::new("a+").expect("a pattern");
            let stage = Stage::Pattern { pattern, covers };
            let cut = |word| {
                let mut cut = Vec::new();
                stage.cut("aabaab", word, &mut cut).map(|()| cut)
            };
            assert_eq!(cut(1..5), Ok(vec![1..2, 2..3, 3..5]));
            assert_eq!(cut(2..2), Ok(vec![]));
            let failed = Err(Error::Pattern { at: 4, len: 5 });
            let rest = Ok(vec![1..2, 2..3, 3..5, 5..6]);
            assert_eq!(cut(1..6), if covers { failed } else { rest });
        }
    }

    /// Compares with Hugging Face's tokenizers library on random vocabularies and words.
    #[test]
    fn merges_are_those_of_the_makers_library() {
        let mut seed = 5u64;
        // Knuth's MMIX generator.
        let mut random = |below: usize| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let mut merged = 0;
        for round in 0..300 {
            let mut tokens: Vec<String> = ["a", "b", "é", "▁"].map(String::from).to_vec();
            if round % 3 == 0 {
                tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
            }
            let first_merged = tokens.len();
            let mut merges = Vec::new();
            for _ in 0..random(40) {
                let letters = |at: usize| if at < 4 { at } else { at - 4 + first_merged };
                let pair = [(); 2].map(|()| letters(random(tokens.len() - first_merged + 4)));
                let [left, right] = pair.map(|id| tokens[id].clone());
                let joined = format!("{left}{right}");
                merges.push(format!("{left} {right}"));
                // Duplicate pairs and other paths to the same token are included as well.
                if !tokens.contains(&joined) {
                    tokens.push(joined);
                }
            }
            merges.push("a b".into());
            tokens.extend(["ab", "?"].map(String::from));
            let unk = tokens.len() as u32 - 1;
            let pre = Pre { whole_words: round % 2 == 0, ..pre::GEMMA4 };
            let theirs = theirs(&tokens, &merges, &pre);
            let vocabulary = Vocabulary {
                tokens: tokens.iter().map(|token| token.as_str().into()).collect(),
                merges: merges.iter().map(|merge| merge.as_str().into()).collect(),
                unk: Some(unk),
                ..Vocabulary::default()
            };
            let types = vec![TokenType::Normal; tokens.len()];
            let bpe = Bpe::new(&vocabulary, &types, &pre, Alphabet::Escaped);
            let bpe = bpe.unwrap_or_else(|error| panic!("{error}"));
            for _ in 0..20 {
                let letters = ["a", "b", "a", "b", "é", " ", "日", "\u{0}"];
                let text: String = (0..random(30)).map(|_| letters[random(8)]).collect();
                let mut ids = Vec::new();
                bpe.encode(&text, &mut ids).unwrap_or_else(|error| panic!("{error}"));
                let text = bpe.normalize(&text);
                let expected = theirs.tokenize(&text).unwrap_or_else(|error| panic!("{error}"));
                let expected: Vec<u32> = expected.iter().map(|token| token.id).collect();
                assert_eq!(ids, expected, "{text:?} with {merges:?} of {tokens:?}");
                merged += text.chars().count() - ids.len().min(text.chars().count());
            }
        }
        assert!(merged > 10_000, "{merged} merges were made");
    }

    fn theirs(tokens: &[String], merges: &[String], pre: &Pre) -> BPE {
        let mut ids = Vocab::new();
        for (token, id) in tokens.iter().zip(0..) {
            ids.entry(token.clone()).or_insert(id);
        }
        let pair = |merge: &String| {
            merge.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned()))
        };
        let merges = merges.iter().filter_map(pair).collect();
        let builder = BPE::builder().byte_fallback(true).fuse_unk(true).unk_token("?".into());
        let builder = builder.ignore_merges(pre.whole_words).vocab_and_merges(ids, merges);
        builder.build().unwrap_or_else(|error| panic!("{error}"))
    }
}
