//! An output file that is written atomically.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use bilayer_files::{Access, Draft};

/// A file under construction; dropped before [`NewFile::finish`] it leaves nothing behind.
pub struct NewFile {
    out: BufWriter<Place>,
    path: PathBuf,
}

/// Destination of the bytes until the file is complete.
enum Place {
    /// A temporary file beside the target.
    Draft(Draft),
    /// A device or pipe, which must not be replaced by a file.
    Device(fs::File),
}

impl Write for Place {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Place::Draft(file) => file.write(bytes),
            Place::Device(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Place::Draft(file) => file.flush(),
            Place::Device(file) => file.flush(),
        }
    }
}

impl NewFile {
    /// Creates a file; a symbolic link is followed, not replaced.
    ///
    /// # Errors
    /// The folder cannot be written to, or the name is a folder's.
    pub fn create(path: &Path) -> io::Result<NewFile> {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let place = match fs::metadata(&path) {
            Ok(there) if there.is_dir() => {
                return Err(io::Error::from(io::ErrorKind::IsADirectory));
            }
            Ok(there) if !there.is_file() => {
                Place::Device(fs::OpenOptions::new().write(true).open(&path)?)
            }
            _ => Place::Draft(bilayer_files::create(&path, Access::Usual)?),
        };
        Ok(NewFile { out: BufWriter::with_capacity(1 << 20, place), path })
    }

    /// Moves the complete file into place.
    ///
    /// # Errors
    /// The disk is full, or the target cannot be replaced.
    pub fn finish(self) -> io::Result<()> {
        match self.out.into_inner().map_err(io::IntoInnerError::into_error)? {
            Place::Device(_) => Ok(()),
            Place::Draft(file) => file.finish(&self.path),
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bilayer_files::{Disk, Operation, on_disk};

    use super::*;

    /// A disk that is full after some operations.
    struct Full(AtomicUsize);

    impl Disk for Full {
        fn before(&self, _: Operation) -> io::Result<()> {
            let passes = |left: usize| left.checked_sub(1);
            let passed = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, passes);
            passed.map(drop).map_err(|_| io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_disk_that_is_full_at_any_operation_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let write = || {
            let mut file = NewFile::create(&path)?;
            file.write_all(&vec![1; 3 << 20])?;
            file.finish()
        };
        // Create, write, flush, rename; then only the new name is flushed.
        for after in 0..4 {
            fs::write(&path, "old").unwrap();
            let written = on_disk(Arc::new(Full(AtomicUsize::new(after))), write);
            assert!(written.is_err(), "after {after} operations");
            assert_eq!(fs::read(&path).unwrap(), b"old", "after {after} operations");
            // A complete file that cannot take its name is kept, until the next one.
            let kept = usize::from(after == 3);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1 + kept);
        }
        write().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().len(), 3 << 20);
    }
}
