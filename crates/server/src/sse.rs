//! Server-sent events: frames, pings on silence, and errors in mid-stream.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::Stream;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Frames that wait for a slow client before the writer pauses.
const FRAMES: usize = 64;

/// The writing end of a stream. Writing fails once the client has left.
pub struct Events {
    frames: Sender<Bytes>,
}

/// The client has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl Events {
    /// Sends an unnamed event.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn data(&self, data: &Value) -> Result<(), Gone> {
        self.frame(format!("data: {data}\n\n")).await
    }

    /// Sends a named event.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn named(&self, name: &str, data: &Value) -> Result<(), Gone> {
        self.frame(format!("event: {name}\ndata: {data}\n\n")).await
    }

    /// Ends a stream as OpenAI does.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn done(&self) -> Result<(), Gone> {
        self.frame("data: [DONE]\n\n".to_owned()).await
    }

    async fn frame(&self, text: String) -> Result<(), Gone> {
        self.frames.send(Bytes::from(text)).await.map_err(|_| Gone)
    }
}

/// A response whose events are written by `write`, in a task of its own that ends when the client leaves.
pub fn respond<F>(ping: Duration, write: impl FnOnce(Events) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (frames, receiver) = channel(FRAMES);
    let gone = frames.clone();
    let written = write(Events { frames });
    tokio::spawn(async move {
        tokio::select! {
            () = written => {}
            () = gone.closed() => {}
        }
    });
    let mut response = Response::new(Body::from_stream(frames_of(receiver, ping)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The frames, with a comment after each silence of `ping`.
fn frames_of(
    receiver: Receiver<Bytes>,
    ping: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures_util::stream::unfold(receiver, move |mut receiver| async move {
        match tokio::time::timeout(ping, receiver.recv()).await {
            Ok(Some(frame)) => Some((Ok(frame), receiver)),
            Ok(None) => None,
            Err(_) => Some((Ok(Bytes::from_static(b":\n\n")), receiver)),
        }
    })
}
