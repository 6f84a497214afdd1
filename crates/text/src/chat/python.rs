//! Filters, tests and operators where Python's Jinja2 differs from minijinja.

use std::cmp::Ordering;

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::text::{limited, lines};
use super::{cost, repr};

/// Adds the filters and tests, each with its cost.
pub fn add(environment: &mut Environment<'static>) {
    let mut filter = |name, function, cost| cost::filter(environment, name, function, cost);
    let abs = |value: &Value| filters::abs(number(value));
    filter("abs", Value::from_function(abs), cost::read);
    filter("center", Value::from_function(center), cost::written);
    filter("d", Value::from_function(default), cost::read);
    filter("default", Value::from_function(default), cost::read);
    filter("e", Value::from_function(escape), cost::written);
    filter("escape", Value::from_function(escape), cost::written);
    filter("forceescape", Value::from_function(force_escape), cost::written);
    filter("first", Value::from_function(first), cost::read);
    filter("float", Value::from_function(float), cost::read);
    filter("indent", Value::from_function(indent), cost::indenting);
    filter("int", Value::from_function(int), cost::read);
    filter("join", join(), cost::joining);
    filter("last", Value::from_function(last), cost::listing);
    filter("replace", Value::from_function(replace), cost::replacing);
    filter("string", Value::from_function(string), cost::written);
    filter("truncate", Value::from_function(truncate), cost::written);
    filter("urlencode", Value::from_function(urlencode), cost::written);
    filter("wordcount", Value::from_function(wordcount), cost::written);
    let mut test = |name, function| cost::test(environment, name, function, cost::read);
    test("callable", Value::from_function(is_callable));
    test("iterable", Value::from_function(is_iterable));
    test("sequence", Value::from_function(is_sequence));
    for (names, is_right) in ORDER {
        for &name in *names {
            let order = |left: Value, right: Value| -> Result<bool, Error> {
                let [left, right] = ordered(&[left, right])?;
                Ok(left.partial_cmp(&right).is_some_and(*is_right))
            };
            cost::test(environment, name, Value::from_function(order), cost::written);
        }
    }
}

/// Names of a test of order, and which orders pass.
type Order = (&'static [&'static str], fn(Ordering) -> bool);

const ORDER: &[Order] = &[
    (&["lt", "lessthan", "<"], Ordering::is_lt),
    (&["le", "<="], Ordering::is_le),
    (&["gt", "greaterthan", ">"], Ordering::is_gt),
    (&["ge", ">="], Ordering::is_ge),
];

/// Python's `left % right`: of numbers the remainder, which has the sign of the divisor; of a text the text with its
/// conversions replaced, by the values of a tuple or by one value.
pub fn percent(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        let formatted = match right.downcast_object_ref::<Tuple>() {
            Some(tuple) => format(FormatStyle::Printf, text, tuple),
            None => format(FormatStyle::Printf, text, std::slice::from_ref(right)),
        };
        return formatted.map(Value::from);
    }
    let is_number = |value: &Value| value.kind() == ValueKind::Number;
    let (a, b) = (number(left), number(right));
    if !is_number(&a) || !is_number(&b) {
        let kinds = format!("`%` of {} and {}", left.kind(), right.kind());
        return Err(failed(format!("{kinds}; it takes numbers, or a text and values")));
    }
    if a.is_integer() && b.is_integer() {
        let (a, b) = (i128::try_from(a)?, i128::try_from(b)?);
        let rest = a.checked_rem(b).ok_or_else(|| failed("`%` by zero".to_owned()))?;
        let is_opposite = rest != 0 && (rest < 0) != (b < 0);
        return Ok(Value::from(if is_opposite { rest + b } else { rest }));
    }
    let (a, b) = (f64::try_from(a)?, f64::try_from(b)?);
    if b == 0.0 {
        return Err(failed("`%` by zero".to_owned()));
    }
    let rest = a % b;
    Ok(Value::from(match rest {
        0.0 => 0f64.copysign(b),
        _ if (rest < 0.0) != (b < 0.0) => rest + b,
        _ => rest,
    }))
}

/// Python's `value[start:stop:step]`, where None stands for a bound or step that is not given.
pub fn slice(value: &Value, bounds: &[Value; 3]) -> Result<Value, Error> {
    let bound = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => i64::try_from(value.clone()).map(Some),
    };
    let [start, stop, step] = bounds;
    let range = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if range.2 == 0 {
        return Err(failed("the step of a slice is 0".to_owned()));
    }
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        return Ok(indices(range, chars.len()).map(|at| chars[at]).collect::<String>().into());
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => Ok(Vec::<Value>::new().into()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
            let taken: Vec<Value> =
                indices(range, items.len()).map(|at| items[at].clone()).collect();
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            Ok(if is_tuple { Tuple::from(taken).into() } else { taken.into() })
        }
        kind => Err(failed(format!("a slice of {kind}; it takes texts and lists"))),
    }
}

/// The indices that a slice from `start` to `stop` in steps takes of `len` items, as Python's `slice.indices`.
fn indices(
    (start, stop, step): (Option<i64>, Option<i64>, i64),
    len: usize,
) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (low, high) = if step < 0 { (-1, len - 1) } else { (0, len) };
    let place = |at: i64| if at < 0 { (at + len).max(low) } else { at.min(high) };
    let (first, end) = if step < 0 { (high, low) } else { (low, high) };
    let (start, stop) = (start.map_or(first, place), stop.map_or(end, place));
    std::iter::successors(Some(start), move |at| at.checked_add(step))
        .take_while(move |at| if step < 0 { *at > stop } else { *at < stop })
        .filter_map(|at| usize::try_from(at).ok())
}

/// The operands of `<`, `<=`, `>` or `>=` as Python orders them, which does not order values of different types. True and
/// false are numbers.
pub fn ordered(operands: &[Value; 2]) -> Result<[Value; 2], Error> {
    use ValueKind::{Number, Plain, Seq, String};
    let [left, right] = operands;
    let is_tuple = |value: &Value| value.downcast_object_ref::<Tuple>().is_some();
    let numbers = [number(left), number(right)];
    match numbers.each_ref().map(Value::kind) {
        // Integers of any length are plain objects.
        [Number, Number] | [String, String] | [Plain, _] | [_, Plain] => Ok(numbers),
        [Seq, Seq] if is_tuple(left) == is_tuple(right) => Ok(numbers),
        kinds => {
            let [left, right] = kinds;
            let reason = "numbers are ordered, texts, and lists";
            Err(failed(format!("a comparison of {left} and {right}; {reason}")))
        }
    }
}

/// Whether it can be called: functions and macros. What is undefined can, as in Jinja2, though the call fails.
fn is_callable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
}

/// Whether Python can iterate over it, which it cannot over None.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Whether it has a length and items: in Jinja2 also texts, mappings and what is undefined.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), Map | Seq | String | Undefined)
}

/// True and false as the numbers that they are in Python.
fn number(value: &Value) -> Value {
    match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        _ => value.clone(),
    }
}

fn force_escape(value: &Value) -> Value {
    escaped(&value.to_string())
}

fn center(text: &str, width: Option<usize>) -> Result<String, Error> {
    let width = limited(width.unwrap_or(80))?;
    let missing = width.saturating_sub(text.chars().count());
    // Python puts the odd space on the left if the width is odd.
    let left = missing / 2 + (missing & width & 1);
    Ok(format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left)))
}

fn failed(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

#[expect(clippy::needless_pass_by_value, reason = "how filters take their arguments")]
fn default(
    value: &Value,
    other: Option<Value>,
    boolean: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let other =
        other.map_or_else(|| options.get::<Option<Value>>("default_value"), |v| Ok(Some(v)))?;
    let boolean =
        boolean.map_or_else(|| options.get::<Option<Value>>("boolean"), |v| Ok(Some(v)))?;
    options.assert_all_used()?;
    let is_lax = boolean.is_some_and(|boolean| boolean.is_true());
    let is_missing = value.is_undefined() || is_lax && !value.is_true();
    Ok(if is_missing { other.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

fn escape(value: &Value) -> Value {
    if value.is_safe() { value.clone() } else { escaped(&value.to_string()) }
}

/// Text for HTML, with markupsafe's references.
fn escaped(text: &str) -> Value {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(c),
        }
    }
    Value::from_safe_string(out)
}

fn first(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::UNDEFINED) } else { filters::first(value) }
}

fn last(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::UNDEFINED),
        ValueKind::Map => Ok(value.try_iter()?.last().unwrap_or_default()),
        _ => filters::last(value),
    }
}

/// As Python's, any value that is no number gives the default.
fn float(
    state: &State,
    value: &Value,
    default: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let other = or_zero(&default, &options, Value::from(0.0))?;
    Ok(filters::float(state, value, default, options).unwrap_or(other))
}

/// As Python's, any value that is no number gives the default.
fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    options: Kwargs,
) -> Result<Value, Error> {
    let other = or_zero(&default, &options, Value::from(0))?;
    Ok(filters::int(state, value, default, base, options).unwrap_or(other))
}

fn or_zero(default: &Option<Value>, options: &Kwargs, zero: Value) -> Result<Value, Error> {
    let named = options.get::<Option<Value>>("default")?;
    Ok(default.clone().or(named).unwrap_or(zero))
}

/// The filter of minijinja, with floats as Python writes them.
fn join() -> Value {
    let join = Value::from_function(filters::join);
    Value::from_function(move |state: &mut State, given: Rest<Value>, named: Kwargs| {
        let mut arguments = cost::all(given, named);
        if let Some(list) = arguments.first_mut().filter(|list| list.kind() == ValueKind::Seq) {
            let with_text =
                |item: Value| repr::as_float(&item).map_or(item, |x| repr::float(x).into());
            *list = list.try_iter()?.map(with_text).collect();
        }
        join.call(state, &arguments)
    })
}

fn string(value: &Value) -> Value {
    if value.as_str().is_some() { value.clone() } else { repr::text(value).into() }
}

fn replace(value: &Value, from: &Value, to: &Value, count: Option<i64>) -> String {
    let (text, from, to) = (value.to_string(), from.to_string(), to.to_string());
    match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => text.replacen(&from, &to, count),
        None => text.replace(&from, &to),
    }
}

/// Shortens a text to `length` characters with its `end`, at a space unless `killwords`, if it is longer by more than
/// `leeway`.
#[expect(clippy::needless_pass_by_value, reason = "how filters take their arguments")]
fn truncate(text: &str, arguments: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    type Given = (Option<usize>, Option<bool>, Option<String>, Option<usize>);
    let (length, killwords, end, leeway) = from_args::<Given>(&arguments)?;
    let length = length.or(options.get("length")?).unwrap_or(255);
    let killwords = killwords.or(options.get("killwords")?).unwrap_or(false);
    let end = end.or(options.get("end")?).unwrap_or_else(|| "...".to_owned());
    let leeway = leeway.or(options.get("leeway")?).unwrap_or(5);
    options.assert_all_used()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_owned());
    }
    let room = length.checked_sub(end.chars().count());
    let room = room.ok_or_else(|| failed(format!("truncate: {length} is shorter than the end")))?;
    let cut: String = text.chars().take(room).collect();
    let words =
        if killwords { &cut } else { cut.rsplit_once(' ').map_or(&*cut, |(words, _)| words) };
    Ok(format!("{words}{end}"))
}

/// A text with each line but the first indented, and those that are blank left alone. A line break at the end stays.
#[expect(clippy::needless_pass_by_value, reason = "how filters take their arguments")]
fn indent(text: &str, arguments: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    type Given = (Option<Value>, Option<Value>, Option<Value>);
    let (width, first, blank) = from_args::<Given>(&arguments)?;
    let width = width.or(options.get("width")?);
    let first = first.or(options.get("first")?).is_some_and(|first| first.is_true());
    let blank = blank.or(options.get("blank")?).is_some_and(|blank| blank.is_true());
    options.assert_all_used()?;
    let width = width.unwrap_or_else(|| Value::from(4));
    let indentation = match width.as_str() {
        Some(text) => text.to_owned(),
        // A number that is negative indents by nothing, as in Python.
        None => " ".repeat(limited(i64::try_from(width)?.max(0).try_into().unwrap_or(usize::MAX))?),
    };
    let mut indented = String::new();
    let with_end = format!("{text}\n");
    for (at, line) in lines(&with_end).enumerate() {
        if at > 0 {
            indented.push('\n');
        }
        let is_indented = if at == 0 { first } else { blank || !line.is_empty() };
        if is_indented {
            indented += &indentation;
        }
        indented += line;
    }
    Ok(indented)
}

/// Percent-encodes a text, or the pairs of a mapping as a query.
fn urlencode(value: &Value) -> Result<String, Error> {
    if value.kind() != ValueKind::Map {
        return Ok(encoded(&value.to_string(), "/", "%20"));
    }
    let mut pairs = Vec::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?.to_string();
        pairs.push(format!("{}={}", encoded(&key.to_string(), "", "+"), encoded(&item, "", "+")));
    }
    Ok(pairs.join("&"))
}

fn encoded(text: &str, safe: &str, space: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match char::from(byte) {
            c if c.is_ascii_alphanumeric() || "-_.~".contains(c) || safe.contains(c) => out.push(c),
            ' ' => out.push_str(space),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The number of runs of letters, digits and underscores.
fn wordcount(value: &Value) -> usize {
    let text = value.to_string();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Map, Value, json};

    use crate::chat::{Inputs, Template};

    /// A table made by tests/templates/make.py.
    #[derive(Deserialize)]
    struct Table {
        values: Map<String, Value>,
        rows: Vec<(String, String)>,
    }

    /// Differences from Python: a part of the template, and why.
    const EXPLAINED: &[(&str, &str)] = &[
        ("map.items()", "views of mappings print as lists"),
        ("map.keys()", "views of mappings print as lists"),
        ("range(", "ranges print as lists"),
        ("| pprint", "prints one item per line"),
        ("| striptags", "refused: for HTML"),
        ("| xmlattr", "refused: for HTML"),
        ("| filesizeformat", "refused: no use in a prompt"),
        ("| wordwrap", "refused: no use in a prompt"),
        ("cycler(", "refused: no use in a prompt"),
        ("joiner(", "refused: no use in a prompt"),
        ("| attr(", "items are attributes, methods are not"),
        ("{% autoescape", "escapes HTML with other references"),
        ("varargs", "refused: macros take the arguments that they name"),
        ("yes | round", "refused: not a number"),
        ("no | round", "refused: not a number"),
        ("hollow | urlencode", "a list is encoded as text"),
        ("map | reverse", "mappings are not reversed"),
        ("'%r' % ", "refused: conversion"),
        ("'%*d' % ", "refused: conversion"),
        ("'%i' % half", "refused: conversion of a fraction"),
        ("{{ +seven }}", "refused: sign"),
        ("dictsort(true)", "refused: give case_sensitive=true"),
        ("absent | items", "refused: undefined"),
        ("dict([", "refused: give names"),
        ("{!r}'.format", "refused: conversion"),
        ("{:%}'.format", "refused: conversion"),
    ];

    /// Sources that Python refuses, and what an error says or what is written.
    #[test]
    fn values_of_different_types_have_no_order() {
        let extra = json!({ "one": 1, "text": "a", "list": [1], "nothing": null, "map": {}, "wide": 1e300 });
        let Value::Object(extra) = extra else { panic!("an object") };
        let inputs = Inputs { extra, ..Inputs::new(&[]) };
        let written = |expression: &str| {
            let template = Template::new("order", &format!("{{{{ {expression} }}}}")).unwrap();
            template.render(&inputs).map_err(|error| error.to_string())
        };
        for (broken, kinds) in [
            ("one < text", "number and string"),
            ("text >= one", "string and number"),
            ("nothing < one", "none and number"),
            ("one <= nothing", "number and none"),
            ("absent > one", "undefined and number"),
            ("list > one", "sequence and number"),
            ("list < (1,)", "sequence and sequence"),
            ("map < map", "map and map"),
            ("one is lt text", "number and string"),
            ("[text] | select('>=', 1) | list", "string and number"),
            ("0 < one < text", "number and string"),
            ("0 < text < one", "number and string"),
        ] {
            let error = written(broken).expect_err(broken);
            assert!(error.contains(&format!("comparison of {kinds};")), "{broken}: {error}");
        }
        let fine = "[one < 2, true > one, 0 < one, one < wide, text < 'b', list < [2], 0 < one <= 1, one is ge true]";
        let expected = "[True, False, True, True, True, True, True, True]";
        assert_eq!(written(fine).as_deref(), Ok(expected));
        // Templates that llama.cpp renders may loop over None, which Python refuses.
        let template = Template::new("loop", "{% for x in nothing %}x{% else %}-{% endfor %}");
        assert_eq!(template.unwrap().render(&inputs).as_deref(), Ok("-"));
    }

    #[test]
    fn filters_tests_and_operators_give_what_python_gives() {
        let text = include_str!("../../../../tests/templates/jinja.json");
        let table: Table = serde_json::from_str(text).expect("the table is JSON");
        let messages = [
            json!({ "role": "user", "content": "Hello" }),
            json!({ "role": "assistant", "content": "Hi <b>" }),
        ];
        let inputs = Inputs {
            bos_token: "<s>".into(),
            eos_token: "</s>".into(),
            extra: table.values,
            ..Inputs::new(&messages)
        };
        let mut broken = Vec::new();
        let mut used = vec![false; EXPLAINED.len()];
        for (source, expected) in &table.rows {
            let rendered = Template::new("row", source).and_then(|row| row.render(&inputs));
            if rendered.as_ref().ok() == Some(expected) {
                continue;
            }
            match EXPLAINED.iter().position(|(part, _)| source.contains(part)) {
                Some(at) => used[at] = true,
                None => broken.push(format!("{source:?}: {rendered:?}, not {expected:?}")),
            }
        }
        let (count, all) = (broken.len(), table.rows.len());
        assert!(broken.is_empty(), "{count} of {all}:\n{}", broken.join("\n"));
        assert!(all > 1800 && used.iter().all(|is_used| *is_used), "{all} {used:?}");
    }
}
