//! Lark grammars, which llguidance parses itself: bounds before that, and where its errors are.

use llguidance::api::TopLevelGrammar;
use serde_json::{Deserializer, Map, Value, json};

use crate::error::reason;
use crate::schema::expansion::Work;
use crate::schema::trials::{self, Trials};
use crate::{Error, Limits, schema};

/// Most rules and terminals of a grammar: each may refer to the next, and references are followed recursively.
const RULES_MAX: usize = 4096;

/// What a schema within a grammar follows.
const SCHEMA: &str = "%json";

/// Where a schema has llguidance's options; only the root of a schema within a grammar may have them.
const OPTIONS: &str = "x-guidance";

/// Our own option, which llguidance does not see: what cannot be followed of the schema is left out. llguidance's
/// `lenient` leaves out without a note.
const BEST_EFFORT: &str = "best_effort";

/// The option to take `oneOf` as `anyOf` where its options may overlap.
const COERCE_ONE_OF: &str = "coerce_one_of";

/// The option with the escapes of strings.
const ESCAPES: &str = "json_allowed_escapes";

/// A grammar that was checked.
pub struct Checked {
    /// The grammar, its schemas normalized.
    pub source: String,
    /// Of each schema in the grammar, in their order: whether what cannot be followed is left out.
    is_best_effort: Vec<bool>,
    /// What was left out of its schemas, and why.
    pub notes: Vec<String>,
}

impl Checked {
    /// As llguidance takes it.
    pub fn top_level(&self) -> TopLevelGrammar {
        let written = rewrite(&self.source, |schema| {
            schema::counted::write_out(schema);
            Ok(Vec::new())
        });
        TopLevelGrammar::from_lark(
            written.map_or_else(|_| self.source.clone(), |(source, _)| source),
        )
    }
}

/// Checks what llguidance does not bound, and the schemas in the grammar.
///
/// # Errors
/// [`Error::Grammar`].
pub fn check(source: &str, limits: &Limits) -> Result<Checked, Error> {
    let refused = |reason| Err(Error::Grammar { what: "the Lark grammar", reason });
    if source.trim().is_empty() {
        return refused("it is empty".to_owned());
    }
    let rules = source.lines().filter(|line| line.contains(':')).count();
    if rules > RULES_MAX {
        return refused(format!("{rules} rules, where at most {RULES_MAX} are allowed"));
    }
    // Only JSON inside a grammar can nest deeper than llguidance allows; brackets in strings count as well.
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in source.bytes() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > limits.depth * 2 {
        return refused(format!("brackets nest {deepest} deep, more than {}", limits.depth * 2));
    }
    check_schemas(source, limits)
}

/// Checks each schema of a grammar.
fn check_schemas(source: &str, limits: &Limits) -> Result<Checked, Error> {
    let (mut work, mut is_best_effort) = (Work::default(), Vec::new());
    let (source, notes) = rewrite(source, |schema| {
        let fields = schema.as_object_mut();
        let mut options = fields.and_then(|fields| fields.shift_remove(OPTIONS));
        let leaves_out = options.as_mut().and_then(Value::as_object_mut).is_some_and(best_effort);
        is_best_effort.push(leaves_out);
        let notes = match leaves_out {
            true => schema::lenient::check_whole(schema, limits, &mut work)?,
            false => schema::check_whole(schema, limits, &mut work).map(|()| Vec::new())?,
        };
        let escapes = schema::escapes(schema).filter(|_| !leaves_out);
        let mut options = options.or_else(|| escapes.map(|_| json!({})));
        if let (Some(Value::Object(options)), Some(escapes)) = (&mut options, escapes) {
            options.entry(ESCAPES).or_insert_with(|| escapes.into());
        }
        if let (Some(options), Some(fields)) = (options, schema.as_object_mut()) {
            fields.insert(OPTIONS.to_owned(), options);
        }
        Ok(notes)
    })?;
    Ok(Checked { source, is_best_effort, notes })
}

/// Takes our own option out of a schema's options, and returns whether it is set.
fn best_effort(options: &mut Map<String, Value>) -> bool {
    let is_set = options.shift_remove(BEST_EFFORT) == Some(Value::Bool(true));
    if is_set {
        options.insert(COERCE_ONE_OF.to_owned(), true.into());
    }
    is_set
}

/// Leaves out what cannot be compiled of each schema that allows this. `None` if all schemas of the grammar can be
/// compiled.
///
/// # Errors
/// [`Error::Grammar`] for another schema that cannot be compiled.
pub fn relax(checked: &Checked, trials: &mut Trials<'_>) -> Result<Option<Checked>, Error> {
    let is_best_effort = &checked.is_best_effort;
    let mut leaves_out = is_best_effort.iter();
    let (source, added) = rewrite(&checked.source, |schema| match leaves_out.next() {
        Some(true) => schema::lenient::compile(schema, trials),
        _ => match trials.whole(schema) {
            Some(message) => Err(trials::locate(schema, &message, trials)),
            None => Ok(Vec::new()),
        },
    })?;
    Ok(changed(checked, source, &added))
}

/// Leaves out how many properties objects need whose choices are written out, in each schema that allows this. `None` if
/// there are none.
pub fn leave_out_counts(checked: &Checked) -> Option<Checked> {
    let mut leaves_out = checked.is_best_effort.iter();
    let rewritten = rewrite(&checked.source, |schema| match leaves_out.next() {
        Some(true) => Ok(schema::lenient::leave_out_counts(schema)),
        _ => Ok(Vec::new()),
    });
    let (source, added) = rewritten.ok()?;
    changed(checked, source, &added)
}

/// The grammar with this source and more notes, if there are any.
fn changed(checked: &Checked, source: String, added: &[String]) -> Option<Checked> {
    let is_best_effort = checked.is_best_effort.clone();
    let notes = checked.notes.iter().chain(added).cloned().collect();
    (!added.is_empty()).then_some(Checked { source, is_best_effort, notes })
}

/// Changes each schema of a grammar; `change` returns notes. Returns the grammar and all notes. A schema's title is its
/// name in notes and errors.
fn rewrite(
    source: &str,
    mut change: impl FnMut(&mut Value) -> Result<Vec<String>, Error>,
) -> Result<(String, Vec<String>), Error> {
    let (mut written, mut rest, mut notes) = (String::new(), source, Vec::new());
    while let Some(at) = rest.find(SCHEMA) {
        let (before, after) = rest.split_at(at + SCHEMA.len());
        written.push_str(before);
        rest = after;
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        // Anything else is within a string, or is refused by llguidance.
        let Some(Ok(given @ Value::Object(_))) = values.next() else { continue };
        let len = values.byte_offset();
        let title = given.get("title").and_then(Value::as_str);
        let title = title.map(|title| format!(" '{title}'")).unwrap_or_default();
        let mut schema = given.clone();
        let added = change(&mut schema).map_err(|error| match error {
            Error::Schema { path, reason } => {
                let reason = format!("schema{title} at {path}: {reason}");
                Error::Grammar { what: "the Lark grammar", reason }
            }
            error => error,
        })?;
        notes.extend(added.iter().map(|note| format!("schema{title} at {note}")));
        if schema != given {
            written.push_str(&format!(" {schema}"));
        } else {
            written.push_str(&rest[..len]);
        }
        rest = &rest[len..];
    }
    written.push_str(rest);
    Ok((written, notes))
}

/// The error for a message of llguidance, which begins with `line(column):`, `at line(column):` or neither.
pub fn refused(what: &'static str, message: &str) -> Error {
    let reason = reason(message);
    let located = || {
        let (at, rest) = reason.strip_prefix("at ").unwrap_or(&reason).split_once("): ")?;
        let (line, column) = at.split_once('(')?;
        let (line, column) = (line.parse().ok()?, column.parse().ok()?);
        Some(Error::Syntax { what, line, column, reason: rest.to_owned() })
    };
    located().unwrap_or(Error::Grammar { what, reason })
}
