//! Wraps an answer at the edge of the terminal, between words.

use unicode_width::UnicodeWidthChar;

/// Columns between tab stops.
const TAB: usize = 8;

/// The line that is being written. Characters are written at once; a word that reaches the edge is erased and written
/// again on the next line.
#[derive(Debug, Default)]
pub struct Wrap {
    /// The column of the cursor.
    column: usize,
    /// The word before the cursor.
    word: String,
    /// Its columns.
    word_columns: usize,
}

impl Wrap {
    /// What to write for a piece of text at a terminal of so many columns.
    pub fn wrapped(&mut self, piece: &str, columns: usize) -> String {
        // A terminal holds back the cursor at the last column, from where it would go one too far to the left.
        let edge = columns.saturating_sub(1).max(1);
        let mut out = String::with_capacity(piece.len() + 8);
        for c in piece.chars() {
            match c {
                '\n' | '\r' => {
                    *self = Wrap::default();
                    out.push(c);
                }
                c if c.is_whitespace() => self.space(c, edge, &mut out),
                c => self.letter(c, edge, &mut out),
            }
        }
        out
    }

    /// The end of a text that fits into so many columns, on one line.
    pub fn last_columns(text: &str, columns: usize) -> String {
        let mut left = columns;
        let mut kept: Vec<char> = Vec::new();
        for c in text.chars().rev() {
            let c = if c.is_whitespace() { ' ' } else { c };
            let width = c.width().unwrap_or(0);
            if width > left {
                break;
            }
            left -= width;
            kept.push(c);
        }
        kept.into_iter().rev().collect()
    }

    fn space(&mut self, c: char, edge: usize, out: &mut String) {
        self.end_word();
        let width = if c == '\t' { TAB - self.column % TAB } else { c.width().unwrap_or(0) };
        if self.column + width > edge {
            // The line break stands for it.
            out.push('\n');
            self.column = 0;
        } else {
            out.push(c);
            self.column += width;
        }
    }

    fn letter(&mut self, c: char, edge: usize, out: &mut String) {
        let width = c.width().unwrap_or(0);
        if width > 1 {
            // Lines may break before a wide letter.
            self.end_word();
        }
        if self.column + width > edge {
            if self.word_columns > 0 && self.word_columns < self.column {
                out.push_str(&format!("\x1b[{}D\x1b[K\n{}", self.word_columns, self.word));
                self.column = self.word_columns;
            } else {
                out.push('\n');
                self.column = 0;
                self.end_word();
            }
        }
        out.push(c);
        self.column += width;
        if width <= 1 {
            self.word.push(c);
            self.word_columns += width;
        }
    }

    fn end_word(&mut self) {
        self.word.clear();
        self.word_columns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that a terminal shows of what is written.
    fn shown(written: &str) -> Vec<String> {
        let mut lines = vec![String::new()];
        let mut rest = written.chars();
        while let Some(c) = rest.next() {
            let line = lines.last_mut().expect("a line");
            match c {
                '\n' => lines.push(String::new()),
                '\x1b' => {
                    let sequence: String =
                        rest.by_ref().take_while(|c| !c.is_ascii_alphabetic()).collect();
                    // Erasing to the end of the line follows each move.
                    if let Ok(back) = sequence[1..].parse::<usize>() {
                        line.truncate(line.len() - back);
                    }
                }
                c => line.push(c),
            }
        }
        lines
    }

    #[test]
    fn lines_break_between_words() {
        let cases: &[(&str, usize, &[&str])] = &[
            ("the quick brown fox", 11, &["the quick ", "brown fox"]),
            ("the quick brown", 20, &["the quick brown"]),
            ("one\n\ntwo three", 7, &["one", "", "two ", "three"]),
            ("a  bbbbbbbbbbbb c", 7, &["a  ", "bbbbbb", "bbbbbb", "c"]),
            ("日本語日本語", 7, &["日本語", "日本語"]),
            ("1234 6", 6, &["1234 ", "6"]),
            ("12345 6", 6, &["12345", "6"]),
        ];
        for (text, columns, expected) in cases {
            let whole = Wrap::default().wrapped(text, *columns);
            assert_eq!(shown(&whole), *expected, "{text}");
            let mut wrap = Wrap::default();
            let pieces: String =
                text.chars().map(|c| wrap.wrapped(&c.to_string(), *columns)).collect();
            assert_eq!(pieces, whole, "{text}");
        }
    }
}
