//! `/v1/completions`: OpenAI's completion of texts, with `echo` and log-probabilities of the prompt.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use bilayer_engine::generate::{Distribution, Stop, Token};
use bilayer_engine::requests::{Event, Served};
use bilayer_engine::sampling::TokenLogprob;
use bilayer_text::{Decode, Decoder, Tokenizer};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::answers::{self, Answers, Question, devices, finish_reason, progress, timings, usage};
use crate::api::{json, now};
use crate::app::{App, Caller, Shared};
use crate::blocking;
use crate::constraints;
use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};
use crate::models::Loaded;
use crate::params::{self, Params};
use crate::prompt::{self, Reading};
use crate::sse::{self, ChunkSource, OpenAi};

/// Fields of a completion request beside those of [`params::FIELDS`].
pub const FIELDS: &[Field] = &[
    Field::new("prompt", Accepts::Any, "A text, a list of tokens, or a list of these."),
    Field::new("echo", Accepts::Bool, "Begin the answer with the prompt."),
    Field::new("logprobs", Accepts::Integer(0, 20), "Most likely tokens to report with each."),
    Field::new("suffix", Accepts::Text(1 << 20), "Not supported; use /infill."),
    Field::new(
        "best_of",
        Accepts::Integer(1, 8),
        "Answers to make, of which the `n` most likely are returned.",
    ),
];

/// How prompts of completions are tokenized.
pub const READING: Reading = Reading { field: "prompt", add_special: true, parse_special: true };

/// `POST /v1/completions`.
pub async fn complete(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let body = app.fields(body, &[params::FIELDS, FIELDS]).await?;
    if body.text("suffix").is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::field("suffix", "is not supported; use /infill"));
    }
    let loaded = app.models.get(body.text("model")).await?;
    let shared = app.clone();
    let prepare = move || prepare(&shared, loaded, body);
    let (question, includes_usage, body) = blocking::run("reading the request", prepare).await??;
    let is_stream = body.flag("stream");
    if is_stream && body.count("best_of").is_some_and(|of| of > params::answers(&body)) {
        return Err(ApiError::field(
            "best_of",
            "must be n in a stream, which has no answers to choose from",
        ));
    }
    let ping = app.config.limits.ping;
    let mut texts = Texts::start(app, caller, question, (includes_usage, body)).await?;
    if !is_stream {
        return Ok(json(&texts.collect().await?));
    }
    Ok(sse::stream(ping, texts, OpenAi))
}

/// The question of a body, whether a stream ends with the usage, and the fields that are read while it is answered.
fn prepare(
    app: &App,
    loaded: Arc<Loaded>,
    mut body: Body,
) -> Result<(Question, bool, Body), ApiError> {
    loaded.decoder()?;
    let prompts = prompt::prompts(&loaded.model, body.required("prompt")?, READING)?;
    let mut params = Params::of(&body, &loaded.model, &app.config.defaults)?;
    if let Some(best_of) = body.count("best_of") {
        if best_of < params.n {
            return Err(ApiError::field("best_of", "must not be less than n"));
        }
        params.n = best_of;
    }
    // As OpenAI's: a request for nothing but the prompt's log-probabilities is one for no tokens.
    let logprobs = body.count("logprobs");
    let logprobs = logprobs.or_else(|| body.get("best_of").map(|_| 0));
    let prompt_logprobs = body.count("logprobs").filter(|_| body.flag("echo"));
    let constraint = constraints::constraint(&loaded, &body)?;
    let question = Question {
        loaded,
        prompts,
        params,
        logprobs,
        distribution: Distribution::Raw,
        prompt_logprobs,
        show_control: false,
        template_stops: Vec::new(),
        constraint,
    };
    let includes_usage = params::includes_usage(&body);
    body.retain(params::LASTING);
    Ok((question, includes_usage, body))
}

/// The texts of a completion.
struct Texts {
    app: Arc<App>,
    answers: Answers,
    id: String,
    created: u64,
    prompts: Vec<Vec<u32>>,
    samples: usize,
    includes_usage: bool,
    body: Body,
    choices: Vec<Choice>,
    has_ended: bool,
}

#[derive(Default)]
struct Choice {
    text: String,
    has_begun: bool,
    /// Generated tokens, if their log-probabilities are reported.
    tokens: Vec<u32>,
    /// Bytes of generated text.
    text_bytes: usize,
    logprobs: Logprobs,
    total: f64,
    stop: Option<Stop>,
    served: Served,
}

fn decoder(tokenizer: &Tokenizer) -> Decoder {
    Decoder::new(tokenizer, Decode::default())
}

/// Log-probabilities in the shape of the legacy API.
#[derive(Default)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    /// Characters of text so far.
    offset: usize,
    /// What makes text of the tokens; none before the first.
    decoder: Option<Decoder>,
}

impl Logprobs {
    fn push(
        &mut self,
        loaded: &Loaded,
        id: u32,
        found: Option<&(TokenLogprob, Vec<TokenLogprob>)>,
    ) {
        let spelled = |id: u32| {
            let piece = loaded.model.tokenizer().piece(id).unwrap_or_default();
            match std::str::from_utf8(piece) {
                Ok(text) => text.to_owned(),
                Err(_) => piece.iter().map(|byte| format!("\\x{byte:02x}")).collect(),
            }
        };
        self.text_offset.push(self.offset);
        let tokenizer = loaded.model.tokenizer();
        let decoder = self.decoder.get_or_insert_with(|| decoder(tokenizer).continuing());
        self.offset += decoder.push(id).text.chars().count();
        self.tokens.push(spelled(id));
        match found {
            None => {
                self.token_logprobs.push(Value::Null);
                self.top_logprobs.push(Value::Null);
            }
            Some((own, top)) => {
                self.token_logprobs.push(json!(own.logprob.max(-9999.0)));
                // The token itself is among them, as in OpenAI's, also if it is none of the most likely.
                let others = top.iter().filter(|found| found.id != own.id);
                let is_top = others.clone().count() < top.len();
                let all = top.iter().chain((!is_top).then_some(own));
                let all = all.map(|t| (spelled(t.id), json!(t.logprob.max(-9999.0))));
                self.top_logprobs.push(Value::Object(all.collect()));
            }
        }
    }

    fn value(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }

    /// Drops all but the first tokens.
    fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.token_logprobs.truncate(len);
        self.top_logprobs.truncate(len);
        self.text_offset.truncate(len);
    }

    /// Takes what was pushed, for a chunk.
    fn take(&mut self) -> Value {
        let value = self.value();
        let decoder = self.decoder.take();
        *self = Logprobs { offset: self.offset, decoder, ..Logprobs::default() };
        value
    }
}

impl ChunkSource for Texts {
    async fn next(&mut self) -> Result<Option<Vec<Value>>, ApiError> {
        if self.has_ended {
            return Ok(None);
        }
        let Some((index, event)) = self.answers.next().await? else {
            self.has_ended = true;
            return Ok(Some(self.includes_usage.then(|| self.last_chunk()).into_iter().collect()));
        };
        let text = self.take(index, event);
        let finish = self.choices[index].stop.map(finish_reason);
        let mut chunks = Vec::new();
        match text {
            Taken::Progress(served) if self.body.flag("return_progress") => {
                let mut chunk = self.envelope(json!([]));
                chunk.insert("prompt_progress".to_owned(), progress(&served));
                chunks.push(Value::Object(chunk));
            }
            Taken::Progress(_) => {}
            Taken::Text(text) => {
                let logprobs = self.has_logprobs().then(|| self.choices[index].logprobs.take());
                let choice = json!({
                    "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish,
                });
                let mut chunk = self.envelope(json!([choice]));
                if self.body.flag("timings_per_token") || finish.is_some() {
                    let served = &self.choices[index].served;
                    chunk.insert("timings".to_owned(), timings(served));
                }
                chunks.push(Value::Object(chunk));
            }
        }
        Ok(Some(chunks))
    }

    fn deadline(&self) -> Instant {
        self.answers.deadline()
    }
}

impl Texts {
    async fn start(
        app: Arc<App>,
        caller: Caller,
        question: Question,
        (includes_usage, body): (bool, Body),
    ) -> Result<Texts, ApiError> {
        let (prompts, samples) = (question.prompts.clone(), question.params.n);
        let answers = Answers::start(&app, &caller, question).await?;
        let choices = (0..prompts.len() * samples).map(|_| Choice::default()).collect();
        let (id, created) = (app.id("cmpl"), now());
        Ok(Texts {
            app,
            answers,
            id,
            created,
            prompts,
            samples,
            includes_usage,
            body,
            choices,
            has_ended: false,
        })
    }

    fn has_logprobs(&self) -> bool {
        self.body.get("logprobs").is_some()
    }

    async fn collect(&mut self) -> Result<Value, ApiError> {
        while let Some((index, event)) = self.answers.next().await? {
            let taken = self.take(index, event);
            if let Taken::Text(text) = taken {
                self.choices[index].text += &text;
            }
        }
        let loaded = self.answers.loaded().clone();
        self.choices.iter_mut().for_each(|choice| choice.drop_stop_text(&loaded));
        let usage = self.usage();
        let kept = params::answers(&self.body);
        let mut choices = Vec::new();
        for answers in self.choices.chunks_mut(self.samples) {
            if kept < answers.len() {
                answers.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
            }
            for choice in &answers[..kept] {
                choices.push(json!({
                    "index": choices.len(),
                    "text": choice.text,
                    "logprobs": self.body.get("logprobs").map(|_| choice.logprobs.value()),
                    "finish_reason": choice.stop.map(finish_reason),
                }));
            }
        }
        let served = self.choices.first().map(|choice| choice.served.clone()).unwrap_or_default();
        let mut document = self.envelope(json!(choices));
        document.insert("usage".to_owned(), usage);
        document.insert("timings".to_owned(), timings(&served));
        document.insert("devices".to_owned(), devices(self.answers.loaded(), &served));
        Ok(Value::Object(document))
    }

    fn last_chunk(&self) -> Value {
        let mut chunk = self.envelope(json!([]));
        let served = self.choices.first().map(|choice| choice.served.clone()).unwrap_or_default();
        chunk.insert("usage".to_owned(), self.usage());
        chunk.insert("timings".to_owned(), timings(&served));
        Value::Object(chunk)
    }

    fn take(&mut self, index: usize, event: Event) -> Taken {
        let loaded = self.answers.loaded().clone();
        let prompt = &self.prompts[index / self.samples];
        let (echo, has_logprobs) = (self.body.flag("echo"), self.has_logprobs());
        let choice = &mut self.choices[index];
        let mut text = String::new();
        let begins = !matches!(event, Event::Prefilled(_) | Event::PromptLogprobs(_));
        if begins && !choice.has_begun {
            choice.has_begun = true;
            if echo {
                text = loaded.model.tokenizer().decode(prompt);
            }
        }
        match event {
            Event::Prefilled(served) => return Taken::Progress(served),
            Event::PromptLogprobs(found) => {
                let found = std::iter::once(None).chain(found.iter().map(Some));
                choice.logprobs.decoder = Some(decoder(loaded.model.tokenizer()));
                for (&id, found) in prompt.iter().zip(found) {
                    choice.logprobs.push(&loaded, id, found);
                }
                return Taken::Progress(choice.served.clone());
            }
            Event::Token(delta) => {
                choice.served = delta.served;
                choice.text_bytes += delta.token.text.len();
                if has_logprobs {
                    choice.tokens.push(delta.token.id);
                    choice.logprobs.push(&loaded, delta.token.id, delta.token.logprobs.as_ref());
                }
                choice.total += own(&delta.token);
                text += &delta.token.text;
            }
            Event::Ended { stop, text: rest, served } => {
                (choice.stop, choice.served) = (Some(stop), served);
                choice.text_bytes += rest.len();
                text += &rest;
            }
            Event::Failed(_) => {}
        }
        Taken::Text(text)
    }

    fn envelope(&self, choices: Value) -> Map<String, Value> {
        Map::from_iter([
            ("id".to_owned(), json!(self.id)),
            ("object".to_owned(), json!("text_completion")),
            ("created".to_owned(), json!(self.created)),
            ("model".to_owned(), json!(self.answers.loaded().id())),
            ("system_fingerprint".to_owned(), json!(self.app.config.build)),
            ("choices".to_owned(), choices),
        ])
    }

    fn usage(&self) -> Value {
        let prompt = self.prompts.iter().map(Vec::len).sum();
        let firsts = self.choices.iter().step_by(self.samples.max(1));
        let cached = firsts.map(|choice| choice.served.cached).sum();
        let generated = self.choices.iter().map(|choice| choice.served.generated).sum();
        usage(prompt, cached, generated)
    }
}

/// What came of an event.
enum Taken {
    Progress(Served),
    Text(String),
}

impl Choice {
    /// Drops the log-probabilities of the tokens behind its text.
    fn drop_stop_text(&mut self, loaded: &Loaded) {
        let tokens = self.tokens.iter().copied();
        let kept = answers::kept(loaded, (tokens, Decode::default()), self.stop, self.text_bytes);
        let prompt = self.logprobs.tokens.len().saturating_sub(self.tokens.len());
        self.logprobs.truncate(prompt.saturating_add(kept));
    }

    /// Mean log-probability of its tokens.
    fn mean(&self) -> f64 {
        self.total / self.served.generated.max(1) as f64
    }
}

fn own(token: &Token) -> f64 {
    token.logprobs.as_ref().map_or(0.0, |(own, _)| f64::from(own.logprob))
}
