//! A bounds-checked cursor over the bytes of a file.

use std::fmt::Arguments;

use crate::error::REMAKE;
use crate::{Error, limits};

/// The reading position in a file. Fields are named by the caller for the error messages; the
/// names are formatted only when there is an error.
pub(crate) struct Cursor<'a> {
    pub file: &'a str,
    bytes: &'a [u8],
    at: usize,
}

/// A number that files hold in little-endian order.
pub(crate) trait Number: Copy {
    const BYTES: usize;
    /// The number at the start of `bytes`, which are at least `BYTES` long.
    fn one(bytes: &[u8]) -> Self;
    fn all(bytes: &[u8]) -> Vec<Self>;
    fn append(self, out: &mut Vec<u8>);
}

macro_rules! number {
    ($($number:ty)*) => {$(
        impl Number for $number {
            const BYTES: usize = size_of::<$number>();
            fn one(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.as_chunks().0[0])
            }
            fn all(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().map(|chunk| Self::from_le_bytes(*chunk)).collect()
            }
            fn append(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
number!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

impl<'a> Cursor<'a> {
    pub fn new(file: &'a str, bytes: &'a [u8]) -> Self {
        Self { file, bytes, at: 0 }
    }

    /// Where the next read starts, in bytes from the start of the file.
    pub fn at(&self) -> u64 {
        self.at as u64
    }

    /// Bytes between here and the end of the file.
    pub fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: u64, field: Arguments<'_>) -> Result<&'a [u8], Error> {
        let whole = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let Some(taken) = whole.and_then(|end| self.bytes.get(self.at..end)) else {
            return Err(self.truncated(len, field));
        };
        self.at += taken.len();
        Ok(taken)
    }

    /// Refuses a count of items of at least `bytes_each` bytes that cannot fit into the rest of the file, or that is
    /// above `max`.
    pub fn check_count(
        &self,
        count: u64,
        bytes_each: u64,
        max: u64,
        field: Arguments<'_>,
    ) -> Result<usize, Error> {
        let needs = count.saturating_mul(bytes_each);
        if needs > self.left() {
            return Err(self.truncated(needs, field));
        }
        if count > max {
            return Err(Error::Limit {
                file: self.file.into(),
                field: field.to_string(),
                max,
                found: count,
            });
        }
        // A count that fits in the file fits in a usize, so nothing is truncated.
        Ok(count as usize)
    }

    /// One number.
    pub fn number<N: Number>(&mut self, field: Arguments<'_>) -> Result<N, Error> {
        let bytes = self.take(N::BYTES as u64, field)?;
        Ok(N::one(bytes))
    }

    /// `count` numbers.
    pub fn numbers<N: Number>(
        &mut self,
        count: u64,
        field: Arguments<'_>,
    ) -> Result<Vec<N>, Error> {
        self.check_count(count, N::BYTES as u64, limits::ARRAY_ELEMENTS, field)?;
        Ok(N::all(self.take(count * N::BYTES as u64, field)?))
    }

    /// A string's bytes: its length as u64, then that many bytes.
    pub fn string_bytes(&mut self, field: Arguments<'_>) -> Result<&'a [u8], Error> {
        let len: u64 = self.number(format_args!("length of {field}"))?;
        self.check_count(len, 1, limits::STRING_BYTES, format_args!("length of {field}"))?;
        self.take(len, field)
    }

    /// A string. It is copied before it is validated, so that a mapped file that changes cannot produce a `String`
    /// that is not UTF-8.
    pub fn string(&mut self, field: Arguments<'_>) -> Result<String, Error> {
        let bytes = self.string_bytes(field)?.to_vec();
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let byte = error.as_bytes().get(at).copied().unwrap_or_default();
            self.not_utf8(at, byte, field)
        })
    }

    /// The error for text that is not UTF-8 from byte `at` of the field on.
    pub fn not_utf8(&self, at: usize, byte: u8, field: Arguments<'_>) -> Error {
        self.invalid(field, "UTF-8 text", format!("byte {byte:#04x} at its byte {at}"))
    }

    /// The error for a field that breaks a rule of the format.
    pub fn invalid(&self, field: Arguments<'_>, expected: &'static str, found: String) -> Error {
        let field = field.to_string();
        Error::Invalid { file: self.file.into(), field, expected, found, advice: REMAKE }
    }

    fn truncated(&self, needs: u64, field: Arguments<'_>) -> Error {
        Error::Truncated {
            file: self.file.into(),
            field: field.to_string(),
            offset: self.at(),
            needs,
            left: self.left(),
        }
    }
}
