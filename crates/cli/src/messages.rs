//! Messages on stderr: how many, and the file that also gets them.

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock};

use bilayer_server::log::LogFile;

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Errors and warnings.
    Quiet,
    /// Also placement, statistics and notes.
    Usual,
    /// Also memory per device and kernels.
    Verbose,
}

/// What is printed, and what also gets it.
struct Chosen {
    level: Level,
    log: Option<Mutex<LogFile>>,
}

static CHOSEN: OnceLock<Chosen> = OnceLock::new();

/// Chooses how much is printed, and the file that also gets the messages. The first choice counts.
pub fn choose(level: Level, log: Option<LogFile>) {
    let _ = CHOSEN.set(Chosen { level, log: log.map(Mutex::new) });
}

/// Whether messages of `level` are printed.
pub fn shows(level: Level) -> bool {
    level <= CHOSEN.get().map_or(Level::Usual, |chosen| chosen.level)
}

/// Writes a line to stderr if its level is printed, and to the log file; ignores a failure of stderr.
pub fn write(level: Level, line: &str) {
    if shows(level) {
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
    if let Some(log) = CHOSEN.get().and_then(|chosen| chosen.log.as_ref())
        && let Ok(mut log) = log.lock()
    {
        log.write(&format!("{line}\n"));
    }
}
