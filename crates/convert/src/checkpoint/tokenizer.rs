//! Converts a checkpoint's tokenizer, in any of its forms, to a GGUF vocabulary.

use bilayer_text::{Tokenizer, Vocabulary};
use serde_json::Value;

use super::{Checkpoint, sentencepiece};
use crate::Error;
use pieces::Numbers;

mod pairs;
mod pieces;
mod special;
mod unigrams;
mod words;

/// The file that most checkpoints provide.
const JSON: &str = "tokenizer.json";
/// SentencePiece models: the file's name, and how the model numbers its pieces. CamemBERT's file has XLM-RoBERTa's name.
const PIECES: [(&str, Numbers); 3] = [
    ("tokenizer.model", Numbers::Own),
    ("spiece.model", Numbers::T5),
    ("sentencepiece.bpe.model", Numbers::XlmRoberta),
];
/// BERT's word list.
const WORDS: &str = "vocab.txt";
/// Added tokens by text, which older versions of transformers write.
const ADDED: &str = "added_tokens.json";

/// Inputs of the conversion.
pub(crate) struct Source<'c> {
    checkpoint: &'c Checkpoint,
    /// `tokenizer.json`, or null.
    json: Value,
    /// `tokenizer_config.json`, or null.
    config: &'c Value,
    /// `special_tokens_map.json`, or null.
    map: Value,
    /// `added_tokens.json`, or null.
    added: Value,
    /// `generation_config.json`, or null.
    generation: &'c Value,
    /// Rows of the embedding, equal to the number of tokens in the file.
    rows: usize,
}

/// A token added to a trained vocabulary.
struct Added {
    id: usize,
    text: String,
    /// Whether it is a control token rather than text.
    control: bool,
    /// Whether a control token of the vocabulary with its text stays one.
    keeps: bool,
}

/// A vocabulary under construction.
#[derive(Default)]
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
    scores: Vec<f32>,
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Score of unused rows, as in llama.cpp's converter.
const UNUSED_SCORE: f32 = -10_000.0;

/// The validated vocabulary of `rows` tokens; `None` if the folder has no tokenizer. `architecture` breaks ties
/// between several names of one pre-tokenizer.
///
/// # Errors
/// [`Error::Checkpoint`] if a file is invalid or of an unknown kind; [`Error::Tokenizer`] if the result cannot
/// be used.
pub(crate) fn tokenizer(
    checkpoint: &Checkpoint,
    architecture: &str,
    rows: usize,
    (config, generation): (&Value, &Value),
) -> Result<Option<Vocabulary<'static>>, Error> {
    let json = checkpoint.json(JSON)?.unwrap_or_default();
    let map = checkpoint.json("special_tokens_map.json")?.unwrap_or_default();
    let added = checkpoint.json(ADDED)?.unwrap_or_default();
    let source = Source { checkpoint, json, config, map, added, generation, rows };
    let Some((file, mut vocabulary)) = source.read(architecture)? else { return Ok(None) };
    source.specials(&mut vocabulary);
    let unusable = |source| {
        let file = checkpoint.folder().join(file).display().to_string();
        Error::Tokenizer { file, source: Box::new(source) }
    };
    Tokenizer::new(vocabulary.clone()).map_err(unusable)?;
    Ok(Some(vocabulary))
}

impl Source<'_> {
    /// Reads the vocabulary and the name of its file.
    fn read(
        &self,
        architecture: &str,
    ) -> Result<Option<(&'static str, Vocabulary<'static>)>, Error> {
        let checkpoint = self.checkpoint;
        for (file, numbers) in PIECES {
            let Some(bytes) = checkpoint.bytes(file)? else { continue };
            match sentencepiece::parse(&bytes) {
                Ok(model) => {
                    let numbers = match numbers {
                        Numbers::XlmRoberta if self.is_camembert() => Numbers::Camembert,
                        numbers => numbers,
                    };
                    let made = self.pieces(file, model, numbers)?;
                    return Ok(Some((file, made)));
                }
                // Other formats use these names too, always beside a `tokenizer.json`.
                Err(reason) if self.json.is_null() => return Err(checkpoint.wrong(file, &reason)),
                Err(_) => {}
            }
        }
        if self.json.is_null() {
            return match checkpoint.text(WORDS)? {
                Some(text) => self.word_list(&text).map(|made| Some((WORDS, made))),
                None => Ok(None),
            };
        }
        let model = &self.json["model"];
        // Older files lack the field; with merges they are BPE.
        let kind = model["type"].as_str().unwrap_or(match model["merges"].is_array() {
            true => "BPE",
            false => "unnamed",
        });
        let made = match kind {
            "BPE" if model["byte_fallback"] == true => self.pairs_as_pieces(),
            "BPE" => self.pairs(architecture),
            "WordPiece" => self.words(),
            "Unigram" => self.unigrams(),
            other => {
                let known = "BPE, Unigram, WordPiece and SentencePiece models are known";
                let reason =
                    format!("`model`: the kind of tokenizer {other} is not supported; {known}");
                Err(checkpoint.wrong(JSON, &reason))
            }
        };
        made.map(|made| Some((JSON, made)))
    }

    /// Whether the tokenizer is CamemBERT's, by its class or, where that says nothing, by the model.
    fn is_camembert(&self) -> bool {
        let class = self.config["tokenizer_class"].as_str().unwrap_or_default();
        let is_of = |name: &str| class.starts_with(name);
        let model = &self.checkpoint.settings().0["model_type"];
        is_of("Camembert") || (!is_of("XLMRoberta") && model == "camembert")
    }

    /// Added tokens; of several with an id the last one counts: entries of `tokenizer_config.json`, then those of
    /// `tokenizer.json`. Without the former `added_tokens.json` counts after them, as in transformers.
    fn added(&self) -> Vec<Added> {
        let older = self.added.as_object().into_iter().flatten().filter_map(|(text, id)| {
            let id = usize::try_from(id.as_u64()?).ok()?;
            let control = looks_special(text) || self.names(text);
            Some(Added { id, text: text.clone(), control, keeps: true })
        });
        let older = older.filter(|_| self.config["added_tokens_decoder"].is_null());
        let flag = |value: &Value| value["special"].as_bool().unwrap_or(false);
        let one = |id: Option<u64>, value: &Value| {
            let (id, text) = (usize::try_from(id?).ok()?, value["content"].as_str()?);
            let control = flag(value) || looks_special(text);
            Some(Added { id, text: text.to_owned(), control, keeps: false })
        };
        let listed = self.json["added_tokens"].as_array().into_iter().flatten();
        let listed = listed.filter_map(|value| one(value["id"].as_u64(), value));
        let decoder = self.config["added_tokens_decoder"].as_object().into_iter().flatten();
        let decoder = decoder.filter_map(|(id, value)| one(id.parse().ok(), value));
        older.chain(listed).chain(decoder).collect()
    }

    /// Whether a configuration names `text` as a special token.
    fn names(&self, text: &str) -> bool {
        let is_text = |token: &Value| token == text || token["content"] == text;
        [self.config, &self.map].into_iter().filter_map(Value::as_object).flatten().any(
            |(key, value)| match value {
                Value::Array(tokens) => {
                    key == "additional_special_tokens" && tokens.iter().any(is_text)
                }
                token => key.ends_with("_token") && is_text(token),
            },
        )
    }

    /// The ids of `model.vocab` in `tokenizer.json`, validated against the rows of the embedding.
    fn vocab(&self) -> Result<Tokens, Error> {
        let wrong = |reason: &str| self.checkpoint.wrong(JSON, reason);
        let vocab = self.json["model"]["vocab"].as_object();
        let vocab = vocab.ok_or_else(|| wrong("`model.vocab` is missing or no object"))?;
        let mut tokens = Tokens::unused(self.rows);
        for (text, id) in vocab {
            let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
            let id = id.filter(|&id| id < self.rows).ok_or_else(|| {
                wrong(&format!(
                    "token {text:?} has an id beyond the model's vocabulary of {}",
                    self.rows
                ))
            })?;
            tokens.set(id, text.clone(), NORMAL);
        }
        Ok(tokens)
    }
}

impl Tokens {
    /// Tokens for unused rows, spelled as by llama.cpp's converter.
    fn unused(rows: usize) -> Tokens {
        Tokens {
            texts: (0..rows).map(|id| format!("[PAD{id}]")).collect(),
            types: vec![UNUSED; rows],
            scores: Vec::new(),
        }
    }

    /// Like [`unused`](Self::unused), with scores as low as no piece has, as in llama.cpp's converter.
    fn unused_scored(rows: usize) -> Tokens {
        Tokens { scores: vec![UNUSED_SCORE; rows], ..Tokens::unused(rows) }
    }

    fn set(&mut self, id: usize, text: String, kind: i32) {
        self.texts[id] = text;
        self.types[id] = kind;
    }

    /// Inserts the added tokens; those beyond the embedding are dropped.
    fn add(&mut self, added: Vec<Added>) {
        for Added { id, text, control, keeps } in added {
            if id >= self.texts.len() {
                continue;
            }
            let is_kept = |kind| kind == UNKNOWN || keeps && kind == CONTROL;
            if is_kept(self.types[id]) && self.texts[id] == text {
                continue;
            }
            match control {
                true => self.set(id, text, CONTROL),
                false => self.set(id, text.replace('\u{2581}', " "), USER_DEFINED),
            }
        }
    }
}

/// Whether a token that no file marks as special is special by its spelling. Source: llama.cpp's converter.
fn looks_special(text: &str) -> bool {
    let within = |start, end| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || within("<|", "|>")
        || within("<｜", "｜>")
        || within("<unused", ">")
}
