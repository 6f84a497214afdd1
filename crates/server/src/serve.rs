//! Listens, accepts connections within limits, and stops without losing answers.
//!
//! The accept loop is ours because hyper enforces the time limit for a request's head only with a timer, and because
//! connections are counted (`serve/connections.rs`).

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hyper_util::server::graceful::GracefulShutdown;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::app::App;
use crate::config::{Address, Config};
use crate::endpoints::has_field;
use crate::log;
use crate::router::router;
use connections::Connections;

mod connections;
mod write_timeout;

/// Errors of starting a server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Certificate or key cannot be used.
    #[error("{path}: {problem}")]
    Tls {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// The key file is wrong.
    #[error("{0}")]
    Keys(String),
    /// The first model cannot be loaded.
    #[error("{message}")]
    Model {
        /// What is wrong.
        message: String,
        /// The engine's error.
        source: Option<Arc<bilayer_engine::Error>>,
    },
    /// The system refuses threads or sockets.
    #[error("the server cannot start: {0}")]
    System(#[from] io::Error),
}

/// What a caller is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It listens on these addresses, as URLs.
    Listening(Vec<String>),
    /// The first model is loaded or was skipped: requests are answered.
    Ready {
        /// Its placement in one line, if it is loaded.
        map: Option<String>,
    },
    /// It was told to stop and finishes running answers.
    Draining,
}

/// Tells a server to stop: finish running answers, accept no new ones.
#[derive(Clone, Debug)]
pub struct Stopper(watch::Sender<bool>);

impl Default for Stopper {
    fn default() -> Self {
        Stopper(watch::channel(false).0)
    }
}

impl Stopper {
    /// Stops the server. Called again it changes nothing.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    async fn stopped(&self) {
        let mut receiver = self.0.subscribe();
        // The sender lives in self.
        let _ = receiver.wait_for(|stopped| *stopped).await;
    }
}

/// Runs a server until it is told to stop, by `stopper` or a signal.
///
/// # Errors
/// An address, a key file, a certificate or the first model cannot be used.
pub fn run(config: Config, stopper: &Stopper, tell: impl FnMut(Notice)) -> Result<(), Error> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(serve(config, stopper, tell));
    runtime.shutdown_timeout(Duration::from_secs(5));
    result
}

async fn serve(
    config: Config,
    stopper: &Stopper,
    mut tell: impl FnMut(Notice),
) -> Result<(), Error> {
    let tls = config.tls.as_ref().map(|(chain, key)| acceptor(chain, key)).transpose()?;
    let app = Arc::new(App::new(config, has_field).map_err(Error::Keys)?);
    let mut urls = Vec::new();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let (sender, mut streams) = mpsc::channel(64);
    for address in &app.config.addresses {
        urls.push(listen(address, scheme, sender.clone()).await?);
    }
    drop(sender);
    let mut signals = Signals::new()?;
    tell(Notice::Listening(urls.clone()));
    let loading = app.clone();
    let mut load = tokio::spawn(async move { loading.models.load_first().await });
    let shared = Connections::new(app.clone(), router(app.clone()), tls);
    let graceful = GracefulShutdown::new();
    let mut is_loaded = false;
    loop {
        tokio::select! {
            Some(stream) = streams.recv() => shared.accept(stream, &graceful),
            loaded = &mut load, if !is_loaded => {
                is_loaded = true;
                let panicked = |_| Error::Model {
                    message: "loading the model panicked".to_owned(),
                    source: None,
                };
                let loaded = loaded.map_err(panicked)?.map_err(|error| Error::Model {
                    message: error.message,
                    source: error.source,
                })?;
                app.is_ready.store(true, Ordering::Relaxed);
                tell(Notice::Ready { map: loaded.map(|loaded| loaded.map.clone()) });
            }
            signal = signals.next() => {
                if signal == Signal::Stop {
                    break;
                }
                let config = &app.config;
                match app.keys.reload(&config.keys, config.key_file.as_deref()) {
                    Ok(()) => log::warning("keys were read again"),
                    Err(problem) => log::warning(&format!("the old keys stay: {problem}")),
                }
            }
            () = stopper.stopped() => break,
        }
    }
    tell(Notice::Draining);
    app.is_draining.store(true, Ordering::Relaxed);
    drop(streams);
    for address in &app.config.addresses {
        if let Address::Unix(path) = address {
            // Left behind, it would only say that nobody listens.
            let _ = std::fs::remove_file(path);
        }
    }
    end(&app, graceful, &mut signals).await;
    Ok(())
}

/// Time that models get to end when the server stops, if less is left of the drain time.
const LAST_STEPS: Duration = Duration::from_secs(5);

/// Time that connections get to say that their answers were ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Waits for running answers and then for the models, within the drain time or until a signal.
async fn end(app: &App, graceful: GracefulShutdown, signals: &mut Signals) {
    let began = Instant::now();
    let mut closed = pin!(graceful.shutdown());
    let mut is_closed = false;
    tokio::select! {
        () = &mut closed => is_closed = true,
        () = tokio::time::sleep(app.config.limits.drain) => {
            log::warning("answers that still ran were ended");
        }
        // A second signal means now.
        () = signals.stop() => {}
    }
    let left = app.config.limits.drain.saturating_sub(began.elapsed());
    tokio::select! {
        () = app.models.end() => {}
        () = tokio::time::sleep(left.max(LAST_STEPS)) => {
            log::warning("a model did not end in time");
        }
        () = signals.stop() => {}
    }
    if !is_closed {
        // A client that does not read keeps its connection.
        tokio::select! {
            () = closed => {}
            () = tokio::time::sleep(LAST_WORDS) => {}
            () = signals.stop() => {}
        }
    }
}

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    Stop,
    #[cfg_attr(not(unix), expect(dead_code, reason = "only Unix has SIGHUP"))]
    Reload,
}

/// Signals of the system.
#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }

    async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }
}

/// Signals of the system.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals)
    }

    async fn next(&mut self) -> Signal {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        Signal::Stop
    }

    async fn stop(&mut self) {
        self.next().await;
    }
}

/// An accepted stream, and whose it is.
struct Accepted {
    stream: Box<dyn Stream>,
    ip: Option<IpAddr>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Starts to listen; returns the URL.
async fn listen(
    address: &Address,
    scheme: &'static str,
    streams: mpsc::Sender<Accepted>,
) -> Result<String, Error> {
    match address {
        Address::Tcp(address) => {
            let failed = |source| Error::Listen { address: address.to_string(), source };
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let local = listener.local_addr().map_err(failed)?;
            tokio::spawn(async move {
                loop {
                    match listener.accept().await {
                        Ok((stream, peer)) => {
                            // Tokens are small and shall leave at once.
                            let _ = stream.set_nodelay(true);
                            let stream = Box::new(stream);
                            let accepted = Accepted { stream, ip: Some(peer.ip()) };
                            if streams.send(accepted).await.is_err() {
                                return;
                            }
                        }
                        // Out of descriptors: connections that end give some back.
                        Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                    }
                    if streams.is_closed() {
                        return;
                    }
                }
            });
            Ok(format!("{scheme}://{local}"))
        }
        Address::Unix(path) => listen_unix(path, streams),
    }
}

#[cfg(unix)]
fn listen_unix(path: &Path, streams: mpsc::Sender<Accepted>) -> Result<String, Error> {
    let failed = |source| Error::Listen { address: path.display().to_string(), source };
    // A socket that nobody listens on is left over from a process that was killed.
    if std::os::unix::net::UnixStream::connect(path).is_err()
        && std::fs::symlink_metadata(path).is_ok_and(|found| {
            use std::os::unix::fs::FileTypeExt;
            found.file_type().is_socket()
        })
    {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = tokio::net::UnixListener::bind(path).map_err(failed)?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let accepted = Accepted { stream: Box::new(stream), ip: None };
                    if streams.send(accepted).await.is_err() {
                        return;
                    }
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    });
    Ok(format!("unix:{}", path.display()))
}

#[cfg(not(unix))]
fn listen_unix(path: &Path, _: mpsc::Sender<Accepted>) -> Result<String, Error> {
    let source = io::Error::from(io::ErrorKind::Unsupported);
    Err(Error::Listen { address: path.display().to_string(), source })
}

/// Reads a certificate chain and a private key.
fn acceptor(chain: &Path, key: &Path) -> Result<TlsAcceptor, Error> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |problem: String| Error::Tls { path, problem }
    };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect)
        .map_err(|error| failed(chain)(format!("no certificates can be read: {error}")))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| failed(key)(format!("no private key can be read: {error}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(chain)(error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|error| failed(chain)(error.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Where a `--host` points: an address, a name, or a Unix socket if it ends in `.sock`.
///
/// # Errors
/// It is neither.
pub fn addresses(hosts: &str, port: u16) -> Result<Vec<Address>, String> {
    use std::net::ToSocketAddrs;
    let one = |host: &str| {
        if host.ends_with(".sock") {
            return Ok(Address::Unix(PathBuf::from(host)));
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let mut found =
            (bare, port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
        found.next().map(Address::Tcp).ok_or_else(|| format!("{host} has no address"))
    };
    hosts.split(',').map(str::trim).filter(|host| !host.is_empty()).map(one).collect()
}
