//! The end of a thread that owns a model's session, in an order on which requests rely.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::memory::Place;

/// Starts a thread that runs `serving`; if that panics, `fail` answers the requests that are left. The thread holds `place`
/// until the memory of `serving` is free. Returns whether the thread has ended, which is set before its requests fail, so
/// that those that follow load the model again.
///
/// # Errors
/// The system refuses a thread.
pub fn start<S: Send + 'static>(
    name: &str,
    mut serving: S,
    place: Arc<Place>,
    run: impl FnOnce(&mut S) + Send + 'static,
    fail: fn(&mut S),
) -> io::Result<Arc<AtomicBool>> {
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = has_ended.clone();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let served = panic::catch_unwind(AssertUnwindSafe(|| run(&mut serving)));
        ended.store(true, Ordering::SeqCst);
        if served.is_err() {
            fail(&mut serving);
        }
        drop(serving);
        drop(place);
    })?;
    Ok(has_ended)
}
