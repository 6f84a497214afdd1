//! What can be wrong with a vocabulary, and with a text for that vocabulary.

/// Every failure of this crate. Texts end in what to do where there is something to do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is not one token.
    #[error("tokenizer.ggml.tokens is empty; a text model needs a vocabulary")]
    EmptyVocabulary,

    /// The kind of tokenizer is one that we do not have.
    #[error("tokenizer.ggml.model is '{found}'; known are {known}")]
    UnknownModel {
        /// The value of the key.
        found: String,
        /// The values that are known.
        known: &'static str,
    },

    /// A byte-level vocabulary does not say how its text is cut into words.
    #[error(
        "tokenizer.ggml.pre is absent, so it is unknown how text is cut into words; convert the \
         model anew, or set the key to the right one of {known}"
    )]
    MissingPre {
        /// The names that are known.
        known: String,
    },

    /// The way text is cut into words is one that we do not have.
    #[error("tokenizer.ggml.pre is '{found}'; known are {known}")]
    UnknownPre {
        /// The value of the key.
        found: String,
        /// The names that are known.
        known: String,
    },

    /// A maker's tokenizer cuts text into words in a way that we do not have.
    #[error("pre_tokenizer {found}: {reason}; the known values of tokenizer.ggml.pre are {known}")]
    UnrecognisedPre {
        /// The part of `tokenizer.json`, shortened.
        found: String,
        /// What is unknown about it.
        reason: String,
        /// The names that are known.
        known: String,
    },

    /// An array that runs beside the tokens is not as long as they are.
    #[error("tokenizer.ggml.{key} has {found} entries for {expected} tokens")]
    Length {
        /// The key without its prefix.
        key: &'static str,
        /// The number of tokens.
        expected: usize,
        /// The entries found.
        found: usize,
    },

    /// An array that this kind of tokenizer cannot do without is absent.
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

    /// A token type outside the format's list.
    #[error("token {id} has the type {found}; the format knows 0 to 6")]
    Kind {
        /// The token.
        id: u32,
        /// Its type.
        found: i32,
    },

    /// A byte token that is not spelled as one.
    #[error("token {id} is of type byte but reads '{token}' where '<0x00>' to '<0xFF>' is due")]
    Byte {
        /// The token.
        id: u32,
        /// Its spelling.
        token: String,
    },

    /// A special token's id lies outside the vocabulary.
    #[error("tokenizer.ggml.{key} is {id}, and the vocabulary has {len} tokens")]
    OutOfRange {
        /// The key without its prefix.
        key: &'static str,
        /// Its value.
        id: u32,
        /// Tokens in the vocabulary.
        len: usize,
    },

    /// A token is to be added to each text, but the file does not say which one.
    #[error("{flag} asks for a token at each text's {place}, and tokenizer.ggml.{key} is absent")]
    MissingSpecial {
        /// What asks for it.
        flag: &'static str,
        /// Where it belongs: start or end.
        place: &'static str,
        /// The absent key without its prefix.
        key: &'static str,
    },

    /// A merge that is not two tokens which together are a token.
    #[error("tokenizer.ggml.merges[{index}] is '{merge}': {problem}")]
    Merge {
        /// Its place in the list.
        index: usize,
        /// The merge as it stands.
        merge: String,
        /// What is wrong with it.
        problem: &'static str,
    },

    /// The file came without a tokenizer.
    #[error("the model has no tokenizer: it takes token ids (--tokens) and no text")]
    NoTokenizer,

    /// The text needs a byte or character for which there is no token, nor one for unknown text.
    #[error("the vocabulary has no token for {what:?} and none for unknown text")]
    NoToken {
        /// The character.
        what: char,
    },

    /// The pattern that cuts text into words gave up. Patterns are bounded in time.
    #[error("the pattern of tokenizer.ggml.pre gave up {at} bytes into a piece of {len} bytes")]
    Pattern {
        /// Where it gave up, in bytes.
        at: usize,
        /// The length of the piece, in bytes.
        len: usize,
    },

    /// A model brings no chat template.
    #[error("the model has no chat template; give one with --chat-template: {known}")]
    NoTemplate {
        /// The names that can be given.
        known: String,
    },

    /// No chat template has that name.
    #[error(
        "no chat template is called '{found}'; known are {known}, and a text with {{{{ or {{% is \
         taken as a template"
    )]
    UnknownTemplate {
        /// The name as given.
        found: String,
        /// The names that can be given.
        known: String,
    },

    /// A chat template is no Jinja, or asks for what there is not.
    #[error("chat template ({name}), line {line}: {reason}")]
    Template {
        /// Which template.
        name: String,
        /// The line of its source, from 1; 0 where it is not known.
        line: usize,
        /// What it asks for.
        reason: String,
    },

    /// A chat template refuses the conversation: it called `raise_exception`.
    #[error("chat template ({name}) refuses the conversation: {reason}")]
    Refused {
        /// Which template.
        name: String,
        /// What it says.
        reason: String,
    },

    /// A chat template does not end.
    #[error("chat template ({name}) does not end")]
    Endless {
        /// Which template.
        name: String,
    },

    /// A chat template writes more than it may.
    #[error("the chat template writes more than {limit} bytes")]
    TooLong {
        /// The bound.
        limit: usize,
    },

    /// A chat template mixes its special tokens with the messages so that they cannot be told apart.
    #[error("chat template ({name}): its special tokens cannot be told from the messages' text")]
    Entangled {
        /// Which template.
        name: String,
    },

    /// The tokenizers library refused something that we thought was checked.
    #[error("the tokenizer could not be used: {0}")]
    Library(String),
}

impl From<tokenizers::Error> for Error {
    fn from(error: tokenizers::Error) -> Self {
        Self::Library(error.to_string())
    }
}
