//! Texts as Python sees them: white space, lines, and a limit on widths.

use minijinja::{Error, ErrorKind};

/// Limit on the width of padded texts.
const WIDTH: usize = 10_000;

/// A width that is not above [`WIDTH`].
pub fn limited(width: usize) -> Result<usize, Error> {
    match width <= WIDTH {
        true => Ok(width),
        false => {
            let reason = format!("a width is {width}; it must be at most {WIDTH}");
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        }
    }
}

/// White space as Python's `str.isspace` has it: with separators that Unicode does not count as such.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// The lines of a text without their ends, as Python tells them apart.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    ended_lines(text).map(|(line, _)| line)
}

/// The lines of a text with their ends, the last of which may be missing.
pub fn ended_lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let found = rest.char_indices().find(|&(_, c)| is_end(c));
        let (at, next) = match found {
            Some((at, _)) if rest[at..].starts_with("\r\n") => (at, at + 2),
            Some((at, end)) => (at, at + end.len_utf8()),
            None => (rest.len(), rest.len()),
        };
        let (line, end) = (&rest[..at], &rest[at..next]);
        rest = &rest[next..];
        Some((line, end))
    })
}
