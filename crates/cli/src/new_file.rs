//! An output file that appears whole or not at all.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file in the making; dropped before [`NewFile::finish`] it leaves nothing behind.
pub struct NewFile {
    out: BufWriter<Place>,
    path: PathBuf,
}

/// Where the bytes go until the file is complete.
enum Place {
    /// Beside the name it will have.
    Draft(tempfile::NamedTempFile),
    /// Into a device or a pipe, which must not be replaced by a file.
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
    /// Begins a file; at the end of a symbolic link, not in its place.
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
            _ => Place::Draft(draft(&path)?),
        };
        Ok(NewFile { out: BufWriter::with_capacity(1 << 20, place), path })
    }

    /// Puts the complete file in its place.
    ///
    /// # Errors
    /// The disk is full, or the name is taken by something that cannot be replaced.
    pub fn finish(self) -> io::Result<()> {
        match self.out.into_inner().map_err(io::IntoInnerError::into_error)? {
            Place::Device(_) => Ok(()),
            Place::Draft(file) => {
                file.as_file().sync_all()?;
                file.persist(&self.path)?;
                Ok(())
            }
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

fn draft(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".").suffix(".part");
    // The default is a private file; this one shall have the rights of any new file.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}
