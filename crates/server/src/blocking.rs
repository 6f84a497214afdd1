//! Work that takes long, such as tokenizing, away from the threads that serve connections.

use crate::error::ApiError;

/// Runs `work` on a thread of its own. `doing` names it in the error if it panics.
///
/// # Errors
/// It panicked.
pub async fn run<T: Send + 'static>(
    doing: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ApiError::server(format!("{doing} panicked")))
}
