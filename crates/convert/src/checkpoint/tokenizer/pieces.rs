//! SentencePiece vocabularies, from `tokenizer.model` or from a `tokenizer.json` converted from one.

use std::borrow::Cow;

use bilayer_text::Vocabulary;
use serde_json::Value;

use super::super::sentencepiece::{BYTE_PAIRS, Model};
use super::{BYTE, JSON, PIECES, Source, Tokens, UNKNOWN, USER_DEFINED, pairs};
use crate::Error;

/// Score of unused rows, as in llama.cpp's converter.
const UNUSED_SCORE: f32 = -10_000.0;

impl Source<'_> {
    /// From `tokenizer.model`.
    pub(super) fn pieces(&self, model: Model) -> Result<Vocabulary<'static>, Error> {
        let wrong = |reason: &str| self.checkpoint.wrong(PIECES, reason);
        if model.kind != BYTE_PAIRS {
            let reason =
                "was not trained as byte pairs; unigrams, words and characters are not supported";
            return Err(wrong(reason));
        }
        let (len, rows) = (model.pieces.len(), self.rows);
        if len > rows {
            return Err(wrong(&format!(
                "has {len} pieces, more than the {rows} tokens of the model's vocabulary"
            )));
        }
        let mut tokens = Tokens::unused(rows);
        tokens.scores = vec![UNUSED_SCORE; rows];
        for (id, piece) in model.pieces.into_iter().enumerate() {
            let text = match piece.kind {
                USER_DEFINED => piece.text.replace('\u{2581}', " "),
                _ => piece.text,
            };
            tokens.set(id, text, piece.kind);
            tokens.scores[id] = piece.score;
        }
        tokens.add(self.added());
        let id = |id: i32| u32::try_from(id).ok().filter(|&id| (id as usize) < rows);
        Ok(Vocabulary {
            bos: id(model.bos),
            eos: id(model.eos),
            unk: id(model.unk),
            pad: id(model.pad),
            add_space_prefix: (!model.adds_space).then_some(false),
            remove_extra_whitespaces: model.removes_spaces.then_some(true),
            ..vocabulary(tokens)
        })
    }

    /// BPE over characters with byte fallback. `tokenizer.json` ranks merges, SentencePiece scores the
    /// resulting pieces; a token's score is therefore the negated rank of the first merge that produces it.
    pub(super) fn pairs_as_pieces(&self) -> Result<Vocabulary<'static>, Error> {
        let model = &self.json["model"];
        let merges = pairs::merges(model).map_err(|reason| self.checkpoint.wrong(JSON, &reason))?;
        let mut tokens = self.vocab()?;
        let ids: std::collections::HashMap<String, usize> =
            tokens.texts.iter().cloned().zip(0..).collect();
        // Tokens that no merge produces come last.
        tokens.scores = vec![-(merges.len() as f32); self.rows];
        for (rank, (left, right)) in merges.iter().enumerate().rev() {
            if let Some(&id) = ids.get(&format!("{left}{right}")) {
                tokens.scores[id] = -(rank as f32);
            }
        }
        let is_byte =
            |text: &str| text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        for id in 0..self.rows {
            if is_byte(&tokens.texts[id]) {
                tokens.types[id] = BYTE;
            }
        }
        let unk = model["unk_token"].as_str().and_then(|unk| ids.get(unk)).copied();
        if let Some(unk) = unk {
            tokens.types[unk] = UNKNOWN;
        }
        tokens.add(self.added());
        let adds_space =
            adds_space(&self.json["normalizer"]) || adds_space(&self.json["pre_tokenizer"]);
        Ok(Vocabulary {
            unk: unk.map(|id| id as u32),
            add_space_prefix: (!adds_space).then_some(false),
            ..vocabulary(tokens)
        })
    }
}

fn vocabulary(tokens: Tokens) -> Vocabulary<'static> {
    Vocabulary {
        model: "llama".into(),
        pre: Some("default".into()),
        tokens: tokens.texts.into_iter().map(Cow::Owned).collect(),
        types: tokens.types,
        scores: tokens.scores,
        ..Vocabulary::default()
    }
}

/// Whether a step of `tokenizer.json`, or a nested step, adds a space before the text.
fn adds_space(step: &Value) -> bool {
    let steps = ["normalizers", "pretokenizers"].into_iter().filter_map(|key| step[key].as_array());
    let own = match step["type"].as_str() {
        Some("Prepend") => step["prepend"] == "\u{2581}",
        Some("Metaspace") => match step["prepend_scheme"].as_str() {
            Some(scheme) => scheme != "never",
            None => step["add_prefix_space"] != false,
        },
        _ => false,
    };
    own || steps.flatten().any(adds_space)
}
