//! Byte-level BPE vocabularies: tokens and merges from `tokenizer.json`, and the name of the pre-tokenizer.

use std::borrow::Cow;

use bilayer_text::{Vocabulary, recognise};
use serde_json::Value;

use super::{JSON, Source};
use crate::Error;

impl Source<'_> {
    /// Byte-level BPE from `tokenizer.json`.
    pub(super) fn pairs(&self, architecture: &str) -> Result<Vocabulary<'static>, Error> {
        let wrong = |reason: String| self.checkpoint.wrong(JSON, &reason);
        let pre = recognise(&self.json, architecture).map_err(|error| Error::Tokenizer {
            file: self.checkpoint.folder().join(JSON).display().to_string(),
            source: Box::new(error),
        })?;
        let merges = merges(&self.json["model"]).map_err(wrong)?;
        let mut tokens = self.vocab()?;
        tokens.add(self.added());
        Ok(Vocabulary {
            model: "gpt2".into(),
            pre: Some(pre.into()),
            tokens: tokens.texts.into_iter().map(Cow::Owned).collect(),
            types: tokens.types,
            merges: merges.iter().map(|(left, right)| format!("{left} {right}").into()).collect(),
            ..Vocabulary::default()
        })
    }
}

/// The merges of `tokenizer.json` in order of rank: arrays in newer files, two words separated by a space in
/// older ones.
pub(super) fn merges(model: &Value) -> Result<Vec<(&str, &str)>, String> {
    let list = model["merges"].as_array().ok_or("`model.merges` is missing or no list")?;
    let merge = |(rank, merge)| {
        halves(merge)
            .ok_or_else(|| format!("`model.merges`: number {rank} is {merge}, not two tokens"))
    };
    list.iter().enumerate().map(merge).collect()
}

fn halves(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(text) => {
            // The left token may itself begin with a space.
            let place = text.char_indices().skip(1).find(|&(_, character)| character == ' ');
            place.map(|(at, _)| (&text[..at], &text[at + 1..]))
        }
        Value::Array(pair) => match pair.as_slice() {
            [Value::String(left), Value::String(right)] => Some((left, right)),
            _ => None,
        },
        _ => None,
    }
}
