//! How far a download is, and who hears of it.

use std::ops::ControlFlow;

/// How far a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer<'a> {
    /// The file that arrives.
    pub file: &'a str,
    /// Bytes of the model that are there, all its shards together.
    pub done_bytes: u64,
    /// Bytes that there will be.
    pub total_bytes: u64,
}

/// Hears of a download's progress, and may end it.
pub type Tell<'t> = dyn FnMut(Transfer<'_>) -> ControlFlow<()> + 't;
