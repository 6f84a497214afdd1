//! `/completion` and `/infill`: llama-server's own endpoints.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use bilayer_engine::generate::{Distribution, Stop};
use bilayer_engine::requests::{Event, Served};
use bilayer_text::Decode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::answers::{self, Answers, Question, devices, logprobs_entry, progress, timings};
use crate::api::completions::READING;
use crate::api::json;
use crate::app::{App, Caller, Shared};
use crate::blocking;
use crate::constraints;
use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};
use crate::models::Loaded;
use crate::params::{self, Params, TOP_MAX};
use crate::prompt;
use crate::sse::{self, ChunkSource, Wire};

mod fill;

/// Fields of `/completion` beside those of [`params::FIELDS`].
pub const FIELDS: &[Field] = &[
    Field::new("prompt", Accepts::Any, "A text, a list of tokens and texts, or a list of these."),
    Field::new(
        "n_probs",
        Accepts::Integer(0, TOP_MAX as i64),
        "Most likely tokens to report with each.",
    ),
    Field::new(
        "post_sampling_probs",
        Accepts::Bool,
        "Report probabilities after sampling instead.",
    ),
    Field::new("response_fields", Accepts::Texts(64, 256), "Paths of the fields to return."),
];

/// Fields of `/infill`.
pub const INFILL: &[Field] = &[
    Field::new("input_prefix", Accepts::Text(8 << 20), "The code before the cursor."),
    Field::new("input_suffix", Accepts::Text(8 << 20), "The code after the cursor."),
    Field::new(
        "input_extra",
        Accepts::List(256),
        "Other files: objects with `text` and perhaps `filename`.",
    ),
];

/// `POST /completion`.
pub async fn complete(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let body = app.fields(body, &[params::FIELDS, FIELDS]).await?;
    let prompts = |loaded: &Loaded, body: &Body, _: &Params| {
        prompt::prompts(&loaded.model, body.required("prompt")?, READING)
    };
    respond(app, caller, body, prompts).await
}

/// `POST /infill`.
pub async fn infill(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let body = app.fields(body, &[params::FIELDS, FIELDS, INFILL]).await?;
    let prompts = |loaded: &Loaded, body: &Body, params: &Params| {
        Ok(vec![fill::prompt(loaded, body, params.predict)?])
    };
    respond(app, caller, body, prompts).await
}

/// Reads the prompts of a body.
type ReadPrompts = fn(&Loaded, &Body, &Params) -> Result<Vec<Vec<u32>>, ApiError>;

async fn respond(
    app: Arc<App>,
    caller: Caller,
    body: Body,
    prompts: ReadPrompts,
) -> Result<Response, ApiError> {
    let loaded = app.models.get(body.text("model")).await?;
    let shared = app.clone();
    let prepare = move || {
        let question = prepare(&shared, loaded, &body, prompts)?;
        let mut body = body;
        body.retain(params::LASTING);
        Ok::<_, ApiError>((question, body))
    };
    let (question, body) = blocking::run("reading the request", prepare).await??;
    let (is_stream, ping) = (body.flag("stream"), app.config.limits.ping);
    let settings = question.params.settings(&body);
    let (prompts, samples) = (question.prompts.clone(), question.params.n);
    let answers = Answers::start(&app, &caller, question).await?;
    let choices = (0..prompts.len() * samples).map(|_| Choice::default()).collect();
    let mut native = Native { answers, prompts, samples, body, settings, choices };
    if !is_stream {
        native.collect().await?;
        return Ok(match native.choices.len() > 1 {
            true => Documents::respond(native),
            false => json(&native.whole(0)),
        });
    }
    Ok(sse::stream(ping, native, Silent))
}

/// The question of a body.
fn prepare(
    app: &App,
    loaded: Arc<Loaded>,
    body: &Body,
    prompts: ReadPrompts,
) -> Result<Question, ApiError> {
    loaded.decoder()?;
    let params = Params::of(body, &loaded.model, &app.config.defaults)?;
    let prompts = prompts(&loaded, body, &params)?;
    Ok(Question {
        params,
        constraint: constraints::constraint(&loaded, body)?,
        loaded,
        prompts,
        logprobs: body.count("n_probs").filter(|&top| top > 0),
        distribution: match body.flag("post_sampling_probs") {
            true => Distribution::Sampled,
            false => Distribution::Raw,
        },
        prompt_logprobs: None,
        show_control: false,
        template_stops: Vec::new(),
    })
}

/// llama-server's streams, which end with their last chunk.
struct Silent;

impl Wire for Silent {
    fn end(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// The documents of all answers, each of which repeats the request's settings: they are made one by one while the client
/// reads.
struct Documents {
    native: Native,
    next: usize,
}

impl Documents {
    fn respond(native: Native) -> Response {
        // JSON has no comments for pings.
        let mut response =
            sse::stream(Duration::MAX, Documents { native, next: 0 }, List { has_begun: false });
        let json = HeaderValue::from_static("application/json; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }
}

impl ChunkSource for Documents {
    async fn next(&mut self) -> Result<Option<Vec<Value>>, ApiError> {
        let index = self.next;
        self.next += 1;
        Ok((index < self.native.choices.len()).then(|| vec![self.native.whole(index)]))
    }

    fn deadline(&self) -> Instant {
        self.native.answers.deadline()
    }
}

/// A JSON list; its last element is the error, if there is one.
struct List {
    has_begun: bool,
}

impl Wire for List {
    fn chunk(&mut self, chunk: &Value) -> Vec<String> {
        let before = if std::mem::replace(&mut self.has_begun, true) { ',' } else { '[' };
        vec![format!("{before}{chunk}")]
    }

    fn end(&mut self) -> Vec<String> {
        vec![if self.has_begun { "]" } else { "[]" }.to_owned()]
    }

    fn error(&mut self, error: &ApiError) -> String {
        self.chunk(&error.body()).concat() + "]"
    }
}

struct Native {
    answers: Answers,
    prompts: Vec<Vec<u32>>,
    samples: usize,
    body: Body,
    settings: Map<String, Value>,
    choices: Vec<Choice>,
}

#[derive(Default)]
struct Choice {
    text: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    stop: Option<Stop>,
    served: Served,
    has_new_line: bool,
}

impl ChunkSource for Native {
    async fn next(&mut self) -> Result<Option<Vec<Value>>, ApiError> {
        let Some((index, event)) = self.answers.next().await? else { return Ok(None) };
        let text = match self.take(index, event) {
            Some(text) => text,
            None if self.body.flag("return_progress") => {
                return Ok(Some(vec![self.progress(index)]));
            }
            None => return Ok(Some(Vec::new())),
        };
        let choice = &self.choices[index];
        if choice.stop.is_some() {
            let mut last = self.document(index);
            last.insert("content".to_owned(), json!(text));
            last.insert("tokens".to_owned(), json!([]));
            last.remove("completion_probabilities");
            return Ok(Some(vec![Value::Object(last)]));
        }
        let mut chunk = json!({
            "index": index,
            "content": text,
            "tokens": choice.tokens.last().into_iter().collect::<Vec<_>>(),
            "stop": false,
            "id_slot": choice.served.slot,
            "tokens_predicted": choice.served.generated,
            "tokens_evaluated": choice.served.prompt,
        });
        if let Some(object) = chunk.as_object_mut() {
            if let Some(entry) = choice.probabilities.last() {
                object.insert("completion_probabilities".to_owned(), json!([entry]));
            }
            if self.body.flag("timings_per_token") {
                object.insert("timings".to_owned(), timings(&choice.served));
            }
        }
        Ok(Some(vec![chunk]))
    }

    fn deadline(&self) -> Instant {
        self.answers.deadline()
    }
}

impl Native {
    /// Waits until all answers have ended.
    async fn collect(&mut self) -> Result<(), ApiError> {
        while let Some((index, event)) = self.answers.next().await? {
            self.take(index, event);
        }
        let loaded = self.answers.loaded().clone();
        let reported = self.choices.iter_mut().filter(|choice| !choice.probabilities.is_empty());
        for choice in reported {
            let tokens = choice.tokens.iter().copied();
            let kept =
                answers::kept(&loaded, (tokens, Decode::default()), choice.stop, choice.text.len());
            choice.probabilities.truncate(kept);
        }
        Ok(())
    }

    /// The document of an answer that has ended, with its text.
    fn whole(&self, index: usize) -> Value {
        let mut document = self.document(index);
        if !self.body.flag("return_tokens") {
            document.insert("tokens".to_owned(), json!([]));
        }
        self.selected(document)
    }

    /// Only the fields that the request names.
    fn selected(&self, document: Map<String, Value>) -> Value {
        let paths = self.body.texts("response_fields");
        if paths.is_empty() {
            return Value::Object(document);
        }
        let found = paths.into_iter().filter_map(|path| {
            let mut parts = path.split('/');
            let first = document.get(parts.next()?)?;
            let value = parts.try_fold(first, |value, part| value.get(part))?;
            let value = value.clone();
            Some((path, value))
        });
        Value::Object(found.collect())
    }

    fn take(&mut self, index: usize, event: Event) -> Option<String> {
        let loaded = self.answers.loaded().clone();
        let choice = &mut self.choices[index];
        let text = match event {
            Event::Prefilled(served) => {
                choice.served = served;
                return None;
            }
            Event::PromptLogprobs(_) => return None,
            Event::Token(delta) => {
                choice.served = delta.served;
                choice.tokens.push(delta.token.id);
                let is_prob = self.body.flag("post_sampling_probs");
                let entry = logprobs_entry(&loaded, &delta.token);
                choice.probabilities.extend(entry.map(|entry| match is_prob {
                    true => as_probabilities(&entry),
                    false => entry,
                }));
                delta.token.text
            }
            Event::Ended { stop, text, served } => {
                (choice.stop, choice.served) = (Some(stop), served);
                text
            }
            Event::Failed(_) => String::new(),
        };
        let choice = &mut self.choices[index];
        choice.has_new_line |= text.contains('\n');
        choice.text += &text;
        Some(text)
    }

    fn progress(&self, index: usize) -> Value {
        let served = &self.choices[index].served;
        json!({
            "index": index,
            "content": "",
            "tokens": [],
            "stop": false,
            "prompt_progress": progress(served),
            "timings": timings(served),
        })
    }

    fn document(&self, index: usize) -> Map<String, Value> {
        let loaded = self.answers.loaded();
        let choice = &self.choices[index];
        let prompt = &self.prompts[index / self.samples];
        let (stop_type, word) = match choice.stop {
            Some(Stop::EndOfText) => ("eos", String::new()),
            Some(Stop::Text(which)) => ("word", self.stop_text(which)),
            Some(_) => ("limit", String::new()),
            None => ("none", String::new()),
        };
        let document = json!({
            "index": index,
            "content": choice.text,
            "tokens": choice.tokens,
            "id_slot": choice.served.slot,
            "stop": true,
            "model": loaded.id(),
            "tokens_predicted": choice.served.generated,
            "tokens_evaluated": choice.served.prompt,
            "tokens_cached": choice.served.prompt + choice.served.generated.saturating_sub(1),
            "generation_settings": self.settings,
            "prompt": loaded.spelled(prompt),
            "has_new_line": choice.has_new_line,
            "truncated": choice.stop == Some(Stop::Context) || choice.served.shifted > 0,
            "stop_type": stop_type,
            "stopping_word": word,
            "timings": timings(&choice.served),
            "devices": devices(loaded, &choice.served),
        });
        let mut document = match document {
            Value::Object(document) => document,
            _ => Map::new(),
        };
        if !choice.probabilities.is_empty() {
            document.insert("completion_probabilities".to_owned(), json!(choice.probabilities));
        }
        document
    }

    fn stop_text(&self, which: usize) -> String {
        self.body
            .texts("stop")
            .into_iter()
            .filter(|stop| !stop.is_empty())
            .nth(which)
            .unwrap_or_default()
    }
}

/// An entry with probabilities instead of their logarithms.
fn as_probabilities(entry: &Value) -> Value {
    let shape = |entry: &Value| {
        let prob = entry["logprob"].as_f64().unwrap_or(f64::NEG_INFINITY).exp();
        json!({ "id": entry["id"], "token": entry["token"], "bytes": entry["bytes"], "prob": prob })
    };
    let mut shaped = shape(entry);
    let top = entry["top_logprobs"].as_array().into_iter().flatten().map(shape);
    let top: Vec<Value> = top.filter(|entry| entry["prob"].as_f64() > Some(0.0)).collect();
    if let Some(object) = shaped.as_object_mut() {
        object.insert("top_probs".to_owned(), json!(top));
    }
    shaped
}
