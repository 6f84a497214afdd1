//! Addresses: whether they are encrypted, what the token is bound to, where redirects lead.

use ureq::http::Uri;

use crate::Error;

/// Whether connections to an address use TLS.
pub(super) fn is_encrypted(url: &str) -> bool {
    url.starts_with("https://")
}

/// Scheme, host and port, which the token is bound to.
pub(super) fn authority(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next().filter(|host| !host.is_empty())?;
    let is_http = ["https", "http"].contains(&scheme);
    is_http.then(|| format!("{scheme}://{}", host.to_ascii_lowercase()))
}

/// Where a redirect from `from` leads.
pub(super) fn absolute(from: &str, to: &str) -> Result<String, Error> {
    let wrong = |reason: &str| Error::Answer { url: from.to_owned(), reason: reason.to_owned() };
    let (scheme, rest) = from.split_once("://").ok_or_else(|| wrong("it is no URL"))?;
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let url = if to.contains("://") {
        to.to_owned()
    } else if to.starts_with("//") {
        format!("{scheme}:{to}")
    } else if to.starts_with('/') {
        format!("{scheme}://{host}{to}")
    } else {
        return Err(wrong("it redirects to a path that is neither absolute nor a URL"));
    };
    if is_encrypted(from) && !url.starts_with("https://") {
        return Err(wrong("it redirects to a connection without encryption"));
    }
    match url.parse::<Uri>() {
        Ok(_) => Ok(url),
        Err(_) => Err(wrong("it redirects to what is no URL")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_resolved_and_stay_encrypted() {
        let from = "https://hub.example/org/repo/resolve/main/a";
        let cases = [
            ("/b", Some("https://hub.example/b")),
            ("//cdn.example/b", Some("https://cdn.example/b")),
            ("https://cdn.example/b?x=1", Some("https://cdn.example/b?x=1")),
            ("http://cdn.example/b", None),
            ("b", None),
        ];
        for (to, expected) in cases {
            assert_eq!(absolute(from, to).ok().as_deref(), expected, "{to}");
        }
    }

    #[test]
    fn the_token_is_bound_to_scheme_host_and_port() {
        let hub = authority("https://hub.example");
        assert_eq!(authority("https://HUB.example/a?b"), hub);
        for other in ["http://hub.example", "https://hub.example:8443", "https://hub.example.evil"]
        {
            assert_ne!(authority(other), hub, "{other}");
        }
        assert_eq!(authority("ftp://hub.example"), None);
    }
}
