//! Everything that can be wrong with a file or with what is asked of it.

use std::io;

/// An error of this crate: the file, what in it, what was expected and found, what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// The file's path.
        file: String,
        /// What was tried, as in "cannot ...".
        action: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },

    /// The disk has no room for a file that is to be written.
    #[error(
        "{file}: needs {needed} bytes, and its disk has {free} free; make room, or write elsewhere"
    )]
    NoRoom {
        /// The file's path.
        file: String,
        /// Bytes it will take.
        needed: u64,
        /// Bytes there are.
        free: u64,
    },

    /// The path is a folder, a pipe or a device.
    #[error("{file}: expected a file, found {found}; give the path of a .gguf file")]
    NotAFile {
        /// The path.
        file: String,
        /// What is there.
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

    /// A version of the format that is not read.
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
        /// How many bytes it needs; `u64::MAX` where the number itself overflows.
        needs: u64,
        /// How many bytes the file has from there on.
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
        /// What the file says.
        found: u64,
    },

    /// A field, key, name or tensor that breaks a rule of the format.
    #[error("{file}: {field}: expected {expected}, found {found}; {advice}")]
    Invalid {
        /// The file's path.
        file: String,
        /// The field, key or tensor.
        field: String,
        /// The rule.
        expected: &'static str,
        /// What is there.
        found: String,
        /// What to do about it.
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
        /// What the type table says.
        source: bilayer_quant::Error,
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

    /// A shard that is missing, misnamed or of another model.
    #[error("{file}: {field}: expected {expected}, found {found}; {advice}")]
    Shard {
        /// The shard's path.
        file: String,
        /// The key, or "file name".
        field: &'static str,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
        /// What to do about it.
        advice: &'static str,
    },

    /// A key that is needed and absent.
    #[error(
        "{file}: key {key}: expected {expected}, found nothing; the file was not converted for \
         this use: convert the model again"
    )]
    MissingKey {
        /// The file's path.
        file: String,
        /// The key.
        key: String,
        /// The kind of value that was asked for.
        expected: &'static str,
    },

    /// A key whose value is of another kind, or a number out of range.
    #[error("{file}: key {key}: expected {expected}, found {found}; convert the model again")]
    WrongType {
        /// The file's path.
        file: String,
        /// The key.
        key: String,
        /// The kind of value that was asked for.
        expected: &'static str,
        /// The value's type and start.
        found: String,
    },

    /// The source of a tensor that was being written failed.
    #[error("{file}: tensor {tensor}: its source failed, nothing was written: {source}")]
    Source {
        /// The file that was being written.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The source's own error.
        source: crate::SourceError,
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
        /// Bytes given, or more than that.
        found: u64,
    },

    /// The file was changed while it was open.
    #[error(
        "{file}: expected the {expected} bytes that were opened, found the file changed \
         ({found} bytes now); load the model again, and use --no-mmap for files that are rewritten \
         while in use"
    )]
    Changed {
        /// The file's path.
        file: String,
        /// Its size when opened, in bytes.
        expected: u64,
        /// Its size now, in bytes.
        found: u64,
    },
}

/// The advice that fits a file made wrongly.
pub(crate) const REMAKE: &str = "the file is damaged or its converter faulty: make it anew";
