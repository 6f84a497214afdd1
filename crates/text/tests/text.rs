//! The promises of tokenizers, chat templates and replies that need no file but those of the templates.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

#[path = "text/builtins.rs"]
mod builtins;
#[path = "../../../tests/support/data.rs"]
mod data;
#[path = "text/formats.rs"]
mod formats;
#[path = "text/prompts.rs"]
mod prompts;
#[path = "text/reply.rs"]
mod reply;
#[path = "text/templates.rs"]
mod templates;
#[path = "text/tokenizers.rs"]
mod tokenizers;
#[path = "text/tokens.rs"]
mod tokens;
#[path = "text/vocabularies.rs"]
mod vocabularies;
