//! A conversation: its messages, its template, and reuse of its KV cache.
//!
//! The messages are the source of truth. Each turn renders and tokenizes all of them and compares the tokens with
//! those of the sequence: the common prefix stays in the cache, the rest is truncated and run. Removing, changing or
//! loading messages therefore needs no book-keeping, and templates that drop earlier reasoning work as well.

use bilayer_text::chat::{Inputs, Template};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::session::Session;
use crate::session::{CacheError, SequenceId};
use crate::{Error, Model};

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The system prompt.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Its author.
    pub role: Role,
    /// Its text.
    pub content: String,
}

impl Message {
    /// The system prompt.
    pub fn system(content: impl Into<String>) -> Message {
        Message { role: Role::System, content: content.into() }
    }

    /// A user message.
    pub fn user(content: impl Into<String>) -> Message {
        Message { role: Role::User, content: content.into() }
    }

    /// An assistant message.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message { role: Role::Assistant, content: content.into() }
    }
}

/// A conversation in a sequence of a session.
#[derive(Debug)]
pub struct Conversation {
    template: Template,
    /// Further variables of the template, such as `enable_thinking`.
    variables: Map<String, Value>,
    messages: Vec<Message>,
    /// Oldest messages after the system prompt that are left out of the prompt, for lack of room.
    left_out: usize,
    sequence: SequenceId,
}

/// A prompt that awaits an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The whole prompt.
    pub tokens: Vec<u32>,
    /// Number of tokens already in the sequence; at least one remains to be run.
    pub kept: usize,
}

impl Conversation {
    /// An empty conversation in a new sequence.
    ///
    /// # Errors
    /// All sequences are in use.
    pub fn new(
        session: &mut Session,
        template: Template,
        variables: Map<String, Value>,
    ) -> Result<Conversation, Error> {
        let sequence = session.open()?;
        Ok(Conversation { template, variables, messages: Vec::new(), left_out: 0, sequence })
    }

    /// An empty conversation in an open sequence. Its contents are reused as far as they match.
    pub fn over(sequence: SequenceId, template: Template) -> Conversation {
        let (variables, messages) = (Map::new(), Vec::new());
        Conversation { template, variables, messages, left_out: 0, sequence }
    }

    /// All messages.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Replaces all messages.
    pub fn replace(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.left_out = 0;
    }

    /// The system prompt.
    pub fn system(&self) -> Option<&str> {
        let first = self.messages.first().filter(|message| message.role == Role::System);
        first.map(|message| message.content.as_str())
    }

    /// Replaces the system prompt; an empty text removes it.
    pub fn set_system(&mut self, content: String) {
        if self.system().is_some() {
            self.messages.remove(0);
        }
        if !content.is_empty() {
            self.messages.insert(0, Message { role: Role::System, content });
        }
    }

    /// Adds a message.
    pub fn say(&mut self, role: Role, content: String) {
        self.messages.push(Message { role, content });
    }

    /// Removes all messages but the system prompt.
    pub fn clear(&mut self) {
        self.messages.truncate(usize::from(self.system().is_some()));
        self.left_out = 0;
    }

    /// Removes the last user message and everything after it. False if there is none.
    pub fn undo(&mut self) -> bool {
        let last = self.messages.iter().rposition(|message| message.role == Role::User);
        self.left_out = 0;
        last.inspect(|&last| self.messages.truncate(last)).is_some()
    }

    /// Removes everything after the last user message. False if there is none.
    pub fn take_answer(&mut self) -> bool {
        let last = self.messages.iter().rposition(|message| message.role == Role::User);
        last.inspect(|&last| self.messages.truncate(last + 1)).is_some()
    }

    /// Its chat template.
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Its sequence.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Leaves the oldest messages out of the prompt until `room` tokens of context are left for the answer, as far as more
    /// than the last message remains: a user message and its answers at a time. If any leave, a quarter of the context
    /// becomes free, so that not every turn computes all that stays again. Returns how many left.
    ///
    /// # Errors
    /// Those of [`Template::prompt`].
    pub fn make_room(
        &mut self,
        model: &Model,
        session: &Session,
        room: usize,
    ) -> Result<usize, Error> {
        let context = session.context();
        let before = self.left_out;
        let mut most = context.saturating_sub(room.clamp(1, context / 4 + 1));
        while self.tokens(model, &self.prompted())?.len() > most {
            most = context - context / 4;
            let from = usize::from(self.system().is_some()) + self.left_out;
            let next = self.messages.iter().skip(from + 1).position(|m| m.role == Role::User);
            let Some(next) = next else { break };
            self.left_out += next + 1;
        }
        Ok(self.left_out - before)
    }

    /// The number of tokens at the beginning of a prompt that precede the first user message.
    ///
    /// # Errors
    /// Those of [`Template::prompt`].
    pub fn opening(&self, model: &Model, turn: &Turn) -> Result<usize, Error> {
        let system = self.messages.iter().filter(|message| message.role == Role::System).take(1);
        let empty = Message::user("");
        let messages: Vec<&Message> = system.chain([&empty]).collect();
        let tokens = self.tokens(model, &messages)?;
        Ok(tokens.iter().zip(&turn.tokens).take_while(|(a, b)| a == b).count())
    }

    /// Builds the prompt for the next answer and truncates the sequence to the common prefix.
    ///
    /// # Errors
    /// Those of [`Template::prompt`]; the context is too short.
    pub fn turn(&self, model: &Model, session: &mut Session) -> Result<Turn, Error> {
        let tokens = self.tokens(model, &self.prompted())?;
        let context = session.context();
        // One more, since an answer needs at least one token.
        if tokens.len() >= context {
            return Err(CacheError::Context { needed: tokens.len() + 1, context }.into());
        }
        let held = session.tokens(self.sequence);
        let common = tokens.iter().zip(held).take_while(|(a, b)| a == b).count();
        // The last token is always run: its logits begin the answer.
        let kept = common.min(tokens.len().saturating_sub(1));
        let kept = session.truncate(self.sequence, kept);
        Ok(Turn { tokens, kept })
    }

    /// The messages that are part of the prompt.
    fn prompted(&self) -> Vec<&Message> {
        let system = usize::from(self.system().is_some());
        let (system, rest) = self.messages.split_at(system);
        system.iter().chain(rest.iter().skip(self.left_out)).collect()
    }

    /// The prompt of some messages.
    fn tokens(&self, model: &Model, messages: &[&Message]) -> Result<Vec<u32>, Error> {
        let tokenizer = model.tokenizer();
        let messages: Vec<Value> =
            messages.iter().map(|m| json!({ "role": m.role, "content": m.content })).collect();
        let inputs = Inputs { extra: self.variables.clone(), ..Inputs::new(&messages) };
        let prompt = self.template.prompt(&inputs.with_tokens_of(tokenizer), tokenizer);
        tokenizer.encode_prompt(&prompt.map_err(Error::Text)?).map_err(Error::Text)
    }
}
