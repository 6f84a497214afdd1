//! The KV cache as the scheduler of requests sees it: sequences that hold pages.

use crate::session::{Pages, SequenceId, Session};

/// Sequences of a KV cache. Implemented by a [`Session`], whose devices hold the bytes, and by [`Pages`] alone, with
/// which a simulation needs no device.
pub trait Sequences {
    /// The book-keeping.
    fn pages(&self) -> &Pages;

    /// Opens an empty sequence; `None` if all are in use.
    fn open(&mut self) -> Option<SequenceId>;

    /// Opens a sequence that shares all pages of another; `None` if all are in use.
    fn fork(&mut self, from: SequenceId) -> Option<SequenceId>;

    /// Truncates a sequence to its first `tokens` tokens, or to as many fewer as [`Pages::resumable`] says.
    fn truncate(&mut self, sequence: SequenceId, tokens: usize);

    /// Closes a sequence.
    fn close(&mut self, sequence: SequenceId);
}

impl Sequences for Pages {
    fn pages(&self) -> &Pages {
        self
    }

    fn open(&mut self) -> Option<SequenceId> {
        Pages::open(self).ok()
    }

    fn fork(&mut self, from: SequenceId) -> Option<SequenceId> {
        Pages::fork(self, from).ok()
    }

    fn truncate(&mut self, sequence: SequenceId, tokens: usize) {
        Pages::truncate(self, sequence, tokens);
    }

    fn close(&mut self, sequence: SequenceId) {
        Pages::close(self, sequence);
    }
}

impl Sequences for Session {
    fn pages(&self) -> &Pages {
        self.cache()
    }

    fn open(&mut self) -> Option<SequenceId> {
        Session::open(self).ok()
    }

    fn fork(&mut self, from: SequenceId) -> Option<SequenceId> {
        Session::fork(self, from).ok()
    }

    fn truncate(&mut self, sequence: SequenceId, tokens: usize) {
        Session::truncate(self, sequence, tokens);
    }

    fn close(&mut self, sequence: SequenceId) {
        Session::close(self, sequence);
    }
}
