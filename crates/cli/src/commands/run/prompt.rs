//! Reads the prompt from its source.

use std::time::Duration;

use bilayer_engine::Model;

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::{demo, escapes, output};

/// How long standard input is waited for if there is a prompt without it: nobody may write to it.
const PATIENCE: Duration = Duration::from_millis(400);

/// A prompt before tokenization.
pub enum Given {
    /// To be tokenized.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// The prompt from the flags, otherwise from a pipe, otherwise, for the demo model, its own.
pub fn given(args: &RunArgs) -> Result<Given, Failure> {
    if !args.tokens.is_empty() {
        return Ok(Given::Tokens(args.tokens.clone()));
    }
    if let Some(text) = &args.prompt {
        let text = if args.answer.no_escape { text.clone() } else { escapes::resolve(text)? };
        return Ok(Given::Text(text + &appended()?));
    }
    if let Some(path) = &args.file {
        return Ok(Given::Text(without_end(output::file(path)?)));
    }
    let is_demo = args.model.model.is_none();
    match output::piped(is_demo.then_some(PATIENCE))? {
        Some(text) if !(is_demo && text.is_empty()) => Ok(Given::Text(without_end(text))),
        _ if is_demo => {
            output::note(&format!(
                "prompt: {:?}, the demo's own; give another with -p",
                demo::PROMPT
            ));
            Ok(Given::Text(demo::PROMPT.to_owned()))
        }
        _ => Err(Failure::usage("no prompt; give -p TEXT, -f FILE or --tokens IDS, or pipe it in")),
    }
}

/// What standard input adds to the prompt of -p: a line break and its text.
fn appended() -> Result<String, Failure> {
    let patience = (!output::is_redirected()).then_some(PATIENCE);
    let text = output::piped(patience)?.map(without_end).unwrap_or_default();
    if text.is_empty() {
        return Ok(text);
    }
    let bytes = output::counted(text.len(), ["byte", "bytes"]);
    output::note(&format!("note: standard input ({bytes}) follows the prompt of -p"));
    Ok(format!("\n{text}"))
}

/// A text less one line break at its end, which editors and `echo` write; llama.cpp does the same.
pub fn without_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
    }
    if text.ends_with('\r') {
        text.pop();
    }
    text
}

/// The prompt's ids, at least one.
pub fn tokens(given: Given, model: &Model) -> Result<Vec<u32>, Failure> {
    let tokens = match given {
        Given::Tokens(tokens) => tokens,
        Given::Text(text) => model.prompt_tokens(&text)?,
    };
    model.check_tokens(&tokens)?;
    if tokens.is_empty() {
        return Err(Failure::usage("the prompt is empty; give -p TEXT, -f FILE or --tokens IDS"));
    }
    Ok(tokens)
}
