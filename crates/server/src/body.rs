//! Reads the body of a request within limits of size, time and memory, and parses it away from the connections.

use std::collections::HashMap;
use std::error::Error;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::body::{Frame, SizeHint};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::blocking;
use crate::config::Limits;
use crate::error::ApiError;

/// Bytes a second that a body must bring on average, beside one pause: a client that sends a byte now and then would
/// hold its connection for hours.
const RATE_MIN: f64 = 1024.0;

/// Bytes that all bodies may hold together, unless so many bodies of the largest size take more.
const HELD_BYTES: usize = 256 << 20;

/// Bodies of the largest size that may always be held together.
const HELD_BODIES: usize = 8;

/// Largest body that is parsed on a thread that serves connections.
const SMALL_BYTES: usize = 64 << 10;

/// Larger bodies that are parsed at a time.
const PARSED_MAX: usize = 2;

/// Whose connection brings a body.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub ip: IpAddr,
    /// Whether the address is of this machine or of a private network, so that it may be a proxy's.
    pub is_private: bool,
}

/// The bodies that are being received and parsed, and the limits of their memory.
pub struct Bodies {
    bytes_max: usize,
    held: Mutex<Held>,
    parsers: Arc<Semaphore>,
}

/// Bytes of bodies.
#[derive(Default)]
struct Held {
    all: usize,
    by_ip: HashMap<IpAddr, usize>,
}

/// There is no memory for more of a body.
#[derive(Debug, thiserror::Error)]
#[error("the bodies of requests hold as much memory as they may")]
struct NoMemory;

impl Bodies {
    /// No bodies yet.
    pub fn new(limits: &Limits) -> Bodies {
        Bodies {
            bytes_max: limits.body_bytes.saturating_mul(HELD_BODIES).max(HELD_BYTES),
            held: Mutex::default(),
            parsers: Arc::new(Semaphore::new(PARSED_MAX)),
        }
    }

    /// A body whose bytes count from when they arrive until it is dropped. Those of one address may be an eighth of all,
    /// of one that may be a proxy's all but an eighth.
    pub fn counted(self: &Arc<Bodies>, body: Body, peer: Option<Peer>) -> Body {
        Body::new(Counted { body, place: Place { bodies: self.clone(), peer, bytes: 0 } })
    }

    /// Reads a body, and parses it with `parse`: a large one on a thread of its own, since that takes long.
    ///
    /// # Errors
    /// Those of [`read`] and of `parse`.
    pub async fn parsed<T: Send + 'static>(
        &self,
        body: Body,
        limits: &Limits,
        parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let received = read(body, limits).await?;
        if received.bytes.len() <= SMALL_BYTES {
            return parse(&received.bytes);
        }
        let parser = self.parsers.clone().acquire_owned().await;
        let parser = parser.map_err(|_| ApiError::internal())?;
        let parse = move || {
            // Held until the end also if the client leaves meanwhile.
            let _parser = parser;
            let received = received;
            parse(&received.bytes)
        };
        blocking::run("parsing the body", parse).await?
    }

    fn take(&self, peer: Option<Peer>, bytes: usize) -> Result<(), NoMemory> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.all + bytes > self.bytes_max {
            return Err(NoMemory);
        }
        if let Some(Peer { ip, is_private }) = peer {
            let eighth = self.bytes_max / 8;
            let share = if is_private { self.bytes_max - eighth } else { eighth };
            let of_ip = held.by_ip.get(&ip).copied().unwrap_or(0) + bytes;
            if of_ip > share {
                return Err(NoMemory);
            }
            held.by_ip.insert(ip, of_ip);
        }
        held.all += bytes;
        Ok(())
    }
}

/// The memory of a body.
struct Place {
    bodies: Arc<Bodies>,
    peer: Option<Peer>,
    bytes: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.bodies.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.all -= self.bytes;
        if let Some(peer) = self.peer
            && let Some(of_ip) = held.by_ip.get_mut(&peer.ip)
        {
            *of_ip -= self.bytes;
            if *of_ip == 0 {
                held.by_ip.remove(&peer.ip);
            }
        }
    }
}

/// A body whose bytes are counted.
struct Counted {
    body: Body,
    place: Place,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let place = &mut self.place;
            if let Err(error) = place.bodies.take(place.peer, data.len()) {
                return Poll::Ready(Some(Err(error.into())));
            }
            place.bytes += data.len();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that has arrived.
struct Received {
    bytes: Vec<u8>,
    /// Counts the bytes.
    _body: Limited<Body>,
}

/// Reads a whole body.
///
/// # Errors
/// It is too large, pauses too long, is too slow, or cannot be read; there is no memory for it.
async fn read(body: Body, limits: &Limits) -> Result<Received, ApiError> {
    let began = Instant::now();
    let mut body = Limited::new(body, limits.body_bytes);
    let mut bytes = Vec::new();
    loop {
        let earned = Duration::from_secs_f64(bytes.len() as f64 / RATE_MIN);
        let due = limits.body_idle + (Instant::now() - began).min(earned);
        match timeout_at(began + due, body.frame()).await {
            Err(_) => {
                let mut error = ApiError::invalid("the body did not arrive in time");
                error.status = StatusCode::REQUEST_TIMEOUT;
                return Err(error);
            }
            Ok(None) => return Ok(Received { bytes, _body: body }),
            Ok(Some(Ok(frame))) => {
                frame.data_ref().iter().for_each(|data| bytes.extend_from_slice(data));
            }
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => {
                return Err(ApiError::too_large(limits.body_bytes));
            }
            Ok(Some(Err(error))) if is_no_memory(&*error) => {
                return Err(ApiError::unavailable(NoMemory.to_string()));
            }
            Ok(Some(Err(error))) => {
                return Err(ApiError::invalid(format!("the body cannot be read: {error}")));
            }
        }
    }
}

/// Whether an error, or what caused it, is that of memory.
fn is_no_memory(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source()).any(|error| error.is::<NoMemory>())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use tokio::time::sleep;

    use super::*;

    /// A body of `count` parts of `bytes` bytes, one each `pause`.
    fn paced(count: usize, bytes: usize, pause: Duration) -> Body {
        Body::from_stream(stream::unfold(count, move |left| async move {
            sleep(pause).await;
            (left > 0).then(|| (Ok::<_, Infallible>(vec![b'x'; bytes]), left - 1))
        }))
    }

    fn status(read: Result<Received, ApiError>) -> StatusCode {
        read.map(|_| ()).expect_err("it is refused").status
    }

    #[tokio::test]
    async fn slow_bodies_are_cut_off() {
        let limits = Limits { body_idle: Duration::from_millis(200), ..Limits::default() };
        let ms = Duration::from_millis;
        // As fast as it must be, for longer than a pause.
        let received = read(paced(8, 1024, ms(50)), &limits).await;
        assert_eq!(received.map(|received| received.bytes.len()).expect("it is fast"), 8 * 1024);
        for (count, pause) in [(1000, ms(20)), (2, ms(2000))] {
            let began = Instant::now();
            let read = read(paced(count, 1, pause), &limits).await;
            assert_eq!(status(read), StatusCode::REQUEST_TIMEOUT);
            assert!(began.elapsed() < ms(1500), "{count} bytes: {:?}", began.elapsed());
        }
        let small = Limits { body_bytes: 100, ..limits };
        let read = read(paced(2, 64, ms(1)), &small).await;
        assert_eq!(status(read), StatusCode::PAYLOAD_TOO_LARGE);
    }

    /// As of one connection of HTTP/2 with many streams.
    #[tokio::test]
    async fn bodies_together_have_a_limit_of_memory() {
        let limits = Limits::default();
        let bodies = Arc::new(Bodies { bytes_max: 800, ..Bodies::new(&limits) });
        let peer = |ip: [u8; 4], is_private| Some(Peer { ip: ip.into(), is_private });
        let read = async |bytes, peer| {
            read(bodies.counted(Body::from(vec![b'x'; bytes]), peer), &limits).await
        };
        let (public, private) = (peer([8, 8, 8, 8], false), peer([10, 0, 0, 1], true));
        let held = read(100, public).await.expect("an eighth of all");
        let error = read(1, public).await.map(|_| ()).expect_err("it has more than its share");
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(error.retry_after.is_some() && error.message.contains("memory"), "{error:?}");
        let proxy = read(700, private).await.expect("all but an eighth");
        assert_eq!(
            status(read(1, peer([9, 9, 9, 9], false)).await),
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert_eq!(status(read(1, None).await), StatusCode::SERVICE_UNAVAILABLE);
        drop(held);
        read(100, public).await.map(drop).expect("its bytes are free");
        drop(proxy);
        let held = bodies.held.lock().expect("no panic");
        assert!(held.all == 0 && held.by_ip.is_empty());
    }

    #[tokio::test]
    async fn large_bodies_are_parsed_beside_the_connections() {
        let limits = Limits::default();
        let bodies = Bodies::new(&limits);
        let here = std::thread::current().id();
        for (bytes, is_here) in [(SMALL_BYTES, true), (SMALL_BYTES + 1, false)] {
            let parse = move |given: &[u8]| Ok((given.len(), std::thread::current().id()));
            let body = Body::from(vec![b'x'; bytes]);
            let (len, thread) = bodies.parsed(body, &limits, parse).await.expect("it is parsed");
            assert_eq!((len, thread == here), (bytes, is_here));
        }
    }
}
