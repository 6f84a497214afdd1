//! `/lora-adapters`: llama-server's list of LoRA adapters and their strengths.

use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use hyper::Uri;
use serde_json::json;

use crate::api::{changed, json, shown};
use crate::app::Shared;
use crate::error::ApiError;
use crate::fields::{self, Accepts, Field};

/// Fields of the objects of `POST /lora-adapters`.
pub const FIELDS: &[Field] = &[
    Field::new("id", Accepts::Integer(0, 1 << 16), "The adapter's number, as GET lists it."),
    Field::new("scale", Accepts::Number(-1e6, 1e6), "Its strength; 0 is off."),
];

/// `GET /lora-adapters`.
pub async fn list(State(app): Shared, uri: Uri) -> Result<Response, ApiError> {
    Ok(json(&shown(&app, &uri).await?.adapters.list()))
}

/// `POST /lora-adapters`: sets the strengths for requests without the field `lora`.
pub async fn set(State(app): Shared, uri: Uri, body: HttpBody) -> Result<Response, ApiError> {
    let list = app.parsed(body, fields::value).await?;
    let loaded = changed(&app, &uri).await?;
    if loaded.encoder().is_ok() {
        return Err(ApiError::not_supported(
            "adapters of an encoder have the strengths of --lora-scaled; requests cannot change them",
        ));
    }
    loaded.adapters.set(&list)?;
    Ok(json(&json!({ "success": true })))
}
