//! Chat templates: from messages to a prompt whose special tokens are the template's own.
//!
//! A template is a Jinja program that the model's maker put into the file. It is rendered as the
//! makers' own library (transformers) does it, by minijinja: Python's methods, its way to write
//! JSON, blocks that swallow their line breaks. The instructions it may take, the calls within calls
//! and the bytes it may write are bounded; how long a text or list a single instruction makes within
//! the template is not.
//!
//! **No message makes a special token.** A message may hold `<|im_end|>`, and to the model that
//! must be eight characters, not the end of a turn. [`Template::prompt`] therefore knows of each
//! special token in its text that the template put it there (`own.rs` says how); what the messages
//! say is only ever text, whatever the template trims, cuts, joins or looks for in it.

use minijinja::{Environment, Value};

use crate::{Error, Tokenizer};

mod builtin;
mod environment;
mod inputs;
mod json;
mod own;
mod source;
mod templates;

pub use builtin::Builtin;
pub use inputs::Inputs;
pub use own::{Prompt, Segment};
pub use templates::Templates;

/// The name templates have inside their environment.
const NAME: &str = "chat";

/// Instructions a rendering may take. A message takes some hundreds, a conversation with tools some
/// ten thousand; five million are over in a third of a second.
const FUEL: u64 = 5_000_000;

/// Bytes a rendering may give, above [`GROWTH`] times those that it is given.
const ROOM_BYTES: usize = 4 << 20;

/// How often a template may repeat what it is given.
const GROWTH: usize = 8;

/// A chat template that was read and understood.
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
    /// Texts that end an answer where the vocabulary has no token for them.
    ends: Vec<String>,
}

impl Template {
    /// Reads a template; `name` says in errors which one it is.
    ///
    /// # Errors
    /// [`Error::Template`] where it is no Jinja.
    pub fn new(name: &str, source: &str) -> Result<Self, Error> {
        let source = source::without_generation(source);
        let environment = compiled(name, &source)?;
        Ok(Self { name: name.to_owned(), source, environment, ends: Vec::new() })
    }

    /// Which template it is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The source, as it is rendered.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Texts that end an answer in this format and are no special tokens of `tokenizer`, so that
    /// they must be looked for in the text.
    pub fn stops(&self, tokenizer: &Tokenizer) -> Vec<String> {
        let is_token = |end: &str| tokenizer.controls().any(|(text, _)| text == end);
        self.ends.iter().filter(|end| !is_token(end)).cloned().collect()
    }

    /// The prompt as text.
    ///
    /// # Errors
    /// [`Error::Refused`] where the template refuses the conversation, [`Error::Endless`],
    /// [`Error::TooLong`], and [`Error::Template`] with the line of what it asked for in vain.
    pub fn render(&self, inputs: &Inputs<'_>) -> Result<String, Error> {
        self.run(&self.environment, inputs, &str::to_owned)
    }

    /// The prompt as text and special tokens, for [`Tokenizer::encode_prompt`].
    ///
    /// # Errors
    /// As [`render`](Self::render), and [`Error::Entangled`].
    pub fn prompt(&self, inputs: &Inputs<'_>, tokenizer: &Tokenizer) -> Result<Prompt, Error> {
        own::prompt(self, inputs, tokenizer)
    }

    /// Renders by `environment`, whose template is this one or one like it, after `write` of every
    /// text in the inputs.
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
        // A slice takes what fits and then refuses, which is the bound.
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

    /// The same template after a change of its source.
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

/// A JSON value as the template sees it, after `write` of every text, keys included.
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
