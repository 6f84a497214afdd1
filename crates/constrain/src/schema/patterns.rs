//! Patterns of properties whose names are all listed: llguidance begins another name of such a pattern, though there is
//! none, and an answer ends there.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use super::normal::has_reference_into;
use super::{children_mut, may_be};

/// Most patterns of a schema that are compared with names.
const PATTERNS_MAX: usize = 64;

/// Most work of deriving expressions for each: about a millisecond.
const FUEL_MAX: u64 = 50_000;

/// Writes the schemas of such patterns at the properties, and removes the patterns.
pub fn apply_listed(schema: &mut Value) {
    if has_reference_into(schema, &["/properties/", "Properties/"]) {
        return;
    }
    let (mut left, mut open) = (PATTERNS_MAX, vec![schema]);
    while let Some(schema) = open.pop() {
        if let Some(keywords) = schema.as_object_mut().filter(|all| may_be("object", all)) {
            apply(keywords, &mut left);
        }
        open.extend(children_mut(schema));
    }
}

fn apply(keywords: &mut Map<String, Value>, left: &mut usize) {
    let Some(patterns) = keywords.get("patternProperties").and_then(Value::as_object) else {
        return;
    };
    let listed = keywords.get("properties").and_then(Value::as_object);
    let required = keywords.get("required").and_then(Value::as_array);
    let required = required.into_iter().flatten().filter_map(Value::as_str);
    let mut names: Vec<&str> =
        listed.into_iter().flat_map(Map::keys).map(String::as_str).chain(required).collect();
    names.sort_unstable();
    names.dedup();
    // Other expressions have any number of names.
    let is_whole = |pattern: &&String| pattern.starts_with('^') && pattern.ends_with('$');
    let patterns = patterns.keys().filter(is_whole).take(*left);
    let mut found = Vec::new();
    for pattern in patterns {
        *left -= 1;
        let matching = matching(pattern, &names).unwrap_or_default();
        if !matching.is_empty() {
            found.push((pattern.clone(), matching));
        }
    }
    for (pattern, names) in found {
        move_to_properties(keywords, &pattern, names);
    }
}

/// Those of `names` that a pattern matches, if it matches no others.
fn matching(pattern: &str, names: &[&str]) -> Option<Vec<String>> {
    let mut builder = RegexBuilder::new();
    let search = builder.mk(&RegexAst::SearchRegex(regex_to_lark(pattern, "dw"))).ok()?;
    let mut regex = builder.to_regex_limited(search, FUEL_MAX).ok()?;
    let found: Vec<String> =
        names.iter().filter(|name| regex.is_match(name)).map(|&name| name.to_owned()).collect();
    let listed = RegexAst::Or(found.iter().cloned().map(RegexAst::Literal).collect());
    let others = RegexAst::And(vec![RegexAst::ExprRef(search), RegexAst::Not(Box::new(listed))]);
    let others = builder.mk(&others).ok()?;
    let is_none = builder.into_regex_limited(others, FUEL_MAX).ok()?.always_empty();
    is_none.then_some(found)
}

fn move_to_properties(keywords: &mut Map<String, Value>, pattern: &str, names: Vec<String>) {
    let patterns = keywords.get_mut("patternProperties").and_then(Value::as_object_mut);
    let Some(schema) = patterns.and_then(|patterns| patterns.shift_remove(pattern)) else { return };
    let properties = keywords.entry("properties").or_insert_with(|| json!({}));
    for name in names {
        let Some(properties) = properties.as_object_mut() else { return };
        let own = properties.entry(name).or_insert(Value::Bool(true));
        *own = json!({ "allOf": [own.take(), schema] });
    }
}
