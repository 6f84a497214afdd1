//! By what a file is seen to have changed.

use std::fs::Metadata;
use std::time::SystemTime;

/// The length and modification time of a file. A file with other ones was changed; one with the same ones was not, unless its
/// time was set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    /// That of an examined file.
    pub fn of(facts: &Metadata) -> Stamp {
        Stamp { len: facts.len(), modified: facts.modified().ok() }
    }
}
