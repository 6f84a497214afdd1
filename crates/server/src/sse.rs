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
use tokio::time::{Instant, timeout_at};

use crate::error::ApiError;

/// Frames that wait for a slow client before the writer pauses.
const FRAMES: usize = 64;

/// Time that a client has, behind the deadline of an answer, to read what it was sent and why the answer ends.
const LAST_FRAME: Duration = Duration::from_secs(30);

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
    pub async fn data(&self, event: &Value) -> Result<(), Gone> {
        self.frame(data(event)).await
    }

    async fn frame(&self, text: String) -> Result<(), Gone> {
        self.frames.send(Bytes::from(text)).await.map_err(|_| Gone)
    }
}

/// The frame of an unnamed event.
pub fn data(event: &Value) -> String {
    format!("data: {event}\n\n")
}

/// The frame of an event that is named by its `type`.
pub fn named(event: &Value) -> String {
    format!("event: {}\n{}", event["type"].as_str().unwrap_or("message"), data(event))
}

/// The last frame of OpenAI's streams.
pub const DONE: &str = "data: [DONE]\n\n";

/// Where the chunks of an answer come from.
pub trait ChunkSource: Send + 'static {
    /// The chunks of the next event, perhaps none; `None` after the last.
    ///
    /// # Errors
    /// The answer failed.
    fn next(&mut self) -> impl Future<Output = Result<Option<Vec<Value>>, ApiError>> + Send;

    /// When the answer must have ended, also that to a client that does not read.
    fn deadline(&self) -> Instant;
}

/// How an API writes chunks, the end of a stream and an error as frames.
pub trait Wire: Send + 'static {
    /// The frames of a chunk.
    fn chunk(&mut self, chunk: &Value) -> Vec<String> {
        vec![data(chunk)]
    }

    /// The frames after the last chunk.
    fn end(&mut self) -> Vec<String>;

    /// The frame of an error, the last one of its stream.
    fn error(&mut self, error: &ApiError) -> String {
        data(&error.body())
    }
}

/// OpenAI's streams of chunks.
pub struct OpenAi;

impl Wire for OpenAi {
    fn end(&mut self) -> Vec<String> {
        vec![DONE.to_owned()]
    }
}

/// A response with the chunks of an answer.
pub fn stream(ping: Duration, source: impl ChunkSource, wire: impl Wire) -> Response {
    respond(ping, async move |events| write(&events, source, wire, LAST_FRAME).await)
}

/// Writes the chunks of an answer. Behind its deadline the last frame may take `last_frame`.
async fn write(
    events: &Events,
    mut source: impl ChunkSource,
    mut wire: impl Wire,
    last_frame: Duration,
) {
    loop {
        let (frames, is_last) = match source.next().await {
            Ok(Some(chunks)) => (chunks.iter().flat_map(|c| wire.chunk(c)).collect(), false),
            Ok(None) => (wire.end(), true),
            Err(error) => (vec![wire.error(&error)], true),
        };
        for frame in frames {
            match timeout_at(source.deadline(), events.frame(frame)).await {
                Ok(Ok(())) => {}
                Ok(Err(Gone)) => return,
                Err(_) => {
                    drop(source);
                    // A client that reads again in time learns why its answer ends here.
                    let error = events.frame(wire.error(&ApiError::late()));
                    let _ = tokio::time::timeout(last_frame, error).await;
                    return;
                }
            }
        }
        if is_last {
            return;
        }
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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::json;
    use tokio::sync::oneshot;

    use super::*;

    /// An answer without an end. The other end of the channel sees when it is dropped.
    struct Endless {
        deadline: Instant,
        _dropped: oneshot::Sender<()>,
    }

    impl ChunkSource for Endless {
        async fn next(&mut self) -> Result<Option<Vec<Value>>, ApiError> {
            Ok(Some(vec![json!({ "text": "a" })]))
        }

        fn deadline(&self) -> Instant {
            self.deadline
        }
    }

    #[tokio::test]
    async fn the_end_of_an_answer_does_not_wait_for_a_client_that_never_reads() {
        let (frames, _unread) = channel(FRAMES);
        let source = Endless { deadline: Instant::now(), _dropped: oneshot::channel().0 };
        let events = Events { frames };
        let written = write(&events, source, OpenAi, Duration::from_millis(20));
        tokio::time::timeout(Duration::from_secs(10), written).await.expect("the task ends");
    }

    #[tokio::test]
    async fn an_answer_to_a_client_that_does_not_read_ends_at_its_deadline() {
        let (_dropped, dropped) = oneshot::channel();
        let deadline = Instant::now() + Duration::from_millis(20);
        let source = Endless { deadline, _dropped };
        let response = stream(Duration::from_secs(60), source, OpenAi);
        assert!(dropped.await.is_err());
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(text.matches("data: ").count(), FRAMES + 1);
        assert!(text.ends_with("\n\n"));
        let last = text.trim_end().rsplit("data: ").next().unwrap();
        let error: Value = serde_json::from_str(last).unwrap();
        assert_eq!(error["error"]["code"], 503, "{error}");
    }
}
