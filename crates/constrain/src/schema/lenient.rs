//! Schemas of which as much is followed as can be: what cannot be compiled is left out.

use serde_json::{Map, Value, json};

use super::{Fault, Place, check_depth, faults, find, is_size, normalize, target};
use crate::expansion::{self, Work};
use crate::{Error, Limits};

/// Most faults that are removed at once.
const FAULTS_MAX: usize = 1000;

/// Most times that a schema is checked again after faults were removed.
const PASSES_MAX: usize = 8;

/// Keywords that are the reason where a schema cannot be compiled but each schema in it can, likeliest first.
const SUSPECTS: &[&str] =
    &["pattern", "patternProperties", "multipleOf", "oneOf", "anyOf", "allOf", "$ref"];

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
    let kind = kind(schema);
    let mut notes = Vec::new();
    for pass in 0.. {
        normalize(schema);
        let mut found = faults(schema, FAULTS_MAX);
        if found.is_empty() {
            break;
        }
        if let Some(at) = found.iter().position(|fault| fault.place == Place::Limit) {
            return Err(found.swap_remove(at).into());
        }
        if pass == PASSES_MAX {
            notes.push("#: it has too many faults".to_owned());
            *schema = kind;
            break;
        }
        for fault in found {
            remove(schema, &fault);
            notes.push(format!("{}: {}", fault.path, fault.reason));
        }
    }
    if *schema == Value::Bool(true) {
        *schema = json!({});
    }
    expansion::check(schema, work)?;
    Ok(notes)
}

/// Removes what cannot be compiled. `fails` compiles a schema. Returns what was removed and why.
///
/// # Errors
/// [`Error::Schema`]: it is too large, or the part at fault is not found soon.
pub fn compile(
    schema: &mut Value,
    fails: &dyn Fn(Value) -> Option<String>,
) -> Result<Vec<String>, Error> {
    let mut notes = Vec::new();
    while let Some(message) = fails(schema.clone()) {
        let found = find(schema, &message, fails);
        let refused = |path: &str| Error::Schema { path: path.to_owned(), reason: message.clone() };
        if is_size(&message) || !found.is_certain {
            return Err(refused(&found.path));
        }
        let (path, place) = match suspect(schema, &found.path, &message, fails) {
            Some(key) => (super::child(&found.path, key), Place::Keyword),
            None => (found.path, Place::Schema),
        };
        if path == "#" || notes.len() == PASSES_MAX {
            *schema = kind(schema);
            notes.push(format!("#: {message}"));
            // Values of a type are compiled.
            return fails(schema.clone()).map_or(Ok(notes), |_| Err(refused("#")));
        }
        notes.push(format!("{path}: {message}"));
        remove(schema, &Fault { path, reason: message, place });
    }
    Ok(notes)
}

/// The keyword of the schema at `path` without which the whole does not fail, or not so.
fn suspect(
    schema: &Value,
    path: &str,
    message: &str,
    fails: &dyn Fn(Value) -> Option<String>,
) -> Option<&'static str> {
    SUSPECTS.iter().copied().find(|key| {
        let mut without = schema.clone();
        let part = without.pointer_mut(&path[1..]).and_then(Value::as_object_mut);
        part.is_some_and(|keywords| keywords.shift_remove(*key).is_some())
            && fails(without).as_deref() != Some(message)
    })
}

/// Any value of the type that a schema names, with its title and llguidance's options.
fn kind(schema: &Value) -> Value {
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

fn remove(schema: &mut Value, fault: &Fault) {
    let Some(pointer) = fault.path.strip_prefix('#') else { return };
    if fault.place == Place::Schema {
        if let Some(part) = schema.pointer_mut(pointer) {
            *part = Value::Bool(true);
        }
        return;
    }
    let Some((parent, key)) = pointer.rsplit_once('/') else { return };
    let key = key.replace("~1", "/").replace("~0", "~");
    if let Some(keywords) = schema.pointer_mut(parent).and_then(Value::as_object_mut) {
        keywords.shift_remove(&key);
    }
}
