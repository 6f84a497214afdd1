//! Runs the `pre_tokenizer` of a maker's `tokenizer.json`, as far as byte-level vocabularies have such steps.

use std::ops::Range;

use fancy_regex::Regex;
use serde_json::Value;

use super::GPT2;
use crate::wordpiece::is_punctuation;

/// One step: cuts each piece that the step before it left.
pub(super) enum Step {
    /// At what a pattern, or anything but it, matches.
    Split { pattern: Regex, inverted: bool, joined: Joined },
    /// At characters of a kind.
    At { is_cut: fn(char) -> bool, joined: Joined },
    /// At the words of GPT-2, or not at all; a space before the first where there is none does not count.
    Bytes { words: Option<Regex>, spaced: bool },
}

/// What becomes of the matches at which a piece is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// Each is a piece.
    Isolated,
    /// They are dropped.
    Removed,
    /// Neighbours are one piece.
    Contiguous,
    /// Each belongs to the piece before it, unless that is a match.
    Previous,
    /// Each belongs to the piece behind it, unless that is a match.
    Next,
}

/// A part of a piece, and whether it is a match.
type Stretch = (Range<usize>, bool);

impl Step {
    /// The steps of a `pre_tokenizer`, in order.
    pub fn all(json: &Value) -> Result<Vec<Step>, String> {
        let ty = json["type"].as_str().unwrap_or_default();
        if ty == "Sequence" {
            let list = json["pretokenizers"].as_array().ok_or("a sequence lists no steps")?;
            let steps: Vec<Vec<Step>> = list.iter().map(Step::all).collect::<Result<_, _>>()?;
            return Ok(steps.into_iter().flatten().collect());
        }
        let flag = |name: &str, usual: bool| json[name].as_bool().unwrap_or(usual);
        let joined = |usual: Joined| match &json["behavior"] {
            Value::Null => Ok(usual),
            given => Joined::named(given.as_str().unwrap_or_default()),
        };
        Ok(vec![match ty {
            "Split" => Step::Split {
                pattern: pattern(&json["pattern"])?,
                inverted: flag("invert", false),
                joined: joined(Joined::Isolated)?,
            },
            "ByteLevel" => Step::Bytes {
                words: flag("use_regex", true).then(|| regex(GPT2)).transpose()?,
                spaced: flag("add_prefix_space", true),
            },
            "Digits" => {
                let each = flag("individual_digits", false);
                let joined = if each { Joined::Isolated } else { Joined::Contiguous };
                Step::At { is_cut: char::is_numeric, joined }
            }
            "Punctuation" => Step::At { is_cut: is_punctuation, joined: joined(Joined::Isolated)? },
            "WhitespaceSplit" => Step::At { is_cut: char::is_whitespace, joined: Joined::Removed },
            "Whitespace" => Step::Split {
                pattern: regex(r"\w+|[^\w\s]+")?,
                inverted: true,
                joined: Joined::Removed,
            },
            other => return Err(format!("its step `{other}` is not known")),
        }])
    }

    /// The pieces of `text` after all `steps`, in order; those without a character are left out.
    pub fn cut(steps: &[Step], text: &str) -> Result<Vec<Range<usize>>, String> {
        let whole = std::iter::once(0..text.len()).collect::<Vec<_>>();
        steps.iter().try_fold(whole, |pieces, step| {
            let mut all = Vec::new();
            for piece in pieces {
                let start = piece.start;
                let parts = step.parts(&text[piece])?;
                let parts = parts.into_iter().filter(|part| !part.is_empty());
                all.extend(parts.map(|part| start + part.start..start + part.end));
            }
            Ok(all)
        })
    }

    fn parts(&self, piece: &str) -> Result<Vec<Range<usize>>, String> {
        match self {
            Step::Split { pattern, inverted, joined } => {
                let mut parts = matches(pattern, piece)?;
                parts.iter_mut().for_each(|(_, is_match)| *is_match ^= inverted);
                Ok(joined.pieces(parts))
            }
            Step::At { is_cut, joined } => {
                let found = piece.match_indices(is_cut).map(|(at, found)| at..at + found.len());
                Ok(joined.pieces(between(found, piece.len())))
            }
            Step::Bytes { words: None, .. } => Ok(std::iter::once(0..piece.len()).collect()),
            Step::Bytes { words: Some(words), spaced } => {
                let added = usize::from(*spaced && !piece.starts_with(' '));
                let text = [&" "[..added], piece].concat();
                let parts = Joined::Isolated.pieces(matches(words, &text)?).into_iter();
                let place = |at: usize| at.saturating_sub(added);
                Ok(parts.map(|part| place(part.start)..place(part.end)).collect())
            }
        }
    }
}

impl Joined {
    fn named(name: &str) -> Result<Joined, String> {
        Ok(match name {
            "Isolated" => Joined::Isolated,
            "Removed" => Joined::Removed,
            "Contiguous" => Joined::Contiguous,
            "MergedWithPrevious" => Joined::Previous,
            "MergedWithNext" => Joined::Next,
            other => return Err(format!("its behavior `{other}` is not known")),
        })
    }

    /// The pieces that parts without gaps between them become.
    fn pieces(self, parts: Vec<Stretch>) -> Vec<Range<usize>> {
        let mut pieces: Vec<Range<usize>> = Vec::with_capacity(parts.len());
        let mut before = None;
        for (part, is_match) in parts {
            let joins = match self {
                Joined::Isolated | Joined::Removed => false,
                Joined::Contiguous => before == Some(is_match),
                Joined::Previous => is_match && before == Some(false),
                Joined::Next => !is_match && before == Some(true),
            };
            before = Some(is_match);
            match pieces.last_mut() {
                Some(last) if joins => last.end = part.end,
                _ if self == Joined::Removed && is_match => {}
                _ => pieces.push(part),
            }
        }
        pieces
    }
}

/// What a `Split` is by: a regex, or a text as it stands.
fn pattern(json: &Value) -> Result<Regex, String> {
    match (json["Regex"].as_str(), json["String"].as_str()) {
        (Some(pattern), _) => regex(pattern),
        (None, Some(text)) => regex(&fancy_regex::escape(text)),
        (None, None) => Err("it splits by neither a regex nor a string".to_owned()),
    }
}

fn regex(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|error| error.to_string())
}

fn matches(pattern: &Regex, text: &str) -> Result<Vec<Stretch>, String> {
    let found = pattern.find_iter(text).map(|found| found.map(|found| found.range()));
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    Ok(between(found.into_iter(), text.len()))
}

/// The matches of a text of `len` bytes and what lies between them.
fn between(found: impl Iterator<Item = Range<usize>>, len: usize) -> Vec<Stretch> {
    let (mut parts, mut end) = (Vec::new(), 0);
    for range in found {
        parts.extend((end < range.start).then_some((end..range.start, false)));
        end = range.end;
        parts.push((range, true));
    }
    parts.extend((end < len).then_some((end..len, false)));
    parts
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    };

    use super::*;

    const TEXT: &str = " I'm 12 or 345,\t¿qué?  No--ok 北京 ½x\n\n  !! ٣٤ end ";

    fn of_library(json: &Value) -> Vec<Range<usize>> {
        let library = PreTokenizerWrapper::deserialize(json).unwrap();
        let mut text = PreTokenizedString::from(TEXT);
        library.pre_tokenize(&mut text).unwrap();
        let splits = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let ranges = splits.into_iter().map(|(_, (from, to), _)| from..to);
        ranges.filter(|range| !range.is_empty()).collect()
    }

    /// The makers' library beside ours, on every step and every behaviour.
    #[test]
    fn steps_cut_as_the_makers_library() {
        let mut all = vec![
            json!({"type": "Digits", "individual_digits": true}),
            json!({"type": "Digits", "individual_digits": false}),
            json!({"type": "WhitespaceSplit"}),
            json!({"type": "Whitespace"}),
        ];
        for spaced in [true, false] {
            for words in [true, false] {
                all.push(json!({"type": "ByteLevel", "add_prefix_space": spaced, "trim_offsets": true, "use_regex": words}));
            }
        }
        let behaviors =
            ["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"];
        for behavior in behaviors {
            all.push(json!({"type": "Punctuation", "behavior": behavior}));
            for pattern in
                [json!({"Regex": r"\s+|\d"}), json!({"String": "!"}), json!({"Regex": "o(?=k|r)"})]
            {
                for invert in [true, false] {
                    all.push(json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}));
                }
            }
        }
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        for step in all.clone().into_iter().filter(|step| step["type"] != "ByteLevel") {
            all.push(json!({"type": "Sequence", "pretokenizers": [step, bytes]}));
        }
        for json in all {
            let found = Step::cut(&Step::all(&json).unwrap(), TEXT).unwrap();
            assert_eq!(found, of_library(&json), "{json}");
        }
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (json, named) in [
            (json!({"type": "Magic"}), "`Magic`"),
            (json!({"type": "Split", "pattern": {"String": "x"}, "behavior": "Odd"}), "`Odd`"),
            (json!({"type": "Split", "pattern": {}}), "neither"),
            (json!({"type": "Sequence"}), "no steps"),
        ] {
            let error = Step::all(&json).err().unwrap();
            assert!(error.contains(named), "{json}: {error}");
        }
    }
}
