//! The proxies that the environment names.

use std::ffi::OsString;

use ureq::Proxy;

use super::url::is_encrypted;
use crate::Error;

/// Variables that name the proxy of connections with TLS, and of those without it. The first that is not empty counts.
const HTTPS: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const HTTP: [&str; 4] = ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"];

/// Variables with the hosts that are reached directly.
const DIRECT: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Names of this machine, which is always reached directly.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// What a proxy's address is like.
const SUPPORTED: &str = "not the address of a proxy, such as http://HOST:PORT (also https, socks4, socks4a, socks5 and \
                         socks5h, with USER:PASSWORD@ before the host)";

/// The proxy for addresses of the scheme of `url`, if a variable names one. It leaves out this machine and the hosts of
/// `NO_PROXY`.
///
/// # Errors
/// A variable's value is no proxy's address. The message is without the value, which may have a password.
pub(super) fn proxy(
    url: &str,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Option<Proxy>, Error> {
    let set = |name: &&'static str| {
        let value = variable(name).filter(|value| !value.is_empty())?;
        Some((*name, value))
    };
    let names = if is_encrypted(url) { HTTPS } else { HTTP };
    let Some((name, value)) = names.iter().find_map(set) else { return Ok(None) };
    let wrong = || Error::Setting { variable: name.to_owned(), reason: SUPPORTED.to_owned() };
    let given = Proxy::new(value.to_str().ok_or_else(wrong)?.trim()).map_err(|_| wrong())?;
    let mut builder = Proxy::builder(given.protocol())
        .host(given.host())
        .port(given.port())
        .resolve_target(given.resolve_target());
    if let Some(name) = given.username() {
        builder = builder.username(name);
    }
    if let Some(password) = given.password() {
        builder = builder.password(password);
    }
    for host in LOCAL {
        builder = builder.no_proxy(host);
    }
    let direct = DIRECT.iter().find_map(set).map(|(_, hosts)| hosts);
    for entry in direct.as_deref().and_then(|hosts| hosts.to_str()).unwrap_or_default().split(',') {
        // As with curl, a host stands for those below it, with or without a dot before it.
        match entry.trim().trim_start_matches("*.").trim_start_matches('.') {
            "" => {}
            "*" => builder = builder.no_proxy("*"),
            host => builder = builder.no_proxy(host).no_proxy(&format!(".{host}")),
        }
    }
    builder.build().map(Some).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(url: &str, set: &[(&str, &str)]) -> Result<Option<Proxy>, Error> {
        proxy(url, &|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_variable_is_that_of_the_scheme() {
        let set = [("HTTPS_PROXY", "http://tls:1"), ("http_proxy", "plain:2")];
        let all = [("all_proxy", "socks5h://all:3"), ("HTTPS_PROXY", "")];
        let cases: [(&str, &[_], _); 5] = [
            ("https://hub.example", &set, Some("tls:1")),
            ("http://hub.example", &set, Some("plain:2")),
            ("https://hub.example", &set[1..], None),
            ("https://hub.example", &all, Some("all:3")),
            ("http://hub.example", &all, Some("all:3")),
        ];
        for (url, set, expected) in cases {
            let found = found(url, set).unwrap();
            let found = found.map(|proxy| format!("{}:{}", proxy.host(), proxy.port()));
            assert_eq!(found.as_deref(), expected, "{url} {set:?}");
        }
    }

    #[test]
    fn credentials_and_hosts_that_are_reached_directly_are_kept() {
        let set = [
            ("ALL_PROXY", "http://us%40er:p%3Aw@proxy:8080/"),
            ("no_proxy", "other.example, .inner.example,*.star.example"),
        ];
        let proxy = found("https://hub.example", &set).unwrap().unwrap();
        assert_eq!((proxy.username(), proxy.password()), (Some("us@er"), Some("p:w")));
        let is_direct = |url: &str| proxy.is_no_proxy(&url.parse().unwrap());
        for url in [
            "https://other.example/a",
            "https://a.other.example",
            "https://inner.example",
            "https://a.inner.example",
            "https://a.star.example",
            "http://localhost:8080",
            "http://127.0.0.1:80/a",
            "http://[::1]:80",
        ] {
            assert!(is_direct(url), "{url}");
        }
        assert!(!is_direct("https://hub.example") && !is_direct("https://another.example"));
        let none = found("https://hub.example", &[set[0], ("NO_PROXY", "*")]).unwrap().unwrap();
        assert!(none.is_no_proxy(&"https://hub.example".parse().unwrap()));
    }

    #[test]
    fn an_address_that_cannot_be_used_is_an_error_without_its_password() {
        for value in ["ftp://user:secret@proxy", "http://", "two words:secret"] {
            let error = found("https://hub.example", &[("https_proxy", value)]).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("https_proxy: ") && text.contains("socks5"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
