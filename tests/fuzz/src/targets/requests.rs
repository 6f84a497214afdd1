//! Requests: bodies of every endpoint, and what an answer must follow.

use std::sync::OnceLock;

use bilayer_engine::constrain::{Constraint, Error, Grammar, Limits, Token, Tokens};

use super::models::model;

/// A body for one of the server's endpoints.
pub fn request(data: &[u8]) {
    let Some((which, body)) = data.split_first() else { return };
    let paths: Vec<&str> = bilayer_server::endpoints().collect();
    let path = paths[usize::from(*which) % paths.len()];
    let _ = bilayer_server::check(path, body, model());
}

/// Tokens of single bytes, the last of which ends a text.
fn tokens() -> &'static Tokens {
    static TOKENS: OnceLock<Tokens> = OnceLock::new();
    TOKENS.get_or_init(|| {
        let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let words = bytes.iter().map(|byte| Token::Text(byte)).chain([Token::Control(b"<end>")]);
        Tokens::new(words, &[256]).expect("a small vocabulary")
    })
}

/// A schema, a GBNF grammar, an expression or a Lark grammar: an error, or texts that it allows.
pub fn grammar(data: &[u8]) {
    let Some((&[notation, choice], source)) = data.split_first_chunk() else { return };
    let source = String::from_utf8_lossy(source);
    let grammar = match notation % 4 {
        0 => Grammar::json_schema(source),
        1 => Grammar::gbnf(source),
        2 => Grammar::regex(source),
        _ => Grammar::lark(source),
    };
    let Ok(mut constraint) = Constraint::new(tokens(), &grammar, Limits::default()) else {
        return;
    };
    for step in 0..24 {
        let Ok(mask) = constraint.mask() else { return };
        let count = mask.count();
        let Some(token) = mask.iter().nth((usize::from(choice) + step) % count.max(1)) else {
            return;
        };
        match constraint.accept(token) {
            // The work of a token is limited too.
            Err(error) => return assert!(!matches!(error, Error::NotAllowed { .. }), "{error}"),
            Ok(()) if token == 256 => return,
            Ok(()) => {}
        }
    }
}
