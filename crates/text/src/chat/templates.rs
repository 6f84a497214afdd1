//! The chat templates in a model file, and their selection.

use super::{Builtin, Template};
use crate::Error;

/// The name of a template for conversations with functions, as in transformers.
const TOOL_USE: &str = "tool_use";

/// The chat templates of a model file as plain data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Templates {
    /// `tokenizer.chat_template`.
    pub own: Option<String>,
    /// `tokenizer.chat_template.NAME`, with the names.
    pub named: Vec<(String, String)>,
}

impl Templates {
    /// Selects a template: the file's default if `asked` is `None`; otherwise a template's text (recognized by its
    /// braces or blanks), the name of one of the file's templates, or that of a [`Builtin`].
    ///
    /// # Errors
    /// [`Error::NoTemplate`], [`Error::UnknownTemplate`], [`Error::Template`].
    pub fn find(&self, asked: Option<&str>) -> Result<Template, Error> {
        let Some(asked) = asked else {
            let own = self.own.as_ref().ok_or_else(|| Error::NoTemplate { known: self.known() })?;
            return Template::new("the model's", own);
        };
        // A name has no blanks.
        if ["{{", "{%", "{#", " ", "\n"].iter().any(|open| asked.contains(open)) {
            return Template::new("the given one", asked);
        }
        if let Some((name, source)) = self.named.iter().find(|(name, _)| name == asked) {
            return Template::new(name, source);
        }
        let unknown = || Error::UnknownTemplate { found: asked.to_owned(), known: self.known() };
        let builtin = Builtin::find(asked).ok_or_else(unknown)?;
        let ends = builtin.ends.iter().map(|&end| end.to_owned()).collect();
        Ok(Template { ends, ..Template::new(builtin.name, builtin.source)? })
    }

    /// Selects a template for a conversation with functions: as [`find`](Self::find), but the file's template `tool_use`,
    /// if it has one, in place of its default.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub fn find_with_tools(&self, asked: Option<&str>) -> Result<Template, Error> {
        self.find(asked.or(self.has_tool_use().then_some(TOOL_USE)))
    }

    /// Whether the file has a template for conversations with functions.
    pub fn has_tool_use(&self) -> bool {
        self.named.iter().any(|(name, _)| name == TOOL_USE)
    }

    fn known(&self) -> String {
        let named = self.named.iter().map(|(name, _)| name.as_str());
        named
            .chain(Builtin::all().iter().map(|builtin| builtin.name))
            .collect::<Vec<_>>()
            .join(", ")
    }
}
