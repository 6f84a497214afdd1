//! SentencePiece vocabularies, from its models or from a `tokenizer.json` converted from one of byte pairs.

use std::borrow::Cow;

use bilayer_text::Vocabulary;
use serde_json::Value;

use super::super::sentencepiece::{BYTE_PAIRS, Model, Piece, UNIGRAM};
use super::{BYTE, CONTROL, JSON, Source, Tokens, UNKNOWN, UNUSED, USER_DEFINED, pairs};
use crate::Error;

/// How a model numbers the pieces of its SentencePiece model.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Numbers {
    /// As the SentencePiece model does.
    Own,
    /// As the SentencePiece model does, whose texts have no token at their beginning.
    T5,
    /// As fairseq does for XLM-RoBERTa: four special tokens, then the pieces behind the three of SentencePiece, then the
    /// masked word. Source: transformers' `tokenization_xlm_roberta.py`.
    XlmRoberta,
    /// As fairseq does for CamemBERT: five tokens in place of the unknown one, then all other pieces, whose first two begin and
    /// end a text, then the masked word. Source: transformers' `CamembertConverter`.
    Camembert,
}

/// The tokens that replace SentencePiece's unknown, begin and end in XLM-RoBERTa's numbers.
const XLM_ROBERTA: [(&str, i32); 4] =
    [("<s>", CONTROL), ("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN)];

/// The tokens that replace SentencePiece's unknown in CamemBERT's numbers.
const CAMEMBERT: [(&str, i32); 5] = [
    ("<s>NOTUSED", UNUSED),
    ("<pad>", CONTROL),
    ("</s>NOTUSED", UNUSED),
    ("<unk>", UNKNOWN),
    ("<unk>NOTUSED", UNUSED),
];

impl Source<'_> {
    /// From a SentencePiece model, the file `file`.
    pub(super) fn pieces(
        &self,
        file: &str,
        mut model: Model,
        numbers: Numbers,
    ) -> Result<Vocabulary<'static>, Error> {
        let wrong = |reason: &str| self.checkpoint.wrong(file, reason);
        if ![BYTE_PAIRS, UNIGRAM].contains(&model.kind) {
            return Err(wrong("was trained as words or characters, which are not supported"));
        }
        if model.space_is_last {
            return Err(wrong("has words that end with their space, which are not supported"));
        }
        match numbers {
            Numbers::Own | Numbers::T5 => {}
            Numbers::XlmRoberta => {
                renumber(&mut model, 3, &XLM_ROBERTA);
                (model.bos, model.pad, model.eos, model.unk) = (0, 1, 2, 3);
            }
            Numbers::Camembert => {
                renumber(&mut model, 1, &CAMEMBERT);
                (model.bos, model.pad, model.eos, model.unk) = (5, 1, 6, 3);
            }
        }
        let (len, rows) = (model.pieces.len(), self.rows);
        if len > rows {
            return Err(wrong(&format!(
                "has {len} pieces, more than the {rows} tokens of the model's vocabulary"
            )));
        }
        let mut tokens = Tokens::unused_scored(rows);
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
        let ids = Vocabulary {
            bos: id(model.bos),
            eos: id(model.eos),
            unk: id(model.unk),
            pad: id(model.pad),
            ..Vocabulary::default()
        };
        if model.kind == BYTE_PAIRS {
            return Ok(Vocabulary {
                add_space_prefix: (!model.adds_space).then_some(false),
                remove_extra_whitespaces: model.removes_spaces.then_some(true),
                ..vocabulary("llama", tokens, ids)
            });
        }
        // Unless a file says more: XLM-RoBERTa's and CamemBERT's texts have all, those of Llama's file begin, and those of T5's
        // end with one.
        let is_fairseq = matches!(numbers, Numbers::XlmRoberta | Numbers::Camembert);
        Ok(Vocabulary {
            charsmap: model.charsmap.into(),
            sep: ids.eos.filter(|_| is_fairseq),
            add_bos: Some(numbers != Numbers::T5 && ids.bos.is_some()),
            add_eos: Some(numbers != Numbers::Own),
            add_sep: is_fairseq.then_some(true),
            add_space_prefix: Some(model.adds_space),
            remove_extra_whitespaces: Some(model.removes_spaces),
            ..vocabulary("t5", tokens, ids)
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
        tokens.mark_bytes();
        let unk = model["unk_token"].as_str().and_then(|unk| ids.get(unk)).copied();
        if let Some(unk) = unk {
            tokens.types[unk] = UNKNOWN;
        }
        tokens.add(self.added());
        let adds_space =
            adds_space(&self.json["normalizer"]) || adds_space(&self.json["pre_tokenizer"]);
        let ids = Vocabulary { unk: unk.map(|id| id as u32), ..Vocabulary::default() };
        Ok(Vocabulary {
            add_space_prefix: (!adds_space).then_some(false),
            ..vocabulary("llama", tokens, ids)
        })
    }
}

/// Gives a model fairseq's numbers: `special` in place of its first `replaced` pieces, and the masked word at the end.
fn renumber(model: &mut Model, replaced: usize, special: &[(&str, i32)]) {
    let piece = |(text, kind): (&str, i32)| Piece { text: text.into(), score: 0.0, kind };
    let replaced = model.pieces.len().min(replaced);
    model.pieces.splice(..replaced, special.iter().copied().map(piece));
    model.pieces.push(piece(("<mask>", CONTROL)));
}

/// A SentencePiece vocabulary of these tokens, with the ids of special ones in `ids`.
pub(super) fn vocabulary(
    model: &str,
    tokens: Tokens,
    ids: Vocabulary<'static>,
) -> Vocabulary<'static> {
    Vocabulary {
        model: model.into(),
        pre: Some("default".into()),
        tokens: tokens.texts.into_iter().map(Cow::Owned).collect(),
        types: tokens.types,
        scores: tokens.scores,
        ..ids
    }
}

impl Tokens {
    /// Makes tokens that are spelled like bytes bytes.
    pub(super) fn mark_bytes(&mut self) {
        let is_byte =
            |text: &str| text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        for (text, kind) in self.texts.iter().zip(&mut self.types) {
            if is_byte(text) {
                *kind = BYTE;
            }
        }
    }
}

/// Whether a step of `tokenizer.json`, or a nested step, adds a space before the text.
pub(super) fn adds_space(step: &Value) -> bool {
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
