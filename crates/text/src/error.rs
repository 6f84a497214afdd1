//! Errors about vocabularies, chat templates, and texts they cannot encode.

use std::fmt::{self, Display};

use bilayer_settings::{Phrase, Setting};

/// Errors of this crate. Messages end with a remedy where there is one; `{:#}` names settings as programs do, in place of flags.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The vocabulary is empty.
    #[error("tokenizer.ggml.tokens is empty; a text model needs a vocabulary")]
    EmptyVocabulary,

    /// The kind of tokenizer is not supported.
    #[error("tokenizer.ggml.model is '{found}'; known are {known}")]
    UnknownModel {
        /// The value of the key.
        found: String,
        /// The supported values.
        known: &'static str,
    },

    /// A byte-level vocabulary does not name its pre-tokenizer.
    #[error(
        "tokenizer.ggml.pre is absent, so it is unknown how text is cut into words; convert the \
         model anew, or set the key to the right one of {known}"
    )]
    MissingPre {
        /// The supported names.
        known: String,
    },

    /// The pre-tokenizer is not supported.
    #[error("tokenizer.ggml.pre is '{found}'; known are {known}")]
    UnknownPre {
        /// The value of the key.
        found: String,
        /// The supported names.
        known: String,
    },

    /// A `tokenizer.json` has an unsupported pre-tokenizer.
    #[error("pre_tokenizer {found}: {reason}; the known values of tokenizer.ggml.pre are {known}")]
    UnrecognisedPre {
        /// The part of `tokenizer.json`, shortened.
        found: String,
        /// What is unsupported about it.
        reason: String,
        /// The supported names.
        known: String,
    },

    /// An array parallel to the tokens has another length.
    #[error("tokenizer.ggml.{key} has {found} entries for {expected} tokens")]
    Length {
        /// The key without its prefix.
        key: &'static str,
        /// The number of tokens.
        expected: usize,
        /// Number of entries found.
        found: usize,
    },

    /// A required array is absent.
    #[error("tokenizer.ggml.{key} is absent, and a vocabulary of model '{model}' needs it")]
    Missing {
        /// The key without its prefix.
        key: &'static str,
        /// The kind of tokenizer.
        model: String,
    },

    /// A score is not a finite number.
    #[error("token {id} has the score {score}; scores must be finite")]
    Score {
        /// The token.
        id: u32,
        /// Its score.
        score: f32,
    },

    /// A piece of a unigram vocabulary is too long to be looked for.
    #[error(
        "token {id} has {len} characters; pieces of a vocabulary of model 't5' have at most {max}"
    )]
    LongPiece {
        /// The token.
        id: u32,
        /// Its characters.
        len: usize,
        /// The limit.
        max: usize,
    },

    /// The rules of normalization are damaged.
    #[error("tokenizer.ggml.precompiled_charsmap {problem}")]
    Charsmap {
        /// What is wrong with them.
        problem: &'static str,
    },

    /// A token type is not in the format's list.
    #[error("token {id} has the type {found}; the format knows 0 to 6")]
    Kind {
        /// The token.
        id: u32,
        /// Its type.
        found: i32,
    },

    /// A byte token is not spelled as one.
    #[error("token {id} is of type byte but reads '{token}' where '<0x00>' to '<0xFF>' is due")]
    Byte {
        /// The token.
        id: u32,
        /// Its spelling.
        token: String,
    },

    /// A special token's id is outside the vocabulary.
    #[error("tokenizer.ggml.{key} is {id}, and the vocabulary has {len} tokens")]
    OutOfRange {
        /// The key without its prefix.
        key: &'static str,
        /// Its value.
        id: u32,
        /// Number of tokens in the vocabulary.
        len: usize,
    },

    /// A token shall be added to each text, but the file does not say which.
    #[error("{flag} asks for a token at each text's {place}, and tokenizer.ggml.{key} is absent")]
    MissingSpecial {
        /// The key that requests it.
        flag: &'static str,
        /// Its position: start or end.
        place: &'static str,
        /// The absent key without its prefix.
        key: &'static str,
    },

    /// A merge is not two tokens that together form a token.
    #[error("tokenizer.ggml.merges[{index}] is '{merge}': {problem}")]
    Merge {
        /// Its index in the list.
        index: usize,
        /// The merge's text.
        merge: String,
        /// The problem.
        problem: &'static str,
    },

    /// The file has no tokenizer.
    #[error(fmt = no_tokenizer)]
    NoTokenizer,

    /// The text contains a byte or character without a token, and there is no unknown token.
    #[error("the vocabulary has no token for {what:?} and none for unknown text")]
    NoToken {
        /// The character.
        what: char,
    },

    /// The pre-tokenizer's pattern gave up; the time of patterns is bounded.
    #[error("the pattern of tokenizer.ggml.pre gave up {at} bytes into a piece of {len} bytes")]
    Pattern {
        /// Position where it gave up, in bytes.
        at: usize,
        /// The length of the piece, in bytes.
        len: usize,
    },

    /// The model has no chat template.
    #[error(fmt = no_template)]
    NoTemplate {
        /// The accepted names.
        known: String,
    },

    /// No chat template has the given name.
    #[error(
        "no chat template is called '{found}'; known are {known}, and a text with {{{{ or {{% is \
         taken as a template"
    )]
    UnknownTemplate {
        /// The name as given.
        found: String,
        /// The accepted names.
        known: String,
    },

    /// A chat template is not valid Jinja or uses something undefined.
    #[error("chat template ({name}), line {line}: {reason}")]
    Template {
        /// The template.
        name: String,
        /// The line of its source, from 1; 0 if unknown.
        line: usize,
        /// The problem.
        reason: String,
    },

    /// A chat template rejects the conversation by calling `raise_exception`.
    #[error("chat template ({name}) refuses the conversation: {reason}")]
    Refused {
        /// The template.
        name: String,
        /// Its message.
        reason: String,
    },

    /// A chat template exceeds its instruction limit.
    #[error("chat template ({name}) takes too many steps for {messages} messages")]
    Endless {
        /// The template.
        name: String,
        /// The messages of the conversation.
        messages: usize,
    },

    /// A chat template exceeds its limit on memory and time.
    #[error("chat template ({name}) takes too much memory or time")]
    Costly {
        /// The template.
        name: String,
    },

    /// A chat template exceeds its output limit.
    #[error("the chat template writes more than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },

    /// A chat template mixes its special tokens with message text so that they cannot be told apart.
    #[error("chat template ({name}): its special tokens cannot be told from the messages' text")]
    Entangled {
        /// The template.
        name: String,
    },

    /// The regex engine rejected a pattern.
    #[error("the tokenizer could not be used: {0}")]
    Library(String),
}

fn no_tokenizer(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let ids = Phrase::from("the model has no tokenizer: it takes token ids");
    // A program gives them as the text.
    let flag = format!(" ({})", Setting::Tokens.flag());
    ids.either(&flag, "").text(" and no text").fmt(f)
}

fn no_template(known: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let none = Phrase::from("the model has no chat template; give one with ");
    none.setting(Setting::ChatTemplate).text(&format!(": {known}")).fmt(f)
}
