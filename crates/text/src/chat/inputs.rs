//! The variables of a chat template.

use jiff::Zoned;
use jiff::fmt::strtime::{BrokenDownTime, Config};
use minijinja::{Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::Tokenizer;

/// The variables of a chat template, named as in transformers.
#[derive(Debug, Clone)]
pub struct Inputs<'a> {
    /// The conversation: objects with `role`, `content` and other fields of the role.
    pub messages: &'a [Json],
    /// The tools the model may call.
    pub tools: Option<&'a Json>,
    /// Texts to answer from.
    pub documents: Option<&'a Json>,
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`.
    pub extra: Map<String, Json>,
    /// The spelling of the token that begins a text.
    pub bos_token: String,
    /// The spelling of the token that ends a text.
    pub eos_token: String,
    /// The time returned by `strftime_now`.
    pub now: Zoned,
}

impl<'a> Inputs<'a> {
    /// A conversation that awaits the next answer, at the current time.
    pub fn new(messages: &'a [Json]) -> Self {
        Self {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            extra: Map::new(),
            bos_token: String::new(),
            eos_token: String::new(),
            now: Zoned::now(),
        }
    }

    /// Sets the special tokens from a vocabulary.
    #[must_use]
    pub fn with_tokens_of(mut self, tokenizer: &Tokenizer) -> Self {
        let spelled = |id: Option<u32>| {
            let piece = id.and_then(|id| tokenizer.piece(id));
            piece.map(|piece| String::from_utf8_lossy(piece).into_owned()).unwrap_or_default()
        };
        self.bos_token = spelled(tokenizer.bos());
        self.eos_token = spelled(tokenizer.eos());
        self
    }

    /// Converts to template variables, applying `write` to every text of the conversation.
    pub(super) fn context(&self, write: &dyn Fn(&str) -> String) -> Value {
        let value = |json| super::value(json, write);
        let now = self.now.clone();
        let given = [
            ("messages", self.messages.iter().map(value).collect()),
            // As in Python, None is passed, since a template may take the length of what it filters.
            ("tools", self.tools.map_or(Value::from(()), value)),
            ("documents", self.documents.map_or(Value::from(()), value)),
            ("add_generation_prompt", Value::from(self.add_generation_prompt)),
            ("bos_token", Value::from(self.bos_token.as_str())),
            ("eos_token", Value::from(self.eos_token.as_str())),
            ("strftime_now", Value::from_function(move |format: &str| strftime(&now, format))),
        ];
        let extra = self.extra.iter().map(|(name, json)| (name.as_str(), value(json)));
        Value::from_pairs(given.into_iter().chain(extra))
    }

    /// Calls `each` for every text of the conversation, keys included.
    pub(super) fn texts(&self, each: &mut dyn FnMut(&str)) {
        let lists = self.messages.iter().chain(self.tools).chain(self.documents);
        for json in lists.chain(self.extra.values()) {
            texts(json, each);
        }
    }

    pub(super) fn len_bytes(&self) -> usize {
        let mut bytes = 0;
        self.texts(&mut |text| bytes += text.len());
        bytes
    }
}

fn texts(json: &Json, each: &mut dyn FnMut(&str)) {
    match json {
        Json::String(text) => each(text),
        Json::Array(items) => items.iter().for_each(|item| texts(item, each)),
        Json::Object(entries) => entries.iter().for_each(|(key, item)| {
            each(key);
            texts(item, each);
        }),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// C's `strftime`; unknown conversions are left unchanged.
fn strftime(now: &Zoned, format: &str) -> Result<String, Error> {
    let config = Config::new().lenient(true);
    BrokenDownTime::from(now)
        .to_string_with_config(&config, format)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}
