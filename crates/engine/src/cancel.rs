//! A handle that cancels work from another thread, a signal handler, or a callback.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cancels the work that holds a clone of it. All clones share one state, which stays cancelled until
/// [`Cancel::reset`].
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A new handle, not cancelled.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Requests the work to stop as soon as possible: before the next token, or between two micro-batches of a
    /// prompt.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the work shall stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears the request. Returns whether it was set.
    pub fn reset(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}
