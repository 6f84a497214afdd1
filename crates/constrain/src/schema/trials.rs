//! The part of a schema at fault: parts are compiled on their own, within a bound.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use super::{child, children, plain_references, refused};
use crate::Error;
use crate::error::reason;

/// Most work of trials over the schemas of a grammar: about half a second.
const WORK_MAX: usize = 100_000;

/// However slow the trials are, no more begin after this.
const TIME_MAX: Duration = Duration::from_secs(2);

/// Work of a trial beside the values of its schema.
const TRIAL_WORK: usize = 50;

/// Work of a pattern that is parsed.
const PATTERN_WORK: usize = 20;

/// Keywords that become large regular expressions, and the work of each.
const LARGE: &[&str] = &["format", "multipleOf", "pattern"];
const LARGE_WORK: usize = 400;

/// Keywords for the number of properties, how llguidance's message begins where it cannot count them, and ours.
const NUMBERS: &[&str] = &["minProperties", "maxProperties"];
const NUMBERS_MESSAGE: &str = "min/maxProperties only supported";
const NUMBERS_REASON: &str = "it is supported only if all of `properties` are required, or if there are no others and it \
                              asks for at least or at most one of those that are not, or for at least so many of them \
                              that there are few choices";

/// Compiles parts of schemas on their own. The work is bounded over all schemas of a grammar.
pub struct Trials<'a> {
    /// Compiles a schema and returns the error.
    compile: &'a dyn Fn(Value) -> Option<String>,
    /// The work that is left.
    left: usize,
    began: Instant,
    /// The error of each pattern that was parsed.
    patterns: HashMap<String, Option<String>>,
}

/// The bound on trials is reached.
pub struct Spent;

/// Where a schema fails.
pub struct Found {
    /// The innermost part that is known to fail.
    pub path: String,
    /// Whether all parts of it were compiled.
    pub is_certain: bool,
}

impl<'a> Trials<'a> {
    /// `compile` compiles a schema and returns the error.
    pub fn new(compile: &'a dyn Fn(Value) -> Option<String>) -> Trials<'a> {
        Trials { compile, left: WORK_MAX, began: Instant::now(), patterns: HashMap::new() }
    }

    /// The error of a whole schema. This is not counted.
    pub fn whole(&self, schema: &Value) -> Option<String> {
        (self.compile)(schema.clone())
    }

    /// The error of the part of a schema at `path`.
    ///
    /// # Errors
    /// [`Spent`].
    pub fn part(&mut self, schema: &Value, path: &str) -> Result<Option<String>, Spent> {
        let part = alone(schema, path);
        self.spend(TRIAL_WORK + work(&part))?;
        Ok((self.compile)(part))
    }

    /// The error of a pattern that llguidance cannot parse.
    ///
    /// # Errors
    /// [`Spent`].
    pub fn pattern(&mut self, pattern: &str) -> Result<Option<String>, Spent> {
        if let Some(error) = self.patterns.get(pattern) {
            return Ok(error.clone());
        }
        self.spend(PATTERN_WORK)?;
        let parsed = RegexBuilder::new().mk(&RegexAst::SearchRegex(regex_to_lark(pattern, "dw")));
        let error = parsed.err().map(|error| reason(&error.to_string()));
        self.patterns.insert(pattern.to_owned(), error.clone());
        Ok(error)
    }

    /// The innermost part that fails with the same message on its own.
    pub fn find(&mut self, schema: &Value, message: &str) -> Found {
        let (mut path, mut part) = ("#".to_owned(), schema);
        if is_size(message) {
            return Found { path, is_certain: false };
        }
        'deeper: loop {
            for (at, child) in children(&path, part) {
                match self.part(schema, &at) {
                    Ok(error) if error.as_deref() == Some(message) => {
                        (path, part) = (at, child);
                        continue 'deeper;
                    }
                    Ok(_) => {}
                    Err(Spent) => return Found { path, is_certain: false },
                }
            }
            return Found { path, is_certain: true };
        }
    }

    fn spend(&mut self, work: usize) -> Result<(), Spent> {
        self.left = self.left.checked_sub(work).ok_or(Spent)?;
        if self.began.elapsed() > TIME_MAX { Err(Spent) } else { Ok(()) }
    }
}

/// The error for a schema that cannot be compiled, with the path of the innermost part that fails with the same
/// message on its own.
pub fn locate(schema: &Value, message: &str, trials: &mut Trials<'_>) -> Error {
    let path = trials.find(schema, message).path;
    let part = schema.pointer(&path[1..]);
    let has = |key: &&&str| part.is_some_and(|part| part.get(**key).is_some());
    let is_number = message.starts_with(NUMBERS_MESSAGE);
    match NUMBERS.iter().find(has).filter(|_| is_number) {
        Some(key) => refused(&child(&path, key), NUMBERS_REASON.to_owned()),
        None => refused(&path, message.to_owned()),
    }
}

/// Whether an error is one of size: what is too large as a whole has no part at fault.
pub fn is_size(message: &str) -> bool {
    message.contains("too big") || message.contains("too large")
}

/// The part of a schema at `path` as a schema of its own, next to the whole if it has references.
fn alone(schema: &Value, path: &str) -> Value {
    let part = path.strip_prefix('#').and_then(|pointer| schema.pointer(pointer));
    let mut found = match part {
        Some(Value::Object(part)) if path == "#" || !has_reference(part) => part.clone(),
        _ => beside_whole(schema, path),
    };
    for key in ["$schema", "x-guidance"] {
        if let Some(value) = schema.get(key) {
            found.entry(key).or_insert_with(|| value.clone());
        }
    }
    let mut found = Value::Object(found);
    plain_references(&mut found);
    found
}

/// The part of a schema at `path`, with the whole as a definition.
fn beside_whole(schema: &Value, path: &str) -> Map<String, Value> {
    const WHOLE: &str = "#/$defs/whole";
    let mut whole = schema.clone();
    let mut open = vec![&mut whole];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get_mut("$ref") {
                    *reference = reference.replacen('#', WHOLE, 1);
                }
                open.extend(fields.iter_mut().map(|(_, field)| field));
            }
            _ => {}
        }
    }
    let mut found = match whole.pointer(&path[1..]) {
        Some(Value::Object(part)) => part.clone(),
        _ => Map::from_iter([("$ref".to_owned(), json!(path.replacen('#', WHOLE, 1)))]),
    };
    found.insert("$defs".to_owned(), json!({ "whole": whole }));
    found
}

fn has_reference(part: &Map<String, Value>) -> bool {
    let mut open: Vec<&Value> = part.values().collect();
    let mut has = part.contains_key("$ref");
    while let Some(value) = open.pop().filter(|_| !has) {
        has = value.get("$ref").is_some();
        open.extend(below(value));
    }
    has
}

/// The number of values in a schema, and [`LARGE_WORK`] for each large regular expression.
fn work(schema: &Value) -> usize {
    let (mut open, mut work) = (vec![schema], 0);
    while let Some(value) = open.pop() {
        let large = LARGE.iter().filter(|key| value.get(**key).is_some()).count();
        let names = value.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
        work += 1 + (large + names) * LARGE_WORK;
        open.extend(below(value));
    }
    work
}

/// The values directly in another.
fn below(value: &Value) -> impl Iterator<Item = &Value> {
    let items = value.as_array().into_iter().flatten();
    items.chain(value.as_object().into_iter().flat_map(Map::values))
}
