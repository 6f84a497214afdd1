//! Configuration of a server: addresses, limits, keys, and what requests get by default.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bilayer_engine::generate::speculate::DrafterSource;
use bilayer_engine::requests::ExecutorSettings;
use bilayer_engine::{Error, Model, session::Session};
use tokio::time::Instant;

use crate::params::Defaults;

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Which origins may use the server from a browser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// None: browsers refuse pages of other origins.
    #[default]
    Closed,
    /// Pages served from this machine.
    Localhost,
    /// Any, as `*` asks.
    Any,
    /// These.
    List(Vec<String>),
}

/// A time that no request takes: 30 years, of which clocks of all systems can count some.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Limits that protect the server from its clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest body, bytes.
    pub body_bytes: usize,
    /// Time in which a request's head must arrive.
    pub head: Duration,
    /// Time that a body may pause, and that it may be behind 1 KiB/s in all; and that a client may not read what is sent.
    pub body_idle: Duration,
    /// Open connections.
    pub connections: usize,
    /// Open connections of one IP address. If not given, addresses of this machine and of private networks may have
    /// seven eighths of all, since they may be a proxy's, and others 64.
    pub connections_per_ip: Option<usize>,
    /// Time that a request may take; [`Duration::MAX`] is any time.
    pub request: Duration,
    /// Time that running answers get when the server is told to stop.
    pub drain: Duration,
    /// Silence after which a stream sends a comment.
    pub ping: Duration,
}

impl Limits {
    /// When a request that begins now must have ended.
    pub(crate) fn deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.request).unwrap_or_else(|| now + FAR)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 8 << 20,
            head: Duration::from_secs(10),
            body_idle: Duration::from_secs(30),
            connections: 1024,
            connections_per_ip: None,
            request: Duration::from_secs(3600),
            drain: Duration::from_secs(30),
            ping: Duration::from_secs(30),
        }
    }
}

/// A model that was opened to be served.
pub struct Opened {
    /// Its session.
    pub session: Session,
    /// Where draft tokens come from, if answers are drafted.
    pub drafters: Option<Box<dyn DrafterSource>>,
    /// Called with a decoder's session when it is unloaded.
    pub at_end: Option<AtEnd>,
}

/// What is done with a session at its end.
pub type AtEnd = Box<dyn FnOnce(&Session) + Send>;

/// Opens the files of a model, without the memory that it needs to run.
pub type Inspect = dyn Fn() -> Result<Model, Error> + Send + Sync;

/// Opens a model.
pub type Open = dyn Fn() -> Result<Opened, Error> + Send + Sync;

/// Lists the models of a folder; an error, which names the folder, if it cannot be read. A model has the same path and names
/// each time while its file is there, and no name of a model that is not of the folder.
pub type Rescan = dyn Fn() -> io::Result<Vec<Offer>> + Send + Sync;

/// A model that the server offers.
#[derive(Clone)]
pub struct Offer {
    /// Its names; the first is its id.
    pub names: Vec<String>,
    /// Its tags, for clients that sort models.
    pub tags: Vec<String>,
    /// The file, as shown in `/props`.
    pub path: String,
    /// The files that it is opened from: its shards, its adapters, its draft model.
    pub files: Vec<PathBuf>,
    /// Bytes of memory that it takes, for the budget of several models.
    pub bytes: u64,
    /// The chat template, in place of the model's own: a text, or the name of a known one.
    pub chat_template: Option<String>,
    /// Whether --pooling makes embeddings of it if it is a decoder.
    pub is_pooled: bool,
    /// Whether only the folder that [`Config::rescan`] lists has it, so that it is gone when its file is.
    pub is_of_folder: bool,
    /// Whether a server ends that begins with it and cannot load it.
    pub is_required: bool,
    /// Opens its files, before others are unloaded for it.
    pub inspect: Arc<Inspect>,
    /// Opens it.
    pub open: Arc<Open>,
}

/// Endpoints that are off unless asked for, and switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// `/metrics`.
    pub metrics: bool,
    /// `/slots`.
    pub slots: bool,
    /// The web page.
    pub page: bool,
    /// `__verbose` in every answer.
    pub verbose: bool,
    /// Cached prefixes are shared only among requests of one key.
    pub cache_per_key: bool,
    /// Answers go on when their context is full, without the earlier part of their text.
    pub context_shift: bool,
}

/// Configuration of a server.
#[derive(Clone)]
pub struct Config {
    /// Where it listens.
    pub addresses: Vec<Address>,
    /// What it serves, at least one model.
    pub models: Vec<Offer>,
    /// Lists the models of a folder again, when a client asks for that or for a model that is not known.
    pub rescan: Option<Arc<Rescan>>,
    /// Models that are loaded at once.
    pub models_max: usize,
    /// Bytes that loaded models may take together; the least recently used are unloaded.
    pub models_bytes: u64,
    /// Sampling and length where a request says nothing.
    pub defaults: Defaults,
    /// Slots, as llama-server counts them: running answers of a model.
    pub slots: usize,
    /// The folder in which slots are saved, if they may be.
    pub slot_folder: Option<PathBuf>,
    /// Limits of the queue and of steps.
    pub executor: ExecutorSettings,
    /// Limits of connections and bodies.
    pub limits: Limits,
    /// Keys given directly.
    pub keys: Vec<String>,
    /// A file of keys, a line each, read again on SIGHUP.
    pub key_file: Option<PathBuf>,
    /// Certificate chain and private key, PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Which origins may use it from a browser.
    pub origins: Origins,
    /// Endpoints and switches.
    pub switches: Switches,
    /// Variables of chat templates, such as `enable_thinking`.
    pub template_variables: serde_json::Map<String, serde_json::Value>,
    /// Whether reasoning is split from the content, unless a request says otherwise.
    pub splits_reasoning: bool,
    /// The build, such as `b0.1.0-1a2b3c4`.
    pub build: String,
}

impl Config {
    /// Whether requests need a key.
    pub fn needs_key(&self) -> bool {
        !self.keys.is_empty() || self.key_file.is_some()
    }

    /// The limits of a model's queue and steps. Without keys all requests are of one, which may then fill the queue.
    pub(crate) fn executor(&self) -> ExecutorSettings {
        match self.needs_key() {
            true => self.executor,
            false => ExecutorSettings { waiting_per_key: usize::MAX, ..self.executor },
        }
    }

    /// Whether only programs on this machine reach it.
    pub fn is_local(&self) -> bool {
        self.addresses.iter().all(|address| match address {
            Address::Tcp(address) => address.ip().is_loopback(),
            Address::Unix(_) => true,
        })
    }
}

#[cfg(test)]
impl Config {
    /// A server of these models that listens nowhere.
    pub(crate) fn of(models: Vec<Offer>) -> Config {
        Config {
            addresses: Vec::new(),
            models,
            rescan: None,
            models_max: 1,
            models_bytes: u64::MAX,
            defaults: Defaults::default(),
            slots: 1,
            slot_folder: None,
            executor: ExecutorSettings::default(),
            limits: Limits::default(),
            keys: Vec::new(),
            key_file: None,
            tls: None,
            origins: Origins::Closed,
            switches: Switches::default(),
            template_variables: serde_json::Map::new(),
            splits_reasoning: true,
            build: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_keys_may_fill_the_queue() {
        let executor = ExecutorSettings { waiting: 1000, ..ExecutorSettings::default() };
        let open = Config { executor, ..Config::of(Vec::new()) };
        let closed = Config { keys: vec!["a".to_owned()], ..open.clone() };
        let of_key = |config: &Config| config.executor().waiting_per_key;
        assert_eq!((of_key(&open), of_key(&closed)), (usize::MAX, executor.waiting_per_key));
    }

    #[test]
    fn a_request_may_take_any_time() {
        let limits = Limits { request: Duration::MAX, ..Limits::default() };
        assert!(limits.deadline() > Instant::now() + Duration::from_secs(10 * 365 * 24 * 3600));
    }
}
