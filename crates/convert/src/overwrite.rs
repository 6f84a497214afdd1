//! Keeps an output file from overwriting one of its inputs.

use std::path::Path;

use bilayer_files::is_same_file;

use crate::Error;

/// Refuses a path that leads to one of the inputs.
///
/// # Errors
/// [`Error::SameFile`].
pub(crate) fn check(
    path: &Path,
    mut inputs: impl Iterator<Item = impl AsRef<Path>>,
) -> Result<(), Error> {
    match inputs.find(|input| is_same_file(path, input.as_ref())) {
        Some(input) => Err(Error::SameFile { file: input.as_ref().display().to_string() }),
        None => Ok(()),
    }
}
