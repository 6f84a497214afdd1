//! The file of requests: where its lines lie.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bilayer_files::hash::{Sha256, hex, sha256};
use serde::Deserialize;

use super::Error;

/// Longest line, bytes.
const LINE_MAX: u64 = 64 << 20;

/// The requests of a batch.
pub struct Input {
    file: File,
    path: PathBuf,
    lines: Vec<Line>,
    sha256: String,
}

/// A line with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number in the file, from 1.
    pub number: usize,
    /// Offset of its first byte.
    pub first: u64,
    /// Bytes without the line break.
    pub len: u64,
    /// The line that has the same `custom_id` before it.
    pub same_id: Option<usize>,
    /// Its hash: the file may be changed while the batch runs.
    pub sha256: [u8; 32],
}

#[derive(Deserialize)]
struct Named {
    custom_id: String,
}

impl Input {
    /// Reads a file once.
    ///
    /// # Errors
    /// It cannot be read or is no regular file, a line is too long, or there is no line.
    pub fn open(path: &Path) -> Result<Input, Error> {
        let read = Error::io(path, "be read");
        let wrong = |problem| Error::Input { path: path.display().to_string(), problem };
        // Opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(&read)?.is_file() {
            let problem = "is no regular file; a batch reads its requests more than once";
            return Err(wrong(problem.to_owned()));
        }
        let file = File::open(path).map_err(&read)?;
        let mut reader = BufReader::with_capacity(1 << 20, &file);
        let (mut lines, mut ids) = (Vec::new(), HashMap::new());
        let (mut hasher, mut bytes) = (Sha256::new(), Vec::new());
        let (mut first, mut number) = (0, 0);
        loop {
            bytes.clear();
            let len = (&mut reader).take(LINE_MAX + 1).read_until(b'\n', &mut bytes);
            let len = len.map_err(&read)? as u64;
            if len == 0 {
                break;
            }
            number += 1;
            if len > LINE_MAX {
                return Err(wrong(format!("line {number} is longer than {LINE_MAX} bytes")));
            }
            hasher.update(&bytes);
            // Windows programs begin text with a byte order mark, which is not JSON.
            let mark = if number == 1 { "\u{feff}".as_bytes() } else { b"" };
            let line = bytes.strip_prefix(mark).unwrap_or(&bytes);
            let text = line.trim_ascii();
            if !text.is_empty() {
                let named: Option<Named> = serde_json::from_slice(text).ok();
                let id = named.map(|named| sha256(named.custom_id));
                let before = id.map(|id| *ids.entry(id).or_insert(number));
                let same_id = before.filter(|&before| before != number);
                let skipped = bytes.len() - line.trim_ascii_start().len();
                let (first, len) = (first + skipped as u64, text.len() as u64);
                lines.push(Line { number, first, len, same_id, sha256: sha256(text) });
            }
            first += len;
        }
        if lines.is_empty() {
            return Err(wrong("has no requests".to_owned()));
        }
        let whole = hex(hasher.finish());
        Ok(Input { file, path: path.to_owned(), lines, sha256: whole })
    }

    /// The lines with requests.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The hash of the whole file.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The request at an index of [`Input::lines`].
    ///
    /// # Errors
    /// The file cannot be read, or the request is another one.
    pub fn read(&mut self, at: usize) -> Result<Vec<u8>, Error> {
        let Line { number, first, len, sha256: expected, .. } = self.lines[at];
        let mut bytes = vec![0; len as usize];
        let read = self.file.seek(SeekFrom::Start(first));
        let read = read.and_then(|_| self.file.read_exact(&mut bytes));
        let is_whole = match read {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => {
                return Err(Error::io(&self.path, "be read again")(error));
            }
            read => read.is_ok(),
        };
        if !is_whole || expected != sha256(&bytes) {
            return Err(Error::Changed { path: self.path.display().to_string(), line: number });
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, Input};

    #[test]
    fn a_line_that_was_changed_is_not_read() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("in");
        std::fs::write(&path, "{\"a\":1}\n{\"a\":2}\n").unwrap();
        let mut input = Input::open(&path).unwrap();
        assert_eq!(input.read(1).unwrap(), b"{\"a\":2}");
        for changed in ["{\"a\":1}\n{\"a\":3}\n", "{\"a\":1}\n{"] {
            std::fs::write(&path, changed).unwrap();
            assert_eq!(input.read(0).unwrap(), b"{\"a\":1}");
            let error = input.read(1).unwrap_err();
            assert!(matches!(error, Error::Changed { line: 2, .. }), "{error}");
        }
    }
}
