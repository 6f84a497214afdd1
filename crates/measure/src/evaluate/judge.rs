//! Judges answers.

use serde_json::{Map, Value};

use super::cases::Expected;

/// What an answer is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether it is as expected.
    pub passed: bool,
    /// From 0 to 1: the share of fields that are right, the similarity, or all or nothing.
    pub score: f64,
    /// What is wrong, or what was found.
    pub note: Option<String>,
}

impl From<bool> for Verdict {
    /// All or nothing.
    fn from(passed: bool) -> Verdict {
        Verdict { passed, score: f64::from(u8::from(passed)), note: None }
    }
}

impl Verdict {
    /// No answer.
    pub fn failed(note: String) -> Verdict {
        Verdict { note: Some(note), ..Verdict::from(false) }
    }

    /// A cosine that must be at least a bound.
    pub fn similar(cosine: f32, at_least: f32) -> Verdict {
        Verdict {
            passed: cosine >= at_least,
            score: f64::from(cosine.clamp(0.0, 1.0)),
            note: Some(format!("similarity {cosine:.3}")),
        }
    }
}

/// Judges a generated text; `None` if it takes an encoder.
pub fn text(expected: &Expected, answer: &str) -> Option<Verdict> {
    Some(match expected {
        Expected::Exact(text) => Verdict::from(answer.trim() == text.trim()),
        Expected::Regex(regex) => Verdict::from(regex.is_match(answer)),
        Expected::Label(label) => Verdict::from(plain(answer) == plain(label)),
        Expected::Fields(wanted) => fields(wanted, answer),
        Expected::Similar { .. } => return None,
    })
}

/// A label in lower case, without white space around it and punctuation at its end, unless there is nothing else.
fn plain(label: &str) -> String {
    let label = label.trim();
    let plain = label.trim_end_matches(['.', '!', ',', ';']);
    if plain.is_empty() { label.to_owned() } else { plain.to_lowercase() }
}

fn fields(wanted: &Map<String, Value>, answer: &str) -> Verdict {
    let Some(found) = object(answer) else {
        return Verdict::failed("the answer is not a JSON object".to_owned());
    };
    let wrong: Vec<String> = wanted
        .iter()
        .filter(|(name, value)| !found.get(*name).is_some_and(|found| equal(found, value)))
        .map(|(name, _)| match found.get(name) {
            Some(found) => format!("`{name}` is {found}"),
            None => format!("`{name}` is missing"),
        })
        .collect();
    Verdict {
        passed: wrong.is_empty(),
        score: 1.0 - wrong.len() as f64 / wanted.len() as f64,
        note: (!wrong.is_empty()).then(|| wrong.join(", ")),
    }
}

/// The answer's object: all of it, bare or in a fenced block.
fn object(answer: &str) -> Option<Map<String, Value>> {
    let answer = answer.trim();
    let inner = match answer.strip_prefix("```") {
        // The rest of the first line may name the language.
        Some(block) => block.strip_suffix("```")?.split_once('\n')?.1,
        None => answer,
    };
    serde_json::from_str(inner).ok()
}

/// Equality in which 1 and 1.0 are one number; integers are compared exactly.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            a.as_f64() == b.as_f64()
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(name, value)| b.get(name).is_some_and(|b| equal(value, b)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;
    use serde_json::json;

    use super::*;
    use crate::cosine;

    #[test]
    fn texts_are_judged_by_their_expectation() {
        let regex = || Expected::Regex(Regex::new("^[0-9]+$").expect("a pattern"));
        let exact = || Expected::Exact("Paris".to_owned());
        let lines = || Expected::Regex(Regex::new("^\n\n[0-9]+ $").expect("a pattern"));
        let label = || Expected::Label("Good".to_owned());
        let short = || Expected::Label("U.S.".to_owned());
        let mark = || Expected::Label("!".to_owned());
        let cases = [
            (exact(), " Paris\n", true),
            (exact(), "paris", false),
            (regex(), "12", true),
            (regex(), "12 apples", false),
            (lines(), "\n\n12 ", true),
            (lines(), "12", false),
            (label(), "good.", true),
            (label(), "goods", false),
            (short(), "U.S.", true),
            (short(), " u.s", true),
            (short(), "US.", false),
            (mark(), "!", true),
            (mark(), "", false),
            (mark(), ".", false),
        ];
        for (expected, answer, passed) in cases {
            assert_eq!(text(&expected, answer), Some(Verdict::from(passed)), "{answer}");
        }
        let similar = Expected::Similar { text: String::new(), at_least: 0.5 };
        assert_eq!(text(&similar, ""), None);
    }

    #[test]
    fn fields_count_one_by_one() {
        let wanted = json!({ "name": "ROMEO", "age": 16, "tags": [1] });
        let wanted = Expected::Fields(wanted.as_object().expect("an object").clone());
        let judged = |answer: &str| text(&wanted, answer).expect("a verdict");
        let whole =
            judged("```json\n{\"age\": 16.0, \"name\": \"ROMEO\", \"tags\": [1.0], \"x\": 1}\n```");
        assert_eq!(whole, Verdict::from(true));
        let part = judged("{\"age\": 17, \"name\": \"ROMEO\"}");
        assert!(!part.passed && (part.score - 1.0 / 3.0).abs() < 1e-9, "{part:?}");
        assert_eq!(part.note.as_deref(), Some("`age` is 17, `tags` is missing"));
        for answer in ["", "{", "}{", "[1]", "{}}", "```{}```", "```json\n{}"] {
            assert!(!judged(answer).passed, "{answer}");
        }
    }

    #[test]
    fn the_whole_answer_is_the_object() {
        let wanted = json!({ "age": 16 });
        let wanted = Expected::Fields(wanted.as_object().expect("an object").clone());
        let judged = |answer: &str| text(&wanted, answer).expect("a verdict");
        for answer in
            [" {\"age\": 16}\n", "```json\n{\"age\": 16}\n```", "\n```\n{\"age\": 16}```\n"]
        {
            assert!(judged(answer).passed, "{answer}");
        }
        for answer in [
            "He is {\"age\": 16}",
            "{\"age\": 16} years",
            "```json\n{\"age\": 16}\n``` is it",
            "```\n{\"age\": 16}\n```\n```\n{\"age\": 16}\n```",
        ] {
            let found = judged(answer);
            assert_eq!(found.note.as_deref(), Some("the answer is not a JSON object"), "{answer}");
        }
    }

    #[test]
    fn integers_are_compared_exactly() {
        let cases = [
            ("9007199254740993", "9007199254740992", false),
            ("9007199254740993", "9007199254740993", true),
            ("-1", "18446744073709551615", false),
            ("1", "1.0", true),
            ("[{\"a\": 1e3}]", "[{\"a\": 1000}]", true),
            ("1.5", "1", false),
        ];
        for (a, b, same) in cases {
            let of = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
            assert_eq!(equal(&of(a), &of(b)), same, "{a} {b}");
            assert_eq!(equal(&of(b), &of(a)), same, "{b} {a}");
        }
    }

    #[test]
    fn cosines_are_of_directions() {
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 1.0]), 0.0);
        assert_eq!(cosine(&[0.0; 2], &[1.0; 2]), 0.0);
        let verdict = Verdict::similar(-0.5, 0.8);
        assert!(!verdict.passed && verdict.score == 0.0);
        assert!(Verdict::similar(0.8, 0.8).passed);
    }
}
