//! Filters and tests of templates, each with what a call costs.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value, filters, tests};

use super::budget::{self, ENTRY, deep, deep_all, entries, made, shallow, spend};
use super::text::is_space;

#[cfg(test)]
mod units;

/// Computes the units of a call from its arguments, the filtered value first.
pub type Cost = fn(&[Value]) -> Result<u64, Error>;

/// Registers filters by the function of the same name.
macro_rules! filters {
    ($environment:ident; $($cost:expr => $($name:ident)*;)*) => {
        $($(filter($environment, stringify!($name), Value::from_function(filters::$name), $cost);)*)*
    };
}

/// Registers tests by their functions.
macro_rules! tests {
    ($environment:ident; $($cost:expr => $($name:literal $function:ident)*;)*) => {
        $($(test($environment, $name, Value::from_function(tests::$function), $cost);)*)*
    };
}

/// Adds the filters of Jinja.
pub fn add_filters(environment: &mut Environment<'static>) {
    filters! { environment;
        read => abs attr bool capitalize default first float int last length lower round safe
            title trim upper;
        listing => chain items lines list map reject rejectattr reverse select selectattr zip;
        written => escape pprint;
        sorting => dictsort groupby max min sort unique;
        filling => batch slice;
        replacing => replace;
        formatting => format;
        splitting => split;
        summing => sum;
    }
    filter(environment, "d", Value::from_function(filters::default), read);
    filter(environment, "e", Value::from_function(filters::escape), written);
}

/// Adds the tests of Jinja.
pub fn add_tests(environment: &mut Environment<'static>) {
    tests! { environment;
        read => "undefined" is_undefined "defined" is_defined "none" is_none "safe" is_safe
            "escaped" is_safe "boolean" is_boolean "odd" is_odd "even" is_even
            "divisibleby" is_divisibleby "number" is_number "integer" is_integer "int" is_integer
            "float" is_float "string" is_string "sequence" is_sequence "iterable" is_iterable
            "mapping" is_mapping "startingwith" is_startingwith "endingwith" is_endingwith
            "lower" is_lower "upper" is_upper "sameas" is_sameas "true" is_true "false" is_false
            "filter" is_filter "test" is_test;
        written => "eq" is_eq "equalto" is_eq "==" is_eq "ne" is_ne "!=" is_ne
            "in" is_in;
    }
}

/// Adds a filter that pays before it runs and for its result.
pub fn filter(
    environment: &mut Environment<'static>,
    name: &'static str,
    function: Value,
    cost: Cost,
) {
    let attribute = ATTRIBUTES.iter().find(|(filter, _)| *filter == name).map(|(_, at)| *at);
    let filter = paying(function, cost);
    environment.add_filter(
        name,
        move |state: &mut State, mut given: Rest<Value>, named: Kwargs| -> Result<Value, Error> {
            let Some(at) = attribute else { return filter(state, given, named) };
            if let Some(attribute) = at.and_then(|at| given.0.get_mut(at)) {
                *attribute = with_path(attribute)?;
            }
            filter(state, given, with_named_path(named)?)
        },
    );
}

/// The filters with an attribute that may be an index, and its place among the arguments without names.
const ATTRIBUTES: &[(&str, Option<usize>)] = &[
    ("groupby", Some(1)),
    ("join", Some(2)),
    ("map", None),
    ("max", None),
    ("min", None),
    ("rejectattr", Some(1)),
    ("selectattr", Some(1)),
    ("sort", None),
    ("sum", Some(1)),
    ("unique", None),
];

/// An attribute as minijinja takes it: an index is the path with its digits.
fn with_path(attribute: &Value) -> Result<Value, Error> {
    match attribute.is_integer() {
        true if attribute.as_usize().is_none() => {
            Err(budget::invalid("an attribute that is an index is 0 or more"))
        }
        true => Ok(Value::from(attribute.to_string())),
        false => Ok(attribute.clone()),
    }
}

/// The named arguments with the attribute as [`with_path`] makes it.
fn with_named_path(named: Kwargs) -> Result<Kwargs, Error> {
    if !named.has("attribute") {
        return Ok(named);
    }
    let path = |name| -> Result<(&str, Value), Error> {
        let value: Value = named.peek(name)?;
        Ok((name, if name == "attribute" { with_path(&value)? } else { value }))
    };
    named.args().map(path).collect()
}

/// A function that pays before it runs and for its result.
pub fn paying(
    function: Value,
    cost: Cost,
) -> impl Fn(&mut State, Rest<Value>, Kwargs) -> Result<Value, Error> + Send + Sync + 'static {
    move |state, arguments, named| {
        let arguments = all(arguments, named);
        spend(cost(&arguments)?)?;
        made(function.call(state, &arguments)?)
    }
}

/// The arguments as a function of the library takes them: those with names come last.
pub fn all(arguments: Rest<Value>, named: Kwargs) -> Vec<Value> {
    let is_named = named.args().next().is_some();
    arguments.0.into_iter().chain(is_named.then(|| Value::from(named))).collect()
}

/// Adds a test that pays before it runs.
pub fn test(
    environment: &mut Environment<'static>,
    name: &'static str,
    function: Value,
    cost: Cost,
) {
    environment.add_test(
        name,
        move |state: &mut State, arguments: Rest<Value>, named: Kwargs| -> Result<bool, Error> {
            let arguments = all(arguments, named);
            spend(cost(&arguments)?)?;
            Ok(function.call(state, &arguments)?.is_true())
        },
    );
}

/// Reads texts and looks at no entry of a list.
pub fn read(arguments: &[Value]) -> Result<u64, Error> {
    Ok(arguments.iter().map(shallow).sum())
}

/// Visits the entries of the value and what is inside the other arguments.
pub fn listing(arguments: &[Value]) -> Result<u64, Error> {
    let Some((value, others)) = arguments.split_first() else { return Ok(1) };
    Ok(entries(value).saturating_add(deep_all(others)?))
}

/// Reads or writes everything inside the arguments.
pub fn written(arguments: &[Value]) -> Result<u64, Error> {
    Ok(deep_all(arguments)?.saturating_mul(2))
}

/// Compares every entry some twenty times.
fn sorting(arguments: &[Value]) -> Result<u64, Error> {
    let first = arguments.first().map_or(0, entries);
    Ok(deep_all(arguments)?.saturating_mul(16).saturating_add(first))
}

/// Makes as many lists or entries as a number among the arguments says.
fn filling(arguments: &[Value]) -> Result<u64, Error> {
    Ok(listing(arguments)?.saturating_add(number(arguments).saturating_mul(ENTRY)))
}

/// Writes the third text for every occurrence of the second in the first.
pub fn replacing(arguments: &[Value]) -> Result<u64, Error> {
    let [value, from, to, ..] = arguments else { return Ok(1) };
    let found = match (value.as_str(), from.as_str()) {
        (Some(value), Some(from)) => value.matches(from).count() as u64,
        _ => deep(value)?,
    };
    let kept = deep(value)?.saturating_add(deep(from)?);
    Ok(found.saturating_mul(deep(to)?).saturating_add(kept))
}

/// Writes a number of spaces for every line.
pub fn indenting(arguments: &[Value]) -> Result<u64, Error> {
    let Some(value) = arguments.first() else { return Ok(1) };
    let lines = match value.as_str() {
        Some(text) => text.matches('\n').count() as u64 + 1,
        None => deep(value)?,
    };
    let width = number(&arguments[1..]).saturating_add(deep_all(&arguments[1..])?);
    Ok(lines.saturating_mul(width).saturating_add(deep(value)?))
}

/// Writes every argument at every conversion, padded to any width in the text or among the arguments.
pub fn formatting(arguments: &[Value]) -> Result<u64, Error> {
    let Some((value, others)) = arguments.split_first() else { return Ok(1) };
    let text = value.as_str().unwrap_or_default();
    let conversions = text.matches(['%', '{']).count() as u64;
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let width = numbers.map(|digits| digits.parse().unwrap_or(u64::MAX)).max().unwrap_or(0);
    let one = width.saturating_add(number(others)).saturating_add(deep_all(others)?);
    Ok(conversions.saturating_mul(one).saturating_add(deep(value)?))
}

/// Writes every entry, and the second text between them.
pub fn joining(arguments: &[Value]) -> Result<u64, Error> {
    let Some((value, others)) = arguments.split_first() else { return Ok(1) };
    let between = deep_all(others)?.saturating_mul(entries(value) / ENTRY);
    Ok(deep(value)?.saturating_add(between))
}

/// Makes a text for every occurrence of the second in the first.
pub fn splitting(arguments: &[Value]) -> Result<u64, Error> {
    let Some((value, others)) = arguments.split_first() else { return Ok(1) };
    let text = value.as_str().unwrap_or_default();
    let named = others.last().and_then(|options| options.get_attr("sep").ok());
    let separator = [others.first(), named.as_ref()].into_iter().flatten().find_map(Value::as_str);
    let parts = match separator.filter(|separator| !separator.is_empty()) {
        Some(separator) => text.matches(separator).count(),
        None => text.matches(is_space).count(),
    };
    Ok((parts as u64 + 1).saturating_mul(2 * ENTRY).saturating_add(deep(value)?))
}

/// Compares two values.
pub fn comparing(values: &[Value]) -> Result<u64, Error> {
    let [left, right] = values else { return Ok(1) };
    match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => Ok((left.len() + right.len()) as u64 + 1),
        _ => deep_all(values),
    }
}

/// Adds up entries; with a start, these may be texts or lists, which are copied at every step.
fn summing(arguments: &[Value]) -> Result<u64, Error> {
    let Some(value) = arguments.first() else { return Ok(1) };
    let times = if arguments.len() > 1 { entries(value) / ENTRY } else { 1 };
    Ok(deep_all(arguments)?.saturating_mul(times.max(1)))
}

/// The largest number among the arguments, also among those passed by name.
fn number(arguments: &[Value]) -> u64 {
    let one = |value: &Value| match value.kind() {
        ValueKind::Number => value.as_usize().unwrap_or(0) as u64,
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        }
        _ => 0,
    };
    let named = |value: &Value| -> u64 {
        let Ok(keys) = value.try_iter().map(Iterator::collect::<Vec<_>>) else { return 0 };
        let items = keys.iter().filter_map(|key| value.get_item(key).ok());
        items.map(|item| one(&item)).max().unwrap_or(0)
    };
    let each = |value: &Value| match value.kind() {
        ValueKind::Map => named(value),
        _ => one(value),
    };
    arguments.iter().map(each).max().unwrap_or(0)
}
