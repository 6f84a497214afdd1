//! Ctrl-C: the first ends the answer, the second, or one before the answer begins, the process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::INTERRUPTED;

static SET: AtomicBool = AtomicBool::new(false);
static ANSWERING: AtomicBool = AtomicBool::new(false);

/// Takes the signal over.
pub fn catch() {
    let handler = || {
        if !ANSWERING.load(Ordering::Relaxed) || SET.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
    };
    // Where the system refuses, Ctrl-C keeps its usual meaning and ends the process at once.
    let _ = ctrlc::set_handler(handler);
}

/// From here on the first Ctrl-C ends only the answer.
pub fn answering() {
    ANSWERING.store(true, Ordering::Relaxed);
}

/// The answer has ended: the next Ctrl-C ends the process again. Says whether one had ended the answer.
pub fn answered() -> bool {
    ANSWERING.store(false, Ordering::Relaxed);
    SET.swap(false, Ordering::Relaxed)
}

/// Set by Ctrl-C.
pub fn flag() -> &'static AtomicBool {
    &SET
}

/// Whether the answer is to end.
pub fn is_set() -> bool {
    SET.load(Ordering::Relaxed)
}
