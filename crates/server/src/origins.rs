//! Which pages may use the server from a browser.

use axum::body::Body;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, HOST, HeaderValue, ORIGIN, VARY,
};
use hyper::{HeaderMap, Method, Request};

use crate::config::Origins;
use crate::error::ApiError;

/// Whether the page that sent a request, if it was one, may change or compute anything. A browser asks first only about
/// some requests, and sends others before it refuses to show the response.
///
/// # Errors
/// The page is of another origin, which is not allowed.
pub fn check(origins: &Origins, request: &Request<Body>) -> Result<(), ApiError> {
    let Some(origin) = request.headers().get(ORIGIN) else { return Ok(()) };
    let only_reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let origin = origin.to_str().unwrap_or_default();
    if only_reads || is_allowed(origins, origin) || is_own(origin, request) {
        return Ok(());
    }
    Err(ApiError::permission(format!(
        "pages of '{origin}' may not use this server; --cors-origins allows them"
    )))
}

/// Tells a browser whether pages of an origin may read the response.
pub fn allow(origins: &Origins, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let Some(origin) = origin else { return };
    headers.insert(VARY, HeaderValue::from_static("origin"));
    if !is_allowed(origins, origin.to_str().unwrap_or_default()) {
        return;
    }
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST, DELETE, OPTIONS"),
    );
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"));
    // Credentials of any origin would let every page act for the user.
    if *origins != Origins::Any {
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
}

fn is_allowed(origins: &Origins, origin: &str) -> bool {
    match origins {
        Origins::Closed => false,
        Origins::Any => true,
        Origins::Localhost => is_local(origin),
        Origins::List(list) => list.iter().any(|known| known == origin),
    }
}

/// Whether an origin is the server's own: its page.
fn is_own(origin: &str, request: &Request<Body>) -> bool {
    let headers = request.headers();
    // What a page cannot set, and what holds also where a proxy changes the host.
    if headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin") {
        return true;
    }
    let named = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = named.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    let own = origin.split_once("://").map(|(_, authority)| authority);
    own.zip(host).is_some_and(|(own, host)| own.eq_ignore_ascii_case(host))
}

/// Whether an origin is this machine.
fn is_local(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let Some(host) = host else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    ["localhost", "127.0.0.1", "::1"].contains(&name)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use hyper::{Method, Request};

    use super::{check, is_local};
    use crate::config::Origins;

    /// Which origins are allowed, the headers of a request, and whether it is refused.
    type Case<'c> = (Origins, &'c [(&'c str, &'c str)], bool);

    /// Of other origins only those that are allowed change or compute anything, whatever the type of the body.
    #[test]
    fn requests_of_other_origins_are_refused() {
        let refused = |origins: &Origins, headers: &[(&str, &str)], method: Method| {
            let mut request = Request::builder().method(method).uri("/completion");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(Body::empty()).expect("a request");
            check(origins, &request).err().map(|error| error.status.as_u16())
        };
        let evil = ("origin", "http://evil.com");
        let page = ("origin", "http://Server:8080");
        let host = ("host", "server:8080");
        let cases: [Case<'_>; 9] = [
            (Origins::Closed, &[host], false),
            (Origins::Closed, &[host, page], false),
            (Origins::Closed, &[host, evil], true),
            (Origins::Closed, &[host, ("origin", "null")], true),
            (Origins::Closed, &[host, evil, ("sec-fetch-site", "cross-site")], true),
            // Behind a proxy that changes the host.
            (
                Origins::Closed,
                &[host, ("origin", "https://a.com"), ("sec-fetch-site", "same-origin")],
                false,
            ),
            (Origins::Any, &[host, evil], false),
            (Origins::Localhost, &[host, evil], true),
            (Origins::List(vec!["http://evil.com".to_owned()]), &[host, evil], false),
        ];
        for (origins, headers, is_refused) in cases {
            let status = refused(&origins, headers, Method::POST);
            assert_eq!(status, is_refused.then_some(403), "{origins:?} {headers:?}");
            assert_eq!(refused(&origins, headers, Method::GET), None, "a browser does not show it");
        }
    }

    #[test]
    fn local_origins_are_of_this_machine() {
        for origin in [
            "http://localhost",
            "http://localhost:8080",
            "https://127.0.0.1:3",
            "http://[::1]:3000",
        ] {
            assert!(is_local(origin), "{origin}");
        }
        for origin in [
            "http://localhost.evil.com",
            "http://notlocalhost",
            "http://evil.com",
            "localhost",
            "null",
        ] {
            assert!(!is_local(origin), "{origin}");
        }
    }
}
