//! A conversation: its messages, its template, and reuse of its KV cache.
//!
//! The messages are the source of truth. Each turn renders and tokenizes all of them and compares the tokens with
//! those of the sequence: the common prefix stays in the cache, the rest is truncated and run. Removing, changing or
//! loading messages therefore needs no book-keeping, and templates that drop earlier reasoning work as well.

use bilayer_text::chat::reply::Format;
use bilayer_text::chat::{Inputs, Prompt, Template, openai};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::session::Session;
use crate::session::{CacheError, SequenceId};
use crate::{Error, Model};

pub(crate) mod error;
mod parse;

pub use error::MessagesError;

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
    /// A function that the model called.
    Tool,
}

/// A call of a function by the model, in JSON as in the OpenAI API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ToolCall {
    /// Of one of the functions that the model was given.
    Function {
        /// Names the call for its result.
        id: String,
        /// What is called.
        function: Function,
    },
}

/// A function with arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its arguments: JSON text.
    pub arguments: String,
}

impl ToolCall {
    fn id(&self) -> &str {
        let ToolCall::Function { id, .. } = self;
        id
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Its author.
    pub role: Role,
    /// Its text.
    pub content: String,
    /// The calls that the model makes in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Of a function's result: the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Other fields that a chat template may read, such as `name` and `reasoning_content`.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message that is only text.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        let (tool_calls, extra) = (Vec::new(), Map::new());
        Message { role, content: content.into(), tool_calls, tool_call_id: None, extra }
    }

    /// The system prompt.
    pub fn system(content: impl Into<String>) -> Message {
        Message::new(Role::System, content)
    }

    /// A user message.
    pub fn user(content: impl Into<String>) -> Message {
        Message::new(Role::User, content)
    }

    /// An assistant message.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new(Role::Assistant, content)
    }
}

/// A conversation in a sequence of a session.
#[derive(Debug)]
pub struct Conversation {
    template: Template,
    /// Further variables of the template, such as `enable_thinking`.
    variables: Map<String, Value>,
    /// The functions that the model may call: a list as in the OpenAI API.
    tools: Option<Value>,
    /// Whether the next answer continues the last message.
    continues: bool,
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
    /// The end of the prompt's text by which it shows whether the answer goes on with reasoning.
    pub end: String,
}

/// Characters of [`Turn::end`]: more than the tags of reasoning have.
const END_CHARS: usize = 64;

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
        Ok(Conversation { variables, ..Conversation::over(sequence, template) })
    }

    /// An empty conversation in an open sequence. Its contents are reused as far as they match.
    pub fn over(sequence: SequenceId, template: Template) -> Conversation {
        let (variables, messages) = (Map::new(), Vec::new());
        let (tools, continues) = (None, false);
        Conversation { template, variables, tools, continues, messages, left_out: 0, sequence }
    }

    /// With functions that the model may call: a list as in the OpenAI API.
    #[must_use]
    pub fn with_tools(self, tools: Option<Value>) -> Conversation {
        Conversation { tools, ..self }
    }

    /// With answers that continue the last message, which must be the assistant's: the prompt ends with its content, at the
    /// place where the template writes it.
    #[must_use]
    pub fn continue_final_message(self) -> Conversation {
        Conversation { continues: true, ..self }
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
            self.messages.insert(0, Message::system(content));
        }
    }

    /// Adds a message.
    pub fn say(&mut self, role: Role, content: String) {
        self.messages.push(Message::new(role, content));
    }

    /// Adds an answer that calls functions.
    pub fn call(&mut self, content: String, functions: Vec<Function>) {
        let made: usize = self.messages.iter().map(|message| message.tool_calls.len()).sum();
        let calls = functions.into_iter().enumerate();
        let calls = calls.map(|(number, function)| {
            let id = openai::call_id(made + number);
            ToolCall::Function { id, function }
        });
        let tool_calls = calls.collect();
        self.messages.push(Message { tool_calls, ..Message::assistant(content) });
    }

    /// The function whose result is awaited: the first of the last answer's calls that has none.
    pub fn awaited(&self) -> Option<&Function> {
        self.open_calls().next().map(|ToolCall::Function { function, .. }| function)
    }

    /// Adds the result of the function that is awaited. False if there is none.
    pub fn give_result(&mut self, content: String) -> bool {
        let Some(id) = self.open_calls().next().map(|call| call.id().to_owned()) else {
            return false;
        };
        let result = Message::new(Role::Tool, content);
        self.messages.push(Message { tool_call_id: Some(id), ..result });
        true
    }

    /// Calls of the last answer without a result, in order.
    fn open_calls(&self) -> impl Iterator<Item = &ToolCall> {
        let results = self.messages.iter().rev().take_while(|m| m.role == Role::Tool).count();
        let last = self.messages.len().checked_sub(results + 1).map(|last| &self.messages[last]);
        last.map_or(&[][..], |last| &last.tool_calls).iter().skip(results)
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
        while self.prompt(model, &self.prompted())?.0.len() > most {
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
        let messages = values(&messages);
        let inputs = self.inputs(model, &messages);
        let prompt = self.template.conversation(&inputs, model.tokenizer());
        let prompt = prompt.map_err(Error::Text)?;
        let tokens = model.tokenizer().encode_prompt(&prompt).map_err(Error::Text)?;
        Ok(tokens.iter().zip(&turn.tokens).take_while(|(a, b)| a == b).count())
    }

    /// Builds the prompt for the next answer and truncates the sequence to the common prefix.
    ///
    /// # Errors
    /// Those of [`Template::prompt`]; the context is too short; the last message cannot be continued.
    pub fn turn(&self, model: &Model, session: &mut Session) -> Result<Turn, Error> {
        let (tokens, prompt) = self.prompt(model, &self.prompted())?;
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
        let end = prompt.opening(&Format::of(self.template.source()));
        let from = end.char_indices().nth_back(END_CHARS - 1).map_or(0, |(at, _)| at);
        Ok(Turn { tokens, kept, end: end[from..].to_owned() })
    }

    /// The messages that are part of the prompt.
    fn prompted(&self) -> Vec<&Message> {
        let system = usize::from(self.system().is_some());
        let (system, rest) = self.messages.split_at(system);
        system.iter().chain(rest.iter().skip(self.left_out)).collect()
    }

    /// The prompt of some messages, and its tokens.
    fn prompt(&self, model: &Model, messages: &[&Message]) -> Result<(Vec<u32>, Prompt), Error> {
        let (tokenizer, messages) = (model.tokenizer(), values(messages));
        let inputs = self.inputs(model, &messages);
        let prompt = match self.continues {
            true if openai::ends_with_answer(&messages).map_err(MessagesError::from)? => {
                self.template.continuation(&inputs, tokenizer)
            }
            true => return Err(MessagesError::NoAnswer.into()),
            false => self.template.conversation(&inputs, tokenizer),
        };
        let prompt = prompt.map_err(Error::Text)?;
        let tokens = tokenizer.encode_prompt(&prompt).map_err(Error::Text)?;
        Ok((tokens, prompt))
    }

    fn inputs<'m>(&'m self, model: &Model, messages: &'m [Value]) -> Inputs<'m> {
        let (tools, extra) = (self.tools.as_ref(), self.variables.clone());
        let inputs = Inputs { tools, extra, ..Inputs::new(messages) };
        inputs.with_tokens_of(model.tokenizer())
    }
}

/// Messages as templates read them.
fn values(messages: &[&Message]) -> Vec<Value> {
    messages.iter().map(|message| json!(message)).collect()
}
