//! The endpoints, one file for each kind.

pub mod adapters;
pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod extract;
pub mod info;
pub mod live;
pub mod messages;
pub mod native;
pub mod openapi;
pub mod page;
pub mod rerank;
pub mod responses;
pub mod slots;
pub mod tokens;

use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;

/// A JSON response.
pub fn json(value: &Value) -> Response {
    let mut response = value.to_string().into_response();
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
