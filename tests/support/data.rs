//! Finds the shared data folder beside the repository, and reports tests that are skipped without it.

use std::path::{Path, PathBuf};

/// The path of `name` in the shared data, or `None`, after printing that the test is skipped.
pub fn shared(name: &str) -> Option<PathBuf> {
    // A crate's own tests are built in its folder.
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let path =
        folders.map(|folder| folder.join("shared/data").join(name)).find(|path| path.exists());
    if path.is_none() {
        eprintln!("skipped: no shared data ({name})");
    }
    path
}
