//! What a GGUF file says of its vocabulary, as plain data, and the checks on it.

use std::borrow::Cow;

use crate::Error;

/// The vocabulary of a model: the keys `tokenizer.ggml.*`, as the file has them.
///
/// Index in [`tokens`](Self::tokens) = token id. `None` and empty mean that the key is absent. The long lists may borrow
/// from the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary<'a> {
    /// The model's name (`general.name`). It decides what no key says: the makers of Phi-3 count
    /// white space after a special token as part of it.
    pub name: String,
    /// The kind of tokenizer: `llama` (SentencePiece), `gpt2` (byte-level), `gemma4`, `bert`.
    pub model: String,
    /// How text is cut into words before merging; only `gpt2` asks for it.
    pub pre: Option<String>,
    /// The spelling of each token.
    pub tokens: Vec<Cow<'a, str>>,
    /// The score of each token (`llama`): of two possible merges the higher is made first.
    pub scores: Vec<f32>,
    /// The type of each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Vec<i32>,
    /// The merges in order of rank (`gpt2`, `gemma4`): two tokens with a space between.
    pub merges: Vec<Cow<'a, str>>,

    /// Begin of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message, where the turn goes on.
    pub eom: Option<u32>,
    /// What stands for text that has no token.
    pub unk: Option<u32>,
    /// Between the parts of an input (`seperator_token_id` in files).
    pub sep: Option<u32>,
    /// Fills up batches.
    pub pad: Option<u32>,
    /// First token of an encoder's input.
    pub cls: Option<u32>,
    /// Hides a word from an encoder.
    pub mask: Option<u32>,

    /// Whether a text starts with `bos`.
    pub add_bos: Option<bool>,
    /// Whether a text ends with `eos`.
    pub add_eos: Option<bool>,
    /// Whether `sep` stands between the two texts of a pair.
    pub add_sep: Option<bool>,
    /// Whether a text gets a space in front (`llama`).
    pub add_space_prefix: Option<bool>,
    /// Whether runs of spaces become one and those at the ends go (`llama`).
    pub remove_extra_whitespaces: Option<bool>,
    /// Whether text is lowercased (`bert`).
    pub lowercase: Option<bool>,
    /// Whether accents are taken off (`bert`); if absent, as `lowercase`.
    pub strip_accents: Option<bool>,
}

/// The type of a token, by the numbers of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 0 and 1: a piece of text.
    Normal,
    /// 2: stands for unknown text.
    Unknown,
    /// 3: means something to the model and is no text.
    Control,
    /// 4: text that is never cut, spelled as it reads.
    UserDefined,
    /// 5: a piece that training left unused.
    Unused,
    /// 6: one byte, spelled `<0x0A>`.
    Byte,
}

impl Kind {
    /// Whether tokens of this kind are left out of what users read.
    pub fn is_hidden(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }

    /// Whether the spelling is the text itself, not in the vocabulary's own alphabet.
    pub fn is_plain(self) -> bool {
        matches!(self, Self::Control | Self::Unknown | Self::UserDefined)
    }
}

impl Vocabulary<'_> {
    /// Checks what no kind of tokenizer can do without and returns the kind of each token.
    ///
    /// Where the file has no types, the special tokens that it names are control tokens.
    pub(crate) fn check(&self) -> Result<Vec<Kind>, Error> {
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
        for (key, id) in self.special() {
            if let Some(id) = id.filter(|&id| id as usize >= len) {
                return Err(Error::OutOfRange { key, id, len });
            }
        }
        if !self.types.is_empty() {
            return self.types.iter().zip(0..).map(|(&found, id)| kind(id, found)).collect();
        }
        let mut kinds = vec![Kind::Normal; len];
        for (_, id) in self.special() {
            if let Some(id) = id {
                kinds[id as usize] = Kind::Control;
            }
        }
        Ok(kinds)
    }

    /// Whether white space after a special token goes with it.
    ///
    /// Source: `rstrip` in the makers' `tokenizer_config.json`; found by name as in llama.cpp.
    pub(crate) fn strips_after_special(&self) -> bool {
        let name = self.name.to_lowercase();
        ["phi-3", "phi3"].iter().any(|family| name.contains(family))
    }

    /// The special tokens with their keys.
    fn special(&self) -> [(&'static str, Option<u32>); 9] {
        [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("eot_token_id", self.eot),
            ("eom_token_id", self.eom),
            ("unknown_token_id", self.unk),
            ("seperator_token_id", self.sep),
            ("padding_token_id", self.pad),
            ("cls_token_id", self.cls),
            ("mask_token_id", self.mask),
        ]
    }
}

fn kind(id: u32, found: i32) -> Result<Kind, Error> {
    Ok(match found {
        0 | 1 => Kind::Normal,
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        5 => Kind::Unused,
        6 => Kind::Byte,
        _ => return Err(Error::Kind { id, found }),
    })
}

/// The byte that a token of the strict form `<0x0A>` stands for.
pub(crate) fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
}
