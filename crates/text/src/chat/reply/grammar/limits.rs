//! Limits of texts that a call writes without quotes, as terminals of a grammar.

use serde_json::Value;

/// The texts that a schema lists; None if it lists none.
pub fn texts(schema: &Value) -> Option<Vec<&str>> {
    let listed = schema.get("enum").and_then(Value::as_array);
    let listed = listed.map(|texts| texts.iter().filter_map(Value::as_str).collect());
    listed.or_else(|| Some(vec![schema.get("const")?.as_str()?]))
}

/// A terminal for the texts that fit the length and the pattern of a schema; None if it limits neither.
pub fn of(schema: &Value) -> Option<String> {
    let count = |key| schema.get(key).and_then(Value::as_u64);
    let pattern = schema.get("pattern").and_then(Value::as_str);
    let length = match (count("minLength").unwrap_or(0), count("maxLength")) {
        (0, None) if pattern.is_none() => return None,
        (0, None) => None,
        (least, None) => Some(format!("/(?s:.{{{least},}})/")),
        (least, Some(most)) => Some(format!("/(?s:.{{{least},{most}}})/")),
    };
    let parts: Vec<String> = length.into_iter().chain(pattern.map(searched)).collect();
    Some(parts.join(" & "))
}

/// A terminal for `limits` and then `end`, a quoted text that does not occur before.
pub fn before(limits: &str, end: &str) -> String {
    format!("({limits} & ~(/(?s:.*)/ {end} /(?s:.*)/)) {end}")
}

/// The texts in which a pattern of a JSON schema is found, which it is anywhere unless its anchors say otherwise.
fn searched(pattern: &str) -> String {
    let choices = split(pattern);
    let choices = choices.iter().map(|choice| {
        let (start, rest) = match choice.strip_prefix('^') {
            Some(rest) => ("", rest),
            None => ("(?s:.*)", *choice),
        };
        let (rest, end) = match rest.strip_suffix('$').filter(|rest| !is_escaping(rest)) {
            Some(rest) => (rest, ""),
            None => (rest, "(?s:.*)"),
        };
        format!("{start}(?:{rest}){end}")
    });
    let pattern = choices.collect::<Vec<_>>().join("|");
    // Between the slashes of a terminal.
    let mut text = String::with_capacity(pattern.len());
    let mut is_escaped = false;
    for c in pattern.chars() {
        match c {
            '/' if !is_escaped => text.push_str("\\/"),
            '\n' => text.push_str(if is_escaped { "n" } else { "\\n" }),
            c => text.push(c),
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    format!("/{text}/")
}

/// Whether a text ends with an odd number of backslashes.
fn is_escaping(text: &str) -> bool {
    text.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1
}

/// The choices of a pattern outside of its groups and classes.
fn split(pattern: &str) -> Vec<&str> {
    let (mut choices, mut start) = (Vec::new(), 0);
    let (mut depth, mut is_class, mut is_escaped) = (0u32, false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if is_escaped => {}
            '[' => is_class = true,
            ']' => is_class = false,
            '(' if !is_class => depth += 1,
            ')' if !is_class => depth = depth.saturating_sub(1),
            '|' if !is_class && depth == 0 => {
                choices.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    choices.push(&pattern[start..]);
    choices
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lengths_and_patterns_become_terminals() {
        let any = "(?s:.*)";
        let cases = [
            (json!({ "type": "string" }), None),
            (json!({ "minLength": 0 }), None),
            (json!({ "minLength": 2 }), Some("/(?s:.{2,})/".to_owned())),
            (json!({ "maxLength": 9 }), Some("/(?s:.{0,9})/".to_owned())),
            (json!({ "pattern": "^a+$" }), Some("/(?:a+)/".to_owned())),
            (json!({ "pattern": "a/b" }), Some(format!("/{any}(?:a\\/b){any}/"))),
            (json!({ "pattern": "^a|b\\$" }), Some(format!("/(?:a){any}|{any}(?:b\\$){any}/"))),
            (json!({ "pattern": "^(a|b)[|]$" }), Some("/(?:(a|b)[|])/".to_owned())),
            (
                json!({ "minLength": 1, "maxLength": 3, "pattern": "^[a-z]" }),
                Some(format!("/(?s:.{{1,3}})/ & /(?:[a-z]){any}/")),
            ),
        ];
        for (schema, expected) in cases {
            assert_eq!(of(&schema), expected, "{schema}");
        }
        let end = crate::chat::reply::json::quoted("\n</p>");
        let found = before("/(?s:.{0,9})/", &end);
        assert_eq!(found, format!("(/(?s:.{{0,9}})/ & ~(/{any}/ {end} /{any}/)) {end}"));
        assert_eq!(texts(&json!({ "const": "a" })), Some(vec!["a"]));
    }
}
