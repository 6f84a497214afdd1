//! Objects that need two or more of their optional properties: llguidance counts to one, so the choices are written out.
//!
//! Each choice of the first properties that are there is an option: those between them are left out, those behind the
//! last are optional. So every object is an option's exactly once. Of `k` optional properties, `n` are chosen in `k! / (n!
//! (k - n)!)` ways, which is why the number is limited.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::children_mut;
use super::normal::has_reference_into;
use crate::expansion::Work;

/// Most bytes of the options that are written for the schemas of a grammar: half a second.
const WRITTEN_BYTES: usize = 512 << 10;

/// Bytes of a property in an option beside its name.
const PROPERTY_BYTES: usize = 32;

/// What the names of new definitions begin with.
const PREFIX: &str = "counted";

/// Keywords beside which an object is left as it is.
const BESIDE: &[&str] = &["$ref", "allOf", "anyOf", "const", "enum", "oneOf", "patternProperties"];

/// Keywords that the options have.
const OWN: &[&str] =
    &["additionalProperties", "maxProperties", "minProperties", "properties", "required", "type"];

/// Writes out the objects of a schema that is normalized, as far as their options are few. Adds to `work`.
pub fn write_out(schema: &mut Value, work: &mut Work) {
    if has_reference_into(schema, &["/properties/"]) {
        return;
    }
    let definitions = schema.get("$defs");
    if definitions.is_some_and(|all| !all.is_object()) {
        return;
    }
    let taken = definitions.and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned();
    let taken = taken.filter(|name| name.starts_with(PREFIX)).collect();
    let mut writer = Writer { taken, last: 0, definitions: Map::new(), work };
    writer.visit(schema);
    if writer.definitions.is_empty() {
        return;
    }
    let all = schema.as_object_mut().map(|all| all.entry("$defs").or_insert_with(|| json!({})));
    if let Some(Value::Object(all)) = all {
        all.extend(writer.definitions);
    }
}

struct Writer<'w> {
    /// Names of definitions that begin with [`PREFIX`].
    taken: HashSet<String>,
    /// The number in the last name.
    last: usize,
    /// The schemas of properties, which options share.
    definitions: Map<String, Value>,
    work: &'w mut Work,
}

impl Writer<'_> {
    /// Inner objects first. Schemas are nested only as deep as the limit of JSON.
    fn visit(&mut self, schema: &mut Value) {
        children_mut(schema).into_iter().for_each(|part| self.visit(part));
        let Some(keywords) = schema.as_object_mut() else { return };
        let Some(counted) = Counted::of(keywords) else { return };
        let (optional, needed) = (counted.optional.len(), counted.needed);
        if needed == optional {
            keywords.shift_remove("minProperties");
            keywords.insert("required".to_owned(), json!(counted.names()));
            return;
        }
        let bytes = counted.names().iter().map(|name| name.len() + PROPERTY_BYTES).sum::<usize>();
        let left = WRITTEN_BYTES.saturating_sub(self.work.written);
        let Some(choices) = choices(optional, needed, left / bytes) else { return };
        self.work.written += choices.len() * bytes;
        let counted = Counted { properties: self.shared(counted.properties), ..counted };
        let options: Vec<Value> = choices.iter().map(|choice| counted.option(choice)).collect();
        keywords.retain(|key, _| !OWN.contains(&key.as_str()));
        keywords.insert("anyOf".to_owned(), options.into());
    }

    /// The properties with references to what is more than a type.
    fn shared(&mut self, properties: Map<String, Value>) -> Map<String, Value> {
        let refer = |(name, schema): (String, Value)| {
            if schema.as_object().is_none_or(|keywords| keywords.len() < 2) {
                return (name, schema);
            }
            let definition = self.free_name();
            let reference = json!({ "$ref": format!("#/$defs/{definition}") });
            self.definitions.insert(definition, schema);
            (name, reference)
        };
        properties.into_iter().map(refer).collect()
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

/// An object that has no other properties than it lists.
struct Counted {
    properties: Map<String, Value>,
    /// The names that are not required.
    optional: HashSet<String>,
    /// How many of them there must be.
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
        let mut properties = keywords.get("properties")?.as_object()?.clone();
        properties.retain(|_, schema| *schema != Value::Bool(false));
        let required = keywords.get("required").and_then(Value::as_array);
        let required: HashSet<&str> =
            required.into_iter().flatten().filter_map(Value::as_str).collect();
        if required.iter().any(|name| !properties.contains_key(*name)) {
            return None;
        }
        let optional = properties.keys().filter(|name| !required.contains(name.as_str()));
        let optional: HashSet<String> = optional.cloned().collect();
        let needed = usize::try_from(least).ok()?.checked_sub(required.len())?;
        let most = count("maxProperties").unwrap_or(u64::MAX);
        let is_bounded = most < properties.len() as u64 && needed < optional.len();
        let is_possible = (2..=optional.len()).contains(&needed);
        (is_possible && !is_bounded).then_some(Counted { properties, optional, needed })
    }

    fn names(&self) -> Vec<&String> {
        self.properties.keys().collect()
    }

    /// The objects whose first optional properties are those with these ranks, which rise.
    fn option(&self, choice: &[usize]) -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        let (mut rank, last) = (0, choice.last().copied().unwrap_or_default());
        for (name, schema) in &self.properties {
            let is_optional = self.optional.contains(name);
            if !is_optional || choice.contains(&rank) {
                required.push(name);
            }
            if !is_optional || choice.contains(&rank) || rank > last {
                properties.insert(name.clone(), schema.clone());
            }
            rank += usize::from(is_optional);
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
