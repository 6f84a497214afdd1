//! The routes, and what happens around every request: keys, origins, request ids, the log, and panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bilayer_engine::requests::KeyId;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use serde_json::{Map, json};

use crate::api;
use crate::body;
use crate::config::Config;
use crate::endpoints;
use crate::error::ApiError;
use crate::fields::{self, Field};
use crate::keys::{self, Keys, Role};
use crate::log;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::origins;

/// What all requests share.
pub struct App {
    /// The configuration.
    pub config: Arc<Config>,
    /// The models.
    pub models: Arc<Models>,
    /// The keys.
    pub keys: Keys,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Whether the first model is loaded.
    pub is_ready: AtomicBool,
    /// Whether the server is stopping.
    pub is_draining: AtomicBool,
    /// Requests being answered.
    pub active: AtomicUsize,
    next_id: AtomicU64,
}

/// Who sent a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The key's number; 0 without keys.
    pub key: KeyId,
}

impl Caller {
    /// Whose cached prefixes it shares.
    pub fn namespace(&self, config: &Config) -> u64 {
        if config.switches.cache_per_key { self.key } else { 0 }
    }
}

/// The handlers' view of [`App`].
pub type Shared = State<Arc<App>>;

impl App {
    /// A server's state, with no model loaded.
    ///
    /// # Errors
    /// The key file is wrong.
    pub fn new(config: Config) -> Result<App, String> {
        let config = Arc::new(config);
        let metrics = Arc::new(Metrics::new());
        Ok(App {
            keys: Keys::load(&config.keys, config.key_file.as_deref())?,
            models: Arc::new(Models::new(config.clone(), metrics.clone())),
            config,
            metrics,
            is_ready: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
        })
    }

    /// Reads a body and checks its fields.
    ///
    /// # Errors
    /// It is too large, pauses too long or is too slow, or is no JSON object; a field is wrong.
    pub async fn fields(&self, body: Body, tables: &[&[Field]]) -> Result<fields::Body, ApiError> {
        fields::Body::parse(&body::read(body, &self.config.limits).await?, tables)
    }

    /// A new id such as `chatcmpl-...`.
    pub fn id(&self, prefix: &str) -> String {
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        let now = jiff::Timestamp::now().as_nanosecond() as u64;
        format!("{prefix}-{now:016x}{number:06x}")
    }
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let mut router = endpoints::router();
    if app.config.switches.page {
        router = api::page::routes(router);
    }
    let not_found = any(async |request: Request| {
        ApiError::not_found(format!("there is no {}", request.uri().path()))
    });
    router
        .fallback_service(not_found.with_state(()))
        .method_not_allowed_fallback(async |request: Request| {
            let mut error = ApiError::invalid(format!(
                "{} is not allowed for {}",
                request.method(),
                request.uri().path()
            ));
            error.status = StatusCode::METHOD_NOT_ALLOWED;
            error
        })
        .layer(middleware::from_fn_with_state(app.clone(), around))
        .with_state(app)
}

/// Counts a request while it is answered.
struct Active(Arc<App>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What happens around every request.
async fn around(State(app): Shared, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let page = origins::Asked::of(request.headers());
    let id = request_id(&app, request.headers());
    let mut key = 0;
    let mut response = if method == Method::OPTIONS {
        preflight()
    } else {
        app.active.fetch_add(1, Ordering::Relaxed);
        let _active = Active(app.clone());
        let allowed = origins::check(&app.config, &request);
        match allowed.and_then(|()| authorize(&app, &path, request.headers())) {
            Ok(caller) => {
                key = caller.key;
                request.extensions_mut().insert(caller);
                // The last line of defence: a panic of a handler is an error of its request.
                let handled = tokio::spawn(next.run(request));
                let guard = AbortOnDrop(handled);
                guard.join().await
            }
            Err(error) => error.into_response(),
        }
    };
    let headers = response.headers_mut();
    origins::allow(&app.config.origins, page, headers);
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(HeaderName::from_static("x-request-id"), id);
    }
    headers.insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    let status = response.status();
    if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
        app.metrics.refused.increment(1);
    }
    log::request(Map::from_iter([
        ("id".to_owned(), json!(id)),
        ("method".to_owned(), json!(method.as_str())),
        ("path".to_owned(), json!(path)),
        ("status".to_owned(), json!(status.as_u16())),
        ("ms".to_owned(), json!(began.elapsed().as_millis() as u64)),
        ("key".to_owned(), json!(format!("{key:016x}"))),
    ]));
    response
}

/// A handler's task, which ends when its connection does.
struct AbortOnDrop(tokio::task::JoinHandle<Response>);

impl AbortOnDrop {
    async fn join(mut self) -> Response {
        match (&mut self.0).await {
            Ok(response) => response,
            Err(_) => ApiError::internal().into_response(),
        }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The client's request id if it is short and plain, else a new one.
fn request_id(app: &App, headers: &HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let is_plain = |id: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        !id.is_empty() && id.len() <= 128 && id.chars().all(plain)
    };
    given.filter(is_plain).map_or_else(|| app.id("req"), str::to_owned)
}

/// Paths that need no key.
fn is_public(path: &str) -> bool {
    let health = ["/health", "/v1/health", "/livez", "/readyz"];
    health.contains(&path) || api::page::is_asset(path)
}

/// The least role that a path needs.
fn needed(path: &str) -> Role {
    match path {
        "/metrics" => Role::Metrics,
        "/models/load" | "/models/unload" | "/lora-adapters" => Role::Admin,
        path if path.starts_with("/slots") => Role::Admin,
        _ => Role::Inference,
    }
}

fn authorize(app: &App, path: &str, headers: &HeaderMap) -> Result<Caller, ApiError> {
    if !app.keys.are_needed() || is_public(path) {
        return Ok(Caller::default());
    }
    let known = keys::given(headers).filter_map(|key| app.keys.find(key));
    // Of two keys the one that may do more counts, the first of equals.
    let most = known.reduce(|first, other| if other.0 > first.0 { other } else { first });
    let (role, id) = most.ok_or_else(ApiError::authentication)?;
    if role < needed(path) {
        return Err(ApiError::permission(format!("this key may not use {path}")));
    }
    Ok(Caller { key: id })
}

fn preflight() -> Response {
    StatusCode::OK.into_response()
}
