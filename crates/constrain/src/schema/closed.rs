//! Closes objects that list properties and do not say whether they may have others, as llama.cpp does: by the specification a
//! model could invent some.
//!
//! Schemas that hold together, through `allOf` and `$ref`, are closed as one: the outermost lists the properties of all. An
//! inner one that is closed would exclude the properties of the others.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::{PROPERTIES_MAX, child, children, plain_references};

/// Schemas and properties that are looked at in all. Where there are more, all objects stay open, since it is not known which
/// hold together.
const VISITS_MAX: usize = 200_000;

/// Properties that are added in all; objects beyond them stay open.
const ADDED_MAX: usize = 20_000;

/// References that are followed one after another to the schema that is closed.
const REFERENCES_MAX: usize = 16;

/// Keywords that say which properties an object may have, or that need ones that are not listed.
const SAYS: &[&str] = &[
    "additionalProperties",
    "const",
    "dependencies",
    "dependentSchemas",
    "else",
    "enum",
    "then",
    "unevaluatedProperties",
];

/// Keywords that make a schema more than another name of what it refers to.
const OWN: &[&str] =
    &["anyOf", "minProperties", "oneOf", "patternProperties", "properties", "required"];

/// Closes the objects of a schema; its references become plain.
pub fn close(schema: &mut Value) {
    plain_references(schema);
    let mut plan = Plan {
        root: schema,
        found: HashMap::new(),
        closed: BTreeMap::new(),
        open: HashSet::new(),
        visits: 0,
    };
    let mut places = vec![String::new()];
    places.extend(places_in(schema));
    places.into_iter().for_each(|place| plan.place(place));
    let Plan { closed, open, visits, .. } = plan;
    if visits > VISITS_MAX {
        return;
    }
    // A schema with which others are combined must stay open: it is closed where it is used alone.
    let at = |place, inner| [inner, place].into_iter().find(|at| !open.contains(at));
    let made: BTreeMap<String, Rc<Names>> = closed
        .into_iter()
        .filter_map(|((place, inner), names)| Some((at(place, inner)?, names)))
        .collect();
    let mut added = 0;
    for (at, names) in made {
        if let Some(Value::Object(keywords)) = schema.pointer_mut(&at) {
            let own = keywords.get("properties").and_then(Value::as_object).map_or(0, Map::len);
            added += names.listed.len().saturating_sub(own);
            if added > ADDED_MAX {
                return;
            }
            names.close(keywords);
        }
    }
}

/// The pointers of all schemas that describe a value of their own: of a property, an item.
fn places_in(schema: &Value) -> Vec<String> {
    let mut open = vec![(String::new(), schema)];
    let mut places = Vec::new();
    while let Some((path, part)) = open.pop() {
        for (at, inner) in children(&path, part) {
            let keyword = at[path.len() + 1..].split('/').next().unwrap_or_default();
            if !matches!(keyword, "allOf" | "anyOf" | "oneOf" | "$defs" | "definitions") {
                places.push(at.clone());
            }
            open.push((at, inner));
        }
    }
    places
}

/// The properties that schemas list together.
#[derive(Clone, Debug, Default)]
struct Names {
    /// In their order.
    listed: Vec<String>,
    patterns: BTreeSet<String>,
    seen: HashSet<String>,
    /// Whether one of them lists any.
    has_list: bool,
    /// Whether one of them says what else an object may have.
    is_said: bool,
    least: u64,
    /// The schemas but the first.
    parts: Vec<String>,
    /// Pointers of the options of each `anyOf` and `oneOf`.
    options: Vec<Vec<String>>,
}

impl Names {
    fn list<'s>(&mut self, names: impl IntoIterator<Item = &'s String>) {
        for name in names {
            if self.seen.insert(name.clone()) {
                self.listed.push(name.clone());
            }
        }
    }

    /// Adds what one schema lists.
    fn add(&mut self, keywords: &Map<String, Value>) {
        let given = |key: &str| keywords.get(key).filter(|value| !value.is_null());
        if let Some(Value::Object(properties)) = given("properties") {
            self.has_list = true;
            self.list(properties.keys());
        }
        let patterns = given("patternProperties").and_then(Value::as_object);
        self.patterns.extend(patterns.into_iter().flatten().map(|(pattern, _)| pattern.clone()));
        for name in given("required").and_then(Value::as_array).into_iter().flatten() {
            if let Value::String(name) = name {
                self.list([name]);
            }
        }
        self.least = self.least.max(given("minProperties").and_then(Value::as_u64).unwrap_or(0));
        self.is_said |= SAYS.iter().any(|key| given(key).is_some());
    }

    /// Whether an object may be closed to these.
    fn may_close(&self) -> bool {
        let count = self.listed.len();
        let is_enough = self.least <= count as u64 || !self.patterns.is_empty();
        self.has_list && !self.is_said && is_enough && count <= PROPERTIES_MAX
    }

    /// Closes an object to these properties.
    fn close(&self, keywords: &mut Map<String, Value>) {
        let mut allow = |key: &str, names: &mut dyn Iterator<Item = &String>| {
            let listed = keywords.entry(key).or_insert(Value::Null);
            if listed.is_null() {
                *listed = Map::new().into();
            }
            // What is no object is refused later.
            let Some(listed) = listed.as_object_mut() else { return };
            for name in names {
                listed.entry(name).or_insert(Value::Bool(true));
            }
        };
        allow("properties", &mut self.listed.iter());
        if !self.patterns.is_empty() {
            allow("patternProperties", &mut self.patterns.iter());
        }
        keywords.insert("additionalProperties".to_owned(), false.into());
    }
}

/// What is to be closed.
struct Plan<'a> {
    root: &'a Value,
    /// Schemas that were looked at, and what they are to be closed to.
    found: HashMap<String, Option<Rc<Names>>>,
    /// By place, and by the schema to which it refers.
    closed: BTreeMap<(String, String), Rc<Names>>,
    /// Schemas that hold together with others.
    open: HashSet<String>,
    visits: usize,
}

impl<'a> Plan<'a> {
    fn at(&self, pointer: &str) -> Option<&'a Map<String, Value>> {
        self.root.pointer(pointer)?.as_object()
    }

    /// Plans to close what describes one value.
    fn place(&mut self, place: String) {
        let mut open = vec![place];
        while let Some(place) = open.pop() {
            let inner = self.named(&place);
            if !self.found.contains_key(&inner) {
                let names = self.look(&inner, &mut open);
                if self.visits > VISITS_MAX {
                    return;
                }
                self.found.insert(inner.clone(), names.map(Rc::new));
            }
            if let Some(Some(names)) = self.found.get(&inner) {
                self.closed.insert((place, inner), names.clone());
            }
        }
    }

    /// What a schema is to be closed to, if it is. Options that describe the whole value are added to `places`.
    fn look(&mut self, schema: &str, places: &mut Vec<String>) -> Option<Names> {
        let names = self.together(schema);
        let mut all = self.with_options(schema, &names);
        let parts = std::mem::take(&mut all.parts);
        if names.is_said {
            self.open.extend(parts);
            return None;
        }
        if !names.has_list && names.options.len() < 2 {
            places.extend(names.options.into_iter().flatten());
            return None;
        }
        let count = |names: &Names| (names.listed.len(), names.patterns.len());
        let have_own = count(&all) != count(&names);
        match &names.options[..] {
            [options] if have_own => {
                options.iter().for_each(|option| self.option(option, &names));
                self.open.extend(parts.into_iter().filter(|part| !options.contains(part)));
                None
            }
            _ => {
                self.open.extend(parts);
                Some(all).filter(Names::may_close)
            }
        }
    }

    /// Plans to close an option to its own properties and to those beside it.
    fn option(&mut self, option: &str, beside: &Names) {
        let own = self.together(option);
        let own = self.with_options(option, &own);
        let mut names = beside.clone();
        self.visits += names.listed.len();
        names.list(&own.listed);
        names.patterns.extend(own.patterns.iter().cloned());
        (names.is_said, names.least) = (own.is_said, names.least.max(own.least));
        if names.may_close() && self.visits <= VISITS_MAX {
            self.closed.insert((option.to_owned(), option.to_owned()), Rc::new(names));
        }
    }

    /// The schema that a place refers to, or the place itself if it says more.
    fn named(&self, place: &str) -> String {
        let mut at = place.to_owned();
        for _ in 0..REFERENCES_MAX {
            let Some(keywords) = self.at(&at) else { break };
            let has = |key: &&str| keywords.get(*key).is_some_and(|value| !value.is_null());
            if OWN.iter().chain(SAYS).any(has) {
                break;
            }
            let parts = keywords.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
            at = match (reference(keywords), parts) {
                (Some(target), 0) => target,
                (None, 1) => format!("{at}/allOf/0"),
                _ => break,
            };
        }
        at
    }

    /// What a schema lists together with those that hold wherever it does.
    fn together(&mut self, first: &str) -> Names {
        let mut names = Names::default();
        self.visit(vec![first.to_owned()], &mut names, &mut HashSet::new());
        names
    }

    /// That, and what its options list.
    fn with_options(&mut self, first: &str, names: &Names) -> Names {
        let (mut all, mut seen) = (names.clone(), HashSet::from([first.to_owned()]));
        seen.extend(names.parts.iter().cloned());
        while !all.options.is_empty() {
            let options: Vec<String> =
                std::mem::take(&mut all.options).into_iter().flatten().collect();
            let (said, least) = (all.is_said, all.least);
            for option in options {
                if seen.contains(&option) {
                    continue;
                }
                all.parts.push(option.clone());
                self.visit(vec![option], &mut all, &mut seen);
            }
            // What one option says does not hold for the others.
            (all.is_said, all.least) = (said, least);
            if self.visits > VISITS_MAX {
                break;
            }
        }
        all
    }

    fn visit(&mut self, mut open: Vec<String>, names: &mut Names, seen: &mut HashSet<String>) {
        let mut is_first = true;
        while let Some(at) = open.pop() {
            self.visits += 1;
            let Some(keywords) = self.at(&at).filter(|_| self.visits <= VISITS_MAX) else {
                continue;
            };
            if !seen.insert(at.clone()) {
                continue;
            }
            if !std::mem::take(&mut is_first) {
                names.parts.push(at.clone());
            }
            let before = names.listed.len();
            names.add(keywords);
            self.visits += names.listed.len() - before;
            let parts = |key: &str| -> Vec<String> {
                let count = keywords.get(key).and_then(Value::as_array).map_or(0, Vec::len);
                (0..count).map(|index| format!("{}/{index}", child(&at, key))).collect()
            };
            open.extend(parts("allOf").into_iter().rev());
            open.extend(reference(keywords));
            names
                .options
                .extend(["anyOf", "oneOf"].map(parts).into_iter().filter(|of| !of.is_empty()));
        }
    }
}

/// The pointer to what a schema refers to.
fn reference(keywords: &Map<String, Value>) -> Option<String> {
    match keywords.get("$ref")?.as_str()? {
        "#" | "#/" => Some(String::new()),
        reference => reference.strip_prefix('#').map(str::to_owned),
    }
}
