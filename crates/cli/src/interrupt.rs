//! Ctrl-C: the first one ends the answer, the second one, or one while nothing is answered, ends the process.
//! SIGTERM and SIGHUP end the answer and then the process, with their own exit codes, and restore the terminal.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
#[cfg(unix)]
use std::sync::mpsc;
use std::sync::{LazyLock, Once};

#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};

use bilayer_engine::Cancel;

use crate::failure::INTERRUPTED;
use crate::{output, terminal};

/// After SIGTERM.
#[cfg(unix)]
const TERMINATED: u8 = 143;
/// After SIGHUP.
#[cfg(unix)]
const HUNG_UP: u8 = 129;

/// SIGXFSZ: a file grows beyond the process's limit.
#[cfg(unix)]
const FILE_SIZE: i32 = 25;

static ANSWER: LazyLock<Cancel> = LazyLock::new(Cancel::new);
static ANSWERING: AtomicBool = AtomicBool::new(false);

/// Whether signals are another listener's.
static RELEASED: AtomicBool = AtomicBool::new(false);

/// The exit code of the last signal.
static CODE: AtomicU8 = AtomicU8::new(INTERRUPTED);

/// Installs the signal handler, once.
pub fn catch() {
    static INSTALLED: Once = Once::new();
    // If installation fails, signals end the process at once as usual.
    INSTALLED.call_once(listen);
}

#[cfg(unix)]
fn listen() {
    let (ready, is_ready) = mpsc::channel();
    let listen = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async move {
            let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
            let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hang_up)] = kinds.map(signal) else {
                return;
            };
            // A file beyond the limit of `ulimit -f` is an error of its writer then, not the end of the process.
            let _ = signal(SignalKind::from_raw(FILE_SIZE));
            // The receiver waits.
            let _ = ready.send(());
            loop {
                caught(tokio::select! {
                    _ = interrupt.recv() => INTERRUPTED,
                    _ = terminate.recv() => TERMINATED,
                    _ = hang_up.recv() => HUNG_UP,
                });
            }
        });
    };
    if std::thread::Builder::new().name("signals".to_owned()).spawn(listen).is_ok() {
        // The sender is dropped if the thread fails.
        let _ = is_ready.recv();
    }
}

#[cfg(not(unix))]
fn listen() {
    let _ = ctrlc::set_handler(|| caught(INTERRUPTED));
}

/// Leaves signals to the server, which listens for them itself: tokio tells every listener of a signal.
pub fn release() {
    RELEASED.store(true, Ordering::Relaxed);
}

/// Ends the answer, or the process with `code`.
fn caught(code: u8) {
    if RELEASED.load(Ordering::Relaxed) {
        return;
    }
    CODE.store(code, Ordering::Relaxed);
    if !ANSWERING.load(Ordering::Relaxed) || ANSWER.is_cancelled() {
        leave();
    }
    ANSWER.cancel();
}

fn leave() -> ! {
    if terminal::is_kept() {
        terminal::restore();
        // The line that is being edited ends.
        let _ = output::text("\n");
    }
    std::process::exit(i32::from(code()));
}

/// The exit code of an interrupted command: that of the signal, 128 and its number.
pub fn code() -> u8 {
    CODE.load(Ordering::Relaxed)
}

/// From now on the first Ctrl-C only ends the answer.
pub fn answering() {
    ANSWERING.store(true, Ordering::Relaxed);
}

/// Begins work that the first Ctrl-C ends, as [`flow`] tells.
pub fn begin() {
    catch();
    answering();
}

/// Whether the work goes on.
pub fn flow() -> ControlFlow<()> {
    if is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// The answer has ended: the next Ctrl-C ends the process again. Returns whether one had ended the answer.
pub fn answered() -> bool {
    ANSWERING.store(false, Ordering::Relaxed);
    if ANSWER.is_cancelled() && code() != INTERRUPTED {
        // Other than Ctrl-C, a request to terminate is not about the answer alone.
        leave();
    }
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
