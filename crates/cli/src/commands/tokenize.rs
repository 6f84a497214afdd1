//! `bilayer tokenize`: text to ids and pieces.

use std::fmt::Write;
use std::path::Path;

use bilayer_engine::Error;
use bilayer_text::{Encode, Tokenizer};
use serde::Serialize;

use crate::args::Tokenize;
use crate::failure::Failure;
use crate::{demo, escapes, output};

#[derive(Serialize)]
struct Document {
    tokens: Vec<u32>,
    pieces: Vec<String>,
}

/// Tokenizes a text, or every line of a JSONL file.
pub fn execute(args: &Tokenize) -> Result<u8, Failure> {
    let tokenizer = demo::tokenizer(args.vocabulary.model.as_deref())?;
    let options = Encode { add_special: !args.no_bos, parse_special: !args.no_parse_special };
    if let Some(path) = &args.jsonl {
        return lines(&tokenizer, options, path);
    }
    let tokens = encode(&tokenizer, &text(args)?, options)?;
    let count = tokens.len();
    let pieces = tokens.iter().map(|&id| tokenizer.piece(id).unwrap_or_default());
    if args.json {
        let pieces = pieces.map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
        output::json(&Document { tokens, pieces })?;
    } else if args.ids {
        output::json(&tokens)?;
    } else {
        let rows = tokens.iter().zip(pieces);
        let table: String =
            rows.map(|(id, piece)| format!("{id:>7}  \"{}\"\n", shown(piece))).collect();
        output::text(&table)?;
    }
    if args.show_count {
        output::line(&format!("Total number of tokens: {count}"))?;
    }
    Ok(0)
}

fn text(args: &Tokenize) -> Result<String, Failure> {
    let given = args.text.as_deref().or(args.prompt.as_deref());
    match (given, &args.file) {
        (Some(text), _) if args.no_escape => Ok(text.to_owned()),
        (Some(text), _) => escapes::resolve(text),
        (None, Some(path)) => output::file(path),
        (None, None) => output::piped(None)?.ok_or_else(|| {
            Failure::usage("no text; give TEXT, -f FILE or --jsonl FILE, or pipe it in")
        }),
    }
}

fn lines(tokenizer: &Tokenizer, options: Encode, path: &Path) -> Result<u8, Failure> {
    let text = output::json_lines(path)?;
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let text: String = serde_json::from_str(line).map_err(|error| {
            let line = format!("line {}: expected one JSON string: {error}", number + 1);
            Failure::usage(format!("{line}; write one string per line")).in_file(path)
        })?;
        output::json(&encode(tokenizer, &text, options)?)?;
    }
    Ok(0)
}

fn encode(tokenizer: &Tokenizer, text: &str, options: Encode) -> Result<Vec<u32>, Failure> {
    Ok(tokenizer.encode(text, options).map_err(Error::Text)?)
}

/// A piece as lossless text: bytes that are not whole characters as `\xHH`.
fn shown(piece: &[u8]) -> String {
    let mut text = String::new();
    for chunk in piece.utf8_chunks() {
        text.extend(chunk.valid().escape_debug());
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_shown_without_loss() {
        assert_eq!(shown("né\n".as_bytes()), "né\\n");
        assert_eq!(shown(b" \xe2\x96"), " \\xe2\\x96");
        assert_eq!(shown(b"\\x41"), "\\\\x41");
    }
}
