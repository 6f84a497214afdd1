//! Flushes of files and folders to the disk, on file systems of any ability, and renames that last.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::place::folder_of;

/// Flushes the content of a file, or the names in a folder, to the disk.
///
/// On macOS the standard library asks for a flush of the drive's own cache, which network file systems and those of FUSE
/// refuse; `fsync` is then the most they do. What cannot be flushed at all, such as a device or a folder on some of them, is
/// as durable as it gets.
///
/// # Errors
/// The disk is full or fails.
pub fn flush(file: &File) -> io::Result<()> {
    let flushed = file.sync_all();
    #[cfg(unix)]
    if flushed.as_ref().is_err_and(is_unsupported) {
        let flushed = rustix::fs::fsync(file).map_err(io::Error::from);
        return if flushed.as_ref().is_err_and(is_unsupported) { Ok(()) } else { flushed };
    }
    flushed
}

/// Gives a file that is flushed, or a folder, a new name, replacing a file of that name; also after a loss of power there is
/// one or the other.
///
/// # Errors
/// The target cannot be replaced; the disk fails.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(folder_of(to))
}

/// Makes the names in a folder durable. Where folders cannot be opened there is nothing to flush.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder) {
        Ok(folder) => flush(&folder),
        Err(_) => Ok(()),
    }
}

/// Whether a file system refused to flush, rather than failed to.
#[cfg(unix)]
fn is_unsupported(error: &io::Error) -> bool {
    use rustix::io::Errno;

    let refusals = [Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOTTY, Errno::INVAL, Errno::BADF];
    Errno::from_io_error(error).is_some_and(|error| refusals.contains(&error))
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::File;
    use std::io;

    use rustix::io::Errno;

    use super::{flush, is_unsupported};

    #[test]
    fn what_cannot_be_flushed_is_no_failure_of_the_disk() {
        let null = File::open("/dev/null").unwrap();
        #[cfg(target_os = "linux")]
        assert_eq!(null.sync_all().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        flush(&null).unwrap();
        flush(&File::open(".").unwrap()).unwrap();
        let refused = |errno: Errno| is_unsupported(&io::Error::from(errno));
        assert!([Errno::NOTSUP, Errno::NOTTY, Errno::INVAL, Errno::BADF].into_iter().all(refused));
        assert!(![Errno::IO, Errno::NOSPC].into_iter().any(refused));
    }
}
