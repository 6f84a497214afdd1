//! A conversation: its messages, its template, and how much of it the cache holds already.
//!
//! The messages are the truth. Each turn renders and tokenizes all of them anew and compares the tokens with those of
//! the sequence: what is equal from the start on stays in the cache, the rest is cut off and run. So taking back,
//! changing or loading messages needs no book-keeping of its own, and a template that drops earlier thoughts is
//! right as well.

use bilayer_text::chat::{Inputs, Template};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::session::Session;
use crate::session::{CacheError, SequenceId};
use crate::{Error, Model};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// What the model is told before all else.
    System,
    /// Who asks.
    User,
    /// The model.
    Assistant,
}

/// What one of them says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who.
    pub role: Role,
    /// What.
    pub content: String,
}

impl Message {
    /// What the model is told before all else.
    pub fn system(content: impl Into<String>) -> Message {
        Message { role: Role::System, content: content.into() }
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Message {
        Message { role: Role::User, content: content.into() }
    }

    /// What the model said.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message { role: Role::Assistant, content: content.into() }
    }
}

/// Messages in a sequence of a session.
#[derive(Debug)]
pub struct Conversation {
    template: Template,
    /// Further variables of the template, such as `enable_thinking`.
    variables: Map<String, Value>,
    messages: Vec<Message>,
    sequence: SequenceId,
}

/// A conversation as tokens that wait for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The whole prompt.
    pub tokens: Vec<u32>,
    /// How many of them the sequence holds; the others are to be run, at least one.
    pub kept: usize,
}

impl Conversation {
    /// An empty one in a sequence of its own.
    ///
    /// # Errors
    /// All sequences are in use.
    pub fn new(
        session: &mut Session,
        template: Template,
        variables: Map<String, Value>,
    ) -> Result<Conversation, Error> {
        let sequence = session.open()?;
        Ok(Conversation { template, variables, messages: Vec::new(), sequence })
    }

    /// An empty one in a sequence that is open. What the sequence holds counts as far as it is equal.
    pub fn over(sequence: SequenceId, template: Template) -> Conversation {
        Conversation { template, variables: Map::new(), messages: Vec::new(), sequence }
    }

    /// All that was said.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Takes `messages` for all that was said.
    pub fn replace(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// What the model is told before all else.
    pub fn system(&self) -> Option<&str> {
        let first = self.messages.first().filter(|message| message.role == Role::System);
        first.map(|message| message.content.as_str())
    }

    /// Tells the model something else before all else; an empty text tells it nothing.
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

    /// Forgets all but what the model was told before.
    pub fn clear(&mut self) {
        self.messages.truncate(usize::from(self.system().is_some()));
    }

    /// Takes the last question back with what followed it. False where there is none.
    pub fn undo(&mut self) -> bool {
        let last = self.messages.iter().rposition(|message| message.role == Role::User);
        last.inspect(|&last| self.messages.truncate(last)).is_some()
    }

    /// Takes back what followed the last question. False where there is none.
    pub fn take_answer(&mut self) -> bool {
        let last = self.messages.iter().rposition(|message| message.role == Role::User);
        last.inspect(|&last| self.messages.truncate(last + 1)).is_some()
    }

    /// The format it is told to the model in.
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// The sequence that holds it.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Makes the prompt for the next answer and cuts the sequence back to what they have in common.
    ///
    /// # Errors
    /// Those of [`Template::prompt`]; the context is too short.
    pub fn turn(&self, model: &Model, session: &mut Session) -> Result<Turn, Error> {
        let tokenizer = model.tokenizer();
        let messages: Vec<Value> =
            self.messages.iter().map(|m| json!({ "role": m.role, "content": m.content })).collect();
        let inputs = Inputs { extra: self.variables.clone(), ..Inputs::new(&messages) };
        let prompt = self.template.prompt(&inputs.with_tokens_of(tokenizer), tokenizer);
        let tokens = tokenizer.encode_prompt(&prompt.map_err(Error::Text)?).map_err(Error::Text)?;
        let context = session.context();
        // One more, for an answer of no token is none.
        if tokens.len() >= context {
            return Err(CacheError::Context { needed: tokens.len() + 1, context }.into());
        }
        let held = session.tokens(self.sequence);
        let common = tokens.iter().zip(held).take_while(|(a, b)| a == b).count();
        // The last token is run in any case: its logits are what the answer begins with.
        let kept = common.min(tokens.len().saturating_sub(1));
        session.truncate(self.sequence, kept);
        Ok(Turn { tokens, kept })
    }
}
