//! Errors as clients see them: an HTTP status and `{"error": {"message", "type", "code", "param"}}`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse, Response};
use bilayer_engine::Error as Engine;
use bilayer_engine::requests::{Refused, SubmitError};
use bilayer_engine::session::CacheError;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Map, Value, json};

use crate::params::names::field_name;

/// The error of the engine that a response reports: an extension of the response, which no client sees.
#[derive(Clone, Debug)]
pub struct Cause(pub Arc<Engine>);

/// An error response.
#[derive(Clone, Debug)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// OpenAI's or llama-server's name of the class.
    pub kind: &'static str,
    /// What is wrong, with the value and what was expected.
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    /// Further members of the error object.
    pub more: Map<String, Value>,
    /// Seconds after which a retry may succeed.
    pub retry_after: Option<u64>,
    /// The engine's error, if that is the cause.
    pub source: Option<Arc<Engine>>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            kind,
            message: message.into(),
            param: None,
            more: Map::new(),
            retry_after: None,
            source: None,
        }
    }

    /// 400: the request is wrong.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: a field is wrong.
    pub fn field(name: &str, problem: impl std::fmt::Display) -> ApiError {
        let error = ApiError::invalid(format!("'{name}' {problem}"));
        ApiError { param: Some(name.to_owned()), ..error }
    }

    /// 400: the prompt is longer than the context.
    pub fn context(tokens: usize, context: usize) -> ApiError {
        let message = format!(
            "the request of {tokens} tokens exceeds the available context size of {context} tokens; shorten it or start \
             the server with a larger --ctx-size"
        );
        let mut error = ApiError::invalid(message);
        error.kind = "exceed_context_size_error";
        error.more.insert("n_prompt_tokens".to_owned(), json!(tokens));
        error.more.insert("n_ctx".to_owned(), json!(context));
        error
    }

    /// 401: no key, or an unknown one.
    pub fn authentication() -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", "Invalid API Key")
    }

    /// 403: the key may not do this.
    pub fn permission(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 409: the model is not loaded, and asking again does not load it.
    pub fn not_loaded(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, "not_loaded_error", message)
    }

    /// 404: there is no such thing.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// 413: the body is too large.
    pub fn too_large(limit: usize) -> ApiError {
        let message = format!("the body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 429 or 503: come back later.
    pub fn refused(refused: Refused, retry_after: u64) -> ApiError {
        let (status, kind) = match refused {
            Refused::Key { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error"),
            Refused::Full { .. } => (StatusCode::SERVICE_UNAVAILABLE, "unavailable_error"),
        };
        let error = ApiError::new(status, kind, refused.to_string());
        ApiError { retry_after: Some(retry_after), ..error }
    }

    /// 500: our fault, or the device's.
    pub fn server(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// 500: a panic ended the request.
    pub fn internal() -> ApiError {
        ApiError::server("an internal error ended the request; please report it")
    }

    /// 503: the server stops before the request is answered.
    pub fn stopping() -> ApiError {
        ApiError::unavailable("the server is stopping")
    }

    /// 503: the model's thread ended before the request did, since it panicked.
    pub fn ended() -> ApiError {
        ApiError::unavailable("the model's thread has ended; repeat the request")
    }

    /// 501: this server, or this model, does not do that.
    pub fn not_supported(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// 503: not ready.
    pub fn unavailable(message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        ApiError { retry_after: Some(1), ..error }
    }

    /// 503: the time for the request is up.
    pub fn late() -> ApiError {
        ApiError::unavailable("the request took longer than --timeout")
    }

    /// Adds what is not in the body: the time after which to retry, and the cause.
    pub fn complete(&self, response: &mut Response) {
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if let Some(source) = &self.source {
            response.extensions_mut().insert(Cause(source.clone()));
        }
    }

    /// The error object, `{"error": {...}}`.
    pub fn body(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind,
            "code": self.status.as_u16(),
        });
        if let (Some(object), Some(param)) = (error.as_object_mut(), &self.param) {
            object.insert("param".to_owned(), json!(param));
        }
        if let Some(object) = error.as_object_mut() {
            object.extend(self.more.clone());
        }
        json!({ "error": error })
    }
}

impl From<Engine> for ApiError {
    fn from(error: Engine) -> ApiError {
        match error {
            Engine::Cache(CacheError::Context { needed, context }) => {
                ApiError::context(needed.saturating_sub(1), context)
            }
            Engine::TooLong { tokens, context } => ApiError::invalid(format!(
                "input of {tokens} tokens is too large to process: the model's context has {context} tokens"
            )),
            error @ Engine::Cache(CacheError::Full { .. } | CacheError::Sequences { .. }) => {
                ApiError::unavailable(error.to_string())
            }
            error @ (Engine::Token { .. }
            | Engine::NoTokens
            | Engine::Saved { .. }
            | Engine::Setting { .. }
            | Engine::Sampling(_)
            | Engine::QueryTooLong { .. }
            | Engine::Text(_)) => ApiError::invalid(error.to_string()),
            error @ (Engine::NoEncoder { .. }
            | Engine::NoDecoder { .. }
            | Engine::NoHead { .. }
            | Engine::NoTokenHead { .. }
            | Engine::TokenHead { .. }) => ApiError::not_supported(error.to_string()),
            Engine::SamplingOptions(error) => {
                let problem = format!("is {}; it must be {}", error.found, error.expected);
                ApiError::field(&field_name(error.name), problem)
            }
            Engine::LogitsNotFinite => {
                let mut error = ApiError::server("the model computed a value that is not finite");
                error.kind = "numeric_error";
                error
            }
            error => {
                let failed = ApiError::server(error.to_string());
                ApiError { source: Some(Arc::new(error)), ..failed }
            }
        }
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> ApiError {
        ApiError::invalid(format!("the path is wrong: {}", rejection.body_text()))
    }
}

impl From<bilayer_text::Error> for ApiError {
    fn from(error: bilayer_text::Error) -> ApiError {
        ApiError::invalid(error.to_string())
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> ApiError {
        match error {
            SubmitError::Refused(refused) => ApiError::refused(refused, 1),
            SubmitError::Engine(error) => error.into(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body().to_string()).into_response();
        let json = hyper::header::HeaderValue::from_static("application/json; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, json);
        self.complete(&mut response);
        response.extensions_mut().insert(Refusal(self.message));
        response
    }
}

/// The message of an error response, for other shapes of errors: an extension of the response.
#[derive(Clone, Debug)]
pub struct Refusal(pub String);
