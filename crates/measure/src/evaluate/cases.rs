//! Cases of an evaluation: what is asked, and the answer that is expected. One JSON object per line.

use std::collections::HashMap;

use bilayer_engine::conversation::Message;
use regex::Regex;
use serde_json::{Map, Value};

use super::{Error, unique};

/// Similarity that counts as equal, unless a case says otherwise.
pub const AT_LEAST: f32 = 0.8;

/// Most tokens of an answer, unless a case says otherwise.
pub const ANSWER_TOKENS: usize = 256;

/// Most tokens that a case may allow.
const ANSWER_TOKENS_MAX: u64 = 1 << 20;

/// A question and its expected answer.
#[derive(Clone, Debug)]
pub struct Case {
    /// Line of the file, from 1.
    pub line: usize,
    /// The user's id: a string or a number.
    pub id: Option<Value>,
    /// What is asked.
    pub question: Question,
    /// What is expected.
    pub expected: Expected,
    /// Most tokens of the answer.
    pub max_tokens: usize,
    /// Texts that end the answer.
    pub stops: Vec<String>,
    /// A JSON schema that the answer is held to.
    pub schema: Option<String>,
}

/// What a model is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// A text: a prompt to be continued, or the text that an encoder classifies or embeds.
    Text(String),
    /// A conversation, which the chat template renders.
    Messages(Vec<Message>),
}

/// How an answer is judged.
#[derive(Clone, Debug)]
pub enum Expected {
    /// It is this text, white space around it aside.
    Exact(String),
    /// The expression matches in it.
    Regex(Regex),
    /// It is a JSON object with these fields; others may be there too.
    Fields(Map<String, Value>),
    /// It is this label: an encoder's likeliest, or a decoder's answer in upper or lower case.
    Label(String),
    /// Its embedding's cosine with that of `text` is at least `at_least`.
    Similar {
        /// The text compared with.
        text: String,
        /// From -1 to 1.
        at_least: f32,
    },
}

/// Keys that name an expected answer.
const EXPECTED: [&str; 5] = ["exact", "regex", "fields", "label", "similar"];

/// Keys that name a question.
const QUESTIONS: [&str; 2] = ["prompt", "messages"];

/// All other keys.
const OTHERS: [&str; 5] = ["id", "at_least", "max_tokens", "stop", "schema"];

/// Reads cases, one per line; empty lines are skipped.
///
/// # Errors
/// [`Error::Case`] with line and field, also of an id that an earlier case has; [`Error::Empty`].
pub fn parse(text: &str) -> Result<Vec<Case>, Error> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let cases: Vec<Case> = lines.map(|(at, line)| case(at + 1, line)).collect::<Result<_, _>>()?;
    let mut ids: HashMap<String, usize> = HashMap::new();
    for Case { line, id, .. } in &cases {
        let Some(id) = id else { continue };
        if let Some(first) = ids.insert(id.to_string(), *line) {
            let problem = format!("{id} is the id of line {first}");
            return Err(Error::Case { line: *line, field: "id".to_owned(), problem });
        }
    }
    if cases.is_empty() { Err(Error::Empty) } else { Ok(cases) }
}

/// A line being read.
struct Fields {
    line: usize,
    all: Map<String, Value>,
}

impl Fields {
    fn wrong(&self, field: &str, problem: impl Into<String>) -> Error {
        Error::Case { line: self.line, field: field.to_owned(), problem: problem.into() }
    }

    fn text(&self, field: &str) -> Result<Option<String>, Error> {
        match self.all.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => {
                Err(self.wrong(field, format!("expected a string, found {}", kind(other))))
            }
        }
    }

    /// The one of some fields that is there.
    fn one(&self, of: &'static [&'static str]) -> Result<&'static str, Error> {
        let mut found = of.iter().filter(|field| self.all.contains_key(**field));
        match (found.next(), found.next()) {
            (Some(field), None) => Ok(field),
            (None, _) => Err(self.wrong(of[0], format!("missing; give one of {}", of.join(", ")))),
            (Some(first), Some(second)) => {
                Err(self.wrong(second, format!("given beside `{first}`; give one of them")))
            }
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn case(line: usize, text: &str) -> Result<Case, Error> {
    let value = unique::read(text).map_err(|problem| Error::Line { line, problem })?;
    let Value::Object(all) = value else {
        let problem = format!("expected an object, found {}", kind(&value));
        return Err(Error::Line { line, problem });
    };
    let fields = Fields { line, all };
    let known = || QUESTIONS.iter().chain(&EXPECTED).chain(&OTHERS).copied();
    if let Some(unknown) = fields.all.keys().find(|key| known().all(|known| known != *key)) {
        let known = known().collect::<Vec<_>>().join(", ");
        return Err(fields.wrong(unknown, format!("unknown; the fields are {known}")));
    }
    let id = match fields.all.get("id") {
        Some(id @ (Value::String(_) | Value::Number(_))) => Some(id.clone()),
        None => None,
        Some(other) => {
            let found = kind(other);
            return Err(fields.wrong("id", format!("expected a string or a number, found {found}")));
        }
    };
    Ok(Case {
        line,
        id,
        question: question(&fields)?,
        expected: expected(&fields)?,
        max_tokens: max_tokens(&fields)?,
        stops: stops(&fields)?,
        schema: schema(&fields)?,
    })
}

fn question(fields: &Fields) -> Result<Question, Error> {
    let field = fields.one(&QUESTIONS)?;
    if let "prompt" = field {
        return Ok(Question::Text(fields.text(field)?.unwrap_or_default()));
    }
    let messages = Message::all(fields.all[field].clone());
    let messages = messages.map_err(|error| fields.wrong(field, error.to_string()))?;
    Ok(Question::Messages(messages))
}

fn expected(fields: &Fields) -> Result<Expected, Error> {
    let field = fields.one(&EXPECTED)?;
    if fields.all.contains_key("at_least") && field != "similar" {
        return Err(fields.wrong("at_least", "given without `similar`"));
    }
    if let "fields" = field {
        return match &fields.all[field] {
            Value::Object(wanted) if !wanted.is_empty() => Ok(Expected::Fields(wanted.clone())),
            other => {
                let found = kind(other);
                Err(fields.wrong(field, format!("expected an object with fields, found {found}")))
            }
        };
    }
    let text = fields.text(field)?.unwrap_or_default();
    Ok(match field {
        "exact" => Expected::Exact(text),
        "regex" => Expected::Regex(
            // A message of several lines points at a place in the expression; the last one says what is wrong.
            Regex::new(&text).map_err(|error| {
                let error = error.to_string();
                fields.wrong(field, error.lines().last().unwrap_or_default().to_owned())
            })?,
        ),
        "label" => Expected::Label(text),
        _ => Expected::Similar { text, at_least: at_least(fields)? },
    })
}

fn at_least(fields: &Fields) -> Result<f32, Error> {
    let Some(value) = fields.all.get("at_least") else { return Ok(AT_LEAST) };
    let bound = value.as_f64().filter(|bound| (-1.0..=1.0).contains(bound));
    let bound = bound.ok_or_else(|| fields.wrong("at_least", "expected a number from -1 to 1"));
    Ok(bound? as f32)
}

fn max_tokens(fields: &Fields) -> Result<usize, Error> {
    let Some(value) = fields.all.get("max_tokens") else { return Ok(ANSWER_TOKENS) };
    let tokens = value.as_u64().filter(|tokens| (1..=ANSWER_TOKENS_MAX).contains(tokens));
    let expected = || format!("expected a number from 1 to {ANSWER_TOKENS_MAX}");
    let tokens = tokens.ok_or_else(|| fields.wrong("max_tokens", expected()));
    Ok(tokens? as usize)
}

fn stops(fields: &Fields) -> Result<Vec<String>, Error> {
    let wrong = || fields.wrong("stop", "expected a text that is not empty, or a list of such");
    let text = |value: &Value| {
        value.as_str().filter(|text| !text.is_empty()).map(str::to_owned).ok_or_else(wrong)
    };
    match fields.all.get("stop") {
        None => Ok(Vec::new()),
        Some(Value::Array(all)) => all.iter().map(text).collect(),
        Some(one) => Ok(vec![text(one)?]),
    }
}

fn schema(fields: &Fields) -> Result<Option<String>, Error> {
    match fields.all.get("schema") {
        None => Ok(None),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Some(schema.to_string())),
        Some(other) => {
            Err(fields.wrong("schema", format!("expected a JSON schema, found {}", kind(other))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cases() {
        let text = "{\"id\": 7, \"prompt\": \"1+1=\", \"exact\": \"2\", \"max_tokens\": 4, \"stop\": \"\\n\"}\n\n\
                    {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"regex\": \"[Hh]i\"}\n\
                    {\"prompt\": \"a\", \"similar\": \"b\", \"at_least\": 0.5}\n";
        let cases = parse(text).expect("cases");
        assert_eq!(cases.iter().map(|case| case.line).collect::<Vec<_>>(), [1, 3, 4]);
        assert_eq!((cases[0].max_tokens, &cases[0].stops[..]), (4, &["\n".to_owned()][..]));
        assert!(matches!(&cases[1].question, Question::Messages(all) if all.len() == 1));
        let half = Expected::Similar { text: "b".to_owned(), at_least: 0.5 };
        assert_eq!(format!("{:?}", cases[2].expected), format!("{half:?}"));
    }

    #[test]
    fn errors_name_line_and_field() {
        let cases = [
            ("[1]", "line 1: expected an object"),
            ("{", "line 1: not JSON: EOF while parsing an object at column 1"),
            (
                r#"{"prompt": "a", "exact": "a", "exact": "b"}"#,
                "line 1: `exact` is given twice at column 37",
            ),
            (
                "{\"id\": 7, \"prompt\": \"a\", \"exact\": \"\"}\n\n{\"id\": 7, \"prompt\": \"b\", \"exact\": \"\"}",
                "line 3: `id`: 7 is the id of line 1",
            ),
            (
                r#"{"prompt": "", "exact": "", "max_tokens": 2000000}"#,
                "`max_tokens`: expected a number from 1 to 1048576",
            ),
            (r#"{"prompt": "a"}"#, "line 1: `exact`: missing; give one of exact, regex"),
            (r#"{"exact": "a"}"#, "line 1: `prompt`: missing"),
            (r#"{"prompt": 1, "exact": "a"}"#, "`prompt`: expected a string, found a number"),
            (r#"{"prompt": "", "exact": "a", "regex": "b"}"#, "`regex`: given beside `exact`"),
            (r#"{"prompt": "", "regex": "("}"#, "`regex`: error: unclosed group"),
            (r#"{"prompt": "", "exact": "", "answer": ""}"#, "`answer`: unknown; the fields are"),
            (r#"{"prompt": "", "fields": {}}"#, "`fields`: expected an object with fields"),
            (r#"{"prompt": "", "similar": "", "at_least": 2}"#, "`at_least`: expected a number"),
            (r#"{"prompt": "", "exact": "", "at_least": 1}"#, "`at_least`: given without"),
            (r#"{"prompt": "", "exact": "", "max_tokens": 0}"#, "`max_tokens`: expected"),
            (r#"{"prompt": "", "exact": "", "stop": [""]}"#, "`stop`: expected a text"),
            (r#"{"prompt": "", "exact": "", "schema": 1}"#, "`schema`: expected a JSON schema"),
            (r#"{"messages": [], "exact": ""}"#, "`messages`: messages must not be empty"),
            (r#"{"prompt": "", "exact": "", "id": []}"#, "`id`: expected a string or a number"),
            ("", "no cases"),
        ];
        for (text, expected) in cases {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
