//! Objects that need two or more of their optional properties: llguidance counts to one, so the choices are written out.
//!
//! Each choice of the first properties that are there is an option: those between them are left out, those behind the
//! last are optional. So every object is an option's exactly once. Of `k` optional properties, `n` are chosen in `k! / (n!
//! (k - n)!)` ways, which is why the number is limited.
//!
//! A schema has marks where it is to be written out, and only what llguidance takes is: errors and notes name places in
//! the schema without the options.

use std::cmp::Reverse;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::expansion::{self, Work};
use super::normal::has_reference_into;
use super::{child, children_mut, used};
use crate::Error;

/// Most bytes of the options that are written for the schemas of a grammar: half a second.
const WRITTEN_BYTES: usize = 512 << 10;

/// Most bytes that are written at once: a schema that is compiled beside a part of it has each object twice.
const WRITTEN_AT_ONCE: usize = 2 * WRITTEN_BYTES;

/// Bytes of a property in an option beside its name.
const PROPERTY_BYTES: usize = 32;

/// What the names of new definitions begin with.
const PREFIX: &str = "counted";

/// Our own keyword of an object that is to be written out.
const MARK: &str = "x-bilayer-counted";

/// Keywords beside which an object is left as it is.
const BESIDE: &[&str] = &["$ref", "allOf", "anyOf", "const", "enum", "oneOf", "patternProperties"];

/// Keywords that the options have.
const OWN: &[&str] =
    &["additionalProperties", "maxProperties", "minProperties", "properties", "required", "type"];

/// Marks the objects of a normalized schema that are to be written out, as far as their options are few, and checks how
/// many alternatives the schema has then. Adds to `work`.
///
/// # Errors
/// [`Error::Schema`]: it has too many alternatives also without the options.
pub fn check(schema: &mut Value, work: &mut Work) -> Result<(), Error> {
    each(schema, |keywords| {
        keywords.shift_remove(MARK);
        simplify(keywords);
    });
    let mut with_options = work.clone();
    if mark(schema, &mut with_options) {
        let mut written = schema.clone();
        write_out(&mut written);
        if expansion::check(&written, &mut with_options).is_ok() {
            *work = with_options;
            return Ok(());
        }
        remove_marks(schema);
    }
    expansion::check(schema, work)
}

/// Writes out the objects that are marked.
pub fn write_out(schema: &mut Value) {
    let marked = marked(schema);
    if marked.is_empty() {
        return;
    }
    let definitions = schema.get("$defs").and_then(Value::as_object);
    let taken = definitions.into_iter().flat_map(Map::keys).cloned();
    let taken = taken.filter(|name| name.starts_with(PREFIX)).collect();
    let mut writer = Writer { taken, last: 0, definitions: Map::new(), left: WRITTEN_AT_ONCE };
    for path in marked {
        let object = schema.pointer_mut(&path[1..]).and_then(Value::as_object_mut);
        object.into_iter().for_each(|keywords| writer.write(keywords));
    }
    let new = writer.definitions;
    remove_marks(schema);
    let Some(keywords) = schema.as_object_mut().filter(|_| !new.is_empty()) else { return };
    if let Value::Object(all) = keywords.entry("$defs").or_insert_with(|| json!({})) {
        all.extend(new);
    }
}

/// Leaves out how many properties the marked objects need. Returns the keywords' places.
pub fn leave_out(schema: &mut Value) -> Vec<String> {
    let mut marked = marked(schema);
    for path in &mut marked {
        if let Some(Value::Object(keywords)) = schema.pointer_mut(&path[1..]) {
            keywords.shift_remove("minProperties");
        }
        *path = child(path, "minProperties");
    }
    remove_marks(schema);
    marked.sort_unstable();
    marked
}

/// Visits a schema and all in it.
fn each(schema: &mut Value, mut visit: impl FnMut(&mut Map<String, Value>)) {
    let mut open = vec![schema];
    while let Some(part) = open.pop() {
        part.as_object_mut().into_iter().for_each(&mut visit);
        open.extend(children_mut(part));
    }
}

fn remove_marks(schema: &mut Value) {
    each(schema, |keywords| drop(keywords.shift_remove(MARK)));
}

/// The paths of the objects that are marked, inner ones first.
fn marked(schema: &Value) -> Vec<String> {
    let marked = used(schema).into_iter().filter(|(_, part)| part.get(MARK).is_some());
    let mut paths: Vec<String> = marked.map(|(path, _)| path).collect();
    paths.sort_by_key(|path| Reverse(path.matches('/').count()));
    paths
}

/// Marks what can be written out, and returns whether anything can.
fn mark(schema: &mut Value, work: &mut Work) -> bool {
    let definitions = schema.get("$defs");
    if definitions.is_some_and(|all| !all.is_object())
        || has_reference_into(schema, &["/properties/"])
    {
        return false;
    }
    let mut paths = Vec::new();
    for (path, part) in used(schema) {
        let Some(counted) = part.as_object().and_then(Counted::of) else { continue };
        let left = WRITTEN_BYTES.saturating_sub(work.written);
        let Some(choices) = counted.choices(left) else { continue };
        work.written += choices.len() * counted.bytes();
        paths.push(path);
    }
    for path in &paths {
        if let Some(Value::Object(keywords)) = schema.pointer_mut(&path[1..]) {
            keywords.insert(MARK.to_owned(), true.into());
        }
    }
    !paths.is_empty()
}

/// Removes a largest number that excludes nothing, and requires all properties where all are needed.
fn simplify(keywords: &mut Map<String, Value>) {
    let is_closed = keywords.get("additionalProperties") == Some(&Value::Bool(false));
    let properties = keywords.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    let most = keywords.get("maxProperties").and_then(Value::as_u64);
    if is_closed
        && !keywords.contains_key("patternProperties")
        && most.is_some_and(|most| most >= properties as u64)
    {
        keywords.shift_remove("maxProperties");
    }
    if let Some(all) = Counted::of(keywords).filter(|counted| counted.needed == counted.optional())
    {
        keywords.shift_remove("minProperties");
        let names: Vec<String> = all.names.into_iter().map(|(name, _)| name).collect();
        keywords.insert("required".to_owned(), names.into());
    }
}

struct Writer {
    /// Names of definitions that begin with [`PREFIX`].
    taken: HashSet<String>,
    /// The number in the last name.
    last: usize,
    /// The schemas of properties, which options share.
    definitions: Map<String, Value>,
    /// Bytes that may still be written.
    left: usize,
}

impl Writer {
    /// Writes out an object in which all others are written.
    fn write(&mut self, keywords: &mut Map<String, Value>) {
        let Some(counted) = Counted::of(keywords) else { return };
        let Some(choices) = counted.choices(self.left) else { return };
        self.left -= choices.len() * counted.bytes();
        let Some(Value::Object(mut properties)) = keywords.shift_remove("properties") else {
            return;
        };
        let mut shared = |name: &String| {
            let schema = properties.shift_remove(name).unwrap_or_default();
            if is_short(&schema) { schema } else { self.defined(schema) }
        };
        let schemas: Vec<Value> = counted.names.iter().map(|(name, _)| shared(name)).collect();
        let options: Vec<Value> =
            choices.iter().map(|choice| counted.option(choice, &schemas)).collect();
        keywords.retain(|key, _| !OWN.contains(&key.as_str()));
        keywords.insert("anyOf".to_owned(), options.into());
    }

    /// A reference to a new definition.
    fn defined(&mut self, schema: Value) -> Value {
        let name = self.free_name();
        let reference = json!({ "$ref": format!("#/$defs/{name}") });
        self.definitions.insert(name, schema);
        reference
    }

    fn free_name(&mut self) -> String {
        loop {
            self.last += 1;
            let name = format!("{PREFIX}{}", self.last);
            if !self.taken.contains(&name) {
                return name;
            }
        }
    }
}

/// Whether a schema is no longer than a reference: it says nothing, or names a type or another schema.
fn is_short(schema: &Value) -> bool {
    let Some(keywords) = schema.as_object() else { return true };
    let is_name = |(key, value): (&String, &Value)| {
        let is_known = ["$ref", "type"].contains(&key.as_str());
        is_known && value.as_str().is_some_and(|name| name.len() <= PROPERTY_BYTES)
    };
    keywords.len() <= 1 && keywords.iter().all(is_name)
}

/// An object that has no other properties than it lists.
struct Counted {
    /// The names of the properties that may be there, and whether each is optional.
    names: Vec<(String, bool)>,
    /// How many of the optional ones there must be.
    needed: usize,
}

impl Counted {
    /// None if llguidance counts the properties itself, or if the number excludes nothing or everything.
    fn of(keywords: &Map<String, Value>) -> Option<Counted> {
        let count = |key: &str| keywords.get(key).and_then(Value::as_u64);
        let least = count("minProperties").filter(|&least| least > 1)?;
        let is_closed = keywords.get("additionalProperties") == Some(&Value::Bool(false));
        let is_object = keywords.get("type").is_some_and(|name| name == "object");
        if !is_closed || !is_object || BESIDE.iter().any(|key| keywords.contains_key(*key)) {
            return None;
        }
        let properties = keywords.get("properties")?.as_object()?;
        let possible = properties.iter().filter(|(_, schema)| **schema != Value::Bool(false));
        let required = keywords.get("required").and_then(Value::as_array);
        let required: HashSet<&str> =
            required.into_iter().flatten().filter_map(Value::as_str).collect();
        let names: Vec<(String, bool)> =
            possible.map(|(name, _)| (name.clone(), !required.contains(name.as_str()))).collect();
        let needed = usize::try_from(least).ok()?.checked_sub(required.len())?;
        let most = count("maxProperties").unwrap_or(u64::MAX);
        let is_bounded = most < names.len() as u64;
        let counted = Counted { names, needed };
        let optional = counted.optional();
        let has_required = counted.names.len() - optional == required.len();
        let is_possible = has_required && (2..=optional).contains(&needed);
        (is_possible && !(is_bounded && needed < optional)).then_some(counted)
    }

    /// The number of properties that are not required.
    fn optional(&self) -> usize {
        self.names.iter().filter(|(_, is_optional)| *is_optional).count()
    }

    /// Bytes of an option.
    fn bytes(&self) -> usize {
        self.names.iter().map(|(name, _)| name.len() + PROPERTY_BYTES).sum()
    }

    /// The ranks of the first optional properties in each option, if all options have at most `most` bytes.
    fn choices(&self, most: usize) -> Option<Vec<Vec<usize>>> {
        choices(self.optional(), self.needed, most / self.bytes())
    }

    /// The objects whose first optional properties are those with these ranks, which rise. The schemas are those of all
    /// names.
    fn option(&self, choice: &[usize], schemas: &[Value]) -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        let (mut rank, last) = (0, choice.last().copied().unwrap_or_default());
        for ((name, is_optional), schema) in self.names.iter().zip(schemas) {
            let is_there = !is_optional || choice.contains(&rank);
            if is_there {
                required.push(name);
            }
            if is_there || rank > last {
                properties.insert(name.clone(), schema.clone());
            }
            rank += usize::from(*is_optional);
        }
        json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
        })
    }
}

/// All ways to choose `chosen` of `count` ranks, if there are at most so many.
fn choices(count: usize, chosen: usize, most: usize) -> Option<Vec<Vec<usize>>> {
    let mut found = vec![(0..chosen).collect::<Vec<usize>>()];
    while let Some(last) = found.last().filter(|_| found.len() <= most) {
        // The last rank that can rise, and those behind it.
        let Some(at) = (0..chosen).rev().find(|&at| last[at] < count - chosen + at) else {
            return Some(found);
        };
        let begun = last[at] + 1;
        let next = last[..at].iter().copied().chain(begun..begun + chosen - at).collect();
        found.push(next);
    }
    None
}
