//! Chat templates: render messages to a prompt and tell the template's special tokens from message text.
//!
//! A template is a Jinja program that the publisher put into the file. It is rendered as by transformers, through
//! minijinja: Python's methods and JSON output, blocks that swallow line breaks. It runs in a thread with a stack of its
//! own and with limits on its source, instructions, call depth, nesting of values and output; a budget of work bounds
//! memory and time (`budget.rs`, `cost.rs`, `charges.rs`, `methods.rs` and `program.rs`).
//!
//! **Messages cannot create special tokens.** A message may contain `<|im_end|>`, and the model must see its characters,
//! not the end of a turn. [`Template::prompt`] therefore determines for each special token in the rendered text
//! whether the template wrote it (`special_tokens.rs` explains how); message text stays text, whatever the template trims,
//! splits, joins or searches for in it.

use std::sync::OnceLock;

use minijinja::machinery;
use minijinja::{AutoEscape, Value};

use crate::{Error, Tokenizer};

mod budget;
mod builtin;
mod call_ids;
mod charges;
mod continuation;
mod cost;
mod environment;
mod fallback;
#[cfg(test)]
mod hostile;
mod inputs;
mod instructions;
mod integers;
mod json;
mod lists;
mod macros;
mod messages;
mod methods;
pub mod openai;
mod program;
mod python;
pub mod reply;
mod repr;
mod source;
mod special_tokens;
mod support;
mod templates;
mod text;

pub use builtin::Builtin;
pub use inputs::Inputs;
use messages::{ArgumentForm, Form};
pub use special_tokens::{Prompt, Segment};
use support::Support;
pub use templates::Templates;

/// The template's name in its environment.
const NAME: &str = "chat";

/// Budget of a rendering in units of about a byte read or written, in addition to [`WORK_GROWTH`] times the input. It
/// lasts for about a second, with AddressSanitizer for a minute: a fuzzer has a 32nd of it.
#[expect(unexpected_cfgs, reason = "cargo-fuzz and `cargo xtask fuzz` set it")]
const WORK: u64 = (256 << 20) / if cfg!(fuzzing) { 32 } else { 1 };

/// How often a template may read or write its input.
const WORK_GROWTH: u64 = 256;

/// How many probes of what a template shows may use the budget of one rendering.
const PROBES_PER_BUDGET: u64 = 10;

/// Budget of the constants that the compiler computes.
const CONSTANTS: u64 = 16 << 20;

/// Stack of the thread that compiles and runs templates, in bytes. Reserved, not used: the worst that the limits allow
/// takes a third of it.
const STACK_BYTES: usize = 64 << 20;

/// Output limit in bytes, in addition to [`GROWTH`] times the input.
const ROOM_BYTES: usize = 4 << 20;

/// Limit on how often a template may repeat its input.
const GROWTH: usize = 8;

/// How much a rendering may do.
#[derive(Debug, Clone, Copy)]
enum Limits {
    /// The budget of a request.
    Full,
    /// That divided by [`PROBES_PER_BUDGET`].
    Probe,
}

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
    /// Texts that end an answer, as tokens or as text.
    ends: Vec<String>,
    /// What it shows, once it was asked for.
    support: OnceLock<Support>,
}

impl Template {
    /// Parses a template; `name` identifies it in errors.
    ///
    /// # Errors
    /// [`Error::Template`] if it is not valid Jinja.
    pub fn new(name: &str, source: &str) -> Result<Self, Error> {
        let source = source::without_generation(&source::with_line_feeds(source));
        let compiled = || {
            budget::set(CONSTANTS);
            program::compile(&source, environment::ENVIRONMENT.syntax()).map(drop)
        };
        in_thread(compiled)?.map_err(|error| environment::error(name, 0, &error))?;
        let support = OnceLock::new();
        Ok(Self { name: name.to_owned(), source, ends: Vec::new(), support })
    }

    /// The template's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The source, as it is rendered.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Texts that end an answer in this format, to be used as stop strings: all but those of tokens that end every answer
    /// ([`Tokenizer::is_end`]). [`Decoder`](crate::Decoder) also finds those that are control tokens.
    pub fn stops(&self, tokenizer: &Tokenizer) -> Vec<String> {
        let token = |end: &str| tokenizer.controls().find(|(text, _)| *text == end);
        let stop = |end: &String| match token(end.trim()) {
            Some((_, id)) if tokenizer.is_end(id) => None,
            Some((text, _)) => Some(text.to_owned()),
            None => Some(end.clone()),
        };
        self.ends.iter().filter_map(stop).collect()
    }

    /// Whether it shows several calls of one message; if not, [`conversation`](Self::conversation) gives each a message of
    /// its own.
    pub fn shows_parallel_calls(&self) -> bool {
        self.support.get_or_init(|| Support::of(self)).parallel_calls
    }

    /// The prompt as text.
    ///
    /// # Errors
    /// [`Error::Refused`] if the template rejects the conversation, [`Error::Endless`], [`Error::Costly`],
    /// [`Error::TooLong`], and [`Error::Template`] with the line of a failed operation.
    pub fn render(&self, inputs: &Inputs<'_>) -> Result<String, Error> {
        self.run(&self.source, inputs, &str::to_owned)
    }

    /// The prompt as text, of a conversation that is made to find out what the template shows.
    ///
    /// # Errors
    /// Those of [`render`](Self::render), with a smaller budget of work and instructions.
    fn probe(&self, inputs: &Inputs<'_>) -> Result<String, Error> {
        self.run_within(Limits::Probe, &self.source, inputs, &str::to_owned)
    }

    /// The prompt as text and special tokens, for [`Tokenizer::encode_prompt`].
    ///
    /// # Errors
    /// Those of [`render`](Self::render), and [`Error::Entangled`].
    pub fn prompt(&self, inputs: &Inputs<'_>, tokenizer: &Tokenizer) -> Result<Prompt, Error> {
        special_tokens::prompt(self, inputs, tokenizer)
    }

    /// The prompt of a request's messages. Other than [`prompt`](Self::prompt) it joins lists of text parts, and turns the
    /// arguments of earlier tool calls from JSON text into objects, or leaves them text for templates that need text. Ids of
    /// calls are short for templates that refuse others, and the functions are also one text, in the variable `functions`.
    /// What the template does not show is written as text of other messages: functions into the system message, calls and
    /// results into those of the assistant and the user, and system messages into those of the user. A message with several
    /// calls becomes several messages if the template refuses it.
    ///
    /// # Errors
    /// Those of [`prompt`](Self::prompt).
    pub fn conversation(
        &self,
        inputs: &Inputs<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<Prompt, Error> {
        let is_plain = inputs.tools.is_none() && !fallback::concerns(inputs.messages);
        let support = (!is_plain).then(|| self.support.get_or_init(|| Support::of(self)));
        let null_content = support.is_some_and(|support| support.null_content);
        let short = support.filter(|support| support.short_ids);
        let short = short.map(|_| call_ids::shortened(inputs.messages));
        let given = short.as_deref().unwrap_or(inputs.messages);
        let mut inputs = inputs.clone();
        let functions = inputs.tools.map(serde_json::Value::to_string).unwrap_or_default();
        inputs.extra.entry("functions").or_insert_with(|| functions.into());
        let prompt = |arguments, mut tools| {
            let form = Form { arguments, null_content };
            let messages = given.iter().map(|message| messages::prepared(message, form));
            let mut messages: Vec<serde_json::Value> = messages.collect();
            if let Some(support) = support {
                let format = reply::Format::of(&self.source);
                messages = fallback::adapted(messages, tools, support, &format);
                tools = tools.filter(|_| support.tools);
            }
            self.prompt(&Inputs { messages: &messages, tools, ..inputs.clone() }, tokenizer)
        };
        let either = |tools| match prompt(ArgumentForm::Object, tools) {
            Err(error @ Error::Template { .. }) => {
                prompt(ArgumentForm::Text, tools).map_err(|_| error)
            }
            done => done,
        };
        match (either(inputs.tools), inputs.tools) {
            (Err(error @ Error::Template { .. }), Some(tools)) => {
                either(Some(&fallback::completed(tools))).map_err(|_| error)
            }
            (done, _) => done,
        }
    }

    /// The prompt of a request whose last message is the beginning of the answer: it ends with that message's content, at
    /// the place where the template writes it. If the template writes it nowhere, the content follows what begins an answer.
    /// Content that begins with reasoning and does not end it always does.
    ///
    /// # Errors
    /// Those of [`prompt`](Self::prompt).
    pub fn continuation(
        &self,
        inputs: &Inputs<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<Prompt, Error> {
        continuation::prompt(self, inputs, tokenizer)
    }

    /// Renders `source`, which is this template or a modified one, after applying `write` to every text in the inputs.
    fn run(
        &self,
        source: &str,
        inputs: &Inputs<'_>,
        write: &(dyn Fn(&str) -> String + Sync),
    ) -> Result<String, Error> {
        self.run_within(Limits::Full, source, inputs, write)
    }

    /// [`run`](Self::run) with a part of the budget.
    fn run_within(
        &self,
        limits: Limits,
        source: &str,
        inputs: &Inputs<'_>,
        write: &(dyn Fn(&str) -> String + Sync),
    ) -> Result<String, Error> {
        let len_bytes = inputs.len_bytes() + self.source.len();
        let room = ROOM_BYTES + GROWTH * len_bytes;
        let work = WORK + WORK_GROWTH * len_bytes as u64;
        let (environment, work) = match limits {
            Limits::Full => (environment::for_messages(inputs.messages.len()), work),
            Limits::Probe => (environment::PROBES.clone(), work / PROBES_PER_BUDGET),
        };
        let text = in_thread(|| {
            budget::set(CONSTANTS);
            let program = program::compile(source, environment.syntax())?;
            budget::set(work);
            let mut text = String::new();
            let mut out = machinery::make_string_output(&mut text);
            let (root, blocks) = (&program.root, &program.blocks);
            let context = inputs.context(write);
            let plain = AutoEscape::None;
            machinery::eval(&environment, root, context, blocks, &mut out, plain)?;
            Ok(text)
        });
        let text =
            text?.map_err(|error| environment::error(&self.name, inputs.messages.len(), &error))?;
        if text.len() > room { Err(Error::TooLong { limit: room }) } else { Ok(text) }
    }
}

/// Runs `work` in a thread with a stack that suffices for what the limits allow.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let failed = |problem: &str| Error::Library(format!("chat template: {problem}"));
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("bilayer template".into());
        let thread = builder.stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| failed(&format!("no thread: {error}")))?;
        thread.join().map_err(|_| failed("it stopped unexpectedly"))
    })
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("name", &self.name).finish_non_exhaustive()
    }
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
        Json::Object(entries) => match integers::digits(entries) {
            Some(digits) => integers::value(digits),
            None => Value::from_pairs(
                entries.iter().map(|(key, item)| (write(key), value(item, write))),
            ),
        },
    }
}
