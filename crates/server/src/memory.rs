//! How many models are in memory, with those that are unloaded but still answer.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bilayer_engine::return_free_memory;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Counts the models in memory against the limits.
pub struct Memory {
    models_max: usize,
    bytes_max: u64,
    /// Models and their bytes.
    held: Mutex<(usize, u64)>,
    freed: Notify,
}

/// The place of a model. Its thread drops it after all that the model has.
pub struct Place {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Memory {
    /// No model is in memory; so many may be, of so many bytes, and one in any case.
    pub fn new(models_max: usize, bytes_max: u64) -> Memory {
        Memory { models_max, bytes_max, held: Mutex::default(), freed: Notify::new() }
    }

    /// Whether a model of so many bytes fits beside others, given as their number and bytes.
    pub fn fits(&self, (count, held): (usize, u64), bytes: u64) -> bool {
        count == 0 || (count < self.models_max && held.saturating_add(bytes) <= self.bytes_max)
    }

    /// A place for a model, once it fits; `None` if it does not until the deadline.
    pub async fn place(self: &Arc<Memory>, bytes: u64, deadline: Instant) -> Option<Place> {
        loop {
            let mut freed = pin!(self.freed.notified());
            // What is freed from here on is noticed.
            freed.as_mut().enable();
            if let Some(place) = self.take(bytes) {
                return Some(place);
            }
            timeout_at(deadline, freed).await.ok()?;
        }
    }

    /// Waits until the models of these places have left memory.
    pub async fn left(&self, places: &[Weak<Place>]) {
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if places.iter().all(|place| place.strong_count() == 0) {
                return;
            }
            freed.await;
        }
    }

    fn take(self: &Arc<Memory>, bytes: u64) -> Option<Place> {
        let mut held = self.held();
        self.fits(*held, bytes).then(|| {
            held.0 += 1;
            held.1 += bytes;
            Place { memory: self.clone(), bytes }
        })
    }

    fn held(&self) -> MutexGuard<'_, (usize, u64)> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The next model is loaded on another thread, whose allocations do not reuse what this one's thread freed.
        return_free_memory();
        let mut held = self.memory.held();
        held.0 -= 1;
        held.1 -= self.bytes;
        drop(held);
        self.memory.freed.notify_waiters();
    }
}
