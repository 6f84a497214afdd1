//! Log lines on stderr: text, or one JSON object a line. Prompts and answers are never logged.

use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};

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

/// Sets what is logged, for the whole process.
pub fn set(log: Log) {
    LOG.store(log as u8, Ordering::Relaxed);
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
}

fn write(line: &str) {
    // There is nowhere to report that stderr is closed.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// A warning.
pub fn warning(message: &str) {
    if LOG.load(Ordering::Relaxed) == Log::Json as u8 {
        write(&json!({ "time": now(), "level": "warning", "message": message }).to_string());
    } else {
        write(&format!("bilayer: warning: {message}"));
    }
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
