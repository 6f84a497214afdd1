//! Constrained output: JSON schemas, GBNF, regular expressions and Lark grammars to the tokens allowed next.
//!
//! **Purpose.** A [`Grammar`] says which texts are allowed. Together with the vocabulary ([`Tokens`]) it becomes a
//! [`Constraint`], which knows after each token which tokens may come next, as a [`Mask`]. The parser is
//! `llguidance`'s: derivatives of regular expressions below, an Earley parser above.
//!
//! **Fail closed.** A grammar that is invalid or too large, or a schema with a keyword that is not supported, is an
//! error when the constraint is made, with the place: never text without a constraint. Compilation is bounded by
//! [`Limits`].
//!
//! **What it does not know.** Models, tokenizers, sampling, files.
//!
//! **Read first.** [`Constraint`], [`Grammar`], [`Tokens`].
//!
//! ```
//! use bilayer_constrain::{Constraint, Grammar, Limits, Token, Tokens};
//!
//! let texts = ["yes", "no", "maybe", "y", "<end>"];
//! let token = |text: &'static str| match text {
//!     "<end>" => Token::Control(text.as_bytes()),
//!     _ => Token::Text(text.as_bytes()),
//! };
//! let tokens = Tokens::new(texts.into_iter().map(token), &[4])?;
//! let mut constraint = Constraint::new(&tokens, &Grammar::regex("yes!?|no"), Limits::default())?;
//! assert_eq!(constraint.mask()?.iter().collect::<Vec<_>>(), [0, 1, 3]);
//! constraint.accept(0)?;
//! assert_eq!(constraint.mask()?.iter().collect::<Vec<_>>(), [4], "no token has the exclamation mark");
//! # Ok::<(), bilayer_constrain::Error>(())
//! ```

mod constraint;
mod error;
mod gbnf;
mod grammar;
mod lark;
mod limits;
mod mask;
mod readings;
mod regex;
mod schema;
mod tokens;
mod trigger;

pub use constraint::Constraint;
pub use error::Error;
pub use grammar::Grammar;
pub use limits::Limits;
pub use mask::Mask;
pub use tokens::{Token, Tokens};
pub use trigger::{Starts, Tags};

#[cfg(test)]
mod tests;
