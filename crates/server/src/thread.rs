//! The end of a thread that owns a model's session, in an order on which requests rely.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bilayer_engine::Error;
use bilayer_gguf::Error as FileError;

use crate::memory::Place;
use crate::metrics::Metrics;

/// Whether the file of a thread's model has changed: then all its requests fail until the model is loaded again.
#[derive(Clone, Debug, Default)]
pub struct FileChanged(Arc<AtomicBool>);

impl FileChanged {
    /// Whether it has.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Looks at the error of a request, before that is told, so that the requests that follow load the model again. The first
    /// one that says that the file has changed is a warning.
    pub fn note(&self, error: &Error, metrics: &Metrics) {
        let Some(file) = changed_file(error) else { return };
        if !self.0.swap(true, Ordering::SeqCst) {
            metrics.warn(&format!(
                "{file} was changed or truncated while in use, or its disk failed: the next request loads the model again, \
                 with the LoRA strengths of the start; --no-mmap allows files to be rewritten while in use"
            ));
        }
    }
}

/// The file that has changed or can no longer be read, if that is the error.
fn changed_file(error: &Error) -> Option<&str> {
    match error {
        Error::File(FileError::Lost { file, .. } | FileError::Changed { file, .. }) => Some(file),
        Error::Fallback { source, .. } => changed_file(source),
        _ => None,
    }
}

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
