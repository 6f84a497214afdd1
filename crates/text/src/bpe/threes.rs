//! Cuts numbers into groups of three digits counted from their end.
//!
//! Patterns for it look ahead from each group to the end of the number, so their time is quadratic in its length. Here each
//! number is found once.

use std::ops::Range;

use fancy_regex::Regex;

use crate::pre::{BEFORE_THREES, THREES, THREES_OF_WORDS};

/// Cuts as one of the patterns [`THREES`], [`THREES_OF_WORDS`] and [`BEFORE_THREES`].
pub(super) struct Threes {
    /// Matches a number.
    number: Regex,
    /// Matches at a letter; a number before one stays whole.
    letter: Option<Regex>,
    /// Whether every group is a piece; else a text is cut only before each whole group.
    isolates: bool,
}

impl Threes {
    /// What cuts as `pattern`, if that is one of the three.
    pub fn of(pattern: &str) -> Result<Option<Self>, Box<fancy_regex::Error>> {
        let (number, letter, isolates) = match pattern {
            THREES => (r"\p{N}+", None, true),
            THREES_OF_WORDS => (r"\d+", Some(r"\A\w"), true),
            BEFORE_THREES => (r"\d+", None, false),
            _ => return Ok(None),
        };
        let letter = letter.map(Regex::new).transpose()?;
        Ok(Some(Self { number: Regex::new(number)?, letter, isolates }))
    }

    /// Appends the pieces of `word` to `cut`.
    pub fn cut(&self, text: &str, word: Range<usize>, cut: &mut Vec<Range<usize>>) {
        let mut end = word.start;
        let mut cut_at = |at: usize| {
            if at > end {
                cut.push(end..at);
                end = at;
            }
        };
        let piece = &text[word.clone()];
        for number in self.number.find_iter(piece).map_while(Result::ok) {
            let rest = &piece[number.end()..];
            if self.letter.as_ref().is_some_and(|letter| letter.is_match(rest).unwrap_or(false)) {
                continue;
            }
            let start = word.start + number.start();
            let count = number.as_str().chars().count();
            for (index, (at, _)) in number.as_str().char_indices().enumerate() {
                if (count - index).is_multiple_of(3) || self.isolates && index == 0 {
                    cut_at(start + at);
                }
            }
            if self.isolates {
                cut_at(word.start + number.end());
            }
        }
        cut_at(word.end);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde::Deserialize;
    use serde_json::json;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    };

    use super::*;

    fn threes(pattern: &str) -> Threes {
        Threes::of(pattern).expect("it compiles").expect("it is one of the three")
    }

    fn ours(threes: &Threes, text: &str) -> Vec<Range<usize>> {
        let mut cut = Vec::new();
        threes.cut(text, 0..text.len(), &mut cut);
        cut
    }

    /// The pieces of the makers' library, where an empty match cuts as well.
    fn theirs(library: &PreTokenizerWrapper, text: &str) -> Vec<Range<usize>> {
        let mut pieces = PreTokenizedString::from(text);
        library.pre_tokenize(&mut pieces).expect("it cuts");
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let ranges = splits.into_iter().map(|(_, (from, to), _)| from..to);
        ranges.filter(|range| !range.is_empty()).collect()
    }

    #[test]
    fn numbers_are_cut_as_by_the_makers_library() {
        let letters = ["1", "٣", "½", "a", "_", " ", "e\u{301}"];
        let mut texts: Vec<String> = (0..20).map(|len| "1".repeat(len)).collect();
        let more = ["1234567a", "12345 1234567", "a1234", "x123456y7890", "1234_5", "½123456½"];
        texts.extend(more.map(String::from));
        for code in 0..letters.len().pow(3) {
            let letter = |place: u32| letters[code / letters.len().pow(place) % letters.len()];
            texts.push(format!("12{}345{}{}678", letter(0), letter(1), letter(2)));
            texts.push((0..3).map(letter).collect());
        }
        for pattern in [THREES, THREES_OF_WORDS, BEFORE_THREES] {
            let threes = threes(pattern);
            let library = PreTokenizerWrapper::deserialize(json!({
                "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
                "invert": false,
            }));
            let library = library.expect("a pre-tokenizer");
            for text in &texts {
                let expected = theirs(&library, text);
                assert_eq!(ours(&threes, text), expected, "{pattern} of {text:?}");
            }
        }
    }

    #[test]
    fn the_time_of_a_long_number_is_not_quadratic() {
        let began = Instant::now();
        let text = "1".repeat(1_000_000);
        for pattern in [THREES, THREES_OF_WORDS, BEFORE_THREES] {
            let threes = threes(pattern);
            for text in [&text, &format!("{text}a")] {
                let cut = ours(&threes, text);
                let whole = pattern == THREES_OF_WORDS && text.ends_with('a');
                assert!(if whole { cut.len() == 1 } else { cut.len() > 333_332 });
            }
        }
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
