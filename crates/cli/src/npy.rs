//! A float32 matrix as a NumPy file (format 1.0).

use std::io::{self, Write};
use std::path::Path;

use crate::new_file::NewFile;

/// A `[rows, cols]` matrix under construction; dropped before [`Npy::finish`] it leaves nothing behind.
pub struct Npy {
    out: NewFile,
}

impl Npy {
    /// Creates a file for `rows` rows of `cols` values.
    ///
    /// # Errors
    /// Those of [`NewFile::create`].
    pub fn create(path: &Path, rows: usize, cols: usize) -> io::Result<Npy> {
        let mut out = NewFile::create(path)?;
        out.write_all(&header(rows, cols))?;
        Ok(Npy { out })
    }

    /// Appends whole rows.
    ///
    /// # Errors
    /// The disk is full.
    pub fn rows(&mut self, values: &[f32]) -> io::Result<()> {
        values.iter().try_for_each(|value| self.out.write_all(&value.to_le_bytes()))
    }

    /// Moves the complete file into place.
    ///
    /// # Errors
    /// Those of [`NewFile::finish`].
    pub fn finish(self) -> io::Result<()> {
        self.out.finish()
    }
}

/// Magic, version, and the dictionary padded so that the data begins at a multiple of 64.
/// NumPy Enhancement Proposal 1.
fn header(rows: usize, cols: usize) -> Vec<u8> {
    let dictionary =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
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
