//! The state of a model's files, by which it is known whether a load that failed would fail again.

use std::path::PathBuf;

use bilayer_engine::{Error, Exit};
use bilayer_gguf::Stamp;

/// The stamp of each file; `None` for one that cannot be examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStates(Vec<Option<Stamp>>);

impl FileStates {
    /// Those of these files.
    pub fn of(files: &[PathBuf]) -> FileStates {
        let state = |path: &PathBuf| Some(Stamp::of(&std::fs::metadata(path).ok()?));
        FileStates(files.iter().map(state).collect())
    }
}

/// Whether a load failed because of what is in the files, not for want of memory or a device.
pub fn are_at_fault(error: &Error) -> bool {
    matches!(error.exit_code(), Exit::NoFile | Exit::BadModel | Exit::Io)
}
