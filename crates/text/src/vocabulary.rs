//! The vocabulary of a GGUF file as plain data, and its validation.

use std::borrow::Cow;

use crate::Error;

/// The vocabulary of a model: the keys `tokenizer.ggml.*`.
///
/// The index in [`tokens`](Self::tokens) is the token id. `None` and empty mean that the key is absent. The long
/// lists may borrow from the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary<'a> {
    /// The model's name (`general.name`). It decides what no key says: the makers of Phi-3 count
    /// white space after a special token as part of it.
    pub name: String,
    /// The kind of tokenizer: `llama` (SentencePiece), `gpt2` (byte-level), `gemma4`, `bert`, `t5` (SentencePiece's
    /// unigrams).
    pub model: String,
    /// The pre-tokenizer; required only for `gpt2`.
    pub pre: Option<String>,
    /// The spelling of each token.
    pub tokens: Vec<Cow<'a, str>>,
    /// The score of each token: with `llama` the merge with the higher score comes first, with `t5` the tokens of a text
    /// have the greatest sum.
    pub scores: Vec<f32>,
    /// The type of each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Vec<i32>,
    /// The merges in order of rank (`gpt2`, `gemma4`): two tokens separated by a space.
    pub merges: Vec<Cow<'a, str>>,
    /// SentencePiece's rules of normalization, compiled (`precompiled_charsmap` in files).
    pub charsmap: Cow<'a, [u8]>,

    /// Begin of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message within a turn.
    pub eom: Option<u32>,
    /// Token for unknown text.
    pub unk: Option<u32>,
    /// Between the parts of an input (`seperator_token_id` in files).
    pub sep: Option<u32>,
    /// Padding of batches.
    pub pad: Option<u32>,
    /// First token of an encoder's input.
    pub cls: Option<u32>,
    /// Masked word of an encoder.
    pub mask: Option<u32>,

    /// Whether a text starts with `bos`.
    pub add_bos: Option<bool>,
    /// Whether a text ends with `eos`.
    pub add_eos: Option<bool>,
    /// Whether `sep` is added between the two texts of a pair.
    pub add_sep: Option<bool>,
    /// Whether a space is added before a text (`llama`, `t5`).
    pub add_space_prefix: Option<bool>,
    /// Whether runs of spaces are collapsed and trimmed (`llama`, `t5`).
    pub remove_extra_whitespaces: Option<bool>,
    /// Whether text is lowercased (`bert`).
    pub lowercase: Option<bool>,
    /// Whether accents are removed (`bert`); defaults to `lowercase`.
    pub strip_accents: Option<bool>,
}

/// The type of a token, as numbered by the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenType {
    /// 0 and 1: a piece of text.
    Normal,
    /// 2: unknown text.
    Unknown,
    /// 3: a control token rather than text.
    Control,
    /// 4: text that is never split, spelled literally.
    UserDefined,
    /// 5: unused.
    Unused,
    /// 6: one byte, spelled `<0x0A>`.
    Byte,
}

impl TokenType {
    /// Whether tokens of this type are omitted from visible text.
    pub fn is_hidden(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }

    /// Whether the spelling is literal text rather than the vocabulary's alphabet.
    pub fn is_plain(self) -> bool {
        matches!(self, Self::Control | Self::Unknown | Self::UserDefined)
    }
}

impl Vocabulary<'_> {
    /// Validates what all tokenizers require, and returns the type of each token and notes on what was ignored.
    ///
    /// If the file has no types, the special tokens that it names are control tokens.
    pub(crate) fn check(&mut self) -> Result<(Vec<TokenType>, Vec<String>), Error> {
        let len = self.tokens.len();
        if len == 0 {
            return Err(Error::EmptyVocabulary);
        }
        for (key, found) in [("scores", self.scores.len()), ("token_type", self.types.len())] {
            if found != 0 && found != len {
                return Err(Error::Length { key, expected: len, found });
            }
        }
        if let Some(id) = self.scores.iter().position(|score| !score.is_finite()) {
            return Err(Error::Score { id: id as u32, score: self.scores[id] });
        }
        let notes = self.ignore_out_of_range()?;
        let mut types = self.token_types()?;
        self.add_defaults(&mut types);
        Ok((types, notes))
    }

    /// Removes the special tokens beyond the vocabulary, with a note for each, as llama.cpp does.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if one of them is to be added to texts.
    fn ignore_out_of_range(&mut self) -> Result<Vec<String>, Error> {
        let len = self.tokens.len();
        let added = [
            ("bos_token_id", self.add_bos),
            ("eos_token_id", self.add_eos),
            ("seperator_token_id", self.add_sep),
        ];
        let mut notes = Vec::new();
        for (key, field) in self.special() {
            let Some(id) = field.filter(|&id| id as usize >= len) else { continue };
            let error = Error::OutOfRange { key, id, len };
            if added.contains(&(key, Some(true))) {
                return Err(error);
            }
            notes.push(format!("{error}; it is ignored"));
            *field = None;
        }
        Ok(notes)
    }

    /// The type of each token.
    fn token_types(&mut self) -> Result<Vec<TokenType>, Error> {
        if !self.types.is_empty() {
            return self.types.iter().zip(0..).map(|(&found, id)| kind(id, found)).collect();
        }
        let mut types = vec![TokenType::Normal; self.tokens.len()];
        for (_, id) in self.special() {
            if let Some(id) = *id {
                types[id as usize] = TokenType::Control;
            }
        }
        Ok(types)
    }

    /// Adds the special tokens that files of model `llama` leave out: 0 is `<unk>`, 1 `<s>` and 2 `</s>`, unless these ids
    /// are ordinary pieces. If the file has no types, they get theirs.
    ///
    /// Source: the defaults of llama.cpp (`llama-vocab.cpp`).
    fn add_defaults(&mut self, types: &mut [TokenType]) {
        if self.model != "llama" {
            return;
        }
        for (field, id, spelling, kind) in [
            (&mut self.unk, 0, "<unk>", TokenType::Unknown),
            (&mut self.bos, 1, "<s>", TokenType::Control),
            (&mut self.eos, 2, "</s>", TokenType::Control),
        ] {
            let at = id as usize;
            let is_special =
                self.tokens.get(at).is_some_and(|token| token == spelling || types[at] == kind);
            if field.is_none() && is_special {
                *field = Some(id);
                if self.types.is_empty() {
                    types[at] = kind;
                }
            }
        }
    }

    /// Whether white space after a special token is removed with it.
    ///
    /// Source: `rstrip` in the original `tokenizer_config.json`; identified by name as in llama.cpp.
    pub(crate) fn strips_after_special(&self) -> bool {
        let name = self.name.to_lowercase();
        ["phi-3", "phi3"].iter().any(|family| name.contains(family))
    }

    /// The special tokens with their keys.
    fn special(&mut self) -> [(&'static str, &mut Option<u32>); 9] {
        [
            ("bos_token_id", &mut self.bos),
            ("eos_token_id", &mut self.eos),
            ("eot_token_id", &mut self.eot),
            ("eom_token_id", &mut self.eom),
            ("unknown_token_id", &mut self.unk),
            ("seperator_token_id", &mut self.sep),
            ("padding_token_id", &mut self.pad),
            ("cls_token_id", &mut self.cls),
            ("mask_token_id", &mut self.mask),
        ]
    }
}

fn kind(id: u32, found: i32) -> Result<TokenType, Error> {
    Ok(match found {
        0 | 1 => TokenType::Normal,
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        _ => return Err(Error::Kind { id, found }),
    })
}

/// The byte of a token of the strict form `<0x0A>`.
pub(crate) fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
}
