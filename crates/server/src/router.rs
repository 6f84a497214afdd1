//! The routes, and what happens around every request: keys, origins, request ids, the log, and panics.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bilayer_engine::requests::KeyId;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::header::{CONTENT_ENCODING, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use serde_json::{Map, json};

use crate::api::{messages, page};
use crate::app::{App, Caller, Shared};
use crate::body::Peer;
use crate::endpoints;
use crate::error::ApiError;
use crate::keys::{self, Role};
use crate::log;
use crate::origins;

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let mut router = endpoints::router();
    if app.config.switches.page {
        router = page::routes(router);
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
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let page = origins::Asked::of(request.headers());
    let has_anthropic_shape = messages::is_shape_of(&path, request.headers());
    let id = request_id(&app, request.headers());
    let began = Instant::now();
    let mut line =
        Line { began, id, method: method.clone(), path: path.clone(), key: 0, status: LEFT };
    let mut response = if method == Method::OPTIONS {
        preflight()
    } else {
        app.active.fetch_add(1, Ordering::Relaxed);
        let _active = Active(app.clone());
        let allowed = origins::check(&app.config, &request);
        let allowed = allowed.and_then(|()| authorize(&app, &request));
        match allowed.and_then(|caller| is_plain(request.headers()).map(|()| caller)) {
            Ok(caller) => {
                line.key = caller.key;
                request.extensions_mut().insert(caller);
                let peer = request.extensions().get::<Peer>().copied();
                let request = request.map(|body| app.bodies.counted(body, peer));
                // The last line of defence: a panic of a handler is an error of its request.
                let handled = tokio::spawn(next.run(request));
                let guard = AbortOnDrop(handled);
                guard.join().await
            }
            Err(error) => error.into_response(),
        }
    };
    if has_anthropic_shape {
        response = messages::shaped(response);
    }
    let headers = response.headers_mut();
    origins::allow(&app.config.origins, page, headers);
    if let Ok(id) = HeaderValue::from_str(&line.id) {
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
    line.status = status.as_u16();
    response.map(|body| Body::new(Logged { body, _line: line }))
}

/// The status in the log of a request whose client left before it had one, as nginx writes it.
const LEFT: u16 = 499;

/// The line of a request in the log, written when its response was sent or its client has left.
struct Line {
    began: Instant,
    id: String,
    method: Method,
    path: String,
    key: KeyId,
    status: u16,
}

impl Drop for Line {
    fn drop(&mut self) {
        log::request(Map::from_iter([
            ("id".to_owned(), json!(self.id)),
            ("method".to_owned(), json!(self.method.as_str())),
            ("path".to_owned(), json!(self.path)),
            ("status".to_owned(), json!(self.status)),
            ("ms".to_owned(), json!(self.began.elapsed().as_millis() as u64)),
            ("key".to_owned(), json!(format!("{:016x}", self.key))),
        ]));
    }
}

/// The body of a response, which is logged at its end.
struct Logged {
    body: Body,
    _line: Line,
}

impl hyper::body::Body for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether the body is sent as it is, neither compressed nor otherwise encoded.
fn is_plain(headers: &HeaderMap) -> Result<(), ApiError> {
    let encodings = headers.get_all(CONTENT_ENCODING).iter();
    let mut others =
        encodings.filter(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    let Some(other) = others.next() else { return Ok(()) };
    let other = String::from_utf8_lossy(other.as_bytes());
    let mut error = ApiError::invalid(format!(
        "the body has the Content-Encoding {other}; send it without one"
    ));
    error.status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(error)
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

/// The least role that a key needs for a request; `None` if it needs no key.
fn needed(request: &Request) -> Option<Role> {
    if page::is_asset(request.uri().path()) {
        return None;
    }
    match request.extensions().get::<MatchedPath>() {
        Some(path) => endpoints::role(path.as_str(), request.method()),
        // There is no such path, which is not for everybody to find out.
        None => Some(Role::Inference),
    }
}

fn authorize(app: &App, request: &Request) -> Result<Caller, ApiError> {
    let Some(needed) = needed(request).filter(|_| app.keys.are_needed()) else {
        return Ok(Caller::default());
    };
    let known = keys::given(request.headers()).filter_map(|key| app.keys.find(key));
    // Of two keys the one that may do more counts, the first of equals.
    let most = known.reduce(|first, other| if other.0 > first.0 { other } else { first });
    let (role, id) = most.ok_or_else(ApiError::authentication)?;
    if role < needed {
        let path = request.uri().path();
        return Err(ApiError::permission(format!("this key may not use {path}")));
    }
    Ok(Caller { key: id })
}

fn preflight() -> Response {
    StatusCode::OK.into_response()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http_body_util::BodyExt;
    use hyper::http::request::Builder;
    use tower::ServiceExt;

    use super::*;
    use crate::config::Config;
    use crate::endpoints::ENDPOINTS;

    fn served() -> Router {
        closed(&[])
    }

    /// A server with these keys.
    fn closed(keys: &[&str]) -> Router {
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        let config = Config { keys, ..Config::of(Vec::new()) };
        router(Arc::new(App::new(config, endpoints::has_field).expect("no key file")))
    }

    fn request(path: &str, body: Body) -> Request {
        Request::post(path).body(body).expect("a request")
    }

    /// Whatever refuses a request: the router, the layer around it, or the handler.
    #[tokio::test]
    async fn errors_have_the_shape_of_their_api() {
        let closed = closed(&["secret"]);
        let post = |path: &str| Request::post(path.to_owned());
        let get = |path: &str| Request::get(path.to_owned());
        let origin = |request: Builder| request.header("origin", "https://evil.example");
        let packed = |request: Builder| request.header(CONTENT_ENCODING, "gzip");
        let messages = "/v1/messages";
        for (router, request, status, kind) in [
            (&closed, post(messages), 401, "authentication_error"),
            (&served(), origin(post(messages)), 403, "permission_error"),
            (&served(), post("/v1/messages/none"), 404, "not_found_error"),
            (&served(), get(messages), 405, "invalid_request_error"),
            (&served(), packed(post(messages)), 415, "invalid_request_error"),
            (&served(), post("/v1/messages/count_tokens"), 400, "invalid_request_error"),
            (
                &closed,
                get("/v1/models").header("anthropic-version", "1"),
                401,
                "authentication_error",
            ),
        ] {
            let request = request.body(Body::from("{")).expect("a request");
            let Ok(response) = router.clone().oneshot(request).await;
            assert_eq!(response.status().as_u16(), status);
            assert!(response.headers().contains_key("x-request-id"), "{status}");
            let bytes = response.into_body().collect().await.expect("a body").to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
            assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)));
            assert!(body["error"]["message"].as_str().is_some_and(|text| !text.is_empty()));
        }
        let request = post("/v1/chat/completions").body(Body::from("{")).expect("a request");
        let Ok(response) = served().oneshot(request).await;
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!((body.get("type"), &body["error"]["code"]), (None, &json!(400)));
    }

    /// A path of an endpoint, with values for its variables.
    fn filled(path: &str) -> String {
        path.replace("{id}", "0").replace("{*id}", "a/b")
    }

    #[tokio::test]
    async fn a_key_needs_the_role_that_an_endpoint_states() {
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("keys");
        std::fs::write(&file, "m metrics\ni inference\na admin\n").expect("a file");
        let config = Config { key_file: Some(file), ..Config::of(Vec::new()) };
        let app = Arc::new(App::new(config, endpoints::has_field).expect("good keys"));
        let router = router(app);
        let all = ["", "m", "i", "a"];
        // The status of a request that is refused for its key, else none.
        let refused = async |method: Method, path: &str, key: &str| {
            let request = Request::builder().method(method).uri(path).header("x-api-key", key);
            let request = request.body(Body::from("{")).expect("a request");
            let Ok(response) = router.clone().oneshot(request).await;
            Some(response.status().as_u16()).filter(|status| [401, 403].contains(status))
        };
        let statuses = |role: Option<Role>| match role {
            None => [None; 4],
            Some(Role::Metrics) => [Some(401), None, None, None],
            Some(Role::Inference) => [Some(401), Some(403), None, None],
            Some(Role::Admin) => [Some(401), Some(403), Some(403), None],
        };
        let mut others = Vec::new();
        for endpoint in ENDPOINTS {
            let method = if endpoint.takes.is_some() { Method::POST } else { Method::GET };
            for path in endpoint.paths {
                for (key, expected) in all.iter().zip(statuses(endpoint.role)) {
                    let found = refused(method.clone(), &filled(path), key).await;
                    assert_eq!(found, expected, "{method} {path} with the key {key:?}");
                }
            }
            if endpoint.role != Some(Role::Inference) {
                others.push((endpoint.path(), endpoint.role));
            }
        }
        let admin = ["/models/load", "/models/unload", "/slots", "/slots/{id}"];
        let admin = admin.into_iter().chain(["/lora-adapters"; 2]);
        let admin = admin.map(|path| (path, Some(Role::Admin)));
        let open = ["/health", "/livez", "/readyz"].map(|path| (path, None));
        let expected = admin.chain(open).chain([("/metrics", Some(Role::Metrics))]);
        assert_eq!(others, expected.collect::<Vec<_>>());
        // Methods and paths that there are not, and a file of the page.
        for (method, path, role) in [
            (Method::DELETE, "/slots/0", Some(Role::Admin)),
            (Method::DELETE, "/v1/models", Some(Role::Inference)),
            (Method::POST, "/health", None),
            (Method::GET, "/none", Some(Role::Inference)),
            (Method::GET, "/slots/0/more", Some(Role::Inference)),
            (Method::GET, "/style.css", None),
        ] {
            for (key, expected) in all.iter().zip(statuses(role)) {
                let found = refused(method.clone(), path, key).await;
                assert_eq!(found, expected, "{method} {path} with the key {key:?}");
            }
        }
    }

    #[tokio::test]
    async fn encoded_bodies_are_refused_by_their_encoding() {
        for (encoding, status) in [("gzip", 415), ("identity, br", 415), ("Identity", 400)] {
            let mut request = request("/tokenize", Body::from("{"));
            request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
            let Ok(response) = served().oneshot(request).await;
            assert_eq!(response.status().as_u16(), status, "{encoding}");
            let bytes = response.into_body().collect().await.expect("a body").to_bytes();
            let is_named = String::from_utf8_lossy(&bytes).contains(encoding);
            assert_eq!(is_named, status == 415, "{encoding}");
        }
    }

    /// One line each: of a client that leaves before its response, and of one that reads for some time.
    #[tokio::test]
    async fn requests_are_logged_when_they_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        log::open(&path).expect("a log");
        log::set(log::Log::Json);
        let never = futures_util::stream::pending::<Result<Bytes, Infallible>>();
        let left = served().oneshot(request("/detokenize", Body::from_stream(never)));
        let waited = tokio::time::timeout(Duration::from_millis(20), left).await;
        assert!(waited.is_err(), "its body never ends");
        let Ok(response) = served().oneshot(request("/apply-template", Body::from("{"))).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
        drop(response);
        log::set(log::Log::Quiet);
        let lines = std::fs::read_to_string(&path).expect("a log");
        let lines = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
        let lines: Vec<serde_json::Value> = lines.collect();
        let of = |path: &str| {
            let found: Vec<_> = lines.iter().filter(|line| line["path"] == path).collect();
            assert_eq!(found.len(), 1, "{path}: {lines:?}");
            (found[0]["status"].as_u64(), found[0]["ms"].as_u64())
        };
        assert_eq!(of("/detokenize").0, Some(u64::from(LEFT)));
        assert_eq!(of("/apply-template").0, Some(400));
        assert!(of("/apply-template").1 >= Some(60));
    }
}
