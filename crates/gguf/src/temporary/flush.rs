//! Flushes files to the disk on file systems of any ability.

use std::fs::File;
use std::io;

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

    use super::{flush, is_unsupported};

    #[test]
    fn what_cannot_be_flushed_is_no_failure_of_the_disk() {
        let null = File::open("/dev/null").unwrap();
        #[cfg(target_os = "linux")]
        assert_eq!(null.sync_all().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        flush(&null).unwrap();
        flush(&File::open(".").unwrap()).unwrap();
        let failed = |errno: rustix::io::Errno| is_unsupported(&io::Error::from(errno));
        assert!(failed(rustix::io::Errno::NOTSUP) && failed(rustix::io::Errno::NOTTY));
        assert!(!failed(rustix::io::Errno::IO) && !failed(rustix::io::Errno::NOSPC));
    }
}
