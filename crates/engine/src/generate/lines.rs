//! The indentation of an answer's lines, which may end it.

/// Where an answer leaves the block of code that it continues: at the first line after its first that is indented by less
/// than a given number of characters.
#[derive(Debug)]
pub(super) struct Lines {
    /// Spaces and tabs that every line but the first begins with.
    indent: usize,
    /// Those of the current line so far; `None` once it has begun.
    found: Option<usize>,
}

impl Lines {
    /// Lines that are indented by at least `indent` spaces or tabs; 0 is no limit.
    pub fn new(indent: usize) -> Lines {
        Lines { indent, found: None }
    }

    /// Reads the next `text` of the answer. The byte at which a line begins that is not indented enough, empty ones
    /// included.
    pub fn push(&mut self, text: &str) -> Option<usize> {
        if self.indent == 0 {
            return None;
        }
        for (at, character) in text.char_indices() {
            match self.found {
                Some(found) if matches!(character, ' ' | '\t') => self.found = Some(found + 1),
                Some(found) if found < self.indent => return Some(at),
                _ => self.found = (character == '\n').then_some(0),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Lines;

    #[test]
    fn the_first_line_with_less_indentation_ends_the_text_however_it_is_split() {
        let cases = [
            (4, "a\n    b\n\t\t  c\n  d", Some("a\n    b\n\t\t  c\n  ")),
            (1, "a\n b\n\n c", Some("a\n b\n")),
            (1, "a\n b\n ", None),
            (2, "a b", None),
            (0, "a\nb", None),
        ];
        for (indent, text, expected) in cases {
            for cut in 0..=text.len() {
                let mut lines = Lines::new(indent);
                let (first, second) = text.split_at(cut);
                let end = lines.push(first);
                let end = end.or_else(|| lines.push(second).map(|at| cut + at));
                assert_eq!(end.map(|end| &text[..end]), expected, "{text:?} cut at {cut}");
            }
        }
    }
}
