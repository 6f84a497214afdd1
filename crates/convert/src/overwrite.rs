//! Keeps an output file from overwriting one of its inputs.

use std::path::Path;

use crate::Error;

/// Refuses a path that leads to one of the inputs.
///
/// # Errors
/// [`Error::SameFile`].
pub(crate) fn check(
    path: &Path,
    mut inputs: impl Iterator<Item = impl AsRef<Path>>,
) -> Result<(), Error> {
    match inputs.find(|input| is_same(path, input.as_ref()).unwrap_or(false)) {
        Some(input) => Err(Error::SameFile { file: input.as_ref().display().to_string() }),
        None => Ok(()),
    }
}

/// Whether two paths lead to one file, by links of either kind.
fn is_same(a: &Path, b: &Path) -> std::io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let (a, b) = (std::fs::metadata(a)?, std::fs::metadata(b)?);
        Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
    }
    #[cfg(not(unix))]
    Ok(std::fs::canonicalize(a)? == std::fs::canonicalize(b)?)
}
