//! From ranges of a normalized text back to the original one.

use std::ops::Range;

/// The ranges of a text that the parts of its normalized form were made of, in order and without gaps in the latter.
#[derive(Debug, Default)]
pub(crate) struct Alignment {
    parts: Vec<MappedRange>,
}

#[derive(Debug)]
struct MappedRange {
    /// Bytes of the normalized text.
    range: Range<usize>,
    /// Bytes of the original text.
    original: Range<usize>,
}

impl MappedRange {
    /// Whether every byte corresponds to one of the original.
    fn is_copy(&self) -> bool {
        self.range.len() == self.original.len()
    }
}

impl Alignment {
    /// Appends the next `len` bytes of the normalized text, which are made of the bytes `original`.
    pub fn push(&mut self, len: usize, original: Range<usize>) {
        if len == 0 {
            return;
        }
        let start = self.len();
        let part = MappedRange { range: start..start + len, original };
        match self.parts.last_mut() {
            Some(last)
                if last.is_copy() && part.is_copy() && last.original.end == part.original.start =>
            {
                (last.range.end, last.original.end) = (part.range.end, part.original.end);
            }
            _ => self.parts.push(part),
        }
    }

    /// Bytes of the normalized text.
    fn len(&self) -> usize {
        self.parts.last().map_or(0, |last| last.range.end)
    }

    /// The bytes of the original text that a range of the normalized one is made of, not always whole characters.
    pub fn original(&self, range: Range<usize>) -> Range<usize> {
        let part = |at: usize| {
            let number = self.parts.partition_point(|part| part.range.end <= at);
            self.parts.get(number)
        };
        let end_of_text = self.parts.last().map_or(0, |last| last.original.end);
        let start = part(range.start).map_or(end_of_text, |part| match part.is_copy() {
            true => part.original.start + (range.start - part.range.start),
            false => part.original.start,
        });
        let last = range.end.checked_sub(1).filter(|_| !range.is_empty()).and_then(part);
        let end = last.map_or(start, |part| match part.is_copy() {
            true => part.original.start + (range.end - part.range.start),
            false => part.original.end,
        });
        start..end.max(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_and_other_parts_are_whole() {
        // "ab" stays, "é" becomes "e", "ß" becomes "sss", and a space is added before all.
        let mut alignment = Alignment::default();
        alignment.push(1, 0..0);
        alignment.push(1, 0..1);
        alignment.push(1, 1..2);
        alignment.push(0, 2..3);
        alignment.push(1, 3..5);
        alignment.push(3, 5..7);
        let cases = [
            (0..1, 0..0),
            (0..2, 0..1),
            (1..3, 0..2),
            (2..3, 1..2),
            (3..4, 3..5),
            (2..4, 1..5),
            (5..6, 5..7),
            (4..7, 5..7),
            (7..7, 7..7),
        ];
        for (range, expected) in cases {
            assert_eq!(alignment.original(range.clone()), expected, "{range:?}");
        }
        assert_eq!(Alignment::default().original(0..0), 0..0);
    }
}
