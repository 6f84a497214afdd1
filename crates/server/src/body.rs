//! Reads the body of a request within limits of size and time.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use tokio::time::{Instant, timeout_at};

use crate::config::Limits;
use crate::error::ApiError;

/// Bytes a second that a body must bring on average, beside one pause: a client that sends a byte now and then would
/// hold its connection for hours.
const RATE_MIN: f64 = 1024.0;

/// Reads a whole body.
///
/// # Errors
/// It is too large, pauses too long, is too slow, or cannot be read.
pub async fn read(body: Body, limits: &Limits) -> Result<Bytes, ApiError> {
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
            Ok(None) => return Ok(Bytes::from(bytes)),
            Ok(Some(Ok(frame))) => {
                frame.data_ref().iter().for_each(|data| bytes.extend_from_slice(data));
            }
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => {
                return Err(ApiError::too_large(limits.body_bytes));
            }
            Ok(Some(Err(error))) => {
                return Err(ApiError::invalid(format!("the body cannot be read: {error}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use axum::body::Body;
    use futures_util::stream;
    use hyper::StatusCode;
    use tokio::time::{Instant, sleep};

    use super::read;
    use crate::config::Limits;

    /// A body of `count` parts of `bytes` bytes, one each `pause`.
    fn paced(count: usize, bytes: usize, pause: Duration) -> Body {
        Body::from_stream(stream::unfold(count, move |left| async move {
            sleep(pause).await;
            (left > 0).then(|| (Ok::<_, Infallible>(vec![b'x'; bytes]), left - 1))
        }))
    }

    #[tokio::test]
    async fn slow_bodies_are_cut_off() {
        let limits = Limits { body_idle: Duration::from_millis(200), ..Limits::default() };
        let ms = Duration::from_millis;
        // As fast as it must be, for longer than a pause.
        let bytes = read(paced(8, 1024, ms(50)), &limits).await.expect("it is fast enough");
        assert_eq!(bytes.len(), 8 * 1024);
        for (count, pause) in [(1000, ms(20)), (2, ms(2000))] {
            let began = Instant::now();
            let error = read(paced(count, 1, pause), &limits).await.expect_err("it is too slow");
            assert_eq!(error.status, StatusCode::REQUEST_TIMEOUT);
            assert!(began.elapsed() < ms(1500), "{count} bytes: {:?}", began.elapsed());
        }
        let small = Limits { body_bytes: 100, ..limits };
        let error = read(paced(2, 64, ms(1)), &small).await.expect_err("it is too large");
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
    }
}
