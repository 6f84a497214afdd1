//! WordPiece vocabularies, from `tokenizer.json` or from BERT's word list.

use std::borrow::Cow;

use bilayer_text::Vocabulary;
use serde_json::Value;

use super::{Added, CONTROL, JSON, NORMAL, Source, Tokens, WORDS};
use crate::Error;

impl Source<'_> {
    /// WordPiece from `tokenizer.json`.
    pub(super) fn words(&self) -> Result<Vocabulary<'static>, Error> {
        let prefix = &self.json["model"]["continuing_subword_prefix"];
        if prefix != "##" {
            let reason = format!("words go on with {prefix}; only \"##\" is supported");
            return Err(self.checkpoint.wrong(JSON, &reason));
        }
        let normalizer = normalizer(&self.json["normalizer"])
            .map_err(|reason| self.checkpoint.wrong(JSON, &reason))?;
        let mut tokens = self.vocab()?;
        for (id, text) in tokens.texts.iter_mut().enumerate() {
            if tokens.types[id] == NORMAL {
                *text = spelled(text);
            }
        }
        self.vocabulary(
            tokens,
            normalizer["lowercase"].as_bool(),
            normalizer["strip_accents"].as_bool(),
        )
    }

    /// WordPiece from `vocab.txt`, one token per line.
    pub(super) fn word_list(&self, text: &str) -> Result<Vocabulary<'static>, Error> {
        let mut tokens = Tokens::unused(self.rows);
        let count = text.lines().count();
        if count > self.rows {
            let rows = self.rows;
            let reason =
                format!("has {count} tokens, more than the {rows} of the model's vocabulary");
            return Err(self.checkpoint.wrong(WORDS, &reason));
        }
        for (id, token) in text.lines().enumerate() {
            tokens.set(id, spelled(token), NORMAL);
        }
        let flag = |name: &str| self.config[name].as_bool();
        self.vocabulary(tokens, flag("do_lower_case"), flag("strip_accents"))
    }

    fn vocabulary(
        &self,
        mut tokens: Tokens,
        lowercase: Option<bool>,
        strip_accents: Option<bool>,
    ) -> Result<Vocabulary<'static>, Error> {
        let added: Vec<Added> = self.added();
        // BERT's special tokens, where no file lists them.
        if added.is_empty() || self.json.is_null() {
            for name in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] {
                if let Some(id) = tokens.texts.iter().position(|text| text == name) {
                    tokens.types[id] = CONTROL;
                }
            }
        }
        tokens.add(added);
        Ok(Vocabulary {
            model: "bert".into(),
            tokens: tokens.texts.into_iter().map(Cow::Owned).collect(),
            types: tokens.types,
            lowercase: lowercase.filter(|lowercase| !lowercase),
            strip_accents,
            ..Vocabulary::default()
        })
    }
}

/// The step of a normalizer that is BERT's: itself, or one within it. Steps that only do what BERT's does, too, are skipped.
fn normalizer(step: &Value) -> Result<&Value, String> {
    let single = std::slice::from_ref(step);
    let steps = match step["type"].as_str() {
        Some("Sequence") => step["normalizers"].as_array().map_or(&[][..], Vec::as_slice),
        _ => single,
    };
    let at = steps.iter().position(|step| step["type"] == "BertNormalizer");
    let bert = at.map_or(&Value::Null, |at| &steps[at]);
    let lowercase = bert["lowercase"] == true;
    let strips = bert["strip_accents"].as_bool().unwrap_or(lowercase);
    for (number, step) in steps.iter().enumerate() {
        let is_done = match step["type"].as_str() {
            None => step.is_null(),
            Some("BertNormalizer") => step == bert,
            Some("Lowercase") => lowercase,
            Some("NFD") => strips,
            // After it, it would compose what that took apart.
            Some("NFC") => strips && at.is_some_and(|at| number < at),
            Some(_) => false,
        };
        if !is_done {
            let shown: String = step.to_string().chars().take(80).collect();
            return Err(format!("`normalizer`: {shown} is not supported; a BertNormalizer is"));
        }
    }
    Ok(bert)
}

/// The spelling in GGUF, which marks the start of a word instead of its continuation; tokens in brackets are
/// unchanged.
fn spelled(token: &str) -> String {
    match token.strip_prefix("##") {
        Some(rest) => rest.to_owned(),
        None if token.starts_with('[') && token.ends_with(']') => token.to_owned(),
        None => format!("\u{2581}{token}"),
    }
}
