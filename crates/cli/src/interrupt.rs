//! Ctrl-C: the first ends the answer, the second, or one before the answer begins, the process. A request to terminate
//! is taken likewise, and leaves the terminal as it was.

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

/// How the terminal was set: while a line is typed it is set otherwise.
#[cfg(unix)]
static TERMINAL: Mutex<Option<Termios>> = Mutex::new(None);

/// Takes the signal over.
pub fn catch() {
    let handler = || {
        if !ANSWERING.load(Ordering::Relaxed) || ANSWER.is_cancelled() {
            restore_terminal();
            std::process::exit(i32::from(INTERRUPTED));
        }
        ANSWER.cancel();
    };
    // Where the system refuses, Ctrl-C keeps its usual meaning and ends the process at once.
    let _ = ctrlc::set_handler(handler);
}

/// Keeps how the terminal is set, for whatever ends the process while a line is typed. Before the first line.
pub fn keep_terminal() {
    #[cfg(unix)]
    if let (Ok(settings), Ok(mut kept)) = (termios::tcgetattr(io::stdin()), TERMINAL.lock()) {
        *kept = Some(settings);
    }
}

/// Also leaves the line that was begun.
fn restore_terminal() {
    #[cfg(unix)]
    if let Ok(kept) = TERMINAL.lock()
        && let Some(settings) = &*kept
    {
        // A terminal that is gone needs nothing.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, settings);
        // What is pasted is no longer marked as such.
        let end = if io::stdout().is_terminal() { "\x1b[?2004l\n" } else { "\n" };
        let _ = output::text(end);
    }
}

/// From here on the first Ctrl-C ends only the answer.
pub fn answering() {
    ANSWERING.store(true, Ordering::Relaxed);
}

/// The answer has ended: the next Ctrl-C ends the process again. Says whether one had ended the answer.
pub fn answered() -> bool {
    ANSWERING.store(false, Ordering::Relaxed);
    ANSWER.reset()
}

/// Cancelled by Ctrl-C.
pub fn handle() -> &'static Cancel {
    &ANSWER
}

/// Whether the answer is to end.
pub fn is_set() -> bool {
    ANSWER.is_cancelled()
}
