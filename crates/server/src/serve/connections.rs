//! Serves connections, counted, and answers those beyond the limits with an error 503.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::write_timeout::WriteTimeout;
use super::{Accepted, Stream};
use crate::app::App;
use crate::body::Peer;
use crate::config::Limits;
use crate::error::ApiError;

/// Connections of a public address, unless a limit is given.
const PUBLIC_MAX: usize = 64;

/// Refused connections that are answered at once; more are closed without an answer.
const ANSWERED_MAX: usize = 64;

/// Time for the answer to a refused connection.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// Most bytes that are read from a refused connection.
const DRAINED_BYTES: u64 = 64 << 10;

/// Time between two warnings of refused connections.
const WARNING_TIME: Duration = Duration::from_secs(60);

/// What connections share.
pub struct Connections {
    app: Arc<App>,
    router: Router,
    tls: Option<TlsAcceptor>,
    open: Arc<AtomicUsize>,
    by_ip: Arc<Mutex<HashMap<IpAddr, usize>>>,
    /// Refused connections that are being answered.
    answering: Arc<AtomicUsize>,
    warned: Mutex<Option<Instant>>,
}

/// Counts a connection while it is open.
struct Place {
    open: Arc<AtomicUsize>,
    by_ip: Arc<Mutex<HashMap<IpAddr, usize>>>,
    ip: Option<IpAddr>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        let mut by_ip = self.by_ip.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ip) = self.ip
            && let Some(count) = by_ip.get_mut(&ip)
        {
            *count -= 1;
            if *count == 0 {
                by_ip.remove(&ip);
            }
        }
    }
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// There are as many connections as may be open.
    All { limit: usize },
    /// Its address has as many.
    Address { ip: IpAddr, limit: usize },
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::All { limit } => {
                write!(f, "{limit} connections are open; --max-connections allows no more")
            }
            Refusal::Address { ip, limit } => write!(
                f,
                "{ip} has {limit} open connections; --max-connections-per-ip allows no more"
            ),
        }
    }
}

/// Whether an address is of this machine or of a private network, so that it may be a proxy's.
fn is_private(ip: IpAddr) -> bool {
    let is_private = |ip: Ipv4Addr| {
        // 100.64.0.0/10 is shared by the customers of a provider and by overlay networks (RFC 6598).
        let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
        ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_shared
    };
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_private(ip),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Connections that an address may have: of a private one, all but an eighth, which stays free for others.
fn limit_for(ip: IpAddr, limits: &Limits) -> usize {
    let all = limits.connections;
    let usual = if is_private(ip) { all - all / 8 } else { PUBLIC_MAX };
    limits.connections_per_ip.unwrap_or(usual)
}

impl Connections {
    /// No connections yet.
    pub fn new(app: Arc<App>, router: Router, tls: Option<TlsAcceptor>) -> Connections {
        let (open, by_ip, answering) = (Arc::default(), Arc::default(), Arc::default());
        Connections { app, router, tls, open, by_ip, answering, warned: Mutex::default() }
    }

    /// A place for a connection.
    fn place(&self, ip: Option<IpAddr>) -> Result<Place, Refusal> {
        let limits = &self.app.config.limits;
        let mut by_ip = self.by_ip.lock().unwrap_or_else(PoisonError::into_inner);
        if self.open.load(Ordering::Relaxed) >= limits.connections {
            return Err(Refusal::All { limit: limits.connections });
        }
        if let Some(ip) = ip {
            let (count, limit) = (by_ip.get(&ip).copied().unwrap_or(0), limit_for(ip, limits));
            if count >= limit {
                return Err(Refusal::Address { ip, limit });
            }
            by_ip.insert(ip, count + 1);
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(Place { open: self.open.clone(), by_ip: self.by_ip.clone(), ip })
    }

    /// Refuses a connection, with an answer unless many others are answered or it awaits TLS.
    fn refuse(&self, mut stream: Box<dyn Stream>, refusal: Refusal) {
        self.app.metrics.refused.increment(1);
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|warned| warned.elapsed() >= WARNING_TIME) {
            *warned = Some(Instant::now());
            self.app.metrics.warn(&format!("a connection is refused: {refusal}"));
        }
        drop(warned);
        // Connections are accepted one at a time, so that no other adds to the number meanwhile.
        if self.tls.is_some() || self.answering.load(Ordering::Relaxed) >= ANSWERED_MAX {
            return;
        }
        let answering = self.answering.clone();
        answering.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let answer = answer(refusal);
            let answer = async {
                stream.write_all(answer.as_bytes()).await?;
                stream.shutdown().await?;
                // Closing a socket with bytes that were not read would take the answer back.
                let mut rest = stream.take(DRAINED_BYTES);
                tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
            };
            // A client that left needs no answer.
            let _ = tokio::time::timeout(ANSWER_TIME, answer).await;
            answering.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Serves a connection in a task of its own, or refuses it.
    pub fn accept(&self, accepted: Accepted, graceful: &GracefulShutdown) {
        let Accepted { stream, ip } = accepted;
        let place = match self.place(ip) {
            Ok(place) => place,
            Err(refusal) => return self.refuse(stream, refusal),
        };
        let (router, tls) = (self.router.clone(), self.tls.clone());
        let (head, idle) = (self.app.config.limits.head, self.app.config.limits.body_idle);
        let stream = Box::new(WriteTimeout::new(stream, idle));
        let peer = ip.map(|ip| Peer { ip, is_private: is_private(ip) });
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            let _place = place;
            let stream: Box<dyn Stream> = match tls {
                None => stream,
                Some(tls) => match tokio::time::timeout(head, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Box::new(stream),
                    _ => return,
                },
            };
            let mut builder = auto::Builder::new(hyper_util::rt::TokioExecutor::new());
            // Clients exist that compare the names of headers as they are usually written.
            let http1 = &mut builder.http1();
            http1.timer(TokioTimer::new()).header_read_timeout(head).max_headers(100);
            http1.title_case_headers(true);
            let http2 = &mut builder.http2();
            http2.timer(TokioTimer::new()).max_concurrent_streams(64);
            http2.keep_alive_interval(head).keep_alive_timeout(idle);
            let has_asked = Arc::new(AtomicBool::new(false));
            let asks = has_asked.clone();
            let service = router.map_request(move |mut request: Request<Incoming>| {
                asks.store(true, Ordering::Relaxed);
                if let Some(peer) = peer {
                    request.extensions_mut().insert(peer);
                }
                request
            });
            let service = TowerToHyperService::new(service);
            let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
            let mut connection = pin!(watcher.watch(connection));
            // hyper's limit begins only when it knows the version of HTTP, and is none for HTTP/2.
            let ended = tokio::time::timeout(head, connection.as_mut()).await;
            if ended.is_err() && has_asked.load(Ordering::Relaxed) {
                // Its client sees how it ends.
                let _ = connection.await;
            }
        });
    }
}

/// An error 503 as an HTTP response.
fn answer(refusal: Refusal) -> String {
    let error = ApiError::unavailable(refusal.to_string());
    let (body, seconds) = (error.body().to_string(), error.retry_after.unwrap_or(1));
    let len = body.len();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: {len}\r\n\
         Retry-After: {seconds}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy's address, behind which are all users, may have most connections.
    #[test]
    fn no_address_has_all_connections() {
        let usual = Limits::default();
        let given = Limits { connections_per_ip: Some(7), ..usual.clone() };
        let most = |ip: &str, limits: &Limits| limit_for(ip.parse().expect("an address"), limits);
        let private = [
            "127.0.0.1",
            "10.1.2.3",
            "172.17.0.1",
            "192.168.0.9",
            "169.254.1.1",
            "100.64.0.1",
            "::1",
            "fd00::1",
            "fe80::1",
            "::ffff:10.0.0.1",
        ];
        let public = ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:db8::1", "::ffff:8.8.8.8"];
        let shared = usual.connections / 8 * 7;
        for ip in private {
            assert_eq!((most(ip, &usual), most(ip, &given)), (shared, 7), "{ip}");
        }
        for ip in public {
            assert_eq!((most(ip, &usual), most(ip, &given)), (PUBLIC_MAX, 7), "{ip}");
        }
    }
}
