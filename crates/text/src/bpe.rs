//! Vocabularies with a list of merges: byte-level (`gpt2`) and with byte fallback (`gemma4`).

use std::borrow::Cow;
use std::ops::Range;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::utils::SysRegex;
use tokenizers::{Model, NormalizedString};

use crate::pieces::{Alphabet, SPACE, character};
use crate::pre::Pre;
use crate::vocabulary::{Kind, byte};
use crate::{Error, Vocabulary};

/// Cuts text into words by patterns, spells them in the vocabulary's alphabet, merges.
pub(crate) struct Bpe {
    model: BPE,
    stages: Vec<Stage>,
    alphabet: Alphabet,
    nfc: bool,
    /// Bytes that a text can hold and the vocabulary lacks. The library would lose them.
    missing: Vec<u8>,
}

struct Stage {
    pattern: SysRegex,
    /// Whether every character belongs to some match, so that an early end is a failure.
    covers: bool,
}

impl Bpe {
    /// Takes tokens and merges out of `vocabulary`.
    pub fn new(
        vocabulary: &mut Vocabulary,
        kinds: &[Kind],
        pre: &Pre,
        alphabet: Alphabet,
    ) -> Result<Self, Error> {
        let has_merges = !vocabulary.merges.is_empty();
        let model = || vocabulary.model.clone();
        if !has_merges {
            return Err(Error::Missing { key: "merges", model: model() });
        }
        let unknown = vocabulary.unk.map(|id| vocabulary.tokens[id as usize].clone());
        let mut tokens = Vocab::with_capacity(vocabulary.tokens.len());
        let mut longest = 0;
        for ((token, id), &kind) in
            std::mem::take(&mut vocabulary.tokens).into_iter().zip(0..).zip(kinds)
        {
            let fallback =
                alphabet == Alphabet::Escaped && (kind == Kind::Byte || Some(id) == vocabulary.unk);
            if fallback || !(kind.is_plain() || kind == Kind::Byte) {
                longest = longest.max(token.len());
                tokens.entry(token).or_insert(id);
            }
        }
        let missing = missing(&tokens, alphabet);
        let mut builder = BPE::builder().ignore_merges(pre.whole_words);
        if alphabet == Alphabet::Escaped {
            builder = builder.byte_fallback(true).fuse_unk(true);
            match unknown {
                Some(unknown) => builder = builder.unk_token(unknown),
                None if missing.is_empty() => {}
                None => return Err(Error::Missing { key: "unknown_token_id", model: model() }),
            }
        }
        let merges = merges(std::mem::take(&mut vocabulary.merges), longest)?;
        let model = builder.vocab_and_merges(tokens, merges).build().map_err(Error::library)?;
        let stages =
            pre.patterns.iter().map(|pattern| Stage::new(pattern)).collect::<Result<_, _>>()?;
        Ok(Self { model, stages, alphabet, nfc: pre.nfc, missing })
    }

    /// Appends the tokens of `text` to `ids`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Error> {
        let text = self.normalize(text);
        if self.alphabet == Alphabet::Bytes && !self.missing.is_empty() {
            let lacks = |bytes: &[u8]| bytes.iter().any(|byte| self.missing.contains(byte));
            if let Some(what) =
                text.chars().find(|what| lacks(what.encode_utf8(&mut [0; 4]).as_bytes()))
            {
                return Err(Error::NoToken { what });
            }
        }
        let mut word = String::new();
        for range in self.words(&text)? {
            let piece = &text[range];
            let spelled = match self.alphabet {
                Alphabet::Escaped => piece,
                Alphabet::Bytes => {
                    word.clear();
                    word.extend(piece.bytes().map(character));
                    word.as_str()
                }
            };
            let tokens = self.model.tokenize(spelled).map_err(Error::library)?;
            ids.extend(tokens.iter().map(|token| token.id));
        }
        Ok(())
    }

    fn normalize<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.alphabet == Alphabet::Escaped {
            let mut encoded = [0; 4];
            return Cow::Owned(text.replace(' ', SPACE.encode_utf8(&mut encoded)));
        }
        if self.nfc && !text.is_ascii() {
            let mut normalized = NormalizedString::from(text);
            normalized.nfc();
            return Cow::Owned(normalized.get().to_owned());
        }
        Cow::Borrowed(text)
    }

    /// The words of `text`, in order and without gaps.
    fn words(&self, text: &str) -> Result<Vec<Range<usize>>, Error> {
        let mut words = vec![0..text.len()];
        for stage in &self.stages {
            let mut cut = Vec::with_capacity(words.len());
            for word in words {
                stage.cut(text, word, &mut cut)?;
            }
            words = cut;
        }
        Ok(words)
    }
}

impl Stage {
    fn new(pattern: &str) -> Result<Self, Error> {
        // Patterns of this shape name letters, digits, white space, and all that is none of these.
        let covers = pattern.contains(r"[^\s\p{L}") || pattern.contains(r"[^\n]");
        Ok(Self { pattern: SysRegex::new(pattern).map_err(Error::library)?, covers })
    }

    /// Appends the matches within `word`, and what lies between them, to `cut`.
    fn cut(
        &self,
        text: &str,
        word: Range<usize>,
        cut: &mut Vec<Range<usize>>,
    ) -> Result<(), Error> {
        let mut end = word.start;
        for (from, to) in self.pattern.find_iter(&text[word.clone()]) {
            let (from, to) = (word.start + from, word.start + to);
            cut.extend([end..from, from..to].into_iter().filter(|range| !range.is_empty()));
            end = to;
        }
        if end < word.end {
            if self.covers {
                return Err(Error::Pattern { at: end - word.start, len: word.len() });
            }
            cut.push(end..word.end);
        }
        Ok(())
    }
}

/// The bytes that occur in UTF-8 and have no token of their own.
fn missing(tokens: &Vocab, alphabet: Alphabet) -> Vec<u8> {
    let occurs = |&byte: &u8| !matches!(byte, 0xC0 | 0xC1 | 0xF5..);
    let has: Vec<u8> = match alphabet {
        Alphabet::Escaped => tokens.keys().filter_map(|token| byte(token)).collect(),
        Alphabet::Bytes => {
            let spelled =
                |byte: u8| tokens.contains_key(character(byte).encode_utf8(&mut [0; 4]) as &str);
            (0..=u8::MAX).filter(|&byte| spelled(byte)).collect()
        }
    };
    (0..=u8::MAX).filter(occurs).filter(|byte| !has.contains(byte)).collect()
}

/// Takes the merges apart at the first space that is not their first character: a merge may
/// begin with a space of its own.
///
/// `longest` is the length of the longest token in bytes; the library takes it on trust.
fn merges(merges: Vec<String>, longest: usize) -> Result<Merges, Error> {
    merges
        .into_iter()
        .enumerate()
        .map(|(index, merge)| {
            let place = merge.char_indices().skip(1).find(|&(_, character)| character == ' ');
            let halves = place.map(|(at, _)| (&merge[..at], &merge[at + 1..]));
            match halves.filter(|(left, right)| !left.is_empty() && !right.is_empty()) {
                Some((left, right)) if left.len() + right.len() <= longest => {
                    Ok((left.to_owned(), right.to_owned()))
                }
                Some(_) => Err(Error::Merge {
                    index,
                    merge,
                    problem: "the result is longer than any token",
                }),
                None => Err(Error::Merge {
                    index,
                    merge,
                    problem: "two tokens with a space between are due",
                }),
            }
        })
        .collect()
}
