//! SentencePiece vocabularies (`llama`): characters are merged by the score of the result.
//!
//! This is SentencePiece's own algorithm, not its usual emulation by ranked merges: the emulation orders equal scores
//! by token id where SentencePiece goes from left to right, and needs several merges per token where a look-up of the
//! joined text suffices.

use std::cmp::Ordering;
use std::ops::Range;

use crate::alignment::Alignment;
use crate::merging::{Joins, Word};
use crate::pieces::SPACE;
use crate::spans::Found;
use crate::spellings::Spellings;
use crate::vocabulary::{TokenType, byte};
use crate::{Error, Vocabulary};

/// Merges neighbours, by highest score, then leftmost, until no two form a token.
#[derive(Debug)]
pub(crate) struct Spm {
    tokens: Tokens,
    /// The token for each byte, for characters without a token.
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    adds_space: bool,
    squeezes: bool,
    /// Whether no token continues past an inner [`SPACE`], so that words can be merged independently.
    by_words: bool,
}

/// The tokens reachable by merging.
#[derive(Debug)]
struct Tokens {
    spellings: Spellings,
    /// Scores by id; zeros have one sign.
    scores: Vec<f32>,
}

impl Tokens {
    fn score(&self, spelling: &str) -> Option<Score> {
        Some(Score(self.scores[self.spellings.find(spelling)? as usize]))
    }
}

/// A span of bytes of a word.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
}

/// Ordered by size; zeros have one sign.
#[derive(Debug, Clone, Copy)]
struct Score(f32);

/// The spans of a word that are tokens.
struct Spans<'a> {
    tokens: &'a Tokens,
    word: &'a str,
}

impl Joins for Spans<'_> {
    type Symbol = Span;
    type Rank = Score;

    fn join(&self, left: Span, right: Span) -> Option<(Score, Span)> {
        let whole = Span { start: left.start, end: right.end };
        Some((self.tokens.score(&self.word[whole.start..whole.end])?, whole))
    }

    fn makes(&self, _left: Span, right: Span, whole: Span) -> bool {
        right.end == whole.end
    }
}

impl Spm {
    /// Builds it from the tokens and scores of `vocabulary`.
    pub fn new(vocabulary: &Vocabulary<'_>, types: &[TokenType]) -> Result<Self, Error> {
        if vocabulary.scores.is_empty() {
            return Err(Error::Missing { key: "scores", model: vocabulary.model.clone() });
        }
        let mut spellings = Spellings::new(vocabulary.tokens.len());
        let mut bytes = Box::new([None; 256]);
        let mut by_words = true;
        for ((token, id), &kind) in vocabulary.tokens.iter().zip(0..).zip(types) {
            match kind {
                TokenType::Control | TokenType::Unknown => spellings.skip(),
                TokenType::Byte => {
                    let value = byte(token)
                        .ok_or_else(|| Error::Byte { id, token: token.clone().into_owned() })?;
                    bytes[usize::from(value)].get_or_insert(id);
                    spellings.skip();
                }
                TokenType::Normal | TokenType::UserDefined | TokenType::Unused => {
                    by_words &= !token.trim_start_matches(SPACE).contains(SPACE);
                    spellings.push(token);
                }
            }
        }
        let mut encoded = [0; 4];
        by_words &= spellings.find(SPACE.encode_utf8(&mut encoded)).is_some();
        // Adding zero makes the two zeros equal.
        let scores = vocabulary.scores.iter().map(|score| score + 0.0).collect();
        Ok(Self {
            tokens: Tokens { spellings, scores },
            bytes,
            unknown: vocabulary.unk,
            adds_space: vocabulary.add_space_prefix.unwrap_or(true),
            squeezes: vocabulary.remove_extra_whitespaces.unwrap_or(false),
            by_words,
        })
    }

    /// Whether a space is added before each text.
    pub fn adds_space(&self) -> bool {
        self.adds_space
    }

    /// Appends the tokens of `text` to `ids`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Error> {
        let text = self.normalize(text, &mut |_, _| ());
        self.merged(&text, ids, &mut |_, _| ())
    }

    /// Appends the tokens of `text` with their places to `found`.
    pub fn find(&self, text: &str, found: &mut Vec<Found>) -> Result<(), Error> {
        let mut alignment = Alignment::default();
        let normalized = self.normalize(text, &mut |len, original| alignment.push(len, original));
        let (mut ids, mut spans) = (Vec::new(), Vec::<Range<usize>>::new());
        self.merged(&normalized, &mut ids, &mut |span, tokens| {
            // A character of an unknown run has no token of its own.
            if let (0, Some(last)) = (tokens, spans.last_mut()) {
                last.end = span.end;
            }
            spans.extend(std::iter::repeat_n(span, tokens));
        })?;
        found.extend(ids.into_iter().zip(spans).map(|(id, span)| {
            let bytes = alignment.original(span);
            Found { id, bytes, begins_word: None }
        }));
        Ok(())
    }

    /// Appends the tokens of a normalized text to `ids`; `each` is given every merged span and the number of its tokens.
    fn merged(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
        each: &mut impl FnMut(Range<usize>, usize),
    ) -> Result<(), Error> {
        let mut word = Word::new();
        let mut after_unknown = false;
        let mut rest = text;
        while !rest.is_empty() {
            let (head, tail) =
                rest.split_at(if self.by_words { word_end(rest) } else { rest.len() });
            word.clear();
            for (start, character) in head.char_indices() {
                word.push(Span { start, end: start + character.len_utf8() });
            }
            word.merge(&Spans { tokens: &self.tokens, word: head });
            let first = text.len() - rest.len();
            for Span { start, end } in word.symbols() {
                let before = ids.len();
                self.emit(&head[start..end], &mut after_unknown, ids)?;
                each(first + start..first + end, ids.len() - before);
            }
            rest = tail;
        }
        Ok(())
    }

    /// Collapses spaces if the vocabulary requires it, adds a leading one, and escapes all. `each` is given the bytes of
    /// every resulting character, and those of `text` that it was.
    fn normalize(&self, text: &str, each: &mut impl FnMut(usize, Range<usize>)) -> String {
        let mut normalized = String::with_capacity(text.len() + text.len() / 4 + 3);
        let trimmed = if self.squeezes { text.trim_matches(' ') } else { text };
        let first = if self.squeezes { text.len() - text.trim_start_matches(' ').len() } else { 0 };
        if self.adds_space && !trimmed.is_empty() {
            normalized.push(SPACE);
            each(SPACE.len_utf8(), first..first);
        }
        let mut previous = None;
        for (at, character) in trimmed.char_indices() {
            if !(self.squeezes && character == ' ' && previous == Some(' ')) {
                let made = if character == ' ' { SPACE } else { character };
                normalized.push(made);
                each(made.len_utf8(), first + at..first + at + character.len_utf8());
            }
            previous = Some(character);
        }
        normalized
    }

    /// Appends the token of a merged span; an unknown character becomes its bytes' tokens or, if they are missing,
    /// one unknown token per run of such characters.
    fn emit(&self, text: &str, after_unknown: &mut bool, ids: &mut Vec<u32>) -> Result<(), Error> {
        if let Some(id) = self.tokens.spellings.find(text) {
            *after_unknown = false;
            ids.push(id);
            return Ok(());
        }
        let bytes: Option<Vec<u32>> =
            text.bytes().map(|byte| self.bytes[usize::from(byte)]).collect();
        match (bytes, self.unknown) {
            (Some(bytes), _) => {
                *after_unknown = false;
                ids.extend(bytes);
            }
            (None, Some(unknown)) => {
                if !std::mem::replace(after_unknown, true) {
                    ids.push(unknown);
                }
            }
            (None, None) => {
                let what = text.chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
                return Err(Error::NoToken { what });
            }
        }
        Ok(())
    }
}

/// The end of the first word: a run of [`SPACE`] and the text up to the next one.
fn word_end(text: &str) -> usize {
    let start = text.len() - text.trim_start_matches(SPACE).len();
    text[start..].find(SPACE).map_or(text.len(), |end| start + end)
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}
