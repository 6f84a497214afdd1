//! Readers of tool calls: one per way of writing them, behind one interface.

use super::envelope::EnvelopeReader;
use super::families::{Bare, Framed, Syntax};
use super::framed::FramedReader;
use super::literal::LiteralReader;
use super::scope::{Begin, Flow, Scope};

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
