//! Byte-level vocabularies: tokens and merges of a `tokenizer.json`, and the name of the way it cuts text into words.

use std::borrow::Cow;

use bilayer_text::{Vocabulary, recognise};
use serde_json::Value;

use super::{JSON, Source};
use crate::Error;

impl Source<'_> {
    /// From byte pairs over bytes.
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

/// The merges of a `tokenizer.json` in order of rank: pairs in newer files, two words with a space between in older.
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
            // A merge may begin with a space of its own.
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
