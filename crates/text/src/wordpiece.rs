//! WordPiece vocabularies (`bert`): words are split from the left, longest piece first.

use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer,
};

use crate::pieces::SPACE;
use crate::vocabulary::TokenType;
use crate::{Error, Vocabulary};

/// The original marks continuing pieces like this; GGUF marks the others, by [`SPACE`].
const CONTINUES: &str = "##";

/// BERT's normalization, splitting at white space and punctuation, then WordPiece.
pub(crate) struct Words {
    model: WordPiece,
    normalizer: BertNormalizer,
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
        let mut tokens = std::collections::HashMap::with_capacity(vocabulary.tokens.len());
        let unknown_token = vocabulary.tokens[unknown].clone().into_owned();
        tokens.insert(unknown_token.clone(), unknown as u32);
        for ((token, id), kind) in
            std::mem::take(&mut vocabulary.tokens).into_iter().zip(0..).zip(types)
        {
            if kind.is_plain() {
                continue;
            }
            let token = match token.strip_prefix(SPACE) {
                Some(start) => start.to_owned(),
                None if marks_starts => format!("{CONTINUES}{token}"),
                None => token.into_owned(),
            };
            tokens.entry(token).or_insert(id);
        }
        let cased =
            ('A'..='Z').all(|letter| tokens.contains_key(letter.encode_utf8(&mut [0; 4]) as &str));
        let lowercase = vocabulary.lowercase.unwrap_or(!cased);
        let strip_accents = vocabulary.strip_accents.unwrap_or(lowercase);
        let model = WordPiece::builder()
            .vocab(tokens.into_iter().collect::<tokenizers::models::bpe::Vocab>())
            .unk_token(unknown_token)
            .continuing_subword_prefix(CONTINUES.to_owned())
            .build()?;
        let normalizer = BertNormalizer::new(true, true, Some(strip_accents), lowercase);
        Ok(Self { model, normalizer })
    }

    /// Appends the tokens of `text` to `ids`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Error> {
        let mut normalized = NormalizedString::from(text);
        self.normalizer.normalize(&mut normalized)?;
        let mut words = PreTokenizedString::from(normalized.get());
        BertPreTokenizer.pre_tokenize(&mut words)?;
        for (word, ..) in words.get_splits(OffsetReferential::Original, OffsetType::None) {
            let tokens = self.model.tokenize(word)?;
            ids.extend(tokens.iter().map(|token| token.id));
        }
        Ok(())
    }
}
