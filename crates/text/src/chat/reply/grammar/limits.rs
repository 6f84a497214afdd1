//! Limits of texts that a call writes without quotes, as terminals of a grammar.

use fancy_regex::{Assertion, CompileError, Error, Expr, RegexBuilder};
use serde_json::{Value, json};

/// Most characters that a repetition counts: one more means any number to llguidance.
const COUNT_MAX: u64 = u32::MAX as u64 - 1;

/// Most characters that are counted while the end of a text is looked for in all of it: llguidance's lexer has states
/// for each count and place, and gives up on too many.
const SEARCHED_MAX: u64 = 500;

/// The texts that a schema lists; None if it lists none.
pub fn texts(schema: &Value) -> Option<Vec<&str>> {
    let listed = schema.get("enum").and_then(Value::as_array);
    let listed = listed.map(|texts| texts.iter().filter_map(Value::as_str).collect());
    listed.or_else(|| Some(vec![schema.get("const")?.as_str()?]))
}

/// Limits of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Fewest characters.
    least: u64,
    /// Most characters.
    most: Option<u64>,
    /// A regular expression without anchors, which the whole text matches.
    pattern: Option<String>,
}

impl Limits {
    /// The limits of a schema; None if it has none. What no grammar can hold a text to is none: lengths above
    /// [`COUNT_MAX`], or that exclude each other, and patterns as [`whole`] refuses them or that are no regular
    /// expressions. Patterns of more than `checked_bytes` are not checked for the latter.
    pub fn of(schema: &Value, checked_bytes: usize) -> Option<Self> {
        let count = |key| schema.get(key).and_then(characters).filter(|&count| count <= COUNT_MAX);
        let (least, most) = (count("minLength").unwrap_or(0), count("maxLength"));
        let (least, most) =
            if most.is_some_and(|most| most < least) { (0, None) } else { (least, most) };
        let pattern = schema.get("pattern").and_then(Value::as_str);
        let pattern = pattern.and_then(searched);
        let pattern = pattern.filter(|text| text.len() > checked_bytes || is_valid(text));
        Self { least, most, pattern }.some()
    }

    fn some(self) -> Option<Self> {
        (self.least > 0 || self.most.is_some() || self.pattern.is_some()).then_some(self)
    }

    /// The limits of a text without quotes, without lengths above [`SEARCHED_MAX`] where its end is looked for.
    pub fn raw(mut self) -> Option<Self> {
        if self.least > SEARCHED_MAX {
            self.least = 0;
        }
        if self.pattern.is_some() {
            self.most = self.most.filter(|&most| most <= SEARCHED_MAX);
        }
        self.some()
    }

    /// A terminal for the texts within the limits.
    pub fn terminal(&self) -> String {
        let length = match (self.least, self.most) {
            (0, None) => None,
            (least, None) => Some(format!("/(?s:.{{{least},}})/")),
            (least, Some(most)) => Some(format!("/(?s:.{{{least},{most}}})/")),
        };
        // Two slashes alone would be a comment.
        let pattern = self.pattern.as_ref().map(|pattern| format!("/(?:{pattern})/"));
        length.into_iter().chain(pattern).collect::<Vec<_>>().join(" & ")
    }

    /// The text before the first `end`, which is not too near, where only lengths are limited. Only the beginning of a
    /// long text is searched.
    pub fn lazy(&self, end: &str) -> Option<String> {
        let terminal = if self.pattern.is_none() { self.terminal() } else { return None };
        let Some(near) = self.least.checked_sub(1) else { return Some(terminal) };
        Some(format!("{terminal} & ~(/(?s:.{{0,{near}}})/ {end} /(?s:.*)/)"))
    }

    /// A terminal for a text within the limits and then `end`, a quoted text that does not occur before.
    pub fn before(&self, end: &str) -> String {
        format!("({} & ~(/(?s:.*)/ {end} /(?s:.*)/)) {end}", self.terminal())
    }

    /// The schema of the texts within the limits.
    pub fn schema(&self) -> Value {
        let mut schema = json!({ "type": "string" });
        if self.least > 0 {
            schema["minLength"] = self.least.into();
        }
        if let Some(most) = self.most {
            schema["maxLength"] = most.into();
        }
        if let Some(pattern) = &self.pattern {
            schema["pattern"] = format!("^(?:{pattern})$").into();
        }
        schema
    }
}

/// A number of characters, which may be written as `3.0`.
fn characters(value: &Value) -> Option<u64> {
    let whole = |number: &f64| *number >= 0.0 && number.fract() == 0.0;
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
}

/// An expression that matches the whole of each text in which the pattern of a JSON schema is found, for use between
/// the slashes of a terminal.
fn searched(pattern: &str) -> Option<String> {
    let tree = Expr::parse_tree(pattern).ok()?;
    let mut text = String::new();
    whole(tree.expr, Ends { start: Edge::Open, end: Edge::Open })?.to_str(&mut text, 0);
    Some(written(&text))
}

/// A regular expression as it is written between the slashes of a terminal. `\d` and `\w` are of ASCII, as llguidance
/// reads them in the patterns of JSON schemas.
fn written(expression: &str) -> String {
    let mut text = String::with_capacity(expression.len());
    let mut chars = expression.chars();
    while let Some(c) = chars.next() {
        let escaped = if c == '\\' { chars.next() } else { None };
        match (c, escaped) {
            ('\\', Some('d')) => text.push_str("[0-9]"),
            ('\\', Some('D')) => text.push_str("[^0-9]"),
            ('\\', Some('w')) => text.push_str("[0-9A-Za-z_]"),
            ('\\', Some('W')) => text.push_str("[^0-9A-Za-z_]"),
            ('/', _) => text.push_str("\\/"),
            ('\n', _) | (_, Some('\n')) => text.push_str("\\n"),
            ('\r', _) | (_, Some('\r')) => text.push_str("\\r"),
            _ => {
                text.push(c);
                text.extend(escaped);
            }
        }
    }
    text
}

/// Whether a regular expression is one, however large.
fn is_valid(expression: &str) -> bool {
    // It is parsed, and compiled no further than to be too large.
    match RegexBuilder::new(expression).delegate_size_limit(1).build() {
        Ok(_) => true,
        Err(Error::CompileError(error)) => {
            matches!(&*error, CompileError::InnerError(error) if error.size_limit().is_some())
        }
        Err(_) => false,
    }
}

/// What is before the beginning of an expression, or behind its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edge {
    /// More of the expression.
    Inner,
    /// Any text, unless there is an anchor.
    Open,
    /// An anchor.
    Anchored,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    start: Edge,
    end: Edge,
}

/// The expression with any text in the place of anchors that are missing, and without those that are there. None if it
/// has other assertions, or what the lexer of a grammar cannot follow, such as references to groups.
fn whole(expr: Expr, ends: Ends) -> Option<Expr> {
    match expr {
        Expr::Group(inner) => Some(Expr::Group(Box::new(whole(*inner, ends)?))),
        Expr::Alt(choices) => {
            let choices = choices.into_iter().map(|choice| whole(choice, ends));
            Some(Expr::Alt(choices.collect::<Option<_>>()?))
        }
        Expr::Concat(items) => sequence(items, ends),
        single => sequence(vec![single], ends),
    }
}

fn sequence(mut items: Vec<Expr>, Ends { mut start, mut end }: Ends) -> Option<Expr> {
    while start != Edge::Inner && items.first() == Some(&Expr::Assertion(Assertion::StartText)) {
        items.remove(0);
        start = Edge::Anchored;
    }
    while end != Edge::Inner && items.last() == Some(&Expr::Assertion(Assertion::EndText)) {
        items.pop();
        end = Edge::Anchored;
    }
    if items.is_empty() {
        items.push(Expr::Empty);
    }
    let last = items.len() - 1;
    let mut found = Vec::with_capacity(items.len() + 2);
    for (at, item) in items.into_iter().enumerate() {
        let start = if at == 0 { start } else { Edge::Inner };
        let end = if at == last { end } else { Edge::Inner };
        match item {
            Expr::Group(_) | Expr::Alt(_) | Expr::Concat(_) => {
                found.push(whole(item, Ends { start, end })?);
            }
            item if is_plain(&item) => {
                found.extend((start == Edge::Open).then(any_text));
                found.push(item);
                found.extend((end == Edge::Open).then(any_text));
            }
            _ => return None,
        }
    }
    Some(Expr::Concat(found))
}

fn any_text() -> Expr {
    let child = Box::new(Expr::Any { newline: true });
    Expr::Repeat { child, lo: 0, hi: usize::MAX, greedy: true }
}

/// Whether an expression is one of characters, choices and repetitions.
fn is_plain(expr: &Expr) -> bool {
    match expr {
        Expr::Empty | Expr::Any { .. } | Expr::Literal { .. } | Expr::Delegate { .. } => true,
        Expr::Group(inner) => is_plain(inner),
        Expr::Concat(items) | Expr::Alt(items) => items.iter().all(is_plain),
        Expr::Repeat { child, lo, hi, .. } => {
            let is_count = |&count: &usize| count as u64 <= COUNT_MAX;
            is_count(lo) && lo <= hi && (is_count(hi) || *hi == usize::MAX) && is_plain(child)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: &str = "(?s:.)*";

    fn terminal(schema: &Value) -> Option<String> {
        Limits::of(schema, usize::MAX).map(|limits| limits.terminal())
    }

    #[test]
    fn lengths_and_patterns_become_terminals() {
        let cases = [
            (json!({ "type": "string" }), None),
            (json!({ "minLength": 0 }), None),
            (json!({ "minLength": 2 }), Some("/(?s:.{2,})/".to_owned())),
            (json!({ "maxLength": 9.0 }), Some("/(?s:.{0,9})/".to_owned())),
            (json!({ "pattern": "^$" }), Some("/(?:)/".to_owned())),
            (json!({ "pattern": "^a+$" }), Some("/(?:a+)/".to_owned())),
            (json!({ "pattern": "a/b" }), Some(format!("/(?:{ANY}a\\/b{ANY})/"))),
            (
                json!({ "minLength": 1, "maxLength": 3, "pattern": "^[a-z]" }),
                Some(format!("/(?s:.{{1,3}})/ & /(?:[a-z]{ANY})/")),
            ),
        ];
        for (schema, expected) in cases {
            assert_eq!(terminal(&schema), expected, "{schema}");
        }
        let end = crate::chat::reply::json::quoted("\n</p>");
        let limits = |schema| Limits::of(&schema, usize::MAX).and_then(Limits::raw);
        let found = limits(json!({ "maxLength": 9, "pattern": "^a$" })).expect("limits");
        let any = "(?s:.*)";
        let expected = format!("(/(?s:.{{0,9}})/ & /(?:a)/ & ~(/{any}/ {end} /{any}/)) {end}");
        assert_eq!((found.before(&end), found.lazy(&end)), (expected, None));
        let lazy = |schema| limits(schema).and_then(|limits| limits.lazy(&end));
        let most = lazy(json!({ "maxLength": 100_000, "minLength": 501 }));
        assert_eq!(most.as_deref(), Some("/(?s:.{0,100000})/"));
        let least = lazy(json!({ "minLength": 3 }));
        let expected = format!("/(?s:.{{3,}})/ & ~(/(?s:.{{0,2}})/ {end} /{any}/)");
        assert_eq!(least, Some(expected));
        assert_eq!(limits(json!({ "minLength": 501 })), None);
        let found = limits(json!({ "maxLength": 501, "pattern": "^a$" }));
        assert_eq!(found.map(|limits| limits.terminal()).as_deref(), Some("/(?:a)/"));
        assert_eq!(texts(&json!({ "const": "a" })), Some(vec!["a"]));
    }

    #[test]
    fn anchors_are_found_in_groups_and_choices() {
        let cases = [
            ("^a|b\\$", format!("a{ANY}|{ANY}b\\${ANY}")),
            ("^(a|b)[|]$", "(a|b)[|]".to_owned()),
            ("(^\\d{4}$)|(^\\d{6}$)", "([0-9]{4})|([0-9]{6})".to_owned()),
            ("(?i)^ab$", "(?i:a)(?i:b)".to_owned()),
            ("(?i:^a$)", "(?i:a)".to_owned()),
            ("(^a|b)c", format!("(a|{ANY}b)c{ANY}")),
            ("a(b$|(?:c|d)$|e)", format!("{ANY}a(b|(?:c|d)|e{ANY})")),
            ("^(^a$)$", "(a)".to_owned()),
            ("\\Aa\\z", "a".to_owned()),
            ("(?<year>^[0-9]{4})", format!("([0-9]{{4}}{ANY})")),
            ("^$", String::new()),
            ("", format!("{ANY}{ANY}")),
        ];
        for (pattern, expected) in cases {
            assert_eq!(searched(pattern).as_deref(), Some(expected.as_str()), "{pattern}");
        }
    }

    /// The texts that the expression of a pattern matches whole are those in which the pattern is found.
    #[test]
    fn whole_texts_match_where_the_pattern_is_found() {
        let patterns = [
            "(^\\d{2}$)|(^\\d{3}$)",
            "(?i)^ab$",
            "(^a|b)c",
            "a(b$|c$|d)",
            "^(^a$)$",
            "^a|b$",
            "a$|^$",
            "^(a|bc)+$",
            "(a|^)b",
            "^[^/]*/$",
            "^(|a)b",
            "b?$",
        ];
        let texts = [
            "", "a", "b", "ab", "AB", "ac", "bc", "xbc", "bcx", "12", "123", "1234", "x12", "abx",
            "ad", "xadx", "xac", "abc", "bca", "a/", "/", "a/b", "\n", "a\n", "\nb", "ba",
        ];
        for pattern in patterns {
            let expression = searched(pattern).expect(pattern);
            let whole = fancy_regex::Regex::new(&format!("^(?:{expression})$")).expect(pattern);
            let found = fancy_regex::Regex::new(pattern).expect(pattern);
            for text in texts {
                let [whole, found] = [&whole, &found].map(|regex| regex.is_match(text));
                assert_eq!(whole.expect(text), found.expect(text), "{pattern} in {text:?}");
            }
        }
    }

    /// `\d` and `\w` are of ASCII, inside and outside of classes.
    #[test]
    fn classes_are_those_of_json_schemas() {
        assert_eq!(searched("^\\d\\D$").as_deref(), Some("[0-9][^0-9]"));
        assert_eq!(searched("^[\\w.]\\W$").as_deref(), Some("[[0-9A-Za-z_].][^0-9A-Za-z_]"));
        assert_eq!(searched("^\\\\d\\s$").as_deref(), Some("\\\\d\\s"));
        assert_eq!(searched("^\n[\r]$").as_deref(), Some("\\n[\\r]"));
        assert!(is_valid(&searched("^[\\w-.]+$").expect("a pattern")));
    }

    /// What a grammar cannot keep is no limit, and does not make the grammar one that is refused.
    #[test]
    fn limits_that_cannot_be_kept_are_none() {
        let patterns = [
            "\\bword",
            "a(?=b)",
            "a(?!b)",
            "(?<=a)b",
            "(a)\\1",
            "(?m)^a",
            "a^b",
            "a$b",
            "(^a)?b",
            "(?>a)b",
            "$^",
            "(",
            "[z-a]",
            "\\p{Nothing}",
            "a{3,2}",
            "a{99999999999}",
            "*",
        ];
        for pattern in patterns {
            assert_eq!(terminal(&json!({ "pattern": pattern })), None, "{pattern}");
            let length = terminal(&json!({ "pattern": pattern, "minLength": 1 }));
            assert_eq!(length.as_deref(), Some("/(?s:.{1,})/"), "{pattern}");
        }
        for large in [json!(4_294_967_295_u64), json!(9_007_199_254_740_991_u64), json!(1e300)] {
            assert_eq!(terminal(&json!({ "maxLength": large })), None, "{large}");
            assert_eq!(terminal(&json!({ "minLength": large })), None, "{large}");
            let least = terminal(&json!({ "minLength": 2, "maxLength": large }));
            assert_eq!(least.as_deref(), Some("/(?s:.{2,})/"), "{large}");
        }
        let most = terminal(&json!({ "maxLength": 4_294_967_294_u64 }));
        assert_eq!(most.as_deref(), Some("/(?s:.{0,4294967294})/"));
        assert_eq!(terminal(&json!({ "minLength": 3, "maxLength": 2 })), None);
        // A large one is no less valid.
        assert!(is_valid("(?:[0-9A-Za-z_]{1,5000}){1,5000}"));
    }

    #[test]
    fn limits_are_those_of_a_schema() {
        let given = json!({ "minLength": 1, "maxLength": 3, "pattern": "^\\d|\\d$", "title": "t" });
        let schema = Limits::of(&given, usize::MAX).expect("limits").schema();
        let pattern = format!("^(?:[0-9]{ANY}|{ANY}[0-9])$");
        let expected = json!({
            "type": "string", "minLength": 1, "maxLength": 3, "pattern": pattern,
        });
        assert_eq!(schema, expected);
    }
}
