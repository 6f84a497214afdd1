//! One request of a batch and its answer, in the shapes of OpenAI's batch files.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use bilayer_engine::{Error, Exit};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::input::Line;
use crate::endpoint::Endpoint;
use crate::endpoints::ENDPOINTS;
use crate::error::Cause;

/// What a request may ask for.
fn urls() -> impl Iterator<Item = &'static str> {
    ENDPOINTS.iter().filter(|endpoint| endpoint.is_batch).map(Endpoint::path)
}

/// Times that a request is tried while the model has no capacity or is being opened again.
const TRIES: usize = 5;

/// The answer to a request.
pub struct Answer {
    /// A JSON object in one line.
    pub text: String,
    /// Whether it is an error.
    pub failed: bool,
    /// Tokens read and generated.
    pub tokens: u64,
    /// The failure of a file, a device or memory that it reports: no answer to the request.
    pub failure: Option<Arc<Error>>,
}

/// Whether an error is of a file, a device or memory, so that the request may be answered once that is mended. A model that
/// is damaged, or that no memory of this machine holds, is the same the next time.
fn is_of_machine(error: &Error) -> bool {
    let codes = [Exit::NoFile, Exit::Io, Exit::NoDevice, Exit::DoesNotFit, Exit::Internal];
    !matches!(error, Error::Plan(_)) && codes.contains(&error.exit_code())
}

/// Whether the line of an answer says that the request failed.
pub fn is_failure(answer: &str) -> bool {
    let answer: Value = serde_json::from_str(answer).unwrap_or_default();
    answer["response"]["status_code"] != 200
}

/// Answers a request.
pub async fn answer(router: Router, request: &[u8], line: Line) -> Answer {
    let parsed = serde_json::from_slice::<Value>(request);
    let id = parsed.as_ref().ok().map(|request| request["custom_id"].clone());
    let id = id.unwrap_or_default();
    let response = match asked(parsed, line) {
        Ok((url, body)) => response(router, &url, &body).await,
        Err(problem) => Err(problem),
    };
    let number = line.number;
    let mut text = json!({ "id": format!("batch_req_{number:08}"), "custom_id": id });
    let (mut failed, mut tokens, mut failure) = (true, 0, None);
    match response {
        Ok((response, cause)) => {
            failure = cause;
            failed = response["status_code"] != 200;
            tokens = response["body"]["usage"]["total_tokens"].as_u64().unwrap_or(0);
            text["response"] = response;
            text["error"] = Value::Null;
        }
        Err(problem) => {
            text["response"] = Value::Null;
            let message = format!("line {number}: {problem}");
            text["error"] = json!({ "code": "invalid_request", "message": message });
        }
    }
    Answer { text: text.to_string(), failed, tokens, failure }
}

/// What a request asks for: path and body.
fn asked(parsed: serde_json::Result<Value>, line: Line) -> Result<(String, Value), String> {
    let mut request = parsed.map_err(|error| format!("is no JSON: {error}"))?;
    if !request.is_object() {
        return Err("is no JSON object".to_owned());
    }
    if request["custom_id"].as_str().is_none_or(str::is_empty) {
        return Err("`custom_id` must be a text that names the request".to_owned());
    }
    if let Some(before) = line.same_id {
        return Err(format!("`custom_id` is {} as in line {before}", request["custom_id"]));
    }
    if !request["method"].is_null() && request["method"] != "POST" {
        return Err(format!("`method` is {}; it must be \"POST\"", request["method"]));
    }
    let url = request["url"].as_str().unwrap_or_default().to_owned();
    if !urls().any(|known| known == url) {
        let known = urls().collect::<Vec<_>>().join(", ");
        return Err(format!("`url` is {}; it must be one of {known}", request["url"]));
    }
    let body = request["body"].take();
    if body["stream"] == true {
        return Err("`stream` is true; a batch has no streams".to_owned());
    }
    Ok((url, body))
}

/// A response as a batch shows it, and the failure of the machine that it reports.
type Response = (Value, Option<Arc<Error>>);

/// The response to a request.
async fn response(router: Router, url: &str, body: &Value) -> Result<Response, String> {
    let body = body.to_string();
    for _ in 1..TRIES {
        let (again, response) = once(router.clone(), url, body.clone()).await?;
        match again {
            Some(delay) => tokio::time::sleep(delay).await,
            None => return Ok(response),
        }
    }
    Ok(once(router, url, body).await?.1)
}

/// The response of one try, and after which time to try again, if that may help.
async fn once(
    router: Router,
    url: &str,
    body: String,
) -> Result<(Option<Duration>, Response), String> {
    let request = Request::builder().method(Method::POST).uri(url);
    let request = request.header(CONTENT_TYPE, "application/json").body(Body::from(body));
    let request = request.map_err(|error| error.to_string())?;
    let Ok(response) = router.oneshot(request).await;
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
    let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let delay = header(RETRY_AFTER.as_str()).and_then(|delay| delay.parse().ok()).unwrap_or(1);
    let again = busy.contains(&parts.status).then(|| Duration::from_secs(delay));
    let body: Value = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    let status = parts.status.as_u16();
    let id = header("x-request-id");
    let failure = parts.extensions.get::<Cause>().map(|Cause(error)| error.clone());
    let failure = failure.filter(|error| is_of_machine(error));
    let response = json!({ "status_code": status, "request_id": id, "body": body });
    Ok((again, (response, failure)))
}

#[cfg(test)]
mod tests {
    use super::{Error, is_of_machine};

    #[test]
    fn only_failures_of_the_machine_are_no_answers() {
        let io = |kind: std::io::ErrorKind| {
            let (file, action, source) = ("m.gguf".to_owned(), "read", kind.into());
            Error::File(bilayer_gguf::Error::Io { file, action, source })
        };
        for failure in [
            io(std::io::ErrorKind::Other),
            io(std::io::ErrorKind::NotFound),
            Error::NoSuchFile { path: "m.gguf".to_owned() },
            Error::Unavailable { reason: "no GPU".to_owned() },
        ] {
            assert!(is_of_machine(&failure), "{failure}");
        }
        for answer in [Error::LogitsNotFinite, Error::NoTokens, Error::Interrupted] {
            assert!(!is_of_machine(&answer), "{answer}");
        }
    }
}
