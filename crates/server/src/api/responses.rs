//! `/v1/responses`: OpenAI's Responses API over chat completions. Nothing is stored.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::api::chat::{self, Chunks};
use crate::api::{json, now};
use crate::app::{App, Caller, Shared};
use crate::constraints;
use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};
use crate::params;
use crate::sse::{self, Wire};
use crate::translate::FUNCTIONS_MAX;
use crate::translate::responses::{self, ResponseStream};

/// Fields of a responses request that are checked before it is translated.
pub const FIELDS: &[Field] = &[
    Field::new(
        "model",
        Accepts::Text(512),
        "The model; any name where one is served without --models-dir.",
    ),
    Field::new("input", Accepts::Any, "A text, or a list of items."),
    Field::new("instructions", Accepts::Text(8 << 20), "The system prompt."),
    Field::new("stream", Accepts::Bool, "Send the answer as server-sent events."),
    Field::new("max_output_tokens", Accepts::Integer(1, 1 << 24), "Maximum tokens of the answer."),
    Field::new("temperature", Accepts::Number(0.0, 100.0), "Divides the logits."),
    Field::new("top_p", Accepts::Number(0.0, 1.0), "Keep the most likely tokens with this mass."),
    Field::new("tools", Accepts::List(FUNCTIONS_MAX), "Functions that the model may call."),
    Field::new("parallel_tool_calls", Accepts::Bool, "Whether one answer may have several calls."),
    Field::new("text", Accepts::Object, "`format`: a JSON schema that the answer must follow."),
];

/// `POST /v1/responses`.
pub async fn create(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let (given, body) = translated(&app, body).await?;
    let (is_stream, ping) = (given.flag("stream"), app.config.limits.ping);
    let chat = chat::prepare(&app, body).await?;
    let mut chunks = Chunks::start(app, caller, chat).await?;
    let request = Value::Object(given.into_object());
    if !is_stream {
        return Ok(json(&responses::response(&request, &chunks.collect().await?)));
    }
    let stream = ResponseStream::new(&request, now());
    Ok(sse::stream(ping, chunks, Numbered { stream, sent: 0 }))
}

/// The events of a response, counted, so that an error has the next number.
struct Numbered {
    stream: ResponseStream,
    sent: usize,
}

impl Numbered {
    fn frames(&mut self, events: &[Value]) -> Vec<String> {
        self.sent += events.len();
        events.iter().map(sse::named).collect()
    }
}

impl Wire for Numbered {
    fn chunk(&mut self, chunk: &Value) -> Vec<String> {
        let events = self.stream.push(chunk);
        self.frames(&events)
    }

    fn end(&mut self) -> Vec<String> {
        let events = self.stream.finish();
        self.frames(&events)
    }

    fn error(&mut self, error: &ApiError) -> String {
        sse::named(&json!({
            "type": "error", "code": error.kind, "message": error.message,
            "param": error.param, "sequence_number": self.sent,
        }))
    }
}

/// `POST /v1/responses/input_tokens`.
pub async fn count(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let (_, body) = translated(&app, body).await?;
    let chat = chat::prepare(&app, body).await?;
    let tokens = chat.question.prompt_tokens();
    Ok(json(&json!({ "object": "response.input_tokens", "input_tokens": tokens })))
}

/// What the response repeats of the request, and the request as a chat request.
async fn translated(app: &Arc<App>, body: HttpBody) -> Result<(Body, Body), ApiError> {
    let translate = |mut given: Body| {
        let chat = translation(&given)?;
        given.retain(responses::REPEATED);
        Ok((given, chat))
    };
    app.translated(body, &[FIELDS], translate).await
}

/// The chat request that a body means.
///
/// # Errors
/// A field is wrong.
pub fn translation(given: &Body) -> Result<Body, ApiError> {
    given.required("input")?;
    let value = given.value();
    constraints::warn_of_tools(&responses::left_out(&value["tools"]));
    let chat =
        responses::request(&value).map_err(|error| ApiError::field(&error.field, &error.reason))?;
    Body::check(chat, &[params::FIELDS, chat::FIELDS])
}
