//! Standard output and input, with errors in place of panics.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use serde::Serialize;

use crate::failure::Failure;

/// Writes text as it is and flushes it, so that streams appear at once.
pub fn text(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a line.
pub fn line(line: &str) -> Result<(), Failure> {
    text(&format!("{line}\n"))
}

/// Writes one JSON document.
pub fn json(document: &impl Serialize) -> Result<(), Failure> {
    let written = serde_json::to_string(document).map_err(io::Error::other)?;
    line(&written)
}

/// What is piped into us; `None` at a terminal.
pub fn piped() -> Result<Option<String>, Failure> {
    let mut stdin = io::stdin().lock();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    stdin
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::Line(crate::failure::IO, format!("standard input: {error}")))?;
    utf8("standard input", bytes).map(Some)
}

/// A text file.
pub fn file(path: &Path) -> Result<String, Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::input(path, &error))?;
    utf8(&path.display().to_string(), bytes)
}

fn utf8(name: &str, bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Line(crate::failure::IO, format!("{name}: not UTF-8 text from byte {at} on"))
    })
}
