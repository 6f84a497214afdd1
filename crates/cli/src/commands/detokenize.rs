//! `bilayer detokenize`: ids to text.

use bilayer_engine::Error;
use serde::Serialize;

use crate::args::Detokenize;
use crate::failure::Failure;
use crate::{demo, output};

#[derive(Serialize)]
struct Document {
    tokens: Vec<u32>,
    text: String,
}

/// Prints the text of the ids.
pub fn execute(args: &Detokenize) -> Result<u8, Failure> {
    let tokenizer = demo::tokenizer(args.vocabulary.model.as_deref())?;
    let given = if args.ids.is_empty() {
        output::piped(None)?.ok_or_else(|| {
            Failure::usage("no ids; give some, such as 15043,2787, or pipe them in")
        })?
    } else {
        args.ids.join(" ")
    };
    let separators = |c: char| c.is_whitespace() || [',', '[', ']'].contains(&c);
    let mut tokens = Vec::new();
    for word in given.split(separators).filter(|word| !word.is_empty()) {
        let token: u32 = word.parse().map_err(|_| {
            Failure::usage(format!("`{word}` is not a token id; ids are numbers from 0"))
        })?;
        let vocab = tokenizer.len();
        if token as usize >= vocab {
            return Err(Error::Token { token, vocab }.into());
        }
        tokens.push(token);
    }
    let text = tokenizer.decode(&tokens);
    if args.json {
        output::json(&Document { tokens, text })?;
    } else {
        output::line(&text)?;
    }
    Ok(0)
}
