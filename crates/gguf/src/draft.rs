//! A file in the making, beside the one whose place it takes when it is complete.
//!
//! A writer that is killed cannot clear away its draft. So drafts carry the name of the file they are for, and a writer
//! holds a lock on its own, which ends with it: the next writer of the same file removes those that nobody holds.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::Error;

/// What a draft's name ends with.
const SUFFIX: &str = ".gguf.part";

/// Begins a draft of the file at `path`, which will be `len_bytes` long on the disk.
///
/// # Errors
/// [`Error::NoRoom`], [`Error::Io`].
pub(crate) fn begin(path: &Path, len_bytes: u64) -> Result<NamedTempFile, Error> {
    let file = || path.display().to_string();
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    clear(folder, &prefix);
    if let Some(free) = free_bytes(folder).filter(|free| *free < len_bytes) {
        return Err(Error::NoRoom { file: file(), needed: len_bytes, free });
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(SUFFIX);
    // The default is a private file; this one shall have the rights of any new file.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let action = "create a temporary file in its folder";
    let draft =
        builder.tempfile_in(folder).map_err(|source| Error::Io { file: file(), action, source })?;
    // Where files cannot be locked, nobody takes drafts for left behind either.
    let _ = draft.as_file().try_lock();
    Ok(draft)
}

/// Removes what writers of the same file left behind that are gone. What cannot be removed does no harm but take room.
fn clear(folder: &Path, prefix: &OsString) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let bytes = name.as_encoded_bytes();
        let is_draft =
            bytes.starts_with(prefix.as_encoded_bytes()) && bytes.ends_with(SUFFIX.as_bytes());
        if is_draft && is_left(&entry.path()).unwrap_or(false) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether nobody holds a draft's lock.
fn is_left(draft: &Path) -> io::Result<bool> {
    Ok(fs::File::open(draft)?.try_lock().is_ok())
}

/// Bytes that may still be written to the disk of a folder, where the system says so.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}
