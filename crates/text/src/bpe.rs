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
    words: Words,
    alphabet: Alphabet,
    nfc: bool,
}

/// Cuts text into words by the patterns of a row.
pub(crate) struct Words {
    stages: Vec<Stage>,
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
        let mut builder = BPE::builder().ignore_merges(pre.whole_words);
        if alphabet == Alphabet::Escaped {
            builder = builder.byte_fallback(true).fuse_unk(true);
            match unknown {
                Some(unknown) => builder = builder.unk_token(unknown),
                None if has_all_bytes(&tokens) => {}
                None => return Err(Error::Missing { key: "unknown_token_id", model: model() }),
            }
        }
        let merges = merges(std::mem::take(&mut vocabulary.merges), longest)?;
        let model = builder.vocab_and_merges(tokens, merges).build()?;
        Ok(Self { model, words: Words::new(pre)?, alphabet, nfc: pre.nfc })
    }

    /// Appends the tokens of `text` to `ids`. A byte that a byte-level vocabulary lacks (Falcon has
    /// none for some control characters) is lost, as with the makers' tokenizer.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Error> {
        let text = self.normalize(text);
        let mut word = String::new();
        for range in self.words.of(&text)? {
            let piece = &text[range];
            let spelled = match self.alphabet {
                Alphabet::Escaped => piece,
                Alphabet::Bytes => {
                    word.clear();
                    word.extend(piece.bytes().map(character));
                    word.as_str()
                }
            };
            let tokens = self.model.tokenize(spelled)?;
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
}

impl Words {
    /// By the patterns of `pre`, in order.
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
        // Patterns of this shape name letters, digits, white space, and all that is none of these.
        let covers = pattern.contains(r"[^\s\p{L}") || pattern.contains(r"[^\n]");
        Ok(Self { pattern: SysRegex::new(pattern)?, covers })
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

/// Whether each byte that occurs in UTF-8 has a token, so that no text is unknown.
fn has_all_bytes(tokens: &Vocab) -> bool {
    let has: Vec<u8> = tokens.keys().filter_map(|token| byte(token)).collect();
    (0..0xF5).filter(|byte| !matches!(byte, 0xC0 | 0xC1)).all(|byte| has.contains(&byte))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pre::TABLE;

    /// Every 13th character of Unicode, neighbours from many scripts, and runs of white space.
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
            let mut vocabulary = Vocabulary {
                tokens: bytes.chain(["ĠĠ".to_owned()]).collect(),
                merges: vec!["Ġ Ġ".to_owned()],
                ..Vocabulary::default()
            };
            let kinds = vec![Kind::Normal; 257];
            let bpe = Bpe::new(&mut vocabulary, &kinds, pre, Alphabet::Bytes);
            let bpe = bpe.unwrap_or_else(|error| panic!("{:?}: {error}", pre.names));
            let mut ids = Vec::new();
            bpe.encode(&text, &mut ids).unwrap_or_else(|error| panic!("{:?}: {error}", pre.names));
            let spell = |id: u32| u8::try_from(id).map_or(vec![b' '; 2], |byte| vec![byte]);
            let decoded: Vec<u8> = ids.into_iter().flat_map(spell).collect();
            let expected = bpe.normalize(&text);
            assert!(decoded == expected.as_bytes(), "{:?}", pre.names);
        }
    }
}
