//! `/v1/responses`: OpenAI's Responses API over chat completions. Nothing is stored.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use crate::api::chat::{self, Chunks};
use crate::api::{json, now};
use crate::app::{App, Caller, Shared};
use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};
use crate::params;
use crate::sse;
use crate::translate::responses::{self, ResponseStream};

/// Fields of a responses request that are checked before it is translated.
pub const FIELDS: &[Field] = &[
    Field::new("model", Accepts::Text(512), "The model; any name where only one is served."),
    Field::new("input", Accepts::Any, "A text, or a list of items."),
    Field::new("instructions", Accepts::Text(8 << 20), "The system prompt."),
    Field::new("stream", Accepts::Bool, "Send the answer as server-sent events."),
    Field::new("max_output_tokens", Accepts::Integer(1, 1 << 24), "Maximum tokens of the answer."),
    Field::new("temperature", Accepts::Number(0.0, 100.0), "Divides the logits."),
    Field::new("top_p", Accepts::Number(0.0, 1.0), "Keep the most likely tokens with this mass."),
    Field::new("tools", Accepts::List(256), "Functions that the model may call."),
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
    let request = given.value();
    if !is_stream {
        return Ok(json(&responses::response(&request, &chunks.collect().await?)));
    }
    Ok(sse::respond(ping, async move |events| {
        let mut stream = ResponseStream::new(&request, now());
        let mut number = 0;
        loop {
            let (found, is_last) = match chunks.next().await {
                Ok(Some(chunk)) => (stream.push(&chunk), false),
                Ok(None) => (stream.finish(), true),
                Err(error) => {
                    let event = json!({
                        "type": "error", "code": error.kind, "message": error.message,
                        "param": error.param, "sequence_number": number,
                    });
                    (vec![event], true)
                }
            };
            for event in found {
                number += 1;
                let name = event["type"].as_str().unwrap_or("message").to_owned();
                if events.named(&name, &event).await.is_err() {
                    return;
                }
            }
            if is_last {
                return;
            }
        }
    }))
}

/// `POST /v1/responses/input_tokens`.
pub async fn count(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let (_, body) = translated(&app, body).await?;
    let chat = chat::prepare(&app, body).await?;
    let tokens: usize = chat.question.prompts.iter().map(Vec::len).sum();
    Ok(json(&json!({ "object": "response.input_tokens", "input_tokens": tokens })))
}

/// The request as given, and as a chat request.
async fn translated(app: &Arc<App>, body: HttpBody) -> Result<(Body, Body), ApiError> {
    let bytes = app.body(body).await?;
    let given = Body::parse(&bytes, &[FIELDS])?;
    given.required("input")?;
    let chat = responses::request(&given.value())
        .map_err(|error| ApiError::field(&error.field, &error.reason))?;
    let chat = Body::check(chat, &[params::FIELDS, chat::FIELDS])?;
    Ok((given, chat))
}
