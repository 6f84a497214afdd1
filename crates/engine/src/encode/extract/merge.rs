//! From the labels of tokens to entities, by the rules of transformers' pipeline, and BILOU beside BIO.

use std::ops::Range;

use bilayer_text::TokenSpan;

use super::Aggregation;

/// A label as the parts of an entity have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// The whole label.
    label: String,
    /// Bytes of the prefix, which the type follows.
    prefix: usize,
    begins: bool,
    ends: bool,
    is_ignored: bool,
}

impl Tag {
    /// The type of the entity.
    fn kind(&self) -> &str {
        &self.label[self.prefix..]
    }
}

/// Prefixes: of the first token of an entity, of one within, of the last, of one that is a whole entity.
const BEGINS: [&str; 1] = ["B-"];
const INSIDE: [&str; 1] = ["I-"];
const LAST: [&str; 2] = ["L-", "E-"];
const WHOLE: [&str; 2] = ["U-", "S-"];

/// What labels say. Prefixes of a last or a whole entity are read only if every label that is not ignored has a prefix, so
/// that names of types may begin like one.
pub(super) fn tags(labels: &[String], ignored: &[String]) -> Vec<Tag> {
    let has = |label: &str, prefixes: &[&str]| prefixes.iter().any(|p| label.starts_with(p));
    let is_ignored = |label: &str| ignored.iter().any(|ignored| ignored == label);
    let is_marked = |label: &&String| {
        [&BEGINS[..], &INSIDE, &LAST, &WHOLE].iter().any(|prefixes| has(label, prefixes))
    };
    let has_ends = labels.iter().filter(|label| !is_ignored(label)).all(|label| is_marked(&label));
    let tag = |label: &String| {
        let last = has_ends && has(label, &LAST);
        let whole = has_ends && has(label, &WHOLE);
        let begins = has(label, &BEGINS);
        let is_prefixed = begins || last || whole || has(label, &INSIDE);
        let prefix = if is_prefixed { 2 } else { 0 };
        let is_ignored = is_ignored(label) || is_ignored(&label[prefix..]);
        Tag {
            label: label.clone(),
            prefix,
            begins: begins || whole,
            ends: last || whole,
            is_ignored,
        }
    };
    labels.iter().map(tag).collect()
}

/// A token with the probability of each label.
pub(super) struct Token<'t> {
    pub span: &'t TokenSpan,
    pub probabilities: Vec<f32>,
}

/// Tokens or words of one entity.
#[derive(Debug, PartialEq)]
pub(super) struct Group<'l> {
    pub label: &'l str,
    pub score: f32,
    pub bytes: Range<usize>,
}

/// What has one label: a token or a word.
struct Unit {
    label: usize,
    score: f32,
    bytes: Range<usize>,
}

/// The entities of a text's tokens, without those of ignored labels.
pub(super) fn groups<'l>(
    tokens: &[Token<'_>],
    tags: &'l [Tag],
    how: Aggregation,
) -> Vec<Group<'l>> {
    let units: Vec<Unit> = match how {
        Aggregation::None | Aggregation::Simple => {
            tokens.iter().map(|token| word(std::slice::from_ref(token), how)).collect()
        }
        Aggregation::First | Aggregation::Average | Aggregation::Max => {
            tokens.chunk_by(|_, next| !next.span.begins_word).map(|all| word(all, how)).collect()
        }
    };
    let joins = |before: &Unit, next: &Unit| {
        let (before, next) = (&tags[before.label], &tags[next.label]);
        how != Aggregation::None && before.kind() == next.kind() && !next.begins && !before.ends
    };
    let group = |units: &[Unit]| {
        let tag = &tags[units[0].label];
        let score =
            units.iter().map(|unit| f64::from(unit.score)).sum::<f64>() / units.len() as f64;
        let label = if how == Aggregation::None { &tag.label } else { tag.kind() };
        let end = units.iter().map(|unit| unit.bytes.end).max().unwrap_or_default();
        let group = Group { label, score: score as f32, bytes: units[0].bytes.start..end };
        (!tag.is_ignored).then_some(group)
    };
    units.chunk_by(joins).filter_map(group).collect()
}

/// The label of a word of one or more tokens.
fn word(tokens: &[Token<'_>], how: Aggregation) -> Unit {
    let best = |token: &Token<'_>| likeliest(&token.probabilities);
    let (label, score) = match how {
        Aggregation::None | Aggregation::Simple | Aggregation::First => best(&tokens[0]),
        Aggregation::Max => {
            let all = tokens.iter().map(best);
            all.reduce(|best, next| if next.1 > best.1 { next } else { best }).unwrap_or_default()
        }
        Aggregation::Average => {
            let mut mean = vec![0.0; tokens[0].probabilities.len()];
            for token in tokens {
                mean.iter_mut().zip(&token.probabilities).for_each(|(sum, p)| *sum += p);
            }
            mean.iter_mut().for_each(|sum| *sum /= tokens.len() as f32);
            likeliest(&mean)
        }
    };
    let end = tokens.iter().map(|token| token.span.bytes.end).max().unwrap_or_default();
    Unit { label, score, bytes: tokens[0].span.bytes.start..end }
}

/// The first of the likeliest labels, with its probability.
fn likeliest(probabilities: &[f32]) -> (usize, f32) {
    let all = probabilities.iter().copied().enumerate();
    all.reduce(|best, next| if next.1 > best.1 { next } else { best }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of one letter each, `label` is the likeliest of each with 0.7; a word begins where `|` stands.
    fn merged(labels: &[&str], text: &[&str], how: Aggregation) -> Vec<(String, Range<usize>)> {
        let labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        let spans: Vec<TokenSpan> = text
            .iter()
            .enumerate()
            .map(|(at, label)| TokenSpan {
                id: 0,
                bytes: at..at + 1,
                begins_word: label.starts_with('|'),
            })
            .collect();
        let chance = |wanted: &str, label: &String| {
            if label == wanted.trim_start_matches('|') { 0.7 } else { 0.1 }
        };
        let tokens: Vec<Token<'_>> = spans
            .iter()
            .zip(text)
            .map(|(span, wanted)| Token {
                span,
                probabilities: labels.iter().map(|label| chance(wanted, label)).collect(),
            })
            .collect();
        let tags = tags(&labels, &["O".to_owned()]);
        let groups = groups(&tokens, &tags, how);
        groups.into_iter().map(|group| (group.label.to_owned(), group.bytes)).collect()
    }

    fn is(found: &[(String, Range<usize>)], expected: &[(&str, Range<usize>)]) {
        let found: Vec<(&str, Range<usize>)> =
            found.iter().map(|(label, bytes)| (label.as_str(), bytes.clone())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn bio_labels_begin_entities_with_b_and_go_on_with_i() {
        let labels = ["O", "B-P", "I-P", "B-L", "I-L"];
        let text = ["B-P", "I-P", "B-P", "O", "I-L", "I-L", "I-P"];
        let expected = [("P", 0..2), ("P", 2..3), ("L", 4..6), ("P", 6..7)];
        is(&merged(&labels, &text, Aggregation::Simple), &expected);
        let each = merged(&labels, &text[..2], Aggregation::None);
        is(&each, &[("B-P", 0..1), ("I-P", 1..2)]);
    }

    #[test]
    fn bilou_labels_end_entities_too() {
        let labels = ["O", "B-P", "I-P", "L-P", "U-P"];
        let text = ["B-P", "I-P", "L-P", "I-P", "U-P", "U-P", "L-P"];
        let expected = [("P", 0..3), ("P", 3..4), ("P", 4..5), ("P", 5..6), ("P", 6..7)];
        is(&merged(&labels, &text, Aggregation::Simple), &expected);
        let names = ["O", "E-B", "I-B", "S-B", "B-B"];
        is(
            &merged(&names, &["B-B", "E-B", "I-B"], Aggregation::Simple),
            &[("B", 0..2), ("B", 2..3)],
        );
    }

    #[test]
    fn plain_labels_merge_while_they_are_equal() {
        let labels = ["O", "S-bahn", "Line", "E-mail"];
        let text = ["S-bahn", "S-bahn", "Line", "O", "Line", "Line", "E-mail", "E-mail"];
        let expected = [("S-bahn", 0..2), ("Line", 2..3), ("Line", 4..6), ("E-mail", 6..8)];
        is(&merged(&labels, &text, Aggregation::Simple), &expected);
    }

    #[test]
    fn words_take_one_label() {
        let labels = ["O", "B-P", "I-P"];
        let text = ["|B-P", "O", "O", "|I-P", "O", "|O", "I-P", "I-P"];
        is(&merged(&labels, &text, Aggregation::First), &[("P", 0..5)]);
        is(&merged(&labels, &text, Aggregation::Average), &[("P", 5..8)]);
        // Of equally certain tokens the first.
        is(&merged(&labels, &text, Aggregation::Max), &[("P", 0..5)]);
        is(&merged(&labels, &[], Aggregation::Max), &[]);
    }
}
