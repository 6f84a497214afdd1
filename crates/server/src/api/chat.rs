//! `/v1/chat/completions`: messages in, a message or its chunks out.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use bilayer_engine::generate::{Distribution, Stop, Token};
use bilayer_engine::requests::{Event, Served};
use bilayer_text::Decode;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::answers::{
    self, Answers, Question, devices, finish_reason, logprobs_entry, timings, usage,
};
use crate::api::{json, now};
use crate::app::{App, Caller, Shared};
use crate::blocking;
use crate::conversation::{messages, prompt, tools};
use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};
use crate::models::Loaded;
use crate::params::{self, Params};
use crate::splitter::{Piece, Splitter, Style};
use crate::sse::{self, ChunkSource, OpenAi, Wire};
use crate::translate::{FUNCTIONS_MAX, functions};

pub mod allowed_tools;

/// Fields of a chat request beside those of [`params::FIELDS`].
pub const FIELDS: &[Field] = &[
    Field::new(
        "messages",
        Accepts::List(4096),
        "The conversation: objects with `role` and `content`.",
    ),
    Field::new("tools", Accepts::List(FUNCTIONS_MAX), "Functions that the model may call."),
    Field::new(
        "tool_choice",
        Accepts::Any,
        "`none`, `auto`, `required`, a function, or the allowed ones.",
    ),
    Field::new("functions", Accepts::List(FUNCTIONS_MAX), "The older form of `tools`."),
    Field::new("function_call", Accepts::Any, "The older form of `tool_choice`."),
    Field::new("parallel_tool_calls", Accepts::Bool, "Whether one answer may have several calls."),
    Field::new("logprobs", Accepts::Bool, "Report log-probabilities of the tokens."),
    Field::new("top_logprobs", Accepts::Integer(0, 20), "Most likely tokens to report with each."),
    Field::new("chat_template_kwargs", Accepts::Object, "Variables of the chat template."),
    Field::new(
        "reasoning_effort",
        Accepts::Word(&["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
        "A variable of the chat template.",
    ),
    Field::new(
        "reasoning_format",
        Accepts::Word(&["none", "auto", "deepseek", "deepseek-legacy"]),
        "Where reasoning goes: `none` leaves it in the content.",
    ),
    Field::new(
        "add_generation_prompt",
        Accepts::Bool,
        "Begin the answer in the prompt; on by default.",
    ),
    Field::new(
        "continue_final_message",
        Accepts::Bool,
        "Continue the last message, which is the assistant's.",
    ),
];

/// A chat request that is ready to be answered.
pub struct Chat {
    /// What is asked of the model.
    pub question: Question,
    /// How the answer is split into content, reasoning and calls.
    pub style: Style,
    /// Whether a stream ends with the usage.
    pub includes_usage: bool,
    /// The fields of its body that are read while it is answered.
    pub body: Body,
}

/// `POST /v1/chat/completions`.
pub async fn complete(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let translate = |given: Body| {
        let has_functions = given.get("functions").is_some();
        Ok((has_functions, translated(given)?))
    };
    let tables = &[params::FIELDS, FIELDS];
    let (has_functions, body) = app.translated(body, tables, translate).await?;
    let (is_stream, ping) = (body.flag("stream"), app.config.limits.ping);
    let chat = prepare(&app, body).await?;
    let mut chunks = Chunks::start(app, caller, chat).await?;
    if is_stream {
        return Ok(match has_functions {
            true => sse::stream(ping, chunks, Functions),
            false => sse::stream(ping, chunks, OpenAi),
        });
    }
    let mut completion = chunks.collect().await?;
    if has_functions {
        functions::respond(&mut completion);
    }
    Ok(json(&completion))
}

/// OpenAI's streams to requests with functions.
struct Functions;

impl Wire for Functions {
    fn chunk(&mut self, chunk: &Value) -> Vec<String> {
        let mut chunk = chunk.clone();
        functions::respond(&mut chunk);
        OpenAi.chunk(&chunk)
    }

    fn end(&mut self) -> Vec<String> {
        OpenAi.end()
    }
}

/// As [`translated`], of a body that is kept.
///
/// # Errors
/// Those of [`translated`].
pub fn translation(given: &Body) -> Result<Body, ApiError> {
    translated(given.clone())
}

/// The request with tools in the place of functions.
///
/// # Errors
/// A field is wrong, or needs another one.
pub fn translated(given: Body) -> Result<Body, ApiError> {
    if given.count("top_logprobs") > Some(0) && !given.flag("logprobs") {
        return Err(ApiError::field("top_logprobs", "needs logprobs to be true"));
    }
    let has = |name: &str| given.get(name).is_some();
    let messages = given.get("messages").and_then(Value::as_array);
    let has_messages = messages.is_some_and(|messages| messages.iter().any(functions::is_old));
    if !has("functions") && !has("function_call") && !has_messages {
        return Ok(given);
    }
    let chat = functions::request(given.into_object())
        .map_err(|error| ApiError::field(&error.field, &error.reason))?;
    Body::check(chat, &[params::FIELDS, FIELDS])
}

/// `POST /v1/chat/completions/input_tokens`.
pub async fn count(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let body = app.translated(body, &[params::FIELDS, FIELDS], translated).await?;
    let chat = prepare(&app, body).await?;
    let tokens = chat.question.prompt_tokens();
    Ok(json(&json!({ "object": "response.input_tokens", "input_tokens": tokens })))
}

/// Renders and tokenizes a chat request, away from the threads that serve connections.
///
/// # Errors
/// A field is wrong, the template refuses the messages.
pub async fn prepare(app: &Arc<App>, body: Body) -> Result<Chat, ApiError> {
    let loaded = app.models.get(body.text("model")).await?;
    let app = app.clone();
    blocking::run("rendering the chat template", move || render(&app, loaded, body)).await?
}

fn render(app: &App, loaded: Arc<Loaded>, body: Body) -> Result<Chat, ApiError> {
    loaded.decoder()?;
    let mut body = allowed_tools::restricted(body)?;
    let messages = messages(body.required("messages")?)?;
    let params = Params::of(&body, &loaded.model, &app.config.defaults)?;
    let prompt = prompt(app, &loaded, &body, &messages)?;
    let tokens = loaded.model.tokenizer().encode_prompt(&prompt)?;
    let style = Style::of(app, &loaded, &body, &prompt)?;
    let logprobs = body.flag("logprobs").then(|| body.count("top_logprobs").unwrap_or(0));
    let template_stops = loaded.template(tools(&body))?.stops(loaded.model.tokenizer());
    let question = Question {
        prompts: vec![tokens],
        params,
        logprobs,
        distribution: Distribution::Raw,
        prompt_logprobs: None,
        show_control: style.shows_control(),
        template_stops,
        constraint: style.constraint(&loaded, &body)?,
        loaded,
    };
    let includes_usage = params::includes_usage(&body);
    body.retain(params::LASTING);
    Ok(Chat { question, style, includes_usage, body })
}

/// The chunks of a chat answer.
pub struct Chunks {
    app: Arc<App>,
    answers: Answers,
    id: String,
    created: u64,
    prompt: String,
    prompt_tokens: usize,
    includes_usage: bool,
    body: Body,
    settings: Map<String, Value>,
    choices: Vec<Choice>,
    show_control: bool,
    /// The stop texts of the request, without those of the chat template.
    stops: Vec<String>,
    ready: Vec<Value>,
    has_ended: bool,
}

/// One answer as it grows.
struct Choice {
    splitter: Splitter,
    has_begun: bool,
    content: String,
    reasoning: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
    finish: Option<&'static str>,
    stop: Option<Stop>,
    /// Bytes of its text, of which the parts above are made.
    text_bytes: usize,
    /// The stop text of the request that ended it.
    stop_sequence: Option<String>,
    served: Served,
}

impl ChunkSource for Chunks {
    async fn next(&mut self) -> Result<Option<Vec<Value>>, ApiError> {
        if self.has_ended {
            return Ok(None);
        }
        match self.answers.next().await? {
            Some((index, event)) => self.take(index, event),
            None => {
                self.has_ended = true;
                let last = self.includes_usage.then(|| self.last_chunk());
                self.ready.extend(last);
            }
        }
        Ok(Some(std::mem::take(&mut self.ready)))
    }

    fn deadline(&self) -> Instant {
        self.answers.deadline()
    }
}

impl Chunks {
    /// Starts answering.
    ///
    /// # Errors
    /// As [`Answers::start`].
    pub async fn start(app: Arc<App>, caller: Caller, chat: Chat) -> Result<Chunks, ApiError> {
        let Chat { question, style, includes_usage, body } = chat;
        let prompt =
            question.prompts.iter().map(|tokens| question.loaded.spelled(tokens)).collect();
        let choices = (0..question.params.n).map(|_| Choice {
            splitter: style.splitter(),
            has_begun: false,
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            logprobs: Vec::new(),
            finish: None,
            stop: None,
            text_bytes: 0,
            stop_sequence: None,
            served: Served::default(),
        });
        let choices = choices.collect();
        let prompt_tokens = question.prompt_tokens();
        let settings = question.params.settings(&body);
        let stops = question.params.stops.clone();
        let show_control = question.show_control;
        let answers = Answers::start(&app, &caller, question).await?;
        Ok(Chunks {
            id: app.id("chatcmpl"),
            created: now(),
            app,
            answers,
            prompt,
            prompt_tokens,
            includes_usage,
            body,
            settings,
            choices,
            show_control,
            stops,
            ready: Vec::new(),
            has_ended: false,
        })
    }

    fn loaded(&self) -> &Arc<Loaded> {
        self.answers.loaded()
    }

    /// The whole answer as one document.
    ///
    /// # Errors
    /// An answer failed.
    pub async fn collect(&mut self) -> Result<Value, ApiError> {
        while let Some((index, event)) = self.answers.next().await? {
            self.take(index, event);
            self.ready.clear();
        }
        let loaded = self.loaded().clone();
        let decode = Decode { show_control: self.show_control, ..Decode::default() };
        for choice in &mut self.choices {
            let ids = choice.logprobs.iter().filter_map(|entry| entry["id"].as_u64());
            let ids = ids.map(|id| id as u32);
            let kept =
                answers::kept(&loaded, (ids, decode.clone()), choice.stop, choice.text_bytes);
            choice.logprobs.truncate(kept);
        }
        let choices = self.choices.iter().enumerate().map(|(index, choice)| choice.document(index));
        let choices: Vec<Value> = choices.collect();
        let mut document = self.envelope("chat.completion", json!(choices));
        document.insert("usage".to_owned(), self.usage());
        document.insert("timings".to_owned(), self.timings());
        document.insert("devices".to_owned(), self.devices());
        if self.is_verbose() {
            document.insert("__verbose".to_owned(), self.verbose());
        }
        Ok(Value::Object(document))
    }

    fn take(&mut self, index: usize, event: Event) {
        match event {
            Event::Prefilled(served) => {
                if self.body.flag("return_progress") {
                    self.progress(&served);
                }
                self.choices[index].served = served;
            }
            Event::PromptLogprobs(_) => {}
            Event::Token(delta) => {
                self.begin(index);
                self.choices[index].served = delta.served;
                self.token(index, &delta.token);
            }
            Event::Ended { stop, text, served } => {
                self.begin(index);
                self.choices[index].served = served;
                self.end(index, stop, &text);
            }
            Event::Failed(_) => {}
        }
    }

    /// The first chunk of a choice names the role.
    fn begin(&mut self, index: usize) {
        if self.choices[index].has_begun {
            return;
        }
        self.choices[index].has_begun = true;
        let delta = json!({ "role": "assistant", "content": null });
        let chunk = self.chunk(index, delta, None, None);
        self.ready.push(chunk);
    }

    fn token(&mut self, index: usize, token: &Token) {
        let entry = logprobs_entry(self.loaded(), token);
        let choice = &mut self.choices[index];
        choice.text_bytes += token.text.len();
        choice.logprobs.extend(entry.clone());
        let pieces = choice.splitter.push(&token.text);
        self.pieces(index, pieces, entry);
    }

    fn end(&mut self, index: usize, stop: Stop, text: &str) {
        let choice = &mut self.choices[index];
        let mut pieces = choice.splitter.push(text);
        // A limit that was reached behind the last call cut nothing off.
        let ends_with_call = choice.splitter.ends_with_call();
        pieces.extend(choice.splitter.end(stop));
        choice.text_bytes += text.len();
        self.pieces(index, pieces, None);
        let choice = &mut self.choices[index];
        let has_calls = !choice.calls.is_empty();
        let reason = match stop {
            Stop::EndOfText | Stop::Text(_) if has_calls => "tool_calls",
            _ if ends_with_call => "tool_calls",
            stop => finish_reason(stop),
        };
        choice.stop = Some(stop);
        choice.finish = Some(reason);
        choice.stop_sequence = match stop {
            Stop::Text(which) => self.stops.get(which).cloned(),
            _ => None,
        };
        let chunk = self.chunk(index, json!({}), Some(reason), None);
        self.ready.push(chunk);
    }

    fn pieces(&mut self, index: usize, pieces: Vec<Piece>, logprobs: Option<Value>) {
        let mut logprobs = logprobs.map(|entry| json!({ "content": [entry] }));
        if pieces.is_empty() && logprobs.is_some() {
            let chunk = self.chunk(index, json!({}), None, logprobs.take());
            self.ready.push(chunk);
        }
        for piece in pieces {
            let choice = &mut self.choices[index];
            let delta = choice.add(piece);
            let chunk = self.chunk(index, delta, None, logprobs.take());
            self.ready.push(chunk);
        }
    }

    fn chunk(
        &self,
        index: usize,
        delta: Value,
        finish: Option<&str>,
        logprobs: Option<Value>,
    ) -> Value {
        let mut choice = Map::from_iter([
            ("index".to_owned(), json!(index)),
            ("delta".to_owned(), delta),
            ("finish_reason".to_owned(), json!(finish)),
        ]);
        choice.extend(logprobs.map(|logprobs| ("logprobs".to_owned(), logprobs)));
        let stop = self.choices[index].stop_sequence.as_ref();
        choice.extend(stop.map(|stop| ("stop_sequence".to_owned(), json!(stop))));
        let mut chunk = self.envelope("chat.completion.chunk", json!([choice]));
        if self.body.flag("timings_per_token") && delta_has_no_role(&chunk) {
            chunk.insert("timings".to_owned(), timings(&self.choices[index].served));
        }
        if finish.is_some() && !self.includes_usage {
            chunk.insert("timings".to_owned(), timings(&self.choices[index].served));
        }
        if finish.is_some() && self.is_verbose() {
            chunk.insert("__verbose".to_owned(), self.verbose());
        }
        Value::Object(chunk)
    }

    fn progress(&mut self, served: &Served) {
        let mut chunk = self.envelope("chat.completion.chunk", json!([]));
        chunk.insert("prompt_progress".to_owned(), answers::progress(served));
        chunk.insert("timings".to_owned(), timings(served));
        self.ready.push(Value::Object(chunk));
    }

    fn last_chunk(&self) -> Value {
        let mut chunk = self.envelope("chat.completion.chunk", json!([]));
        chunk.insert("usage".to_owned(), self.usage());
        chunk.insert("timings".to_owned(), self.timings());
        chunk.insert("devices".to_owned(), self.devices());
        Value::Object(chunk)
    }

    fn envelope(&self, object: &str, choices: Value) -> Map<String, Value> {
        Map::from_iter([
            ("id".to_owned(), json!(self.id)),
            ("object".to_owned(), json!(object)),
            ("created".to_owned(), json!(self.created)),
            ("model".to_owned(), json!(self.loaded().id())),
            ("system_fingerprint".to_owned(), json!(self.app.config.build)),
            ("choices".to_owned(), choices),
        ])
    }

    fn usage(&self) -> Value {
        let cached = self.choices.first().map_or(0, |choice| choice.served.cached);
        let generated = self.choices.iter().map(|choice| choice.served.generated).sum();
        usage(self.prompt_tokens, cached, generated)
    }

    fn timings(&self) -> Value {
        self.choices.first().map_or(Value::Null, |choice| timings(&choice.served))
    }

    fn devices(&self) -> Value {
        let first = self.choices.first();
        first.map_or(Value::Null, |choice| devices(self.loaded(), &choice.served))
    }

    fn is_verbose(&self) -> bool {
        self.body.bool("verbose").unwrap_or(self.app.config.switches.verbose)
    }

    fn verbose(&self) -> Value {
        json!({ "prompt": self.prompt, "generation_settings": self.settings })
    }
}

/// Whether a chunk is not the one that names the role.
fn delta_has_no_role(chunk: &Map<String, Value>) -> bool {
    chunk["choices"][0]["delta"].get("role").is_none()
}

impl Choice {
    /// Adds a piece and returns its delta.
    fn add(&mut self, piece: Piece) -> Value {
        match piece {
            Piece::Content(text) => {
                self.content += &text;
                json!({ "content": text })
            }
            Piece::Reasoning(text) => {
                self.reasoning += &text;
                json!({ "reasoning_content": text })
            }
            Piece::Call { id, name } => {
                let index = self.calls.len();
                let call = json!({
                    "index": index, "id": id, "type": "function",
                    "function": { "name": name, "arguments": "" },
                });
                self.calls.push(json!({
                    "id": id, "type": "function", "function": { "name": name, "arguments": "" },
                }));
                json!({ "tool_calls": [call] })
            }
            Piece::Arguments { index, text } => {
                if let Some(Value::String(all)) =
                    self.calls.get_mut(index).map(|call| &mut call["function"]["arguments"])
                {
                    all.push_str(&text);
                }
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] })
            }
        }
    }

    fn document(&self, index: usize) -> Value {
        let has_calls = !self.calls.is_empty();
        let content =
            if has_calls && self.content.is_empty() { Value::Null } else { json!(self.content) };
        let mut message = json!({ "role": "assistant", "content": content });
        if let Some(object) = message.as_object_mut() {
            if !self.reasoning.is_empty() {
                object.insert("reasoning_content".to_owned(), json!(self.reasoning));
            }
            if has_calls {
                object.insert("tool_calls".to_owned(), json!(self.calls));
            }
        }
        let mut choice =
            json!({ "index": index, "message": message, "finish_reason": self.finish });
        if let Some(object) = choice.as_object_mut() {
            if !self.logprobs.is_empty() {
                object.insert("logprobs".to_owned(), json!({ "content": self.logprobs }));
            }
            if let Some(stop) = &self.stop_sequence {
                object.insert("stop_sequence".to_owned(), json!(stop));
            }
        }
        choice
    }
}
