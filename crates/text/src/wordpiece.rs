//! WordPiece vocabularies (`bert`): words are split from the left, longest piece first.

use std::collections::HashMap;

use unicode_categories::UnicodeCategories;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::canonical_combining_class;

use crate::alignment::Alignment;
use crate::found::Found;
use crate::pieces::SPACE;
use crate::vocabulary::TokenType;
use crate::{Error, Vocabulary};

/// The original marks continuing pieces like this; GGUF marks the others, by [`SPACE`].
const CONTINUES: &str = "##";

/// Characters of the longest word that is split; a longer one is unknown. BERT's own limit.
const WORD_MAX: usize = 100;

/// BERT's normalization, splitting at white space and punctuation, then WordPiece.
pub(crate) struct Words {
    /// Pieces that begin a word.
    starts: HashMap<String, u32>,
    /// Pieces that continue one, without their mark.
    continues: HashMap<String, u32>,
    unknown: u32,
    lowercase: bool,
    strip_accents: bool,
}

/// A piece of a word.
struct Piece {
    id: u32,
    /// Where its bytes end in the word.
    end: usize,
}

impl Words {
    /// Builds it from the tokens of `vocabulary`, which it consumes.
    ///
    /// Control characters are removed and CJK ideographs separated; depending on the file, text is lowercased and
    /// stripped of accents (category Mn after NFD; vowel signs of category Mc stay, and Hangul decomposes into jamo,
    /// as in the original tokenizer). If the file does not say, text is lowercased unless the vocabulary has pieces
    /// for all of A to Z, which lowercased text could never match.
    pub fn new(vocabulary: &mut Vocabulary<'_>, types: &[TokenType]) -> Result<Self, Error> {
        let absent = || Error::Missing { key: "unknown_token_id", model: vocabulary.model.clone() };
        let named = || vocabulary.tokens.iter().position(|token| token == "[UNK]");
        let unknown = vocabulary.unk.map(|id| id as usize).or_else(named).ok_or_else(absent)?;
        let marks_starts = vocabulary.tokens.iter().any(|token| token.starts_with(SPACE));
        let tokens = std::mem::take(&mut vocabulary.tokens);
        let (mut starts, mut continues) = (HashMap::with_capacity(tokens.len()), HashMap::new());
        starts.insert(tokens[unknown].clone().into_owned(), unknown as u32);
        for ((token, id), kind) in tokens.into_iter().zip(0..).zip(types) {
            if kind.is_plain() {
                continue;
            }
            let (pieces, piece) = match (token.strip_prefix(SPACE), marks_starts) {
                (Some(start), _) => (&mut starts, start),
                (None, true) => (&mut continues, &*token),
                (None, false) => match token.strip_prefix(CONTINUES) {
                    Some(piece) => (&mut continues, piece),
                    None => (&mut starts, &*token),
                },
            };
            pieces.entry(piece.to_owned()).or_insert(id);
        }
        let cased =
            ('A'..='Z').all(|letter| starts.contains_key(letter.encode_utf8(&mut [0; 4]) as &str));
        let lowercase = vocabulary.lowercase.unwrap_or(!cased);
        let strip_accents = vocabulary.strip_accents.unwrap_or(lowercase);
        Ok(Self { starts, continues, unknown: unknown as u32, lowercase, strip_accents })
    }

    /// Appends the tokens of `text` to `ids`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut pieces = Vec::new();
        self.words(&self.normalize(text), &mut |word, _| {
            self.cut(word, &mut pieces);
            ids.extend(pieces.drain(..).map(|piece| piece.id));
        });
    }

    /// Appends the tokens of `text` with their places to `found`.
    pub fn find(&self, text: &str, found: &mut Vec<Found>) {
        let (normalized, alignment) = self.align(text);
        let mut pieces = Vec::new();
        self.words(&normalized, &mut |word, start| {
            self.cut(word, &mut pieces);
            let mut at = start;
            found.extend(pieces.drain(..).map(|Piece { id, end }| {
                let begins_word = Some(at == start);
                let bytes =
                    alignment.original(std::mem::replace(&mut at, start + end)..start + end);
                Found { id, bytes, begins_word }
            }));
        });
    }

    /// Gives `each` the words and marks of a normalized text, with their places.
    fn words<'n>(&self, normalized: &'n str, each: &mut impl FnMut(&'n str, usize)) {
        let mut start = 0;
        for word in normalized.split(char::is_whitespace) {
            let mut end = 0;
            for (at, mark) in word.match_indices(is_punctuation) {
                each(&word[end..at], start + end);
                each(mark, start + at);
                end = at + mark.len();
            }
            each(&word[end..], start + end);
            let rest = &normalized[start + word.len()..];
            start += word.len() + rest.chars().next().map_or(0, char::len_utf8);
        }
    }

    /// The normalized text, and what of `text` its parts were made of.
    fn align(&self, text: &str) -> (String, Alignment) {
        let whole = self.normalize(text);
        let (mut made, mut alignment) = (String::with_capacity(whole.len()), Alignment::default());
        let mut start = 0;
        let starts =
            text.char_indices().skip(1).filter(|&(_, c)| canonical_combining_class(c) == 0);
        // A character with the marks behind it, which normalization removes or puts into order.
        for end in starts.map(|(at, _)| at).chain([text.len()]) {
            let normalized = self.normalize(&text[start..end]);
            alignment.push(normalized.len(), start..end);
            made.push_str(&normalized);
            start = end;
        }
        if made != whole {
            alignment = Alignment::default();
            alignment.push(whole.len(), 0..text.len());
        }
        (whole, alignment)
    }

    /// Text as the vocabulary has it: clean, ideographs apart, without accents and capitals where it has none.
    fn normalize(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for character in text.chars().filter(|&character| !is_dropped(character)) {
            if is_ideograph(character) {
                clean.extend([' ', character, ' ']);
            } else {
                clean.push(if character.is_whitespace() { ' ' } else { character });
            }
        }
        if self.strip_accents {
            clean = clean.nfd().filter(|character| !character.is_mark_nonspacing()).collect();
        }
        if self.lowercase {
            clean = clean.chars().flat_map(char::to_lowercase).collect();
        }
        clean
    }

    /// Writes the pieces of a word to `found`, which is empty, or the unknown token where it is not made of pieces.
    fn cut(&self, word: &str, found: &mut Vec<Piece>) {
        if word.is_empty() {
            return;
        }
        let mut rest = if word.chars().nth(WORD_MAX).is_none() { word } else { "" };
        while !rest.is_empty() {
            let pieces = if rest.len() == word.len() { &self.starts } else { &self.continues };
            let ends = rest.char_indices().rev().map(|(at, last)| at + last.len_utf8());
            let longest = ends.map(|end| rest.split_at(end));
            let Some((id, after)) = longest
                .filter_map(|(piece, after)| pieces.get(piece).map(|&id| (id, after)))
                .next()
            else {
                found.clear();
                break;
            };
            found.push(Piece { id, end: word.len() - after.len() });
            rest = after;
        }
        if found.is_empty() {
            found.push(Piece { id: self.unknown, end: word.len() });
        }
    }
}

/// Zero, the replacement character, and what controls, formats or is private, unless it is white space.
fn is_dropped(character: char) -> bool {
    if matches!(character, '\t' | '\n' | '\r') {
        return false;
    }
    character == char::REPLACEMENT_CHARACTER || character.is_other()
}

/// Whether ASCII or Unicode counts the character as punctuation.
pub(crate) fn is_punctuation(character: char) -> bool {
    character.is_ascii_punctuation() || UnicodeCategories::is_punctuation(character)
}

/// The blocks of unified and compatibility ideographs that the makers' code lists.
fn is_ideograph(character: char) -> bool {
    const BLOCKS: [[u32; 2]; 8] = [
        [0x3400, 0x4DBF],
        [0x4E00, 0x9FFF],
        [0xF900, 0xFAFF],
        [0x20000, 0x2A6DF],
        [0x2A700, 0x2B73F],
        [0x2B740, 0x2B81F],
        [0x2B920, 0x2CEAF],
        [0x2F800, 0x2FA1F],
    ];
    let code = u32::from(character);
    BLOCKS.iter().any(|&[first, last]| (first..=last).contains(&code))
}

#[cfg(test)]
mod tests {
    use tokenizers::models::wordpiece::WordPiece;
    use tokenizers::normalizers::BertNormalizer;
    use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
    use tokenizers::{
        Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString,
        PreTokenizer,
    };

    use super::*;

    /// Words of many scripts, marks, controls, and one that is too long.
    fn text() -> String {
        let sample = (1..0x30000).step_by(29).filter_map(char::from_u32);
        let mut text: String = sample
            .flat_map(|c| [c, 'a', if (c as u32).is_multiple_of(3) { ' ' } else { 'b' }])
            .collect();
        text.push_str(" \u{0}x\u{fffd}\u{200d} 北京ab ÉCOLE e\u{301}a, don't Ǆ İ ſ ");
        text.push_str(&"ab".repeat(50));
        text.push(' ');
        text.push_str(&"ab".repeat(51));
        text
    }

    /// The makers' library beside ours, on all of Unicode.
    #[test]
    fn words_are_those_of_the_makers_library() {
        let mut tokens: Vec<String> = ["[UNK]", "a", "b", "##a", "##b", "ab", "##ab", "##ba", "e"]
            .map(str::to_owned)
            .to_vec();
        let more = (0x21..0x30000).step_by(7).filter_map(char::from_u32);
        tokens.extend(more.flat_map(|c| [c.to_string(), format!("##{c}a")]));
        tokens.sort();
        tokens.dedup();
        let unknown = tokens.iter().position(|token| token == "[UNK]").unwrap();
        let ids = tokens.iter().cloned().zip(0u32..);
        let model = WordPiece::builder()
            .vocab(ids.collect::<tokenizers::models::bpe::Vocab>())
            .unk_token("[UNK]".to_owned())
            .build()
            .unwrap();
        for (lowercase, strip_accents) in
            [(true, true), (false, false), (true, false), (false, true)]
        {
            let mut vocabulary = Vocabulary {
                tokens: tokens.iter().map(|token| token.as_str().into()).collect(),
                unk: Some(unknown as u32),
                lowercase: Some(lowercase),
                strip_accents: Some(strip_accents),
                ..Vocabulary::default()
            };
            let words =
                Words::new(&mut vocabulary, &vec![TokenType::Normal; tokens.len()]).unwrap();
            for text in text().split_inclusive(' ') {
                let mut normalized = NormalizedString::from(text);
                let normalizer = BertNormalizer::new(true, true, Some(strip_accents), lowercase);
                normalizer.normalize(&mut normalized).unwrap();
                let mut cut = PreTokenizedString::from(normalized.get());
                BertPreTokenizer.pre_tokenize(&mut cut).unwrap();
                let splits = cut.get_splits(OffsetReferential::Original, OffsetType::None);
                let expected: Vec<u32> = splits
                    .into_iter()
                    .flat_map(|(word, ..)| model.tokenize(word).unwrap())
                    .map(|token| token.id)
                    .collect();
                let mut found = Vec::new();
                words.encode(text, &mut found);
                assert_eq!(found, expected, "{:?}", text.chars().collect::<Vec<_>>());
                let mut spans = Vec::new();
                words.find(text, &mut spans);
                let mut whole = PreTokenizedString::from(text);
                whole.normalize(|part| normalizer.normalize(part)).unwrap();
                BertPreTokenizer.pre_tokenize(&mut whole).unwrap();
                whole.tokenize(|part| model.tokenize(part.get())).unwrap();
                let theirs = whole.into_encoding(None, 0, OffsetType::Byte).unwrap();
                assert_eq!(spans.len(), theirs.get_ids().len());
                for (ours, &(start, end)) in spans.iter().zip(theirs.get_offsets()) {
                    // Our spans have the marks on a character too, which theirs lose with the accents.
                    let more = text.get(end..ours.bytes.end).unwrap_or("?");
                    let is_mark = |c: char| canonical_combining_class(c) != 0;
                    let is_equal = start == ours.bytes.start && more.chars().all(is_mark);
                    assert!(is_equal, "{text:?}: {:?}, not {start}..{end}", ours.bytes);
                }
            }
        }
    }
}
