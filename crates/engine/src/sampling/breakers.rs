//! What ends a DRY match: texts, wherever tokens cut them.

use std::collections::HashMap;

/// Bytes of a text that count.
const TEXT_MAX: usize = 64;

/// The tokens that end a DRY match, alone or in a row. Made once for a model and its texts, and shared by samplers.
#[derive(Debug, Default)]
pub struct Breakers {
    /// Of each token, whether it ends a match alone; tokens beyond the list do not.
    alone: Vec<bool>,
    /// Tokens that hold a part of a text.
    parts: HashMap<u32, Parts>,
}

/// The parts of texts that a token holds. A text is its index, a place a number of its bytes.
#[derive(Debug, Default)]
struct Parts {
    /// The token ends with the text up to the place.
    heads: Vec<(usize, usize)>,
    /// The token is the text from the first place to the second, which is the same for one without text.
    middles: Vec<(usize, usize, usize)>,
    /// The token begins with the text from the place on.
    tails: Vec<(usize, usize)>,
}

impl Breakers {
    /// Breakers of tokens with these texts: each token whose text contains one of `texts`, and rows of tokens whose texts
    /// do together. A token without a text ends a match too. Of a long text the first 64 bytes count.
    pub fn new<'a>(
        pieces: impl Iterator<Item = Option<&'a [u8]>>,
        texts: &[impl AsRef<str>],
    ) -> Breakers {
        let texts: Vec<&[u8]> = texts
            .iter()
            .map(|text| text.as_ref().as_bytes())
            .map(|text| &text[..text.len().min(TEXT_MAX)])
            .filter(|text| !text.is_empty())
            .collect();
        let mut breakers = Breakers::default();
        for (id, piece) in (0..).zip(pieces) {
            let Some(piece) = piece else {
                breakers.alone.push(true);
                continue;
            };
            let contains = |text: &&[u8]| piece.windows(text.len()).any(|window| window == *text);
            breakers.alone.push(texts.iter().any(contains));
            let parts = Parts::of(piece, &texts);
            if !parts.heads.is_empty() || !parts.middles.is_empty() || !parts.tails.is_empty() {
                breakers.parts.insert(id, parts);
            }
        }
        breakers
    }

    /// Whether a token ends a match alone.
    pub(super) fn is_alone(&self, id: u32) -> bool {
        self.alone.get(id as usize).copied().unwrap_or(false)
    }

    /// How many tokens there are after the last breaker.
    pub(super) fn tokens_after(&self, tokens: &[u32]) -> usize {
        let ends = |&last: &usize| self.is_alone(tokens[last]) || self.ends(&tokens[..=last]);
        let last = (0..tokens.len()).rev().find(ends);
        last.map_or(tokens.len(), |last| tokens.len() - 1 - last)
    }

    /// Whether the last token completes a text that tokens before it begin.
    fn ends(&self, tokens: &[u32]) -> bool {
        let Some((last, before)) = tokens.split_last() else { return false };
        let tails = self.parts.get(last).map_or(&[][..], |parts| &parts.tails);
        tails.iter().any(|&(text, place)| self.begins(before, text, place))
    }

    /// Whether the tokens end with the text up to a place.
    fn begins(&self, tokens: &[u32], text: usize, mut place: usize) -> bool {
        for id in tokens.iter().rev() {
            let Some(parts) = self.parts.get(id) else { return false };
            if parts.heads.contains(&(text, place)) {
                return true;
            }
            let middle = parts.middles.iter().find(|&&(of, _, end)| (of, end) == (text, place));
            match middle {
                Some(&(_, start, _)) => place = start,
                None => return false,
            }
        }
        false
    }
}

impl Parts {
    fn of(piece: &[u8], texts: &[&[u8]]) -> Parts {
        let mut parts = Parts::default();
        for (at, text) in texts.iter().enumerate() {
            for place in 1..text.len() {
                if piece.ends_with(&text[..place]) {
                    parts.heads.push((at, place));
                }
                if piece.starts_with(&text[place..]) {
                    parts.tails.push((at, place));
                }
                if text[place..].starts_with(piece) {
                    parts.middles.push((at, place, place + piece.len()));
                }
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every breaker is found where the texts of the tokens show it, however they are cut.
    #[test]
    fn texts_are_found_wherever_tokens_cut_them() {
        let pieces = ["a", "b", "ab", "aab", "ba", ", ", "x", "", "ca", "abb"];
        let texts = ["aab", "b,", ", x"];
        let breakers = Breakers::new(pieces.iter().map(|piece| Some(piece.as_bytes())), &texts);
        let is_alone: Vec<bool> =
            (0..pieces.len() as u32).map(|id| breakers.is_alone(id)).collect();
        assert_eq!(is_alone, pieces.map(|piece| texts.iter().any(|text| piece.contains(text))));
        let mut seed = 1u32;
        for round in 0..2000 {
            let tokens: Vec<u32> = (0..round % 7)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 20) % pieces.len() as u32
                })
                .collect();
            let text = |tokens: &[u32]| -> String {
                tokens.iter().map(|&id| pieces[id as usize]).collect()
            };
            let count = |tokens: &[u32]| {
                let text = text(tokens);
                let places =
                    |of: &str| (0..text.len()).filter(|&at| text[at..].starts_with(of)).count();
                texts.iter().map(|of| places(of)).sum::<usize>()
            };
            // The last token with which the number of occurrences grows.
            let grows = |&last: &usize| count(&tokens[..=last]) > count(&tokens[..last]);
            let last = (0..tokens.len()).rev().find(grows);
            let expected = last.map_or(tokens.len(), |last| tokens.len() - 1 - last);
            assert_eq!(breakers.tokens_after(&tokens), expected, "{:?}", text(&tokens));
        }
    }

    #[test]
    fn tokens_without_a_text_end_a_match() {
        let breakers = Breakers::new([Some(&b"a"[..]), None].into_iter(), &[""]);
        assert_eq!(breakers.tokens_after(&[0, 1, 0, 0]), 2);
        assert!(!breakers.is_alone(9));
    }
}
