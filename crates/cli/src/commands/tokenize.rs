//! `bilayer tokenize`: text to ids and pieces.

use std::path::Path;

use bilayer_text::{Encode, Tokenizer};
use serde::Serialize;

use crate::args::Tokenize;
use crate::failure::{Failure, USAGE};
use crate::{demo, output};

#[derive(Serialize)]
struct Document {
    tokens: Vec<u32>,
    pieces: Vec<String>,
}

/// Tokenizes a text, or every line of a JSONL file.
pub fn execute(args: &Tokenize) -> Result<u8, Failure> {
    let tokenizer = demo::tokenizer(args.model.as_deref())?;
    let options = Encode { add_special: !args.no_bos, parse_special: !args.no_parse_special };
    if let Some(path) = &args.jsonl {
        return lines(&tokenizer, options, path);
    }
    let given = args.text.clone().or_else(|| args.prompt.clone());
    let text = match (given, &args.file) {
        (Some(text), _) => text,
        (None, Some(path)) => output::file(path)?,
        (None, None) => output::piped()?.ok_or_else(|| {
            Failure::usage("no text: give TEXT, -f FILE, --jsonl FILE, or pipe it in")
        })?,
    };
    let tokens = encode(&tokenizer, &text, options)?;
    let pieces: Vec<String> = tokens.iter().map(|&id| piece(&tokenizer, id)).collect();
    if args.json {
        output::json(&Document { tokens, pieces })?;
        return Ok(0);
    }
    let mut table = String::new();
    for (id, piece) in tokens.iter().zip(&pieces) {
        table.push_str(&format!("{id:>7}  {piece:?}\n"));
    }
    output::text(&table)?;
    Ok(0)
}

fn lines(tokenizer: &Tokenizer, options: Encode, path: &Path) -> Result<u8, Failure> {
    let text = if path == Path::new("-") {
        output::piped()?.unwrap_or_default()
    } else {
        output::file(path)?
    };
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let text: String = serde_json::from_str(line).map_err(|error| {
            let place = format!("{} line {}", path.display(), number + 1);
            Failure::Line(USAGE, format!("{place}: expected one JSON string: {error}"))
        })?;
        output::json(&encode(tokenizer, &text, options)?)?;
    }
    Ok(0)
}

fn encode(tokenizer: &Tokenizer, text: &str, options: Encode) -> Result<Vec<u32>, Failure> {
    tokenizer.encode(text, options).map_err(|error| bilayer_engine::Error::Text(error).into())
}

fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.piece(id).unwrap_or_default()).into_owned()
}
