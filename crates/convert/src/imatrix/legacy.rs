//! Reads the importance matrix format that llama-imatrix used before GGUF.
//!
//! ```text
//! i32 entries, and of each:   i32 length, name · i32 calls · i32 values · f32 × values
//! where the file goes on:     i32 windows · i32 length, name of the text
//! ```
//!
//! A value is the mean squared activation times `calls`, the number of windows. Columns of a stack are stored
//! expert after expert, without the number of experts. Source: `load_legacy_imatrix` of llama.cpp's
//! `tools/quantize`.

use super::{Entry, Imatrix};
use crate::Error;

/// Parses the bytes of `file`; each stack is one row of sums.
///
/// # Errors
/// [`Error::OldImatrix`]; [`Error::Sums`] if two entries of one name differ in length.
pub(super) fn read(file: &str, bytes: &[u8]) -> Result<Imatrix, Error> {
    let mut rest = Rest { file, bytes };
    let mut imatrix = Imatrix::default();
    let entries = rest.count("entries")?;
    if entries == 0 {
        return Err(rest.wrong("it has no entries".into()));
    }
    for _ in 0..entries {
        let name = rest.text("a name")?;
        let calls = rest.count("calls")?;
        let len = rest.count("values")?;
        let values = rest.take(len.checked_mul(4), "values")?;
        let sums: Vec<f64> =
            values.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect();
        if let Some(bad) = sums.iter().find(|sum| !sum.is_finite() || **sum < 0.0) {
            return Err(rest.wrong(format!("{name} has {bad}; sums of squares are not below 0")));
        }
        if sums.is_empty() {
            return Err(rest.wrong(format!("{name} has no values")));
        }
        imatrix.insert(&name, Entry::new(sums, vec![calls as u64]))?;
    }
    if !rest.bytes.is_empty() {
        imatrix.chunk_count = u32::try_from(rest.count("windows")?).unwrap_or(u32::MAX);
    }
    if !rest.bytes.is_empty() {
        imatrix.datasets.push(rest.text("the name of the text")?);
    }
    Ok(imatrix)
}

/// The unread rest of the file.
struct Rest<'a> {
    file: &'a str,
    bytes: &'a [u8],
}

impl<'a> Rest<'a> {
    fn wrong(&self, reason: String) -> Error {
        Error::OldImatrix { file: self.file.to_owned(), reason }
    }

    fn take(&mut self, len: Option<usize>, what: &str) -> Result<&'a [u8], Error> {
        let split = len.and_then(|len| self.bytes.split_at_checked(len));
        let (taken, rest) = split.ok_or_else(|| self.wrong(format!("it ends within {what}")))?;
        self.bytes = rest;
        Ok(taken)
    }

    /// A non-negative number.
    fn count(&mut self, what: &str) -> Result<usize, Error> {
        let number = i32::from_le_bytes(self.take(Some(4), what)?.as_chunks().0[0]);
        usize::try_from(number).map_err(|_| self.wrong(format!("its number of {what} is {number}")))
    }

    fn text(&mut self, what: &str) -> Result<String, Error> {
        let len = self.count(what)?;
        let bytes = self.take(Some(len), what)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }
}
