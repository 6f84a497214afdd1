//! Prompt lookup: proposes what followed the last occurrence of the text's ending (Saxena 2023).

use super::{Bounds, Draft, Drafter, DrafterSource, Text};
use crate::Error;
use crate::sampling::Options;

/// Minimum length of a match: single tokens recur everywhere.
const ALIKE_MIN: usize = 2;

/// Maximum length of a match: beyond it, the latest match is preferred.
const ALIKE_MAX: usize = 16;

/// Drafts from the text itself, without a second model.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    bounds: Bounds,
}

impl Lookup {
    /// Uses bounds; the probability bound has no effect.
    pub fn new(bounds: Bounds) -> Lookup {
        Lookup { bounds }
    }
}

impl Drafter for Lookup {
    fn begin(&mut self, _: &Options) -> Result<(), Error> {
        Ok(())
    }

    fn draft(&mut self, text: Text<'_>, most: usize, draft: &mut Draft) -> Result<(), Error> {
        let Some(start) = match_end(text) else { return Ok(()) };
        let most = most.min(self.bounds.draft_max);
        if most < self.bounds.draft_min {
            return Ok(());
        }
        for at in start..start + most {
            // A repeating text continues within the tokens just drafted.
            let token = match at.checked_sub(text.len()) {
                Some(behind) => draft.tokens()[behind],
                None => text.get(at),
            };
            draft.push(token);
        }
        Ok(())
    }
}

impl DrafterSource for Lookup {
    fn drafter(&mut self) -> Result<Option<Box<dyn Drafter>>, Error> {
        Ok(Some(Box::new(*self)))
    }
}

/// Position after the longest match of the text's ending; the latest on ties.
fn match_end(text: Text<'_>) -> Option<usize> {
    let len = text.len();
    let mut best = (ALIKE_MIN - 1, None);
    for next in (1..len).rev() {
        let alike = |back: &usize| text.get(next - back) == text.get(len - back);
        let length = (1..=next.min(ALIKE_MAX)).take_while(alike).count();
        if length > best.0 {
            best = (length, Some(next));
        }
        if length == ALIKE_MAX {
            break;
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(text: &[u32], most: usize, bounds: Bounds) -> Vec<u32> {
        let (&last, held) = text.split_last().unwrap();
        let mut draft = Draft::default();
        Lookup::new(bounds).draft(Text { held, last }, most, &mut draft).unwrap();
        assert!((0..draft.tokens().len()).all(|at| draft.get(at).unwrap().chances.is_empty()));
        draft.tokens().to_vec()
    }

    #[test]
    fn what_followed_the_longest_match_is_drafted() {
        let bounds = Bounds { draft_max: 4, ..Bounds::default() };
        let cases: [(&[u32], usize, &[u32]); 7] = [
            (&[1], 4, &[]),
            (&[1, 2, 3, 1], 4, &[]),
            (&[1, 2, 3, 4, 1, 2], 2, &[3, 4]),
            (&[1, 2, 3, 4, 1, 2], 9, &[3, 4, 1, 2]),
            // The longer match wins, although it is earlier.
            (&[7, 1, 2, 5, 1, 2, 6, 7, 1, 2], 1, &[5]),
            // Among matches of equal length, the latest wins.
            (&[1, 2, 5, 1, 2, 6, 1, 2], 1, &[6]),
            // The draft continues beyond the end of the text.
            (&[8, 9, 8, 9], 4, &[8, 9, 8, 9]),
        ];
        for (text, most, expected) in cases {
            assert_eq!(drafted(text, most, bounds), expected, "{text:?}");
        }
        let bounds = Bounds { draft_min: 3, ..bounds };
        assert!(drafted(&[1, 2, 3, 1, 2], 2, bounds).is_empty());
        assert_eq!(drafted(&[1, 2, 3, 1, 2], 3, bounds), [3, 1, 2]);
    }
}
