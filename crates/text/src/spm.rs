//! SentencePiece vocabularies: byte pairs (`llama`) and unigrams (`t5`), with what both share: normalization, words,
//! bytes for characters without a token, places.

use std::ops::Range;

use crate::alignment::Alignment;
use crate::found::Found;
use crate::pieces::SPACE;
use crate::vocabulary::{TokenType, byte};
use crate::{Error, Vocabulary};

mod charsmap;
mod merges;
mod normalizer;
mod unigram;

use merges::Merges;
use normalizer::Normalizer;
use unigram::Unigram;

/// The value of `tokenizer.ggml.model` for unigram vocabularies.
pub(crate) const UNIGRAM: &str = "t5";

/// Normalizes a text, cuts it into pieces, and gives characters without a piece their bytes or the unknown token.
#[derive(Debug)]
pub(crate) struct Spm {
    normalizer: Normalizer,
    algorithm: Algorithm,
    /// The token for each byte, for characters without a token.
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    /// Whether no token continues past an inner [`SPACE`], so that words can be cut independently.
    by_words: bool,
}

/// How a normalized text is cut into pieces.
#[derive(Debug)]
enum Algorithm {
    Merges(Merges),
    Unigram(Unigram),
}

/// Cuts a word into pieces.
trait Cut {
    /// Memory that is reused from word to word.
    type Memory: Default;

    /// Gives `each` the pieces of `word` in order: bytes, and the token unless the vocabulary has none for them.
    fn cut(
        &self,
        word: &str,
        memory: &mut Self::Memory,
        each: &mut impl FnMut(Range<usize>, Option<u32>) -> Result<(), Error>,
    ) -> Result<(), Error>;
}

/// A token's spelling and type, as pieces are made of it.
struct Spelled<'a> {
    text: &'a str,
    kind: TokenType,
}

impl Spm {
    /// Builds it from the tokens and scores of `vocabulary`.
    pub fn new(vocabulary: &Vocabulary<'_>, types: &[TokenType]) -> Result<Self, Error> {
        if vocabulary.scores.is_empty() {
            return Err(Error::Missing { key: "scores", model: vocabulary.model.clone() });
        }
        let mut bytes = Box::new([None; 256]);
        for ((token, id), _) in vocabulary
            .tokens
            .iter()
            .zip(0..)
            .zip(types)
            .filter(|(_, kind)| **kind == TokenType::Byte)
        {
            let value =
                byte(token).ok_or_else(|| Error::Byte { id, token: token.clone().into_owned() })?;
            bytes[usize::from(value)].get_or_insert(id);
        }
        let spelled = || {
            let tokens = vocabulary.tokens.iter().zip(types);
            tokens.map(|(token, &kind)| Spelled { text: token, kind })
        };
        let crosses = |token: Spelled<'_>| {
            token.is_piece() && token.text.trim_start_matches(is_space).contains(is_space)
        };
        let has_space = spelled().any(|token| token.is_piece() && token.text.chars().eq([SPACE]));
        let is_unigram = vocabulary.model == UNIGRAM;
        let (tokens, scores) = (spelled(), &vocabulary.scores);
        let algorithm = match is_unigram {
            true => Algorithm::Unigram(Unigram::new(tokens, scores)?),
            false => Algorithm::Merges(Merges::new(tokens, scores)),
        };
        let unknown = || types.iter().position(|&kind| kind == TokenType::Unknown);
        Ok(Self {
            normalizer: Normalizer::new(vocabulary)?,
            algorithm,
            bytes,
            unknown: vocabulary.unk.or_else(|| unknown().map(|id| id as u32)),
            by_words: has_space && !spelled().any(crosses),
        })
    }

    /// Whether a space is added before each text.
    pub fn adds_space(&self) -> bool {
        self.normalizer.adds_space
    }

    /// Appends the tokens of `text` to `ids`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Error> {
        let text = self.normalizer.normalize(text, &mut |_, _| ());
        self.pieces(&text, ids, &mut |_, _| ())
    }

    /// Appends the tokens of `text` with their places to `found`.
    pub fn find(&self, text: &str, found: &mut Vec<Found>) -> Result<(), Error> {
        let mut alignment = Alignment::default();
        let normalized =
            self.normalizer.normalize(text, &mut |len, original| alignment.push(len, original));
        let (mut ids, mut spans) = (Vec::new(), Vec::<Range<usize>>::new());
        self.pieces(&normalized, &mut ids, &mut |span, tokens| {
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

    /// Appends the tokens of a normalized text to `ids`; `each` is given every piece and the number of its tokens.
    fn pieces(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
        each: &mut impl FnMut(Range<usize>, usize),
    ) -> Result<(), Error> {
        match &self.algorithm {
            Algorithm::Merges(merges) => self.pieces_by(merges, text, ids, each),
            Algorithm::Unigram(unigram) => self.pieces_by(unigram, text, ids, each),
        }
    }

    /// [`pieces`](Self::pieces) by one algorithm.
    fn pieces_by<C: Cut>(
        &self,
        algorithm: &C,
        text: &str,
        ids: &mut Vec<u32>,
        each: &mut impl FnMut(Range<usize>, usize),
    ) -> Result<(), Error> {
        let mut memory = C::Memory::default();
        let mut after_unknown = false;
        let mut rest = text;
        while !rest.is_empty() {
            let (word, tail) =
                rest.split_at(if self.by_words { word_end(rest) } else { rest.len() });
            let first = text.len() - rest.len();
            algorithm.cut(word, &mut memory, &mut |Range { start, end }, id| {
                let before = ids.len();
                self.emit(&word[start..end], id, &mut after_unknown, ids)?;
                each(first + start..first + end, ids.len() - before);
                Ok(())
            })?;
            rest = tail;
        }
        Ok(())
    }

    /// Appends the token of a piece; an unknown character becomes its bytes' tokens or, if they are missing,
    /// one unknown token per run of such characters.
    fn emit(
        &self,
        text: &str,
        id: Option<u32>,
        after_unknown: &mut bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), Error> {
        if let Some(id) = id {
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

impl Spelled<'_> {
    /// Whether it is a piece of texts rather than a byte, a control token or the unknown token.
    fn is_piece(&self) -> bool {
        matches!(self.kind, TokenType::Normal | TokenType::UserDefined | TokenType::Unused)
    }
}

/// Whether a token's character is a space; user-defined tokens are spelled literally.
fn is_space(character: char) -> bool {
    character == SPACE || character == ' '
}

/// The end of the first word: a run of [`SPACE`] and the text up to the next one.
fn word_end(text: &str) -> usize {
    let start = text.len() - text.trim_start_matches(SPACE).len();
    text[start..].find(SPACE).map_or(text.len(), |end| start + end)
}
