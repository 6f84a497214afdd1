//! Log lines on stderr or in a file: text, or one JSON object a line. Prompts and answers are never logged.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use serde_json::{Map, Value, json};

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Warnings alone.
    Quiet,
    /// Warnings and a line for each request.
    Text,
    /// Warnings and requests as JSON objects, one a line.
    Json,
}

static LOG: AtomicU8 = AtomicU8::new(0);

/// Where log lines go, if not to stderr.
static FILE: Mutex<Option<LogFile>> = Mutex::new(None);

/// The file of a log.
pub struct LogFile {
    file: File,
    path: PathBuf,
    /// Whether it was said that a line was lost.
    has_failed: bool,
}

impl LogFile {
    /// Opens a file, to whose end lines are added.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> std::io::Result<LogFile> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(LogFile { file, path: path.to_owned(), has_failed: false })
    }

    /// Writes a line with its end. The first one that is lost is reported on stderr.
    pub fn write(&mut self, line: &str) {
        let Err(error) = self.file.write_all(line.as_bytes()) else { return };
        if !std::mem::replace(&mut self.has_failed, true) {
            let path = self.path.display().to_string();
            let warning =
                format!("lines are missing in the log: {path} cannot be written: {error}");
            to_stderr(&format!("bilayer: warning: {}\n", printable(&warning)));
        }
    }
}

/// There is nowhere to report that stderr cannot be written.
fn to_stderr(line: &str) {
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Sets what is logged, for the whole process.
pub fn set(log: Log) {
    LOG.store(log as u8, Ordering::Relaxed);
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
}

/// Appends to a file from now on, instead of writing to stderr.
///
/// # Errors
/// The file cannot be opened.
pub fn open(path: &Path) -> std::io::Result<()> {
    let file = LogFile::open(path)?;
    *FILE.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    Ok(())
}

/// A line without control characters, some of which end it or move a terminal's cursor: they are written as in JSON.
fn printable(line: &str) -> Cow<'_, str> {
    if !line.contains(char::is_control) {
        return line.into();
    }
    let shown = line.chars().map(|c| match c.is_control() {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    });
    shown.collect()
}

fn write(line: &str) {
    let line = format!("{}\n", printable(line));
    let mut file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *file {
        Some(file) => file.write(&line),
        None => to_stderr(&line),
    }
}

/// A warning.
pub fn warning(message: &str) {
    if LOG.load(Ordering::Relaxed) == Log::Json as u8 {
        write(&json!({ "time": now(), "level": "warning", "message": message }).to_string());
    } else {
        write(&format!("bilayer: warning: {message}"));
    }
}

/// Most messages that are known to have been logged.
const LOGGED_MAX: usize = 1000;

/// Whether a message was not asked for before: clients send the same tools with every request, and models are loaded again.
pub fn is_new(message: &str) -> bool {
    static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static LOGGED: LazyLock<Mutex<HashSet<u64>>> = LazyLock::new(Mutex::default);
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.len() == LOGGED_MAX {
        logged.clear();
    }
    logged.insert(HASHES.hash_one(message))
}

/// A finished HTTP request.
pub fn request(fields: Map<String, Value>) {
    match LOG.load(Ordering::Relaxed) {
        log if log == Log::Json as u8 => {
            let mut line = Map::from_iter([
                ("time".to_owned(), json!(now())),
                ("level".to_owned(), json!("info")),
            ]);
            line.extend(fields);
            write(&Value::Object(line).to_string());
        }
        log if log == Log::Text as u8 => {
            let fields = fields.iter().map(|(name, value)| format!("{name}={value}"));
            write(&format!("{} {}", now(), fields.collect::<Vec<_>>().join(" ")));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{is_new, printable};

    #[test]
    fn no_text_makes_a_line_of_its_own_or_reaches_the_terminal() {
        let found = printable("a\nbilayer: warning: \u{1b}[31mé\r\u{9b}2J\t");
        assert_eq!(found, r"a\u000abilayer: warning: \u001b[31mé\u000d\u009b2J\u0009");
        assert_eq!(printable("é \\n"), "é \\n");
    }

    #[test]
    fn messages_are_new_once() {
        assert!(is_new("a message of this test") && !is_new("a message of this test"));
    }
}
