//! A handle that ends work from elsewhere: another thread, a signal handler, a callback.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the work that was given a clone of it. All clones share one state; it stays cancelled until [`Cancel::reset`].
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A handle of its own, not cancelled.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Asks the work to end as soon as it can: before the next token, or between two micro-batches of a prompt.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the work is to end.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Lets work begin again. Returns whether it was cancelled.
    pub fn reset(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}
