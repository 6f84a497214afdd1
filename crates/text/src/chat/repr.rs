//! Values as Python's `str` and `repr` write them, where minijinja writes them in another way: floats.

use std::fmt::Write;

use minijinja::Value;
use minijinja::value::{Tuple, ValueKind};

use super::budget::is_mutable;

/// The text of a value.
pub fn text(value: &Value) -> String {
    of_floats(value).unwrap_or_else(|| value.to_string())
}

/// The text of a float, and of a list or map with a float in it that minijinja writes in another way.
///
/// Recursive; the nesting of values is limited by the [budget](super::budget).
pub fn of_floats(value: &Value) -> Option<String> {
    if let Some(x) = as_float(value) {
        return Some(float(x));
    }
    if !differs(value) {
        return None;
    }
    let mut out = String::new();
    write(value, &mut out)?;
    Some(out)
}

/// The float that a value is.
pub fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    f64::try_from(value.clone()).ok().filter(|_| is_float)
}

/// A float: the shortest digits, two-digit exponents from 1e16 on and below 1e-4, `inf` and `nan`.
pub fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() || is_short(x) {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Whether a float is written without an exponent.
fn is_short(x: f64) -> bool {
    x == 0.0 || (1e-4..1e16).contains(&x.abs())
}

/// Whether a value is or contains a float that is not written as digits with a point.
fn differs(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Number => as_float(value).is_some_and(|x| !is_short(x)),
        ValueKind::Seq => value.try_iter().is_ok_and(|mut items| items.any(|item| differs(&item))),
        ValueKind::Map if !value.as_object().is_some_and(is_mutable) => {
            let is_other =
                |key: &Value| differs(key) || value.get_item(key).is_ok_and(|item| differs(&item));
            value.try_iter().is_ok_and(|mut keys| keys.any(|key| is_other(&key)))
        }
        _ => false,
    }
}

/// Appends a value as it is written within a list.
fn write(value: &Value, out: &mut String) -> Option<()> {
    match value.kind() {
        _ if !differs(value) => write!(out, "{value:?}").ok()?,
        ValueKind::Seq => {
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            let [open, close] = if is_tuple { ['(', ')'] } else { ['[', ']'] };
            out.push(open);
            for (index, item) in value.try_iter().ok()?.enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write(&item, out)?;
            }
            out.push_str(if is_tuple && value.len() == Some(1) { "," } else { "" });
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().ok()?.enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write(&key, out)?;
                out.push_str(": ");
                write(&value.get_item(&key).ok()?, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&float(as_float(value)?)),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Inputs, Template};

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (21.5, "21.5"),
            (-0.0, "-0.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (-1e15, "-1000000000000000.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ];
        for (x, expected) in cases {
            assert_eq!(float(x), expected);
            assert_eq!(text(&Value::from(x)), expected);
        }
    }

    /// Expected are the texts of Jinja2 3.1.6.
    #[test]
    fn floats_of_templates_are_written_as_by_jinja2() {
        let cases = [
            ("{{ 1e-5 }} {{ 1e16 }} {{ 0.1 + 0.2 }}", "1e-05 1e+16 0.30000000000000004"),
            ("{{ 123456789.0 * 1e12 }} {{ -1e-7 }}", "1.23456789e+20 -1e-07"),
            ("{{ 1e300 * 1e10 }} {{ -1e300 * 1e10 }}", "inf -inf"),
            ("{{ [1e-5, 'a', [1.0, 1e21]] }}", "[1e-05, 'a', [1.0, 1e+21]]"),
            ("{{ {'a': 1e-7, 1e22: none} }}", "{'a': 1e-07, 1e+22: None}"),
            ("{{ (1e-5,) }} {{ (1e-5, 2) }}", "(1e-05,) (1e-05, 2)"),
            ("{% set x = 1e-5 %}{{ x ~ 'a' ~ [x] }} {{ 'a' ~ x }}", "1e-05a[1e-05] a1e-05"),
            ("{% set x = 1e-5 %}{{ x | string | length }}{{ [x] | string }}", "5[1e-05]"),
            ("{{ [1e-5, 2, 'b'] | join(', ') }}", "1e-05, 2, b"),
            ("{{ [{'a': 1}, {'a': 2}] | join('-', attribute='a') }}", "1-2"),
            ("{{ [] | join }}{{ 'abc' | join('.') }}", "a.b.c"),
        ];
        for (source, expected) in cases {
            let template = Template::new("floats", source).expect(source);
            assert_eq!(template.render(&Inputs::new(&[])).as_deref(), Ok(expected), "{source}");
        }
    }
}
