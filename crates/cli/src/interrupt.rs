//! Ctrl-C: the first one ends the answer, the second one, or one before the answer begins, ends the process.
//! Termination requests are handled likewise and restore the terminal.

#[cfg(unix)]
use std::io::{self, IsTerminal};
use std::sync::LazyLock;
#[cfg(unix)]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(unix)]
use rustix::termios::{self, OptionalActions, Termios};

use bilayer_engine::Cancel;

use crate::failure::INTERRUPTED;
#[cfg(unix)]
use crate::output;

static ANSWER: LazyLock<Cancel> = LazyLock::new(Cancel::new);
static ANSWERING: AtomicBool = AtomicBool::new(false);

/// The terminal's original settings, which line editing changes.
#[cfg(unix)]
static TERMINAL: Mutex<Option<Termios>> = Mutex::new(None);

/// Installs the signal handler.
pub fn catch() {
    let handler = || {
        if !ANSWERING.load(Ordering::Relaxed) || ANSWER.is_cancelled() {
            restore_terminal();
            std::process::exit(i32::from(INTERRUPTED));
        }
        ANSWER.cancel();
    };
    // If installation fails, Ctrl-C ends the process at once as usual.
    let _ = ctrlc::set_handler(handler);
}

/// Saves the terminal's settings, to be restored if the process ends during line editing. Call before the first line.
pub fn keep_terminal() {
    #[cfg(unix)]
    if let (Ok(settings), Ok(mut kept)) = (termios::tcgetattr(io::stdin()), TERMINAL.lock()) {
        *kept = Some(settings);
    }
}

/// Also ends the current line.
fn restore_terminal() {
    #[cfg(unix)]
    if let Ok(kept) = TERMINAL.lock()
        && let Some(settings) = &*kept
    {
        // A closed terminal needs nothing.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, settings);
        // Disables bracketed paste.
        let end = if io::stdout().is_terminal() { "\x1b[?2004l\n" } else { "\n" };
        let _ = output::text(end);
    }
}

/// From now on the first Ctrl-C only ends the answer.
pub fn answering() {
    ANSWERING.store(true, Ordering::Relaxed);
}

/// The answer has ended: the next Ctrl-C ends the process again. Returns whether one had ended the answer.
pub fn answered() -> bool {
    ANSWERING.store(false, Ordering::Relaxed);
    ANSWER.reset()
}

/// Cancelled by Ctrl-C.
pub fn handle() -> &'static Cancel {
    &ANSWER
}

/// Whether the answer shall end.
pub fn is_set() -> bool {
    ANSWER.is_cancelled()
}
