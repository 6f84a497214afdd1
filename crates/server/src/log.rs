//! Log lines on stderr or in a file: text, or one JSON object a line. Prompts and answers are never logged.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

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
static FILE: Mutex<Option<File>> = Mutex::new(None);

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
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    *FILE.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    Ok(())
}

fn write(line: &str) {
    let line = format!("{line}\n");
    let mut file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    // There is nowhere to report that the log cannot be written.
    let _ = match &mut *file {
        Some(file) => file.write_all(line.as_bytes()),
        None => std::io::stderr().lock().write_all(line.as_bytes()),
    };
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
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.len() == LOGGED_MAX {
        logged.clear();
    }
    logged.insert(message.to_owned())
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
