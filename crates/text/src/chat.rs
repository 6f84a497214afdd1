//! Chat templates: render messages to a prompt and tell the template's special tokens from message text.
//!
//! A template is a Jinja program that the publisher put into the file. It is rendered as by transformers, through
//! minijinja: Python's methods and JSON output, blocks that swallow line breaks. The number of instructions, the call
//! depth and the output size are bounded; the size of a text or list built by a single instruction is not.
//!
//! **Messages cannot create special tokens.** A message may contain `<|im_end|>`, and the model must see its characters,
//! not the end of a turn. [`Template::prompt`] therefore determines for each special token in the rendered text
//! whether the template wrote it (`special_tokens.rs` explains how); message text stays text, whatever the template trims,
//! splits, joins or searches for in it.

use minijinja::{Environment, Value};

use crate::{Error, Tokenizer};

mod builtin;
mod environment;
mod inputs;
mod json;
mod messages;
pub mod reply;
mod source;
mod special_tokens;
mod templates;

pub use builtin::Builtin;
pub use inputs::Inputs;
use messages::ArgumentForm;
pub use special_tokens::{Prompt, Segment};
pub use templates::Templates;

/// The template's name in its environment.
const NAME: &str = "chat";

/// Limit on instructions. A message takes some hundreds, a conversation with tools some ten thousand; five million
/// take a third of a second.
const FUEL: u64 = 5_000_000;

/// Output limit in bytes, in addition to [`GROWTH`] times the input.
const ROOM_BYTES: usize = 4 << 20;

/// Limit on how often a template may repeat its input.
const GROWTH: usize = 8;

/// A parsed chat template.
///
/// ```
/// use bilayer_text::chat::{Inputs, Template};
/// use serde_json::json;
///
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}";
/// let template = Template::new("mine", source)?;
/// let messages = [json!({ "role": "user", "content": " Hello " })];
/// assert_eq!(template.render(&Inputs::new(&messages))?, "<user>Hello\n");
/// # Ok::<(), bilayer_text::Error>(())
/// ```
pub struct Template {
    name: String,
    source: String,
    environment: Environment<'static>,
    /// Texts that end an answer if the vocabulary has no token for them.
    ends: Vec<String>,
}

impl Template {
    /// Parses a template; `name` identifies it in errors.
    ///
    /// # Errors
    /// [`Error::Template`] if it is not valid Jinja.
    pub fn new(name: &str, source: &str) -> Result<Self, Error> {
        let source = source::without_generation(source);
        let environment = compiled(name, &source)?;
        Ok(Self { name: name.to_owned(), source, environment, ends: Vec::new() })
    }

    /// The template's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The source, as it is rendered.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Texts that end an answer in this format and are not special tokens of `tokenizer`, so they must be used as
    /// stop strings.
    pub fn stops(&self, tokenizer: &Tokenizer) -> Vec<String> {
        let is_token = |end: &str| tokenizer.controls().any(|(text, _)| text == end);
        self.ends.iter().filter(|end| !is_token(end)).cloned().collect()
    }

    /// The prompt as text.
    ///
    /// # Errors
    /// [`Error::Refused`] if the template rejects the conversation, [`Error::Endless`], [`Error::TooLong`], and
    /// [`Error::Template`] with the line of a failed operation.
    pub fn render(&self, inputs: &Inputs<'_>) -> Result<String, Error> {
        self.run(&self.environment, inputs, &str::to_owned)
    }

    /// The prompt as text and special tokens, for [`Tokenizer::encode_prompt`].
    ///
    /// # Errors
    /// Those of [`render`](Self::render), and [`Error::Entangled`].
    pub fn prompt(&self, inputs: &Inputs<'_>, tokenizer: &Tokenizer) -> Result<Prompt, Error> {
        special_tokens::prompt(self, inputs, tokenizer)
    }

    /// The prompt of a request's messages. Other than [`prompt`](Self::prompt) it joins lists of text parts, and turns the
    /// arguments of earlier tool calls from JSON text into objects, or leaves them text for templates that need text.
    ///
    /// # Errors
    /// Those of [`prompt`](Self::prompt).
    pub fn conversation(
        &self,
        inputs: &Inputs<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<Prompt, Error> {
        let prompt = |form| {
            let messages = inputs.messages.iter().map(|message| messages::prepared(message, form));
            let messages: Vec<serde_json::Value> = messages.collect();
            self.prompt(&Inputs { messages: &messages, ..inputs.clone() }, tokenizer)
        };
        match prompt(ArgumentForm::Object) {
            Err(error @ Error::Template { .. }) => prompt(ArgumentForm::Text).map_err(|_| error),
            done => done,
        }
    }

    /// Renders with `environment`, which holds this template or a modified one, after applying `write` to every text
    /// in the inputs.
    fn run(
        &self,
        environment: &Environment<'static>,
        inputs: &Inputs<'_>,
        write: &dyn Fn(&str) -> String,
    ) -> Result<String, Error> {
        let failed = |error| environment::error(&self.name, &error);
        let template = environment.get_template(NAME).map_err(failed)?;
        let room = ROOM_BYTES + GROWTH * (inputs.len_bytes() + self.source.len());
        let mut bytes = vec![0; room];
        // A slice as writer accepts what fits and then fails, which enforces the limit.
        let mut free = &mut bytes[..];
        let written = template.render_captured_to(inputs.context(write), &mut free);
        let left = free.len();
        if let Err(error) = written {
            let is_full = error.kind() == minijinja::ErrorKind::WriteFailure;
            return Err(if is_full { Error::TooLong { limit: room } } else { failed(error) });
        }
        bytes.truncate(room - left);
        String::from_utf8(bytes).map_err(|error| Error::Library(error.to_string()))
    }

    /// The template after a change of its source.
    fn changed(&self, source: &str) -> Result<Environment<'static>, Error> {
        compiled(&self.name, source)
    }
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("name", &self.name).finish_non_exhaustive()
    }
}

fn compiled(name: &str, source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = environment::new();
    environment.set_fuel(Some(FUEL));
    let added = environment.add_template_owned(NAME, source.to_owned());
    added.map_err(|error| environment::error(name, &error))?;
    Ok(environment)
}

/// Converts JSON to a template value, applying `write` to every text, keys included.
fn value(json: &serde_json::Value, write: &dyn Fn(&str) -> String) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(write(text)),
        Json::Array(items) => items.iter().map(|item| value(item, write)).collect(),
        Json::Object(entries) => {
            Value::from_pairs(entries.iter().map(|(key, item)| (write(key), value(item, write))))
        }
    }
}
