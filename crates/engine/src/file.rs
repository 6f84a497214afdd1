//! Opens GGUF files, whatever they contain: models, adapters, control vectors, counts of experts.

use std::path::Path;

use bilayer_gguf::{File, OpenOptions};

use crate::Error;

/// Opens a file without requiring that it is a model.
///
/// # Errors
/// The file is missing, unreadable or damaged.
pub fn open_file(path: &Path) -> Result<File, Error> {
    open_with(path, OpenOptions::default())
}

/// [`open_file`] with options.
///
/// # Errors
/// The file is missing, unreadable or damaged.
pub fn open_with(path: &Path, options: OpenOptions<'_>) -> Result<File, Error> {
    if !path.exists() {
        return Err(Error::NoSuchFile { path: path.display().to_string() });
    }
    File::open_with(path, options).map_err(Error::File)
}
