//! The state of a model's files, by which it is known whether a load that failed would fail again.

use std::path::PathBuf;
use std::time::SystemTime;

use bilayer_engine::{Error, Exit};

/// Size and time of each file; `None` for one that cannot be examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStates(Vec<Option<(u64, Option<SystemTime>)>>);

impl FileStates {
    /// Those of these files.
    pub fn of(files: &[PathBuf]) -> FileStates {
        let state = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.len(), found.modified().ok()))
        };
        FileStates(files.iter().map(state).collect())
    }
}

/// Whether a load failed because of what is in the files, not for want of memory or a device.
pub fn are_at_fault(error: &Error) -> bool {
    matches!(error.exit_code(), Exit::NoFile | Exit::BadModel | Exit::Io)
}
