//! Calls that may turn out to be content.

use super::calls::Reader;
use super::scope::Flow;
use super::session::{End, Session};

/// Limit on text that is withheld until it is known whether it begins a call.
const RAW_BYTES: usize = 128 << 10;

/// Reads the calls of one section and keeps their text as long as it may turn out to be content.
#[derive(Debug)]
pub struct Attempt {
    reader: Reader,
    raw: String,
    calls_before: usize,
}

/// The end of an [`Attempt`].
#[derive(Debug)]
pub struct Ended {
    /// Text that is content after all.
    pub content: String,
    /// Text that was not read yet.
    pub rest: String,
    /// Whether there was a call.
    pub called: bool,
}

impl Attempt {
    /// An attempt after `raw`.
    pub fn new(reader: Reader, raw: String, session: &Session) -> Self {
        Self { reader, raw, calls_before: session.out.calls }
    }

    /// Feeds a character.
    pub fn feed(&mut self, c: char, session: &mut Session) -> Option<Ended> {
        let (was_open, calls) = (session.out.is_open, session.out.calls);
        let flow = self.reader.push(c, &mut session.scope());
        if was_open || session.out.is_open || session.out.calls != calls {
            self.raw.clear();
        } else {
            self.raw.push(c);
        }
        let called = session.out.calls > self.calls_before;
        let (rest, is_done) = match flow {
            Flow::More if self.raw.len() < RAW_BYTES => return None,
            Flow::Call => {
                self.raw.clear();
                return None;
            }
            Flow::More => (String::new(), false),
            Flow::Done => (String::new(), called),
            Flow::Skip => (String::new(), true),
            Flow::Leave(rest) => (rest, false),
        };
        // A call that is malformed behind its arguments has ended, too.
        session.scope().end();
        let mut content = std::mem::take(&mut self.raw);
        if content.ends_with(&rest) {
            content.truncate(content.len() - rest.len());
        }
        if is_done || (called && content.trim().is_empty()) {
            content.clear();
        }
        Some(Ended { content, rest, called })
    }

    /// See [`Parser::ends_with_call`](super::Parser::ends_with_call).
    pub fn ends_with_call(&self, session: &Session) -> bool {
        let called = session.out.calls > self.calls_before;
        called && session.out.ends_with_call() && self.reader.is_after_call()
    }

    /// Ends the reply within the attempt; returns the text that is content.
    pub fn finish(mut self, end: End, session: &mut Session) -> String {
        if session.out.is_open {
            return end.withheld(self.reader.finish(&mut session.scope()));
        }
        let called = session.out.calls > self.calls_before;
        if end == End::Cut && (called || session.seeks_calls()) {
            return String::new();
        }
        if called && self.raw.trim().is_empty() { String::new() } else { self.raw }
    }
}
