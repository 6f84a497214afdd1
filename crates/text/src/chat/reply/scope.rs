//! What readers of calls work with, and what a character led to.

use super::out::{Out, Tool};

/// Limit on a function's name or an argument's key in bytes.
pub const NAME_BYTES: usize = 256;

/// What reading a character led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flow {
    /// Reading goes on.
    More,
    /// The character ended a call; reading goes on.
    Call,
    /// The character ended the calls and belongs to them.
    Done,
    /// The character ended markup that belongs to content which follows.
    Skip,
    /// This text, which ends with the character, is no part of a call.
    Leave(String),
}

impl Flow {
    /// Leaves before `c`.
    pub fn leave(c: char) -> Self {
        Self::Leave(c.into())
    }
}

/// What came before a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// The marker of a section.
    Section,
    /// The marker of a call.
    Call,
    /// No marker.
    Bare,
}

/// What a reader works with.
#[derive(Debug)]
pub struct Scope<'a> {
    /// The functions that may be called.
    pub tools: &'a [Tool],
    /// Receives the calls.
    pub out: &'a mut Out,
    /// Limit on the number of calls.
    pub calls_max: usize,
}

impl Scope<'_> {
    /// Whether no further call is allowed.
    pub fn is_full(&self) -> bool {
        self.out.calls >= self.calls_max
    }

    /// The tool of this name.
    pub fn tool(&self, name: &str) -> Option<usize> {
        self.tools.iter().position(|tool| tool.name == name)
    }

    /// Begins a call if the function exists and may be called.
    pub fn begin(&mut self, name: &str) -> Option<usize> {
        let tool = if self.is_full() { None } else { self.tool(name) }?;
        self.out.call(name);
        Some(tool)
    }

    /// Ends the call.
    pub fn end(&mut self) {
        self.out.is_open = false;
    }
}
