//! Files that are replaced as a whole, flushed to the disk, and hashed.
//!
//! [`create`] makes a temporary file beside a target; [`Draft::finish`] flushes it and gives it the target's name, so that
//! after a crash or a loss of power there is the whole new file or the old one. [`write()`] does both for content in memory,
//! [`create_folder`] is the same for a folder. [`open_record`] opens a journal or log that grows in place. [`PieceWriter`] is the
//! buffer for files that are mapped later.
//!
//! What this crate deliberately does not know: what is in the files.
//!
//! Read first: [`Draft`], [`Access`], [`hash::Sha256`].
//!
//! ```
//! # let folder = std::env::temp_dir().join(format!("bilayer-files-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! use std::io::Write;
//!
//! use bilayer_files::{Access, create, hash};
//!
//! let path = folder.join("answer");
//! let mut draft = create(&path, Access::Usual)?;
//! draft.write_all(b"42")?;
//! assert!(!path.exists());
//! draft.finish(&path)?;
//! assert_eq!(std::fs::read(&path)?, b"42");
//! assert_eq!(hash::of_file(&path)?, hash::hex(hash::sha256(b"42")));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod draft;
mod flush;
pub mod hash;
mod pieces;
mod place;
mod record;

pub use draft::disk::{Disk, Operation, on_disk};
pub use draft::folder::{FolderDraft, create_folder};
pub use draft::{Access, Draft, create, write};
pub use flush::{flush, rename};
pub use pieces::PieceWriter;
pub use place::{folder_of, free_bytes, is_same_file, target};
pub use record::{is_cut_line, open_record};
