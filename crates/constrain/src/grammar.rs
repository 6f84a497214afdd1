//! Grammars in the notations that clients send, and how each becomes one that llguidance parses.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::error::reason;
use crate::{Error, Limits, Tokens, gbnf, lark, regex, schema};

/// A grammar: which texts are allowed. Its source is checked when a [`Constraint`](crate::Constraint) is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grammar {
    notation: Notation,
    source: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notation {
    Schema,
    Gbnf,
    Regex,
    Lark,
}

impl Grammar {
    /// Any JSON object.
    pub fn json_object() -> Grammar {
        Grammar::json_schema(r#"{"type": "object"}"#)
    }

    /// JSON that is valid under a JSON schema (draft 2020-12, or as `$schema` says). The schema `{}` allows any JSON
    /// value.
    pub fn json_schema(schema: impl Into<String>) -> Grammar {
        Grammar { notation: Notation::Schema, source: schema.into() }
    }

    /// A grammar in llama.cpp's notation, which starts at the rule `root`.
    pub fn gbnf(grammar: impl Into<String>) -> Grammar {
        Grammar { notation: Notation::Gbnf, source: grammar.into() }
    }

    /// A regular expression, in the syntax of Rust's crate `regex`, which the whole text matches.
    pub fn regex(expression: impl Into<String>) -> Grammar {
        Grammar { notation: Notation::Regex, source: expression.into() }
    }

    /// A grammar in llguidance's variant of Lark, which starts at the rule `start`.
    pub fn lark(grammar: impl Into<String>) -> Grammar {
        Grammar { notation: Notation::Lark, source: grammar.into() }
    }

    /// A schema as an expression in [`lark`](Grammar::lark), for grammars that allow other texts too; `None` for other
    /// notations, and for a source that is no JSON.
    pub fn lark_expression(&self) -> Option<String> {
        let is_schema = self.notation == Notation::Schema;
        let schema = is_schema.then(|| serde_json::from_str(&self.source).ok()).flatten()?;
        Some(format!("%json {}", with_options(schema)))
    }

    /// What the source is, for messages.
    pub(crate) fn what(&self) -> &'static str {
        match self.notation {
            Notation::Schema => "the schema",
            Notation::Gbnf => "the GBNF grammar",
            Notation::Regex => "the regular expression",
            Notation::Lark => "the Lark grammar",
        }
    }

    /// The grammar as llguidance takes it; what can be checked with a better message than its own is checked.
    ///
    /// # Errors
    /// Errors of syntax; limits that are exceeded.
    pub(crate) fn prepare(&self, tokens: &Tokens, limits: &Limits) -> Result<Prepared, Error> {
        let (what, bytes, most) = (self.what(), self.source.len(), limits.source_bytes);
        if bytes > most {
            return Err(Error::TooLong { what, bytes, most });
        }
        Ok(match self.notation {
            Notation::Schema => Prepared::Schema(schema::parse(&self.source, limits)?),
            Notation::Gbnf => {
                let (source, tokens) = gbnf::to_lark(&self.source, tokens, limits)?;
                Prepared::Text { source, tokens }
            }
            Notation::Regex => {
                Prepared::Text { source: regex::to_lark(&self.source)?, tokens: Vec::new() }
            }
            Notation::Lark => Prepared::Lark(lark::check(&self.source, limits)?),
        })
    }

    /// The error for a grammar that llguidance refuses.
    pub(crate) fn refused(&self, message: &str) -> Error {
        let what = self.what();
        match self.notation {
            Notation::Lark => lark::refused(what, message),
            _ => Error::Grammar { what, reason: reason(message) },
        }
    }
}

/// A grammar that is ready to be compiled.
pub(crate) enum Prepared {
    Schema(Value),
    /// A Lark grammar that may have schemas.
    Lark(lark::Checked),
    /// A Lark grammar without schemas, and the tokens for which it names stand-ins.
    Text {
        source: String,
        tokens: Vec<u32>,
    },
}

impl Prepared {
    /// As llguidance takes it.
    pub fn top_level(&self) -> TopLevelGrammar {
        match self {
            Prepared::Schema(schema) => top_level(schema.clone()),
            Prepared::Lark(checked) => checked.top_level(),
            Prepared::Text { source, .. } => TopLevelGrammar::from_lark(source.clone()),
        }
    }

    /// Takes the tokens out for which the grammar names stand-ins.
    pub fn take_tokens(&mut self) -> Vec<u32> {
        match self {
            Prepared::Text { tokens, .. } => std::mem::take(tokens),
            _ => Vec::new(),
        }
    }
}

/// A schema as llguidance takes it.
pub(crate) fn top_level(mut schema: Value) -> TopLevelGrammar {
    schema::counted::write_out(&mut schema);
    TopLevelGrammar::from_json_schema(with_options(schema))
}

/// White space between the tokens of JSON: a model may indent, but not fill its answer with nothing else.
const SPACE: &str = r"[ \t]{1,2}|\r?\n[ \t]{0,20}";

/// The schema with llguidance's options in it, unless it has some. A schema that is `true` or `false` has no room for
/// them.
fn with_options(schema: Value) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({ "not": {} }),
        schema => schema,
    };
    let mut options = json!({ "whitespace_pattern": SPACE });
    if let Some(escapes) = schema::escapes(&schema) {
        options["json_allowed_escapes"] = escapes.into();
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.entry("x-guidance").or_insert(options);
    }
    schema
}
