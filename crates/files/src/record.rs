//! Journals and logs: files that grow in place, written by one process at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

/// Opens a journal or log to be read and written, and locks it until it is closed; an absent one is created. Where locks are
/// unsupported, nobody is kept out.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if another process has it open; it cannot be opened.
pub fn open_record(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(file),
    }
}

/// Whether the unfinished first line of a log or journal is what a cut left of one that begins with `beginning`: a line of
/// anything else is not removed. After a power failure the system may find a line's length but not its bytes.
pub fn is_cut_line(line: &[u8], beginning: &[u8]) -> bool {
    let written = line.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let shared = written.min(beginning.len());
    line[..shared] == beginning[..shared]
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_record_is_open_once_and_keeps_its_content() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("journal");
        let mut record = open_record(&path)?;
        record.write_all(b"line\n")?;
        let second = open_record(&path).map(drop).map_err(|error| error.kind());
        assert_eq!(second, Err(io::ErrorKind::WouldBlock));
        drop(record);
        drop(open_record(&path)?);
        assert_eq!(std::fs::read(&path)?, b"line\n");
        Ok(())
    }

    #[test]
    fn a_cut_line_is_told_from_a_line_of_something_else() {
        let beginning = b"{\"journal\"";
        let cut: [&[u8]; 5] = [b"", b"{", b"{\"jour\0\0", b"{\"journal\":1,", b"\0\0\0"];
        assert!(cut.into_iter().all(|line| is_cut_line(line, beginning)));
        assert!(![&b"text"[..], b"{\"log"].into_iter().any(|line| is_cut_line(line, beginning)));
    }
}
