//! Sets of characters as sorted ranges.

use std::fmt::Write;

/// A set of characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chars {
    /// First and last code point, ascending, with gaps between; no surrogates.
    ranges: Vec<(u32, u32)>,
}

/// The code points below and above the surrogates.
const VALID: [(u32, u32); 2] = [(0, 0xD7FF), (0xE000, 0x10FFFF)];

impl Chars {
    /// The characters of ranges, which may overlap.
    pub fn new(ranges: impl IntoIterator<Item = (char, char)>) -> Chars {
        let ranges = ranges.into_iter().map(|(first, last)| (first as u32, last as u32));
        Chars::joined(ranges.collect())
    }

    /// All characters.
    pub fn all() -> Chars {
        Chars { ranges: VALID.to_vec() }
    }

    /// One character.
    pub fn one(character: char) -> Chars {
        Chars::new([(character, character)])
    }

    fn joined(mut ranges: Vec<(u32, u32)>) -> Chars {
        ranges.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last)
                }
                _ => joined.push((first, last)),
            }
        }
        Chars { ranges: intersection(&joined, &VALID) }
    }

    /// All other characters.
    #[must_use]
    pub fn negated(&self) -> Chars {
        let mut gaps = Vec::with_capacity(self.ranges.len() + 1);
        let mut next = 0;
        for &(first, last) in &self.ranges {
            if first > next {
                gaps.push((next, first - 1));
            }
            next = last + 1;
        }
        gaps.push((next, 0x10FFFF));
        gaps.retain(|(first, last)| first <= last);
        Chars { ranges: intersection(&gaps, &VALID) }
    }

    /// Adds the characters of another set; true if there were new ones.
    pub fn add(&mut self, other: &Chars) -> bool {
        let all = self.ranges.iter().chain(&other.ranges).copied().collect();
        let before = std::mem::replace(self, Chars::joined(all));
        before != *self
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether a character is in both.
    pub fn meets(&self, other: &Chars) -> bool {
        let (a, b) = (&self.ranges, &other.ranges);
        let (mut i, mut j) = (0, 0);
        while i < a.len() && j < b.len() {
            if a[i].0.max(b[j].0) <= a[i].1.min(b[j].1) {
                return true;
            }
            if a[i].1 < b[j].1 { i += 1 } else { j += 1 }
        }
        false
    }

    /// The set in the syntax of regular expressions.
    pub fn to_regex(&self) -> String {
        let mut text = "[".to_owned();
        for &(first, last) in &self.ranges {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{{{first:x}}}-\\x{{{last:x}}}");
        }
        text + "]"
    }
}

fn intersection(a: &[(u32, u32)], b: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let (mut i, mut j, mut both) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        let (first, last) = (a[i].0.max(b[j].0), a[i].1.min(b[j].1));
        if first <= last {
            both.push((first, last));
        }
        if a[i].1 < b[j].1 { i += 1 } else { j += 1 }
    }
    both
}
