//! `/lora-adapters`: llama-server's list of LoRA adapters and their strengths.

use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use hyper::Uri;
use serde_json::{Value, json};

use crate::api::{changed, json, shown};
use crate::app::Shared;
use crate::body;
use crate::error::ApiError;

/// `GET /lora-adapters`.
pub async fn list(State(app): Shared, uri: Uri) -> Result<Response, ApiError> {
    Ok(json(&shown(&app, &uri).await?.adapters.list()))
}

/// `POST /lora-adapters`: sets the strengths for requests without the field `lora`.
pub async fn set(State(app): Shared, uri: Uri, body: HttpBody) -> Result<Response, ApiError> {
    let bytes = body::read(body, &app.config.limits).await?;
    let list: Value = serde_json::from_slice(&bytes)
        .map_err(|error| ApiError::invalid(format!("the body is not JSON: {error}")))?;
    changed(&app, &uri).await?.adapters.set(&list)?;
    Ok(json(&json!({ "success": true })))
}
