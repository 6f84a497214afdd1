//! The hub's HTTP interface: the files of a repository, a file's checksum and size, its bytes from an offset on.

use std::cell::OnceCell;
use std::io::Read;
use std::time::Duration;

use bilayer_settings::{Phrase, Setting};
use serde::Deserialize;
use ureq::http::{HeaderMap, Response};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, ProxyProtocol};

use super::proxy::proxy;
use super::roots::{self, roots};
use super::url::{absolute, authority, is_encrypted};
use crate::name::Repo;
use crate::{AccessToken, Error, Places};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(20);

/// Longest silence of the hub before and while it answers.
const SILENCE: Duration = Duration::from_secs(60);

/// Redirects that are followed.
const REDIRECTS_MAX: usize = 8;

/// Bytes of a listing that are read.
const LISTING_BYTES_MAX: u64 = 32 << 20;

/// A connection to the hub.
pub(super) struct Client {
    /// For addresses with TLS.
    encrypted: OnceCell<Agent>,
    /// For addresses without it.
    plain: OnceCell<Agent>,
    endpoint: String,
    token: Option<AccessToken>,
}

/// A repository at its newest commit.
pub(super) struct Listing {
    pub commit: String,
    /// Paths in the repository, as the hub orders them.
    pub files: Vec<String>,
}

/// A file on the hub.
#[derive(Debug)]
pub(super) struct Blob {
    /// Path in the repository.
    pub file: String,
    /// Its name in the cache: the SHA-256 of a large file.
    pub etag: String,
    pub bytes: u64,
    pub url: String,
}

impl Blob {
    /// The SHA-256 that the bytes must have; small files are named by something else.
    pub fn sha256(&self) -> Option<&str> {
        let is_hex = self.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        (self.etag.len() == 64 && is_hex).then_some(self.etag.as_str())
    }
}

/// An answer with what its redirects said.
pub(super) struct Reply {
    pub response: Response<Body>,
    /// Of a large file: its SHA-256 and its size, which the first of several answers says.
    linked: HeaderMap,
}

/// How to ask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Head,
    Get,
}

impl Client {
    pub fn new(places: &Places) -> Client {
        Client {
            encrypted: OnceCell::new(),
            plain: OnceCell::new(),
            endpoint: places.endpoint.clone(),
            token: places.token.clone(),
        }
    }

    /// The agent for an address, which is made with the first of its scheme.
    ///
    /// # Errors
    /// Those of [`agent`].
    fn agent(&self, url: &str) -> Result<&Agent, Error> {
        let cell = if is_encrypted(url) { &self.encrypted } else { &self.plain };
        match cell.get() {
            Some(agent) => Ok(agent),
            None => {
                let agent = agent(url)?;
                Ok(cell.get_or_init(|| agent))
            }
        }
    }

    /// The files of a repository's main branch.
    pub fn listing(&self, repo: &Repo) -> Result<Listing, Error> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
            #[serde(default)]
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let url = format!("{}/api/models/{repo}/revision/main", self.endpoint);
        let reply = self.ask(Method::Get, &url, 0)?;
        self.check(&reply, repo.as_str(), &url)?;
        let wrong = |reason: String| Error::Answer { url: url.clone(), reason };
        let mut text = String::new();
        let mut body = reply.response.into_body().into_reader().take(LISTING_BYTES_MAX);
        body.read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
        let info: Info = serde_json::from_str(&text)
            .map_err(|error| wrong(format!("the answer is no list of files: {error}")))?;
        // It becomes the name of a folder.
        if info.sha.len() != 40 || !info.sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong(format!("`{}` is no commit", info.sha)));
        }
        let files = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        Ok(Listing { commit: info.sha, files })
    }

    /// What the hub says of a file: the name of its blob, which for large files is the SHA-256, and its size.
    pub fn blob(&self, repo: &Repo, commit: &str, file: &str) -> Result<Blob, Error> {
        let url = self.file_url(repo, commit, file);
        let reply = self.ask(Method::Head, &url, 0)?;
        self.check(&reply, &format!("{repo}/{file}"), &url)?;
        let header = |name: &str| {
            let value = reply.linked.get(name)?.to_str().ok()?;
            Some(value.trim_start_matches("W/").trim_matches('"').to_owned())
        };
        let wrong = |reason: &str| Error::Answer { url: url.clone(), reason: reason.to_owned() };
        let etag = header("x-linked-etag").or_else(|| header("etag"));
        // It becomes the name of a file.
        let etag = etag.filter(|etag| {
            (8..=128).contains(&etag.len()) && etag.bytes().all(|byte| byte.is_ascii_alphanumeric())
        });
        let etag = etag.ok_or_else(|| wrong("the answer has no ETag that names a blob"))?;
        let bytes = header("x-linked-size").or_else(|| header("content-length"));
        let bytes = bytes.and_then(|bytes| bytes.parse().ok());
        let bytes = bytes.ok_or_else(|| wrong("the answer does not say the file's size"))?;
        Ok(Blob { file: file.to_owned(), etag, bytes, url })
    }

    /// The bytes of a file from `first` on.
    pub fn bytes(&self, blob: &Blob, first: u64) -> Result<Reply, Error> {
        self.ask(Method::Get, &blob.url, first)
    }

    fn file_url(&self, repo: &Repo, commit: &str, file: &str) -> String {
        let mut path = String::new();
        for byte in file.bytes() {
            match byte {
                b'/' | b'-' | b'.' | b'_' | b'~' => path.push(char::from(byte)),
                _ if byte.is_ascii_alphanumeric() => path.push(char::from(byte)),
                _ => path.push_str(&format!("%{byte:02X}")),
            }
        }
        format!("{}/{repo}/resolve/{commit}/{path}", self.endpoint)
    }

    /// Asks and follows redirects; the token goes only to the hub itself.
    fn ask(&self, method: Method, url: &str, first: u64) -> Result<Reply, Error> {
        let mut linked = HeaderMap::new();
        let mut at = url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            let response = self
                .request(self.agent(&at)?, method, &at, first)
                .map_err(|error| Error::Unreachable { url: at.clone(), reason: reason(&error) })?;
            for (name, value) in response.headers() {
                linked.entry(name).or_insert_with(|| value.clone());
            }
            let next = response.headers().get("location").and_then(|to| to.to_str().ok());
            let Some(next) = next.filter(|_| response.status().is_redirection()) else {
                return Ok(Reply { response, linked });
            };
            let next = absolute(&at, next)?;
            // The first answer says all there is to know of a large file; the storage behind it may refuse HEAD.
            if method == Method::Head && linked.contains_key("x-linked-etag") {
                return Ok(Reply { response, linked });
            }
            at = next;
            // A redirect's own tag and length are not the file's.
            if !linked.contains_key("x-linked-etag") {
                linked.clear();
            }
        }
        Err(Error::Answer { url: url.to_owned(), reason: "it redirects in a circle".to_owned() })
    }

    fn request(
        &self,
        agent: &Agent,
        method: Method,
        url: &str,
        first: u64,
    ) -> Result<Response<Body>, ureq::Error> {
        let mut request = match method {
            Method::Head => agent.head(url),
            Method::Get => agent.get(url),
        };
        if let Some(token) = &self.token
            && authority(url).is_some()
            && authority(url) == authority(&self.endpoint)
        {
            request = request.header("authorization", token.header());
        }
        if first > 0 {
            request = request.header("range", format!("bytes={first}-"));
        }
        request.call()
    }

    /// Turns a refusal into an error with advice.
    fn check(&self, reply: &Reply, what: &str, url: &str) -> Result<(), Error> {
        let status = reply.response.status();
        if status.is_success() || status.is_redirection() {
            return Ok(());
        }
        Err(self.refused(status.as_u16(), what, url))
    }

    /// What a status that is no success means.
    pub fn refused(&self, status: u16, what: &str, url: &str) -> Error {
        let (what, endpoint) = (what.to_owned(), self.endpoint.clone());
        match (status, &self.token) {
            (401 | 403, None) => Error::Denied {
                advice: Phrase::from(format!(
                    "check the name; if it is gated or private, accept its terms there, make a token at \
                     {endpoint}/settings/tokens and give it with "
                ))
                .either(&format!("{} or ", Setting::HfToken.flag()), "")
                .text(Setting::HfToken.name()),
                what,
                status,
            },
            (401 | 403, Some(_)) => Error::Denied {
                advice: format!(
                    "check the name; the token may be expired or lack access: accept the terms of the repository on \
                     {endpoint} with its account"
                )
                .into(),
                what,
                status,
            },
            (404, _) => Error::NotFound { what, endpoint },
            _ => Error::Answer { url: url.to_owned(), reason: format!("HTTP status {status}") },
        }
    }
}

/// An agent for the addresses of the scheme of `url`, with the proxy and the certificates of the environment.
///
/// # Errors
/// [`Error::Setting`]: a variable names a proxy, or certificates where TLS is used, that cannot be read.
fn agent(url: &str) -> Result<Agent, Error> {
    let variable = |name: &str| std::env::var_os(name);
    let proxy = proxy(url, &variable)?;
    let has_tls = is_encrypted(url)
        || proxy.as_ref().is_some_and(|proxy| proxy.protocol() == ProxyProtocol::Https);
    let mut tls = TlsConfig::builder();
    if has_tls {
        tls = tls.root_certs(roots(&variable)?);
    }
    let config = Agent::config_builder()
        .http_status_as_error(false)
        // `Client::ask` follows redirects: it reads the headers of each, and keeps the token with the hub.
        .max_redirects(0)
        .timeout_connect(Some(CONNECT))
        .timeout_recv_response(Some(SILENCE))
        .timeout_per_read(Some(SILENCE))
        .accept_encoding("identity")
        .user_agent(concat!("bilayer/", env!("CARGO_PKG_VERSION")))
        .proxy(proxy)
        .tls_config(tls.build());
    Ok(Agent::new_with_config(config.build()))
}

/// Why there is no connection.
fn reason(error: &ureq::Error) -> String {
    let reason = error.to_string();
    // The name of rustls' error; ureq hands it on within an error of I/O.
    match reason.contains("UnknownIssuer") {
        true => format!("{reason}; {}", roots::UNKNOWN),
        false => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_authority_has_advice() {
        let error = ureq::Error::from(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            "invalid peer certificate: UnknownIssuer",
        ));
        assert!(reason(&error).contains("SSL_CERT_FILE"), "{}", reason(&error));
        assert_eq!(reason(&ureq::Error::HostNotFound), ureq::Error::HostNotFound.to_string());
    }
}
