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

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use hyper::Uri;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;

use crate::app::App;
use crate::error::ApiError;
use crate::models::Loaded;

/// A JSON response.
pub fn json(value: &Value) -> Response {
    json_text(value.to_string())
}

/// A JSON response of a text that is JSON.
pub fn json_text(text: String) -> Response {
    let mut response = text.into_response();
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// The model that the query names, else the one used last, which a request that only reads does not load.
///
/// # Errors
/// There is no such model, or it is not loaded.
pub async fn shown(app: &App, uri: &Uri) -> Result<Arc<Loaded>, ApiError> {
    app.models.shown(parameter(uri, "model").as_deref()).await
}

/// The model that a request changes: the one that the query names, else the one used last, else the first. It is loaded.
///
/// # Errors
/// There is no such model, or it cannot be loaded.
pub async fn changed(app: &App, uri: &Uri) -> Result<Arc<Loaded>, ApiError> {
    let name = parameter(uri, "model");
    match app.models.used_last().filter(|_| name.is_none()) {
        Some(loaded) => Ok(loaded),
        None => app.models.get(name.as_deref()).await,
    }
}

/// A parameter of the query, without its percent-encoding.
pub fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let value = pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?.1;
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (byte, after) = match (first, code) {
            (b'%', Some(byte)) => (byte, &after[2..]),
            (b'+', _) => (b' ', after),
            _ => (first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::parameter;

    #[test]
    fn parameters_are_decoded() {
        let uri = "/slots/0?action=save&model=a%2Fb+c%20%zz%&x".parse().expect("a URI");
        assert_eq!(parameter(&uri, "model").as_deref(), Some("a/b c %zz%"));
        assert_eq!(parameter(&uri, "action").as_deref(), Some("save"));
        assert_eq!(parameter(&uri, "x"), None);
    }
}
