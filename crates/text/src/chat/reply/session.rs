//! What the parsers of a reply share: its functions, where its parts go, and how it ends.

use super::out::{Out, Tool};
use super::scope::Scope;

/// What happens to reasoning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// It stays in the content, with its tags.
    Content,
    /// It becomes [`Delta::Reasoning`](super::Delta::Reasoning).
    #[default]
    Split,
}

/// How a reply ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The model ended it.
    Complete,
    /// It was cut off.
    Cut,
}

impl End {
    /// Text of a call that was withheld.
    pub fn withheld(self, text: String) -> String {
        match self {
            Self::Complete => text,
            Self::Cut => String::new(),
        }
    }

    /// Text that was withheld because a marker may have begun, where `calls` are the markers that begin calls.
    pub fn marker(self, text: String, calls: &[&str]) -> String {
        if calls.iter().any(|marker| marker.starts_with(&text)) {
            self.withheld(text)
        } else {
            text
        }
    }
}

/// What all parsers share.
#[derive(Debug)]
pub struct Session {
    /// The functions that may be called.
    pub tools: Vec<Tool>,
    /// What happens to reasoning.
    pub reasoning: ReasoningFormat,
    /// Limit on the number of calls.
    pub calls_max: usize,
    /// Receives the parts.
    pub out: Out,
}

impl Session {
    /// For a reader of calls.
    pub fn scope(&mut self) -> Scope<'_> {
        Scope { tools: &self.tools, out: &mut self.out, calls_max: self.calls_max }
    }

    /// Whether calls are looked for.
    pub fn seeks_calls(&self) -> bool {
        !self.tools.is_empty() && self.out.calls < self.calls_max
    }
}
