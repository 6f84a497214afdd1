//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API over chat completions.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use hyper::HeaderMap;
use hyper::header::CONTENT_LENGTH;
use serde_json::{Value, json};

use crate::api::chat::{self, Chunks};
use crate::api::json;
use crate::app::{App, Caller, Shared};
use crate::constraints;
use crate::error::{ApiError, Refusal};
use crate::fields::{Accepts, Body, Field};
use crate::params;
use crate::sse::{self, Wire};
use crate::translate::FUNCTIONS_MAX;
use crate::translate::messages::{self, MessageStream};

/// Fields of a messages request that are checked before it is translated.
pub const FIELDS: &[Field] = &[
    Field::new(
        "model",
        Accepts::Text(512),
        "The model; any name where one is served without --models-dir.",
    ),
    Field::new("messages", Accepts::List(4096), "The conversation."),
    Field::new("max_tokens", Accepts::Integer(1, 1 << 24), "Maximum tokens of the answer."),
    Field::new("system", Accepts::Any, "The system prompt, a text or a list of text blocks."),
    Field::new("stream", Accepts::Bool, "Send the answer as server-sent events."),
    Field::new("temperature", Accepts::Number(0.0, 100.0), "Divides the logits."),
    Field::new("top_p", Accepts::Number(0.0, 1.0), "Keep the most likely tokens with this mass."),
    Field::new("top_k", Accepts::Integer(-1, 1 << 24), "Keep the k most likely tokens."),
    Field::new("stop_sequences", params::STOPS, "Texts that end the answer."),
    Field::new("tools", Accepts::List(FUNCTIONS_MAX), "Functions that the model may call."),
    Field::new("tool_choice", Accepts::Object, "`auto`, `any`, `tool` or `none`."),
    Field::new(
        "output_config",
        Accepts::Object,
        "`format`: a JSON schema that the answer must follow; `effort`.",
    ),
    Field::new("output_format", Accepts::Object, "`format` of `output_config`."),
];

/// `POST /v1/messages`.
pub async fn create(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    answer(app, caller, body).await
}

/// `POST /v1/messages/count_tokens`.
pub async fn count(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let body = translated(&app, body).await?;
    let chat = chat::prepare(&app, body).await?;
    let tokens = chat.question.prompt_tokens();
    Ok(json(&json!({ "input_tokens": tokens })))
}

/// Whether errors of a request have Anthropic's shape: by its path, or by the header that Anthropic's clients send.
pub fn is_shape_of(path: &str, headers: &HeaderMap) -> bool {
    let is_own = path
        .strip_prefix("/v1/messages")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_own || headers.contains_key("anthropic-version")
}

/// The response, which has Anthropic's shape if it is an error.
pub fn shaped(mut response: Response) -> Response {
    let Some(Refusal(message)) = response.extensions_mut().remove::<Refusal>() else {
        return response;
    };
    let body = messages::error(response.status().as_u16(), &message);
    *response.body_mut() = HttpBody::from(body.to_string());
    // Routers set it for the body that they got.
    response.headers_mut().remove(CONTENT_LENGTH);
    response
}

async fn translated(app: &App, body: HttpBody) -> Result<Body, ApiError> {
    app.translated(body, &[FIELDS], |given| translation(&given)).await
}

/// The chat request that a body means.
///
/// # Errors
/// A field is wrong.
pub fn translation(given: &Body) -> Result<Body, ApiError> {
    given.required("messages")?;
    let value = given.value();
    constraints::warn_of_tools(&messages::left_out(&value["tools"]));
    let chat =
        messages::request(&value).map_err(|error| ApiError::field(&error.field, &error.reason))?;
    Body::check(chat, &[params::FIELDS, chat::FIELDS])
}

async fn answer(app: Arc<App>, caller: Caller, body: HttpBody) -> Result<Response, ApiError> {
    let body = translated(&app, body).await?;
    let (is_stream, ping) = (body.flag("stream"), app.config.limits.ping);
    let chat = chat::prepare(&app, body).await?;
    let tokens = chat.question.prompt_tokens();
    let mut chunks = Chunks::start(app, caller, chat).await?;
    if !is_stream {
        return Ok(json(&messages::response(&chunks.collect().await?)));
    }
    Ok(sse::stream(ping, chunks, MessageStream::new(tokens as u64)))
}

impl Wire for MessageStream {
    fn chunk(&mut self, chunk: &Value) -> Vec<String> {
        self.push(chunk).iter().map(sse::named).collect()
    }

    fn end(&mut self) -> Vec<String> {
        self.finish().iter().map(sse::named).collect()
    }

    fn error(&mut self, error: &ApiError) -> String {
        sse::named(&messages::error(error.status.as_u16(), &error.message))
    }
}
