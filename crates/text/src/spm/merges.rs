//! Byte pairs (`llama`): characters are merged by the score of the result.
//!
//! This is SentencePiece's own algorithm, not its usual emulation by ranked merges: the emulation orders equal scores
//! by token id where SentencePiece goes from left to right, and needs several merges per token where a look-up of the
//! joined text suffices.

use std::cmp::Ordering;
use std::ops::Range;

use super::{Cut, Spelled};
use crate::Error;
use crate::merging::{Joins, Word};
use crate::spellings::Spellings;

/// Merges neighbours, by highest score, then leftmost, until no two form a token.
#[derive(Debug)]
pub(super) struct Merges {
    spellings: Spellings,
    /// Scores by id; zeros have one sign.
    scores: Vec<f32>,
}

/// A span of bytes of a word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    start: usize,
    end: usize,
}

/// Ordered by size; zeros have one sign.
#[derive(Debug, Clone, Copy)]
pub(super) struct Score(f32);

/// The spans of a word that are tokens.
struct Spans<'a> {
    merges: &'a Merges,
    word: &'a str,
}

impl Joins for Spans<'_> {
    type Symbol = Span;
    type Rank = Score;

    fn join(&self, left: Span, right: Span) -> Option<(Score, Span)> {
        let whole = Span { start: left.start, end: right.end };
        let id = self.merges.spellings.find(&self.word[whole.start..whole.end])?;
        Some((Score(self.merges.scores[id as usize]), whole))
    }

    fn makes(&self, _left: Span, right: Span, whole: Span) -> bool {
        right.end == whole.end
    }
}

impl Merges {
    pub fn new<'a>(tokens: impl Iterator<Item = Spelled<'a>>, scores: &[f32]) -> Merges {
        let mut spellings = Spellings::new(scores.len());
        for token in tokens {
            match token.is_piece() {
                true => spellings.push(token.text),
                false => spellings.skip(),
            }
        }
        // Adding zero makes the two zeros equal.
        Merges { spellings, scores: scores.iter().map(|score| score + 0.0).collect() }
    }
}

impl Cut for Merges {
    type Memory = Word<Span, Score>;

    fn cut(
        &self,
        word: &str,
        memory: &mut Word<Span, Score>,
        each: &mut impl FnMut(Range<usize>, Option<u32>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        memory.clear();
        for (start, character) in word.char_indices() {
            memory.push(Span { start, end: start + character.len_utf8() });
        }
        memory.merge(&Spans { merges: self, word });
        memory.symbols().try_for_each(|Span { start, end }| {
            each(start..end, self.spellings.find(&word[start..end]))
        })
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

#[cfg(test)]
mod tests {
    use super::Score;

    #[test]
    fn scores_are_ordered_by_size() {
        assert!(Score(-1.0) < Score(0.5) && Score(-1.0) > Score(-2.0));
        assert!(Score(0.5) == Score(0.5) && Score(0.5) != Score(0.25));
    }
}
