//! Schemas of which as much is followed as can be: what cannot be compiled is left out.

use serde_json::{Map, Value, json};

use super::closed::Overlaps;
use super::expansion::Work;
use super::trials::{Spent, Trials, is_size};
use super::{
    Fault, FaultKind, check_depth, child, children_mut, closed, counted, faults, may_be, normalize,
    patterns, target, used,
};
use crate::{Error, Limits};

/// Most faults that are removed at once.
const FAULTS_MAX: usize = 1000;

/// Most times that a schema is checked again after faults were removed; beyond it, keywords that cannot be compiled are
/// removed from all its schemas.
const PASSES_MAX: usize = 8;

/// Keywords that are the reason where a schema cannot be compiled but each schema in it can, likeliest first.
const SUSPECTS: &[&str] = &[
    "pattern",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "multipleOf",
    "oneOf",
    "anyOf",
    "allOf",
    "$ref",
];

/// Keywords, and others that would allow less without them: their schema is for what the first has none for.
const RESTS: &[(&str, &str)] = &[
    ("properties", "additionalProperties"),
    ("patternProperties", "additionalProperties"),
    ("prefixItems", "items"),
    ("items", "additionalItems"),
];

/// Removes what cannot be followed, as far as this is known without compiling. Returns what was removed and why.
///
/// # Errors
/// [`Error::Schema`]: a limit is exceeded.
pub fn check_whole(
    schema: &mut Value,
    limits: &Limits,
    work: &mut Work,
) -> Result<Vec<String>, Error> {
    check_depth(schema, limits.depth)?;
    let only_type = only_type(schema);
    closed::close(schema, Overlaps::Allowed);
    let mut notes = Vec::new();
    for pass in 0.. {
        normalize(schema);
        let mut found = faults(schema, FAULTS_MAX);
        if found.is_empty() {
            break;
        }
        if let Some(at) = found.iter().position(|fault| fault.kind == FaultKind::Limit) {
            return Err(found.swap_remove(at).into());
        }
        if pass == PASSES_MAX {
            notes.push("#: it has too many faults, so only its type is followed".to_owned());
            *schema = only_type;
            break;
        }
        notes.extend(found.iter().map(|fault| remove(schema, fault)));
    }
    if *schema == Value::Bool(true) {
        *schema = json!({});
    }
    patterns::apply_listed(schema);
    counted::check(schema, work)?;
    Ok(notes)
}

/// Removes what cannot be compiled; the type is left if not all of it is found. Returns what was removed and why.
///
/// # Errors
/// [`Error::Schema`]: it is too large.
pub fn compile(schema: &mut Value, trials: &mut Trials<'_>) -> Result<Vec<String>, Error> {
    let patterns = bad_patterns(schema, trials);
    let mut notes: Vec<_> = patterns.iter().map(|fault| remove(schema, fault)).collect();
    let (before, count) = (schema.clone(), notes.len());
    let Some(mut reason) = remove_faults(schema, trials, &mut notes) else { return Ok(notes) };
    let mut without_counts = before;
    let left_out = leave_out_counts(&mut without_counts);
    if !left_out.is_empty() {
        *schema = without_counts;
        notes.truncate(count);
        notes.extend(left_out);
        let Some(next) = remove_faults(schema, trials, &mut notes) else { return Ok(notes) };
        reason = next;
    }
    let refused = |reason: String| Error::Schema { path: "#".to_owned(), reason };
    if is_size(&reason) {
        return Err(refused(reason));
    }
    notes.push(format!("#: {reason}, so only its type is followed"));
    *schema = only_type(schema);
    // Values of a type can be compiled, except with options that cannot.
    trials.whole(schema).map_or(Ok(notes), |message| Err(refused(message)))
}

/// Leaves out how many properties the objects need whose choices would be written out. Returns notes.
pub fn leave_out_counts(schema: &mut Value) -> Vec<String> {
    let note = |path: String| format!("{path}: the grammar of its choices cannot be compiled");
    counted::leave_out(schema).into_iter().map(note).collect()
}

/// Removes the faults of a schema one by one. Returns why it still cannot be compiled, if so.
fn remove_faults(
    schema: &mut Value,
    trials: &mut Trials<'_>,
    notes: &mut Vec<String>,
) -> Option<String> {
    let mut message = trials.whole(schema)?;
    for pass in 0.. {
        if is_size(&message) {
            return Some(message);
        }
        let Ok(fault) = fault(schema, &message, trials) else { break };
        match fault.kind {
            FaultKind::Schema if fault.path == "#" => return Some(message),
            FaultKind::Keyword if pass >= PASSES_MAX => {
                notes.push(remove_everywhere(schema, &fault));
            }
            _ => notes.push(remove(schema, &fault)),
        }
        match trials.part(schema, "#") {
            Ok(next) => message = next?,
            Err(Spent) => break,
        }
    }
    Some("not all of its faults were found".to_owned())
}

/// The patterns that cannot be parsed, as far as trials are left.
fn bad_patterns(schema: &Value, trials: &mut Trials<'_>) -> Vec<Fault> {
    let mut found = Vec::new();
    for (path, part) in used(schema) {
        let Some(keywords) = part.as_object() else { continue };
        let pattern = keywords.get("pattern").filter(|_| may_be("string", keywords));
        let texts = pattern.and_then(Value::as_str);
        let texts = texts.map(|text| (child(&path, "pattern"), text, FaultKind::Keyword));
        let names = keywords.get("patternProperties").filter(|_| may_be("object", keywords));
        let names = names.and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let names = names.map(|name| {
            let at = child(&child(&path, "patternProperties"), name);
            (at, name.as_str(), FaultKind::Pattern)
        });
        for (path, pattern, kind) in texts.into_iter().chain(names) {
            match trials.pattern(pattern) {
                Ok(Some(reason)) => found.push(Fault { path, reason, kind }),
                Ok(None) => {}
                Err(Spent) => return found,
            }
        }
    }
    found
}

/// What is at fault where a schema cannot be compiled.
///
/// # Errors
/// [`Spent`].
fn fault(schema: &mut Value, message: &str, trials: &mut Trials<'_>) -> Result<Fault, Spent> {
    let found = trials.find(schema, message);
    if !found.is_certain {
        return Err(Spent);
    }
    let (path, kind) = match suspect(schema, &found.path, message, trials)? {
        Some(key) => (child(&found.path, &key), FaultKind::Keyword),
        None => (found.path, FaultKind::Schema),
    };
    Ok(Fault { path, reason: message.to_owned(), kind })
}

/// The keyword of the part at `path` without which the part does not fail, or not so.
///
/// # Errors
/// [`Spent`].
fn suspect(
    schema: &mut Value,
    path: &str,
    message: &str,
    trials: &mut Trials<'_>,
) -> Result<Option<String>, Spent> {
    let Some(Value::Object(part)) = schema.pointer(&path[1..]) else { return Ok(None) };
    let part = part.clone();
    let named = message.strip_prefix("Unimplemented keys: ");
    let named = named.and_then(|names| serde_json::from_str::<Vec<String>>(names).ok());
    let suspects = SUSPECTS.iter().map(|key| (*key).to_owned());
    let suspects = named.into_iter().flatten().chain(suspects);
    for key in suspects.filter(|key| part.contains_key(key)) {
        let mut without = part.clone();
        remove_keyword(&mut without, &key);
        put(schema, path, without);
        let error = trials.part(schema, path);
        put(schema, path, part.clone());
        if error?.as_deref() != Some(message) {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

fn put(schema: &mut Value, path: &str, keywords: Map<String, Value>) {
    if let Some(part) = schema.pointer_mut(&path[1..]) {
        *part = Value::Object(keywords);
    }
}

/// Any value of the type that a schema names, with its title and llguidance's options.
fn only_type(schema: &Value) -> Value {
    let referred = schema.get("$ref").and_then(Value::as_str).and_then(|at| target(schema, at));
    let names = ["array", "boolean", "integer", "null", "number", "object", "string"];
    let is_name = |kind: &&Value| kind.as_str().is_some_and(|name| names.contains(&name));
    let kind = schema.get("type").or_else(|| referred?.get("type")).filter(is_name);
    let mut any = Map::new();
    let [title, options] = ["title", "x-guidance"].map(|key| (key, schema.get(key)));
    for (key, value) in [title, ("type", kind), options] {
        any.extend(value.map(|value| (key.to_owned(), value.clone())));
    }
    Value::Object(any)
}

/// Removes what is at fault. Returns a note.
fn remove(schema: &mut Value, fault: &Fault) -> String {
    let rest = remove_at(schema, &fault.path, fault.kind);
    note(&fault.path, &fault.reason, rest)
}

/// Removes the keyword at fault from all schemas in another. Returns a note.
fn remove_everywhere(schema: &mut Value, fault: &Fault) -> String {
    let key = last_key(&fault.path);
    let (mut rest, mut open) = (None, vec![schema]);
    while let Some(schema) = open.pop() {
        if let Some(keywords) = schema.as_object_mut() {
            rest = rest.or(remove_keyword(keywords, &key));
        }
        open.extend(children_mut(schema));
    }
    note(&format!("#, everywhere `{key}`"), &fault.reason, rest)
}

fn note(path: &str, reason: &str, rest: Option<&str>) -> String {
    let rest = rest.map(|key| format!("; with it `{key}` is left out"));
    format!("{path}: {reason}{}", rest.unwrap_or_default())
}

/// Returns the keyword that was removed as well.
fn remove_at(schema: &mut Value, path: &str, kind: FaultKind) -> Option<&'static str> {
    let pointer = path.strip_prefix('#')?;
    if kind == FaultKind::Schema {
        *schema.pointer_mut(pointer)? = Value::Bool(true);
        return None;
    }
    let (parent, _) = pointer.rsplit_once('/')?;
    let key = last_key(path);
    if kind == FaultKind::Pattern {
        let (holder, _) = parent.rsplit_once('/')?;
        let holder = schema.pointer_mut(holder)?.as_object_mut()?;
        holder.get_mut("patternProperties")?.as_object_mut()?.shift_remove(&key)?;
        return remove_rest(holder, "patternProperties");
    }
    remove_keyword(schema.pointer_mut(parent)?.as_object_mut()?, &key)
}

/// The last key of a path.
fn last_key(path: &str) -> String {
    let key = path.rsplit('/').next().unwrap_or_default();
    key.replace("~1", "/").replace("~0", "~")
}

/// Removes a keyword. Returns the keyword that was removed as well.
fn remove_keyword(keywords: &mut Map<String, Value>, key: &str) -> Option<&'static str> {
    keywords.shift_remove(key)?;
    remove_rest(keywords, key)
}

/// Removes the keyword that would allow less without another.
fn remove_rest(keywords: &mut Map<String, Value>, key: &str) -> Option<&'static str> {
    let (_, rest) = RESTS.iter().find(|(one, _)| *one == key)?;
    keywords.shift_remove(*rest).map(|_| *rest)
}
