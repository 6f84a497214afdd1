//! Unigram vocabularies from `tokenizer.json`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bilayer_text::Vocabulary;
use serde_json::Value;

use super::pieces::{adds_space, vocabulary};
use super::{JSON, NORMAL, Source, Tokens, UNKNOWN};
use crate::Error;

/// What the normalizer of a `tokenizer.json` does, as far as a SentencePiece vocabulary can say it.
#[derive(Default)]
struct Normalizer {
    charsmap: Vec<u8>,
    /// Whether it collapses runs of spaces.
    squeezes: bool,
}

impl Source<'_> {
    /// A unigram vocabulary: a list of pieces with their scores.
    pub(super) fn unigrams(&self) -> Result<Vocabulary<'static>, Error> {
        let wrong = |reason: &str| self.checkpoint.wrong(JSON, reason);
        let model = &self.json["model"];
        let list = model["vocab"].as_array();
        let list = list.ok_or_else(|| wrong("`model.vocab` is missing or no list"))?;
        let (len, rows) = (list.len(), self.rows);
        if len > rows {
            return Err(wrong(&format!(
                "`model.vocab` has {len} pieces, more than the {rows} tokens of the model's vocabulary"
            )));
        }
        let mut tokens = Tokens::unused_scored(rows);
        for (id, piece) in list.iter().enumerate() {
            let (Some(text), Some(score)) = (piece[0].as_str(), piece[1].as_f64()) else {
                return Err(wrong(&format!(
                    "`model.vocab`: number {id} is {piece}, not a piece and its score"
                )));
            };
            tokens.set(id, text.to_owned(), NORMAL);
            tokens.scores[id] = score as f32;
        }
        if model["byte_fallback"] == true {
            tokens.mark_bytes();
        }
        let unk = model["unk_id"].as_u64().and_then(|id| usize::try_from(id).ok());
        let unk = unk.filter(|&id| id < len);
        if let Some(unk) = unk {
            tokens.types[unk] = UNKNOWN;
        }
        tokens.add(self.added());
        let (before, cutter) = (&self.json["normalizer"], &self.json["pre_tokenizer"]);
        let mut normalizer = Normalizer::default();
        normalizer.read(before).map_err(|reason| wrong(&reason))?;
        let ids = Vocabulary { unk: unk.map(|id| id as u32), ..Vocabulary::default() };
        Ok(Vocabulary {
            charsmap: normalizer.charsmap.into(),
            add_space_prefix: Some(adds_space(before) || adds_space(cutter)),
            remove_extra_whitespaces: Some(normalizer.squeezes || cuts_at_space(cutter)),
            ..vocabulary("t5", tokens, ids)
        })
    }
}

impl Normalizer {
    /// Adds what a step does, and those within it.
    fn read(&mut self, step: &Value) -> Result<(), String> {
        let is_space = |key: &str, text: &str| step["pattern"][key] == text;
        match step["type"].as_str() {
            None if step.is_null() => Ok(()),
            Some("Sequence") => {
                let steps = step["normalizers"].as_array();
                steps.into_iter().flatten().try_for_each(|step| self.read(step))
            }
            Some("Precompiled") => {
                let encoded = step["precompiled_charsmap"].as_str().unwrap_or_default();
                let rules = STANDARD.decode(encoded);
                self.charsmap = rules.map_err(|error| {
                    format!("`normalizer`: `precompiled_charsmap` is no base64: {error}")
                })?;
                Ok(())
            }
            Some("Replace") if is_space("Regex", " {2,}") => {
                self.squeezes = true;
                Ok(())
            }
            // The space before a text, and how spaces are spelled.
            Some("Prepend") => Ok(()),
            Some("Replace") if is_space("String", " ") => Ok(()),
            // White space around a text goes with the runs.
            Some("Strip") => Ok(()),
            _ => {
                let shown: String = step.to_string().chars().take(80).collect();
                let known = "a compiled map of characters and rules for spaces are known";
                Err(format!("`normalizer`: {shown} is not supported; {known}"))
            }
        }
    }
}

/// Whether a pre-tokenizer, or one within it, drops white space between words.
fn cuts_at_space(step: &Value) -> bool {
    let steps = step["pretokenizers"].as_array().into_iter().flatten();
    step["type"] == "WhitespaceSplit" || steps.into_iter().any(cuts_at_space)
}
