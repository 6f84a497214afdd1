//! Bounds on how many alternatives a schema has once everything that holds at the same place is combined.
//!
//! llguidance combines `allOf`, and the keywords beside `anyOf`, `oneOf`, `enum` and `$ref`, by multiplying their
//! alternatives out. Ten `anyOf` of ten options in one `allOf` would be 10^10. Here the numbers are multiplied instead,
//! property by property, before it begins. It also compares the patterns of `patternProperties` in pairs, again for each
//! combination.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::{child, target};
use crate::Error;

/// Most alternatives at one place.
const ALTERNATIVES_MAX: u64 = 20_000;

/// Most options of a `oneOf`, which are compared in pairs.
const ONE_OF_MAX: usize = 500;

/// Most steps of counting: some tenths of a second.
const STEPS_MAX: usize = 500_000;

/// Most work of comparing patterns: the fourth power of their number, once for each combination. This much takes about
/// 0.3 s, as for 128 patterns.
const PATTERN_WORK_MAX: u64 = 1 << 28;

/// What was spent on checks so far.
#[derive(Clone, Default)]
pub struct Work {
    /// Steps of counting.
    steps: usize,
    /// See [`PATTERN_WORK_MAX`].
    patterns: u64,
    /// Bytes of options that were written for objects whose properties are counted.
    pub written: usize,
}

/// Number of alternatives at a place and at those below it.
#[derive(Default)]
struct Width {
    here: u64,
    /// Number of patterns of properties.
    patterns: u64,
    /// By property name.
    properties: BTreeMap<String, Rc<Width>>,
    /// Of all other properties and of items.
    rest: Option<Rc<Width>>,
}

struct Counter<'a> {
    root: &'a Value,
    work: &'a mut Work,
    /// Of what was referred to; `None` while it is being counted.
    known: HashMap<&'a str, Option<Rc<Width>>>,
}

/// Checks a schema whose keywords have values of the right types; adds to `work`.
///
/// # Errors
/// [`Error::Schema`] with the path of what has too many alternatives or patterns.
pub fn check(schema: &Value, work: &mut Work) -> Result<(), Error> {
    let mut counter = Counter { root: schema, work, known: HashMap::new() };
    counter.width("#", schema).map(drop)
}

fn too_many(path: &str) -> Error {
    let reason = format!("combined, it has more than {ALTERNATIVES_MAX} alternatives");
    Error::Schema { path: path.to_owned(), reason }
}

impl<'a> Counter<'a> {
    fn step(&mut self, path: &str) -> Result<(), Error> {
        self.work.steps += 1;
        if self.work.steps > STEPS_MAX { Err(too_many(path)) } else { Ok(()) }
    }

    /// Compares `count` patterns with each other, in each of `combinations`.
    fn compare(&mut self, path: &str, count: u64, combinations: u64) -> Result<(), Error> {
        let work = count.saturating_pow(4).saturating_mul(combinations);
        self.work.patterns = self.work.patterns.saturating_add(work);
        if self.work.patterns > PATTERN_WORK_MAX {
            let reason = "combined, it has too many patterns of properties".to_owned();
            return Err(Error::Schema { path: path.to_owned(), reason });
        }
        Ok(())
    }

    fn width(&mut self, path: &str, schema: &'a Value) -> Result<Rc<Width>, Error> {
        self.step(path)?;
        let Some(keywords) = schema.as_object() else { return Ok(one()) };
        if let Some(reference) = keywords.get("$ref").filter(|_| keywords.len() == 1) {
            return self.referred(reference);
        }
        let mut width = self.own(path, keywords)?;
        for (key, value) in keywords {
            let at = child(path, key);
            let parts = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let other = match key.as_str() {
                "allOf" => {
                    for (index, part) in parts.iter().enumerate() {
                        let part = self.width(&format!("{at}/{index}"), part)?;
                        width = self.both(path, &width, &part)?;
                    }
                    continue;
                }
                "oneOf" if parts.len() > ONE_OF_MAX => {
                    let reason = format!("it must have at most {ONE_OF_MAX} options");
                    return Err(Error::Schema { path: at, reason });
                }
                "anyOf" | "oneOf" => {
                    let mut sum = Rc::new(Width::default());
                    for (index, part) in parts.iter().enumerate() {
                        let part = self.width(&format!("{at}/{index}"), part)?;
                        let here = sum.here.saturating_add(part.here);
                        sum = self.either(path, &sum, &part, here)?;
                    }
                    sum
                }
                "enum" => Rc::new(Width { here: parts.len() as u64, ..Width::default() }),
                "$ref" => self.referred(value)?,
                _ => continue,
            };
            width = self.both(path, &width, &other)?;
        }
        Ok(width)
    }

    /// The widths of the properties and items that a schema lists itself.
    fn own(&mut self, path: &str, keywords: &'a Map<String, Value>) -> Result<Rc<Width>, Error> {
        let mut width = Width { here: 1, ..Width::default() };
        for (key, value) in keywords {
            let at = child(path, key);
            match (key.as_str(), value) {
                ("properties", Value::Object(fields)) => {
                    for (name, field) in fields {
                        let field = self.width(&child(&at, name), field)?;
                        width.properties.insert(name.clone(), field);
                    }
                }
                ("patternProperties", Value::Object(fields)) => {
                    width.patterns = fields.len() as u64;
                    self.compare(&at, width.patterns, 1)?;
                    for (name, field) in fields {
                        let field = self.width(&child(&at, name), field)?;
                        self.widen(&at, &mut width, field)?;
                    }
                }
                ("items" | "prefixItems", Value::Array(parts)) => {
                    for (index, part) in parts.iter().enumerate() {
                        let part = self.width(&format!("{at}/{index}"), part)?;
                        self.widen(&at, &mut width, part)?;
                    }
                }
                ("items" | "additionalItems" | "additionalProperties", part) => {
                    let part = self.width(&at, part)?;
                    self.widen(&at, &mut width, part)?;
                }
                _ => {}
            }
        }
        Ok(Rc::new(width))
    }

    fn widen(&mut self, path: &str, width: &mut Width, part: Rc<Width>) -> Result<(), Error> {
        width.rest = Some(match width.rest.take() {
            Some(rest) => self.either(path, &rest, &part, rest.here.max(part.here))?,
            None => part,
        });
        Ok(())
    }

    fn referred(&mut self, reference: &'a Value) -> Result<Rc<Width>, Error> {
        let Some(reference) = reference.as_str() else { return Ok(one()) };
        if let Some(known) = self.known.get(reference) {
            // Within itself it is not combined further.
            return Ok(known.clone().unwrap_or_else(one));
        }
        let Some(schema) = target(self.root, reference) else { return Ok(one()) };
        self.known.insert(reference, None);
        let width = self.width(reference, schema)?;
        self.known.insert(reference, Some(width.clone()));
        Ok(width)
    }

    /// What holds for both.
    fn both(&mut self, path: &str, a: &Rc<Width>, b: &Rc<Width>) -> Result<Rc<Width>, Error> {
        self.step(path)?;
        let here = a.here.saturating_mul(b.here);
        if here > ALTERNATIVES_MAX && a.here > 1 && b.here > 1 {
            return Err(too_many(path));
        }
        let patterns = a.patterns.saturating_add(b.patterns);
        self.compare(path, patterns, here)?;
        let mut properties = BTreeMap::new();
        for name in a.properties.keys().chain(b.properties.keys()) {
            let [from_a, from_b] =
                [a, b].map(|width| width.properties.get(name).or(width.rest.as_ref()));
            let width = match (from_a, from_b) {
                (Some(a), Some(b)) => self.both(path, a, b)?,
                (Some(width), None) | (None, Some(width)) => width.clone(),
                (None, None) => continue,
            };
            properties.insert(name.clone(), width);
        }
        let rest = match (&a.rest, &b.rest) {
            (Some(a), Some(b)) => Some(self.both(path, a, b)?),
            (rest, None) | (None, rest) => rest.clone(),
        };
        Ok(Rc::new(Width { here, patterns, properties, rest }))
    }

    /// What holds for one of them: below, the wider of both.
    fn either(
        &mut self,
        path: &str,
        a: &Rc<Width>,
        b: &Rc<Width>,
        here: u64,
    ) -> Result<Rc<Width>, Error> {
        self.step(path)?;
        if Rc::ptr_eq(a, b) && here == a.here {
            return Ok(a.clone());
        }
        let mut properties = BTreeMap::new();
        for name in a.properties.keys().chain(b.properties.keys()) {
            let width = match (a.properties.get(name), b.properties.get(name)) {
                (Some(a), Some(b)) => self.either(path, a, b, a.here.max(b.here))?,
                (Some(width), None) | (None, Some(width)) => width.clone(),
                (None, None) => continue,
            };
            properties.insert(name.clone(), width);
        }
        let rest = match (&a.rest, &b.rest) {
            (Some(a), Some(b)) => Some(self.either(path, a, b, a.here.max(b.here))?),
            (rest, None) | (None, rest) => rest.clone(),
        };
        let patterns = a.patterns.max(b.patterns);
        Ok(Rc::new(Width { here, patterns, properties, rest }))
    }
}

fn one() -> Rc<Width> {
    Rc::new(Width { here: 1, ..Width::default() })
}
