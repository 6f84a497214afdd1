//! Turns of saving and restoring slots, of which each has a whole sequence in memory.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant as Deadline, timeout_at};

use crate::error::ApiError;

/// Saves and restores that run at once, of all models.
const RUNNING: usize = 1;

/// Saves and restores that wait.
const WAITING: usize = 32;

/// Limits the memory of saves and restores.
pub struct SlotFiles {
    /// Of those that run or wait.
    places: Arc<Semaphore>,
    /// Of those that run.
    running: Arc<Semaphore>,
}

/// The right to save or restore a slot.
pub struct Permit {
    _running: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

impl Default for SlotFiles {
    fn default() -> SlotFiles {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        SlotFiles { places: semaphore(RUNNING + WAITING), running: semaphore(RUNNING) }
    }
}

impl SlotFiles {
    /// Waits for a turn.
    ///
    /// # Errors
    /// Too many wait; none ends before the deadline.
    pub async fn turn(&self, deadline: Deadline) -> Result<Permit, ApiError> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            ApiError::unavailable(format!("{WAITING} saves and restores of slots are waiting"))
        })?;
        let running = timeout_at(deadline, self.running.clone().acquire_owned()).await;
        let running = running.ok().and_then(Result::ok).ok_or_else(ApiError::late)?;
        Ok(Permit { _running: running, _place: place })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn saves_and_restores_take_turns_and_few_wait() {
        let files = SlotFiles::default();
        let soon = || Deadline::now() + Duration::from_millis(5);
        let far = Deadline::now() + Duration::from_secs(60);
        let first = files.turn(far).await.ok();
        assert!(first.is_some());
        let late = files.turn(soon()).await.err().expect("the first runs");
        assert!(late.message.contains("--timeout"), "{late:?}");
        let mut waiting: Vec<_> = (0..WAITING).map(|_| Box::pin(files.turn(far))).collect();
        for turn in &mut waiting {
            assert!(timeout_at(soon(), turn).await.is_err(), "it waits");
        }
        let refused = files.turn(far).await.err().expect("too many wait");
        assert_eq!((refused.status.as_u16(), refused.retry_after), (503, Some(1)));
        // A client that leaves gives up its place.
        waiting.pop();
        assert!(timeout_at(soon(), files.turn(far)).await.is_err(), "it waits");
        drop(first);
        assert!(waiting.remove(0).await.is_ok());
    }
}
