//! SentencePiece vocabularies (`llama`): characters are merged by the score of the result.
//!
//! The makers' algorithm itself and not its usual emulation by ranked merges: that orders equal
//! scores by token id where SentencePiece goes from left to right, and needs several merges for
//! each token where a look-up of the joined text does.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use crate::pieces::SPACE;
use crate::vocabulary::{Kind, byte};
use crate::{Error, Vocabulary};

/// Merges neighbours, the highest score first, then the leftmost, until no two make a token.
#[derive(Debug)]
pub(crate) struct Spm {
    tokens: HashMap<Box<str>, Token>,
    /// The token for each byte, for characters that have none.
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    adds_space: bool,
    squeezes: bool,
    /// Whether no token continues past a [`SPACE`] inside it, so that words merge by themselves.
    by_words: bool,
}

#[derive(Debug, Clone, Copy)]
struct Token {
    id: u32,
    score: f32,
}

/// A run of bytes of the text, linked with its neighbours. Empty: it went into the one before.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    previous: usize,
    next: usize,
}

/// No neighbour.
const NONE: usize = usize::MAX;

/// Two neighbours that together are a token.
#[derive(Debug)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    end: usize,
}

impl Spm {
    /// Takes the tokens out of `vocabulary`.
    pub fn new(vocabulary: &mut Vocabulary<'_>, kinds: &[Kind]) -> Result<Self, Error> {
        if vocabulary.scores.is_empty() {
            return Err(Error::Missing { key: "scores", model: vocabulary.model.clone() });
        }
        let mut tokens = HashMap::with_capacity(vocabulary.tokens.len());
        let mut bytes = Box::new([None; 256]);
        let mut by_words = true;
        for ((token, id), &kind) in
            std::mem::take(&mut vocabulary.tokens).into_iter().zip(0..).zip(kinds)
        {
            match kind {
                Kind::Control | Kind::Unknown => {}
                Kind::Byte => {
                    let value = byte(&token)
                        .ok_or_else(|| Error::Byte { id, token: token.into_owned() })?;
                    bytes[usize::from(value)].get_or_insert(id);
                }
                Kind::Normal | Kind::UserDefined | Kind::Unused => {
                    by_words &= !token.trim_start_matches(SPACE).contains(SPACE);
                    // Adding zero makes the two zeros equal.
                    let score = vocabulary.scores[id as usize] + 0.0;
                    tokens.entry(token.into()).or_insert(Token { id, score });
                }
            }
        }
        let mut encoded = [0; 4];
        by_words &= tokens.contains_key(SPACE.encode_utf8(&mut encoded) as &str);
        Ok(Self {
            tokens,
            bytes,
            unknown: vocabulary.unk,
            adds_space: vocabulary.add_space_prefix.unwrap_or(true),
            squeezes: vocabulary.remove_extra_whitespaces.unwrap_or(false),
            by_words,
        })
    }

    /// Whether a space is put before each text.
    pub fn adds_space(&self) -> bool {
        self.adds_space
    }

    /// Appends the tokens of `text` to `ids`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Error> {
        let text = self.normalize(text);
        let mut symbols = Vec::new();
        let mut heap = BinaryHeap::new();
        let mut after_unknown = false;
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (word, tail) =
                rest.split_at(if self.by_words { word_end(rest) } else { rest.len() });
            self.merge(word, &mut symbols, &mut heap);
            let mut at = 0;
            while at != NONE {
                let Symbol { start, end, next, .. } = symbols[at];
                self.emit(&word[start..end], &mut after_unknown, ids)?;
                at = next;
            }
            rest = tail;
        }
        Ok(())
    }

    /// Spaces squeezed where the vocabulary wants that, one put in front, all of them escaped.
    fn normalize(&self, text: &str) -> String {
        let mut normalized = String::with_capacity(text.len() + text.len() / 4 + 3);
        let text = if self.squeezes { text.trim_matches(' ') } else { text };
        if self.adds_space && !text.is_empty() {
            normalized.push(SPACE);
        }
        let mut previous = None;
        for character in text.chars() {
            if !(self.squeezes && character == ' ' && previous == Some(' ')) {
                normalized.push(if character == ' ' { SPACE } else { character });
            }
            previous = Some(character);
        }
        normalized
    }

    /// Fills `symbols` with the characters of `word` and merges them; `heap` is room to work in.
    fn merge(&self, word: &str, symbols: &mut Vec<Symbol>, heap: &mut BinaryHeap<Candidate>) {
        symbols.clear();
        heap.clear();
        for (index, (start, character)) in word.char_indices().enumerate() {
            let end = start + character.len_utf8();
            let next = if end == word.len() { NONE } else { index + 1 };
            symbols.push(Symbol {
                start,
                end,
                previous: index.checked_sub(1).unwrap_or(NONE),
                next,
            });
        }
        for left in 0..symbols.len() {
            heap.extend(self.candidate(word, symbols, left));
        }
        while let Some(Candidate { left, right, end, .. }) = heap.pop() {
            // Stale where either has been merged since: the right one ends elsewhere or is gone.
            if symbols[left].next != right || symbols[right].end != end {
                continue;
            }
            let after = symbols[right].next;
            symbols[left].end = end;
            symbols[left].next = after;
            symbols[right] = Symbol { start: end, end: NONE, previous: NONE, next: NONE };
            if after != NONE {
                symbols[after].previous = left;
            }
            if symbols[left].previous != NONE {
                heap.extend(self.candidate(word, symbols, symbols[left].previous));
            }
            heap.extend(self.candidate(word, symbols, left));
        }
    }

    fn candidate(&self, word: &str, symbols: &[Symbol], left: usize) -> Option<Candidate> {
        let right = symbols[left].next;
        let end = symbols.get(right)?.end;
        let token = self.tokens.get(&word[symbols[left].start..end])?;
        Some(Candidate { score: token.score, left, right, end })
    }

    /// Appends the token for a merged run; an unknown character in bytes or, where those are not
    /// in the vocabulary, as one unknown token for a run of such.
    fn emit(&self, text: &str, after_unknown: &mut bool, ids: &mut Vec<u32>) -> Result<(), Error> {
        if let Some(token) = self.tokens.get(text) {
            *after_unknown = false;
            ids.push(token.id);
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

/// The end of the first word: a run of [`SPACE`] and what follows up to the next one.
fn word_end(text: &str) -> usize {
    let start = text.len() - text.trim_start_matches(SPACE).len();
    text[start..].find(SPACE).map_or(text.len(), |end| start + end)
}

/// The highest score first, then the leftmost: the greatest for a heap.
impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(Reverse(self.left).cmp(&Reverse(other.left)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}
