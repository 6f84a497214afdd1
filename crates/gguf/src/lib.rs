//! GGUF files: bytes to metadata and a tensor directory, and back.
//!
//! [`File::open`] maps a model (all its shards) and checks every count, length, offset and name against the actual
//! file before anything is allocated. Tensors are slices of the map and nothing is copied, so a file of 40 GB opens
//! in milliseconds. [`write()`] creates such files: streamed tensor by tensor into a temporary file, flushed to disk,
//! then renamed.
//!
//! What this crate deliberately does not know: the meaning of keys (`models` and `text`), the encoding of blocks
//! (`quant`), and devices.
//!
//! Read first: [`File`], [`Metadata`], [`TensorLayout`].
//!
//! ```
//! use bilayer_gguf::{File, Metadata, NewTensor, to_bytes};
//! use bilayer_quant::Type;
//!
//! let mut metadata = Metadata::new();
//! metadata.set("general.architecture", "llama");
//! metadata.set("llama.block_count", 2u32);
//! let tensor = NewTensor::zeros("output.weight", Type::F32, &[3, 32]);
//! let bytes = to_bytes(&metadata, [tensor])?;
//!
//! let file = File::from_bytes("example", bytes)?;
//! assert_eq!(file.metadata().u32("llama.block_count")?, 2);
//! let output = file.tensor("output.weight").expect("it was written above");
//! assert_eq!((output.layout().rows(), output.layout().cols()), (3, 32));
//! assert_eq!(file.bytes(output).len(), 3 * 32 * 4);
//! # Ok::<(), bilayer_gguf::Error>(())
//! ```
#![deny(unsafe_code)]

mod cursor;
mod encode;
mod error;
#[cfg(unix)]
#[expect(unsafe_code, reason = "signals")]
mod fault;
mod file;
mod layout;
#[expect(unsafe_code, reason = "the memory map is the one thing here that safe Rust cannot do")]
mod map;
mod metadata;
mod names;
mod overrides;
mod parse;
mod sample;
mod shards;
mod stamp;
mod value;
mod writer;

pub use error::{Error, SourceError};
pub use file::{File, OpenOptions, Progress, Tensor};
pub use layout::TensorLayout;
pub use metadata::Metadata;
pub use overrides::MetadataOverride;
pub use shards::shard_paths;
pub use stamp::Stamp;
pub use value::{Array, Strings, Value};
pub use writer::{NewTensor, put_in_place, to_bytes, write, write_draft};

/// The alignment of tensor data if `general.alignment` is absent, in bytes.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// Limits on what a file may declare; real models stay far below them.
pub mod limits {
    /// Tensors in one model, over all shards (the largest mixtures of experts have about 47,000).
    pub const TENSORS: u64 = 65_536;
    /// Metadata keys in one file.
    pub const KEYS: u64 = 65_536;
    /// Elements of one metadata array (vocabularies have some 260,000).
    pub const ARRAY_ELEMENTS: u64 = 1 << 26;
    /// Bytes of one metadata string, templates and licences included.
    pub const STRING_BYTES: u64 = 1 << 26;
    /// Bytes of a metadata key, as the format says.
    pub const KEY_BYTES: u64 = 65_535;
    /// Bytes of a tensor's name, as the format says.
    pub const NAME_BYTES: u64 = 64;
    /// Dimensions of a tensor.
    pub const DIMENSIONS: u32 = 4;
    /// The smallest `general.alignment` in bytes, as the format says.
    pub const ALIGNMENT_MIN: u32 = 8;
    /// The largest `general.alignment` in bytes.
    pub const ALIGNMENT_MAX: u32 = 1 << 20;
    /// Shards of one model.
    pub const SHARDS: u32 = 1024;
    /// Entries that a file may declare by a number alone, such as `vocab_size` without a list of tokens, in addition
    /// to one for each of its bytes. Without this rule 160 bytes could ask for gigabytes.
    pub const DECLARED_ENTRIES: u64 = 1 << 18;
}
