//! Readers of tool calls: one per way of writing them, behind one interface.

use super::envelope::EnvelopeReader;
use super::families::{Bare, Framed, Syntax};
use super::framed::FramedReader;
use super::literal::LiteralReader;
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

/// A reader of calls.
#[derive(Debug)]
pub enum Reader {
    /// Of [`Syntax::Envelope`].
    Envelope(EnvelopeReader),
    /// Of [`Syntax::Framed`].
    Framed(FramedReader),
    /// Of [`Syntax::Literal`].
    Literal(LiteralReader),
}

impl Reader {
    /// Feeds a character.
    pub fn push(&mut self, c: char, scope: &mut Scope<'_>) -> Flow {
        match self {
            Self::Envelope(reader) => reader.push(c, scope),
            Self::Framed(reader) => reader.push(c, scope),
            Self::Literal(reader) => reader.push(c, scope),
        }
    }

    /// Whether a call is complete, and nothing but white space followed.
    pub fn is_after_call(&self) -> bool {
        match self {
            Self::Envelope(reader) => reader.is_after_call(),
            Self::Framed(reader) => reader.is_after_call(),
            Self::Literal(reader) => reader.is_after_call(),
        }
    }

    /// Hands over what an open call still holds back, and returns what is no part of it.
    pub fn finish(&mut self, scope: &mut Scope<'_>) -> String {
        match self {
            Self::Framed(reader) => reader.finish(scope),
            Self::Literal(reader) => reader.finish(scope),
            Self::Envelope(_) => String::new(),
        }
    }
}

/// The markers that begin calls.
pub fn triggers(syntax: &'static Syntax) -> Vec<&'static str> {
    match syntax {
        Syntax::Envelope(envelope) => envelope.open.to_vec(),
        Syntax::Framed(framed) => framed_triggers(framed),
        Syntax::Literal(literal) => literal.open.to_vec(),
        Syntax::Channels(_) => Vec::new(),
    }
}

/// The markers that begin a section or a call.
pub fn framed_triggers(framed: &'static Framed) -> Vec<&'static str> {
    framed.section.iter().copied().chain([framed.call]).collect()
}

/// The character at which a reply may begin a call without a marker.
pub fn bare(syntax: &Syntax) -> Option<&'static str> {
    let bare = match syntax {
        Syntax::Envelope(envelope) => envelope.bare,
        Syntax::Literal(literal) => literal.bare,
        Syntax::Framed(_) | Syntax::Channels(_) => Bare::Never,
    };
    match bare {
        Bare::At(first) => Some(first),
        Bare::Never => None,
    }
}

/// The reader after the trigger with this index, or before a call without one.
pub fn reader(syntax: &'static Syntax, trigger: Option<usize>) -> Option<Reader> {
    Some(match syntax {
        Syntax::Envelope(envelope) => {
            let close = if trigger.is_some() { envelope.close } else { &[] };
            Reader::Envelope(EnvelopeReader::new(close))
        }
        Syntax::Framed(framed) => {
            let is_section = trigger.is_some_and(|at| at < framed.section.len());
            let begin = if is_section { Begin::Section } else { Begin::Call };
            Reader::Framed(FramedReader::new(framed, begin))
        }
        Syntax::Literal(literal) => Reader::Literal(LiteralReader::new(
            literal,
            if trigger.is_some() { Begin::Section } else { Begin::Bare },
        )),
        Syntax::Channels(_) => return None,
    })
}
