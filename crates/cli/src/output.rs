//! Standard output, error and input, and text files, with errors instead of panics.

use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::failure::{DOES_NOT_FIT, Failure, INTERNAL, IO, one_line};
use crate::messages::{self, Level};

/// Limit on a text from a file or a pipe, in bytes: a device may have no end.
const TEXT_BYTES_MAX: u64 = 1 << 30;

/// Time after which a note says that standard input is waited for.
const NOTED_AFTER: Duration = Duration::from_secs(2);

/// A count with its noun, of which there are two forms: `1 token`, `2 tokens`.
pub fn counted(count: impl TryInto<u64>, [one, many]: [&str; 2]) -> String {
    // A count that does not fit is large.
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {}", if count == 1 { one } else { many })
}

/// The forms of a noun that is counted often.
pub const TOKENS: [&str; 2] = ["token", "tokens"];

/// Writes bytes to stdout and flushes it, so that streams appear at once.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| Failure::stdout(&error))
}

/// Writes text verbatim and flushes it.
pub fn text(text: &str) -> Result<(), Failure> {
    bytes(text.as_bytes())
}

/// Writes a line.
pub fn line(line: &str) -> Result<(), Failure> {
    text(&format!("{line}\n"))
}

/// Writes one JSON document.
pub fn json(document: &impl Serialize) -> Result<(), Failure> {
    let written = serde_json::to_string(document)
        .map_err(|error| Failure::Line(INTERNAL, format!("JSON cannot be written: {error}")))?;
    line(&written)
}

/// Writes a line to stderr, unless with --quiet.
pub fn note(line: &str) {
    messages::write(Level::Usual, line);
}

/// Writes a line to stderr.
pub fn error(line: &str) {
    messages::write(Level::Quiet, line);
}

/// Writes the message of a failure to stderr, or the help that was asked for to stdout, and returns the exit code.
pub fn failure(failure: Failure) -> u8 {
    match failure {
        Failure::Shown(shown) => match shown.print() {
            Ok(()) => 0,
            Err(_) => IO,
        },
        Failure::Line(code, line) => {
            error(&format!("bilayer: {}", one_line(&line)));
            code
        }
        Failure::BrokenPipe => IO,
    }
}

/// Writes a warning to stderr.
pub fn warning(line: &impl Display) {
    messages::write(Level::Quiet, &format!("bilayer: warning: {line}"));
}

/// Writes a line to stderr, with --verbose only.
pub fn detail(line: &str) {
    messages::write(Level::Verbose, line);
}

/// Whether standard input is a pipe or a file, as a shell's `|` and `<` make it.
pub fn is_redirected() -> bool {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        use std::os::unix::fs::FileTypeExt;
        let file = io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from);
        let found = file.and_then(|file| file.metadata());
        found.is_ok_and(|found| found.is_file() || found.file_type().is_fifo())
    }
    #[cfg(not(unix))]
    false
}

/// Reads standard input unless it is a terminal; `None` at one, or, with a warning, if neither data nor the end arrives within
/// `patience`. A parent process may have left an open pipe that nobody writes to: after a while without `patience`, a note
/// says what is waited for.
pub fn piped(patience: Option<Duration>) -> Result<Option<String>, Failure> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let (began, has_begun) = mpsc::channel();
    let reader = thread::Builder::new().name("bilayer input".to_owned()).spawn(move || {
        let mut stdin = io::stdin().lock();
        let begun = stdin.fill_buf().map(|_| ());
        // The receiver is gone once the time is up.
        let _ = began.send(());
        begun.and_then(|()| bounded(stdin))
    });
    let reader = reader.map_err(|error| {
        let line = format!("no thread can be started to read standard input: {error}");
        Failure::Line(DOES_NOT_FIT, line)
    })?;
    let is_late = has_begun.recv_timeout(patience.unwrap_or(NOTED_AFTER));
    match (is_late, patience) {
        (Err(RecvTimeoutError::Timeout), Some(patience)) => {
            let seconds = patience.as_secs_f64();
            let line = format!("standard input sent nothing within {seconds} s and is not read");
            warning(&line);
            return Ok(None);
        }
        (Err(RecvTimeoutError::Timeout), None) => {
            note(
                "note: waiting for standard input to end; press Ctrl-D, or give </dev/null if there is none",
            );
        }
        _ => {}
    }
    let failed = |error| Failure::Line(IO, format!("standard input cannot be read: {error}"));
    let bytes = match reader.join() {
        Ok(read) => read.map_err(failed)?,
        Err(_) => return Err(failed(io::Error::other("its reader stopped"))),
    };
    utf8("standard input", bytes).map(Some)
}

/// A text file; `-` is standard input.
pub fn file(path: &Path) -> Result<String, Failure> {
    if path == Path::new("-") {
        return Ok(piped(None)?.unwrap_or_default());
    }
    let bytes = std::fs::File::open(path).and_then(bounded);
    utf8(&path.display().to_string(), bytes.map_err(|error| Failure::input(path, &error))?)
}

/// A file of JSON lines; `-` is standard input. Windows programs begin text with a byte order mark, which is not JSON.
pub fn json_lines(path: &Path) -> Result<String, Failure> {
    let text = file(path)?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Checks that a file can be opened, before another library reads it. Nothing is read: it may be a pipe.
pub fn check_input(path: &Path) -> Result<(), Failure> {
    let found = std::fs::metadata(path);
    let opened = found.and_then(|found| match found.is_file() {
        true => std::fs::File::open(path).map(drop),
        false => Ok(()),
    });
    opened.map_err(|error| Failure::input(path, &error))
}

/// All bytes of a text.
fn bounded(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > TEXT_BYTES_MAX {
        true => Err(io::Error::other(format!("it has more than {} GiB", TEXT_BYTES_MAX >> 30))),
        false => Ok(bytes),
    }
}

fn utf8(name: &str, bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let advice = "convert it to UTF-8 first";
        Failure::Line(IO, format!("{name}: not UTF-8 text from byte {at} on; {advice}"))
    })
}

#[cfg(test)]
mod tests {
    use super::{TOKENS, counted};

    #[test]
    fn one_is_counted_in_the_singular() {
        assert_eq!(counted(1u32, TOKENS), "1 token");
        assert_eq!(counted(0usize, TOKENS), "0 tokens");
        assert_eq!(counted(2u64, ["matrix was", "matrices were"]), "2 matrices were");
    }
}
