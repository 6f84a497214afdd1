//! Which pages may use the server from a browser.

use std::net::IpAddr;

use axum::body::Body;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_REQUEST_HEADERS, HOST, HeaderValue, ORIGIN, VARY,
};
use hyper::{HeaderMap, Method, Request};

use crate::config::{Config, Origins};
use crate::error::ApiError;

/// Whether the page that sent a request, if it was one, may change or compute anything. A browser asks first only about
/// some requests, and sends others before it refuses to show the response.
///
/// # Errors
/// The page is of another origin, which is not allowed.
pub fn check(config: &Config, request: &Request<Body>) -> Result<(), ApiError> {
    let Some(origin) = request.headers().get(ORIGIN) else { return Ok(()) };
    let only_reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let origin = origin.to_str().unwrap_or_default();
    let is_private = config.is_local() && !config.needs_key();
    let names = if is_private { Names::ThisMachine } else { Names::Any };
    let is_own = || is_own(origin, request, names);
    if only_reads || is_allowed(&config.origins, origin) || is_own() {
        return Ok(());
    }
    Err(ApiError::permission(format!(
        "pages of '{origin}' may not use this server; --cors-origins allows them"
    )))
}

/// What a browser asks for a page.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The page's origin.
    origin: Option<HeaderValue>,
    /// The headers that it wants to send, before it sends them.
    headers: Option<HeaderValue>,
}

impl Asked {
    /// What the headers of a request ask.
    pub fn of(headers: &HeaderMap) -> Asked {
        let [origin, headers] =
            [ORIGIN, ACCESS_CONTROL_REQUEST_HEADERS].map(|name| headers.get(name).cloned());
        Asked { origin, headers }
    }
}

/// Tells a browser whether pages of an origin may read the response.
pub fn allow(origins: &Origins, asked: Asked, headers: &mut HeaderMap) {
    let Some(origin) = asked.origin else { return };
    headers.insert(VARY, HeaderValue::from_static("origin"));
    if !is_allowed(origins, origin.to_str().unwrap_or_default()) {
        return;
    }
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST, DELETE, OPTIONS"),
    );
    let all = HeaderValue::from_static("*");
    // Credentials of any origin would let every page act for the user.
    if *origins == Origins::Any {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, all);
        return;
    }
    headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    // With credentials `*` is a name like others.
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.headers.unwrap_or(all));
}

fn is_allowed(origins: &Origins, origin: &str) -> bool {
    match origins {
        Origins::Closed => false,
        Origins::Any => true,
        Origins::Localhost => is_local(origin),
        Origins::List(list) => list.iter().any(|known| match known.as_str() {
            "localhost" => is_local(origin),
            known => known.eq_ignore_ascii_case(origin),
        }),
    }
}

/// The names of the server that its page is known by.
#[derive(Clone, Copy, Debug)]
enum Names {
    /// All that lead to it.
    Any,
    /// `localhost` and numbers. Any other name can be made to lead to this machine, by a page that then is of the same origin
    /// as this server (DNS rebinding).
    ThisMachine,
}

/// Whether an origin is the server's own: its page.
fn is_own(origin: &str, request: &Request<Body>, names: Names) -> bool {
    let headers = request.headers();
    // What a page cannot set, and what holds also where a proxy changes the host. Browsers send it over HTTPS, and over HTTP
    // only to this machine by its own names.
    if headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin") {
        return true;
    }
    let named = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = named.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    let (Some((scheme, own)), Some(host)) = (origin.split_once("://"), host) else { return false };
    let usual = if scheme == "https" { ":443" } else { ":80" };
    let [own, host] =
        [own, host].map(|authority| authority.strip_suffix(usual).unwrap_or(authority));
    own.eq_ignore_ascii_case(host) && (matches!(names, Names::Any) || is_this_machine(host))
}

/// Whether a host with or without a port is a number, or this machine.
fn is_this_machine(host: &str) -> bool {
    let name = name_of(host);
    name.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost")
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// Whether an origin is this machine.
fn is_local(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let Some(host) = host else { return false };
    ["localhost", "127.0.0.1", "::1"].contains(&name_of(host))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use hyper::http::request::Builder;
    use hyper::{HeaderMap, Request};

    use super::{Asked, Names, allow, is_allowed, is_local, is_own};
    use crate::config::Origins;

    fn request(headers: &[(&str, &str)]) -> Request<Body> {
        let request = Request::builder().uri("/completion");
        let add = |request: Builder, (name, value): &(&str, &str)| request.header(*name, *value);
        headers.iter().fold(request, add).body(Body::empty()).expect("a request")
    }

    /// Origin, host and `Sec-Fetch-Site`; whether the page is the server's own by any name, and by those of this machine.
    #[test]
    fn the_own_page_is_known_by_the_host() {
        let cases = [
            ("http://evil.com", "server:8080", "", [false; 2]),
            ("null", "server:8080", "", [false; 2]),
            ("http://evil.com", "server:8080", "cross-site", [false; 2]),
            ("http://Server:8080", "server:8080", "", [true, false]),
            ("http://evil.com:8080", "evil.com:8080", "", [true, false]),
            ("http://localhost:8080", "localhost:8080", "", [true; 2]),
            ("http://127.0.0.1:8080", "127.0.0.1:8080", "", [true; 2]),
            ("http://[::1]:8080", "[::1]:8080", "", [true; 2]),
            ("http://127.0.0.1:8080", "127.0.0.1:9090", "", [false; 2]),
            // Ports that a browser leaves out and a proxy does not.
            ("http://lan", "lan:80", "", [true, false]),
            ("https://lan", "lan:443", "", [true, false]),
            ("https://lan", "lan:80", "", [false; 2]),
            // Behind a proxy that changes the host.
            ("https://a.com", "server:8080", "same-origin", [true; 2]),
        ];
        for (origin, host, site, expected) in cases {
            let asked = match site {
                "" => request(&[("host", host)]),
                site => request(&[("host", host), ("sec-fetch-site", site)]),
            };
            let found = [Names::Any, Names::ThisMachine].map(|names| is_own(origin, &asked, names));
            assert_eq!(found, expected, "{origin} {host} {site}");
        }
    }

    /// As for a page that wants to send its key: with `*` alone it may not.
    #[test]
    fn headers_are_allowed_by_name_with_credentials() {
        let page = [
            ("origin", "http://localhost:3000"),
            ("access-control-request-headers", "authorization"),
        ];
        for (origins, headers, expected) in [
            (Origins::Localhost, &page[..], "authorization"),
            (Origins::Localhost, &page[..1], "*"),
            (Origins::Any, &page[..], "*"),
        ] {
            let mut found = HeaderMap::new();
            allow(&origins, Asked::of(request(headers).headers()), &mut found);
            assert_eq!(found["access-control-allow-headers"], expected, "{origins:?}");
            let credentials = found.contains_key("access-control-allow-credentials");
            assert_eq!(credentials, origins == Origins::Localhost);
        }
    }

    #[test]
    fn other_origins_are_those_of_the_list() {
        let list = |of: &str| Origins::List(vec!["https://App.example".to_owned(), of.to_owned()]);
        let cases = [
            (Origins::Closed, "http://localhost", false),
            (Origins::Any, "http://evil.com", true),
            (Origins::Localhost, "http://evil.com", false),
            (list("http://a.com"), "http://a.com", true),
            (list("http://a.com"), "https://app.example", true),
            (list("http://a.com"), "http://localhost:3000", false),
            (list("localhost"), "http://localhost:3000", true),
        ];
        for (origins, origin, expected) in cases {
            assert_eq!(is_allowed(&origins, origin), expected, "{origins:?} {origin}");
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
