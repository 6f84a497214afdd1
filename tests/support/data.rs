//! Finds the shared data folder beside the repository, and reports tests that are skipped without it.

use std::path::PathBuf;

/// The path of `name` in the shared data, or `None`, after printing that the test is skipped.
pub fn shared(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data")).join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: no shared data ({})", path.display());
    None
}
