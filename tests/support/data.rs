//! Finds the shared data folder beside the repository, and reports tests that are skipped without it, or fails if
//! `BILAYER_REQUIRE_DATA=1` says that it is there.

use std::path::{Path, PathBuf};

/// The path of `name` in the shared data, or `None`, after printing that the test is skipped.
///
/// # Panics
/// There is none, and `BILAYER_REQUIRE_DATA=1`.
pub fn shared(name: &str) -> Option<PathBuf> {
    // A crate's own tests are built in its folder.
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let path =
        folders.map(|folder| folder.join("shared/data").join(name)).find(|path| path.exists());
    if path.is_none() {
        let required = std::env::var("BILAYER_REQUIRE_DATA").is_ok_and(|value| value == "1");
        assert!(!required, "no shared data ({name}), which BILAYER_REQUIRE_DATA=1 requires");
        eprintln!("skipped: no shared data ({name})");
    }
    path
}
