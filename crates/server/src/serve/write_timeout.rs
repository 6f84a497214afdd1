//! A stream whose writes fail if the other side does not read for too long: otherwise a client that stops reading keeps its
//! connection, and what waits to be sent, for as long as it likes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::Stream;

/// A stream with a limit on the time of a write.
pub struct WriteTimeout {
    stream: Box<dyn Stream>,
    limit: Duration,
    /// Ends when the pending write has taken too long.
    due: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    /// A stream of which a write may be pending for so long.
    pub fn new(stream: Box<dyn Stream>, limit: Duration) -> WriteTimeout {
        WriteTimeout { stream, limit, due: None }
    }

    /// What became of a write, an error if it is pending for too long.
    fn limited<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.due = None;
            return written;
        }
        let due = self.due.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        ready!(due.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limited(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.limited(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.limited(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.limited(cx, ended)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_connection_whose_client_does_not_read_ends() {
        let limit = Duration::from_millis(200);
        let (ours, mut client) = duplex(16);
        let mut stream = WriteTimeout::new(Box::new(ours), limit);
        // Longer than the limit in all, with no pause as long.
        let reading = tokio::spawn(async move {
            let mut bytes = [0; 16];
            for _ in 0..8 {
                tokio::time::sleep(limit / 5).await;
                client.read_exact(&mut bytes).await.expect("bytes");
            }
            client
        });
        stream.write_all(&[0; 128]).await.expect("the client reads");
        let _client = reading.await.expect("no panic");
        let written = tokio::time::timeout(10 * limit, stream.write_all(&[0; 128])).await;
        let error = written.expect("the write ends").expect_err("the client does not read");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
