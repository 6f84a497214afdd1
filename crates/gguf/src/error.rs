//! Errors in files and in requests to read or write them.

use std::fmt::{self, Display};
use std::io;

use bilayer_settings::{Phrase, Setting};

/// The error type of tensor sources.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// An error of this crate: the file, what in it, what was expected and found, what to do. `{:#}` names settings as programs do, in
/// place of flags.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// The file's path.
        file: String,
        /// The failed action, as in "cannot ...".
        action: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },

    /// The disk has too little space for a file to be written.
    #[error(
        "{file}: needs {needed} bytes, and its disk has {free} free; free space, or write elsewhere"
    )]
    NoRoom {
        /// The file's path.
        file: String,
        /// Bytes required.
        needed: u64,
        /// Bytes available.
        free: u64,
    },

    /// The path is a folder, a pipe or a device.
    #[error("{file}: expected a file, found {found}; give the path of a .gguf file")]
    NotAFile {
        /// The path.
        file: String,
        /// The value found.
        found: &'static str,
    },

    /// The file does not start with "GGUF".
    #[error(
        "{file}: not a GGUF file: expected it to start with \"GGUF\", found {found}; \
         convert the model to GGUF first"
    )]
    Magic {
        /// The file's path.
        file: String,
        /// The first four bytes, as text and in hexadecimal.
        found: String,
    },

    /// The file was written for a big-endian machine.
    #[error(
        "{file}: field version: expected 2 or 3, found {found:#010x}: this GGUF file is \
         big-endian, and only little-endian files are read; convert its byte order or take the \
         little-endian file"
    )]
    BigEndian {
        /// The file's path.
        file: String,
        /// The version as read in little-endian order.
        found: u32,
    },

    /// An unsupported version of the format.
    #[error(
        "{file}: field version: expected 2 or 3, found {found}; convert the model again with a \
         current converter"
    )]
    Version {
        /// The file's path.
        file: String,
        /// The version found.
        found: u32,
    },

    /// Something reaches past the end of the file.
    #[error(
        "{file}: {field}: expected {needs} bytes at byte {offset}, found {left} left in the file; \
         it is incomplete or damaged: download or copy it again"
    )]
    Truncated {
        /// The file's path.
        file: String,
        /// The field, key or tensor.
        field: String,
        /// Where in the file it starts, in bytes.
        offset: u64,
        /// Bytes required; `u64::MAX` if the number itself overflows.
        needs: u64,
        /// Bytes available from there to the end of the file.
        left: u64,
    },

    /// A count or length above what this reader accepts (see [`limits`](crate::limits)).
    #[error(
        "{file}: {field}: expected at most {max}, found {found}; the file is damaged or hostile"
    )]
    Limit {
        /// The file's path.
        file: String,
        /// The field, key or tensor.
        field: String,
        /// The limit.
        max: u64,
        /// The value in the file.
        found: u64,
    },

    /// A field, key, name or tensor violates the format.
    #[error("{file}: {field}: expected {expected}, found {found}; {advice}")]
    Invalid {
        /// The file's path.
        file: String,
        /// The field, key or tensor.
        field: String,
        /// The rule of the format.
        expected: &'static str,
        /// The value found.
        found: String,
        /// The remedy.
        advice: &'static str,
    },

    /// A key or tensor name that occurs twice.
    #[error("{file}: {field}: expected each name once, found it again{place}; make the file anew")]
    Duplicate {
        /// The file's path.
        file: String,
        /// The key or tensor.
        field: String,
        /// " (first in FILE)" for tensors of several shards, else empty.
        place: String,
    },

    /// A tensor of a type that cannot be read, or whose row is not a whole number of blocks.
    #[error("{file}: tensor {tensor}: type or shape not supported: {source}")]
    Quant {
        /// The file's path.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The type table's error.
        source: bilayer_quant::Error,
    },

    /// A tensor of a type that is not part of GGUF; the file names it.
    #[error(
        "{file}: tensor {tensor}: this build does not know type {ty} (id {id}), which is not part of GGUF; update \
         bilayer"
    )]
    PrivateType {
        /// The file's path.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The type's name by the file.
        ty: String,
        /// Its number.
        id: u32,
    },

    /// Two tensors share bytes.
    #[error(
        "{file}: tensor {tensor}: expected to start at byte {end} or later, found offset {offset}, \
         inside tensor {other}; the file is damaged: make or download it again"
    )]
    Overlap {
        /// The file's path.
        file: String,
        /// The tensor that starts inside another one.
        tensor: String,
        /// The other one.
        other: String,
        /// Where the other one ends in the file, in bytes.
        end: u64,
        /// Where this one starts in the file, in bytes.
        offset: u64,
    },

    /// A shard is missing, misnamed or belongs to another model.
    #[error("{file}: {field}: expected {expected}, found {found}; {advice}")]
    Shard {
        /// The shard's path.
        file: String,
        /// The key, or "file name".
        field: &'static str,
        /// The expected value.
        expected: String,
        /// The value found.
        found: String,
        /// The remedy.
        advice: &'static str,
    },

    /// A required key is absent.
    #[error(
        "{file}: key {key}: expected {expected}, found nothing; the file was not converted for \
         this use: convert the model again"
    )]
    MissingKey {
        /// The file's path.
        file: String,
        /// The key.
        key: String,
        /// The requested kind of value.
        expected: &'static str,
    },

    /// An [`MetadataOverride`](crate::MetadataOverride) does not fit the file's value.
    #[error("{file}: key {key} cannot become {given}: expected {expected}")]
    Override {
        /// The file's path.
        file: String,
        /// The key.
        key: String,
        /// The given value.
        given: String,
        /// What it may be.
        expected: &'static str,
    },

    /// A key's value has another type or is out of range.
    #[error("{file}: key {key}: expected {expected}, found {found}; convert the model again")]
    WrongType {
        /// The file's path.
        file: String,
        /// The key.
        key: String,
        /// The requested kind of value.
        expected: &'static str,
        /// The value's type and start.
        found: String,
    },

    /// The source of a tensor failed during writing.
    #[error("{file}: tensor {tensor}: its source failed, nothing was written: {source}")]
    Source {
        /// The file that was being written.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The source's own error.
        source: SourceError,
    },

    /// The source of a tensor gave too few or too many bytes.
    #[error(
        "{file}: tensor {tensor}: expected {expected} bytes from its source, found {found}; \
         nothing was written"
    )]
    SourceLength {
        /// The file that was being written.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// Bytes by type and shape.
        expected: u64,
        /// Bytes received, or a number above the expected one.
        found: u64,
    },

    /// Mapped bytes could not be read.
    #[error(fmt = lost)]
    Lost {
        /// The file's path.
        file: String,
        /// Where the first failed read was, in bytes.
        offset: u64,
    },

    /// The file was changed while it was open.
    #[error(fmt = changed)]
    Changed {
        /// The file's path.
        file: String,
        /// Its size when opened, in bytes.
        expected: u64,
        /// Its size now, in bytes.
        found: u64,
    },
}

fn lost(file: &str, offset: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "{file}: byte {offset} can no longer be read: the file was truncated while in use, or its disk failed; "
    )?;
    unmapped().fmt(f)
}

fn changed(file: &str, expected: &u64, found: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "{file}: expected the {expected} bytes that were opened, found the file changed ({found} bytes now); "
    )?;
    unmapped().fmt(f)
}

/// What to do about a file that changed.
fn unmapped() -> Phrase {
    let unmapped = Phrase::from("load the model again, and use ").setting(Setting::NoMmap);
    unmapped.text(" for files that are rewritten while in use")
}

/// Advice for malformed files.
pub(crate) const REMAKE: &str = "the file is damaged or its converter faulty: make it anew";
