//! A float32 matrix as a NumPy file (format 1.0), written to a temporary file and renamed when complete.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A `[rows, cols]` matrix in the making; dropped before [`Npy::finish`] it leaves nothing behind.
pub struct Npy {
    out: BufWriter<tempfile::NamedTempFile>,
    path: PathBuf,
}

impl Npy {
    /// Begins a file for `rows` rows of `cols` values.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn create(path: &Path, rows: usize, cols: usize) -> io::Result<Npy> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if path.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        let mut out = BufWriter::new(tempfile::NamedTempFile::new_in(folder)?);
        out.write_all(&header(rows, cols))?;
        Ok(Npy { out, path: path.to_owned() })
    }

    /// Appends whole rows.
    ///
    /// # Errors
    /// The disk is full.
    pub fn rows(&mut self, values: &[f32]) -> io::Result<()> {
        for value in values {
            self.out.write_all(&value.to_le_bytes())?;
        }
        Ok(())
    }

    /// Puts the complete file in its place.
    ///
    /// # Errors
    /// The disk is full or the name is taken by something that cannot be replaced.
    pub fn finish(self) -> io::Result<()> {
        let file = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

/// Magic, version, and the dictionary padded so that the data begins at a multiple of 64.
/// NumPy Enhancement Proposal 1.
fn header(rows: usize, cols: usize) -> Vec<u8> {
    let dictionary = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    let length = (10 + dictionary.len() + 1).next_multiple_of(64) - 10;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((length as u16).to_le_bytes());
    header.extend(format!("{dictionary:<width$}\n", width = length - 1).into_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_ends_at_a_multiple_of_64_with_a_newline() {
        for (rows, cols) in [(1, 1), (512, 128_256), (123_456_789, 99)] {
            let header = header(rows, cols);
            assert!(header.len().is_multiple_of(64));
            assert_eq!(header.last(), Some(&b'\n'));
        }
    }
}
