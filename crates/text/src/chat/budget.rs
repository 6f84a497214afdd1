//! What a template may use: a budget of work that every operation draws on before it runs.
//!
//! One unit is about a byte read or written, so a budget bounds memory as well as time. Fuel alone bounds neither: a
//! single instruction can double a text, repeat a list or sort it.

use std::cell::Cell;

use minijinja::value::{DynObject, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::integers;

/// Limit on the nesting of values that a template stores; deeper ones would overflow the stack where they are written
/// out, compared or dropped.
pub const DEPTH_MAX: usize = 100;

/// Units per entry of a list or map.
pub const ENTRY: u64 = 32;

/// Units per node that is visited.
const NODE: u64 = 16;

/// How much a text inside a list may grow when the list is written out (`\u{1f}` for one byte).
const ESCAPED: u64 = 6;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// The reason of an error when the budget is used up.
#[derive(Debug, thiserror::Error)]
#[error("the budget of work is used up")]
pub struct Spent;

/// Sets the budget of this thread.
pub fn set(units: u64) {
    LEFT.set(units);
}

/// Draws on the budget.
pub fn spend(units: u64) -> Result<(), Error> {
    match LEFT.get().checked_sub(units) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => Err(Error::new(ErrorKind::OutOfFuel, "too much work").with_source(Spent)),
    }
}

/// What is left of the budget of this thread.
#[cfg(test)]
pub fn left() -> u64 {
    LEFT.get()
}

/// Bytes to read the value itself: a text's length, that of an integer's digits, and nothing for what is only referred to.
pub fn shallow(value: &Value) -> u64 {
    1 + text_bytes(value)
}

/// Bytes of a text, or of the digits that a long integer is written with.
fn text_bytes(value: &Value) -> u64 {
    value.as_str().or_else(|| integers::wide(value)).map_or(0, str::len) as u64
}

/// Units of a list of the value's entries; those of a text are its characters.
pub fn entries(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => 2 * ENTRY * text.len() as u64 + 1,
        None => ENTRY * value.len().unwrap_or(0) as u64 + 1,
    }
}

/// Bytes of the value written out, with all that it contains.
///
/// # Errors
/// It is nested too deep, or the budget does not suffice to visit it.
pub fn deep(value: &Value) -> Result<u64, Error> {
    let mut bytes = 0u64;
    visit(value, 0, &mut |value, depth| {
        let text = text_bytes(value);
        bytes = bytes.saturating_add(NODE + text * if depth == 0 { 1 } else { ESCAPED });
        Ok(())
    })?;
    Ok(bytes)
}

/// The sum of [`deep`].
pub fn deep_all(values: &[Value]) -> Result<u64, Error> {
    values.iter().try_fold(0u64, |sum, value| Ok(sum.saturating_add(deep(value)?)))
}

/// Checks the nesting of a value that is to be stored.
pub fn check_depth(value: &Value) -> Result<(), Error> {
    visit(value, 0, &mut |_, _| Ok(()))
}

/// Refuses a value that contains an object which templates can change, since storing one in another can make a cycle.
pub fn check_plain(value: &Value) -> Result<(), Error> {
    visit(value, 0, &mut |value, _| match value.as_object().is_some_and(is_mutable) {
        true => Err(invalid("a namespace or loop cannot be stored in a namespace")),
        false => Ok(()),
    })
}

/// Whether the object is a namespace or a loop.
pub fn is_mutable(object: &DynObject) -> bool {
    let name = object.type_name();
    name.ends_with("::Namespace") || name.ends_with("::Loop")
}

/// Whether the value computes its entries from other values when they are read.
fn is_lazy(value: &Value) -> bool {
    // The filter `chain` makes lazy sequences of the kind of lists.
    let is_chain = |object: &DynObject| object.type_name().ends_with("::MergeSeq");
    value.kind() == ValueKind::Iterable || value.as_object().is_some_and(is_chain)
}

/// A lazy sequence as a list, any other value unchanged. Lazy sequences over lazy sequences would nest unseen, and one over a
/// list that changes could be appended to it.
pub fn listed(value: Value) -> Result<Value, Error> {
    if !is_lazy(&value) {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        spend(ENTRY)?;
        items.push(item?);
    }
    Ok(Value::from(items))
}

/// Pays for a value that was made, as a list if it is lazy.
pub fn made(value: Value) -> Result<Value, Error> {
    if is_lazy(&value) {
        return listed(value);
    }
    let is_text = value.as_str().is_some() || integers::wide(&value).is_some();
    spend(if is_text { shallow(&value) } else { entries(&value) })?;
    Ok(value)
}

pub fn invalid(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// Calls `each` for the value and all that it contains, with the depth.
pub fn visit(
    value: &Value,
    depth: usize,
    each: &mut dyn FnMut(&Value, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(invalid("values are nested too deep"));
    }
    spend(NODE)?;
    each(value, depth)?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()?.checked() {
                visit(&item?, depth + 1, each)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()?.checked() {
                let key = key?;
                visit(&key, depth + 1, each)?;
                visit(&value.get_item(&key)?, depth + 1, each)?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// A list within a list, and so on, around a number.
    fn nested(levels: usize) -> Value {
        (0..levels).fold(Value::from(1), |inner, _| Value::from(vec![inner]))
    }

    #[test]
    fn a_budget_is_spent_to_its_last_unit_and_not_beyond() {
        set(5);
        assert!(spend(2).is_ok() && spend(4).is_err(), "what is too much takes nothing");
        assert_eq!(left(), 3);
        assert!(spend(3).is_ok() && spend(0).is_ok());
        let error = spend(1).unwrap_err();
        assert!(
            error.kind() == ErrorKind::OutOfFuel && error.source().is_some_and(|e| e.is::<Spent>())
        );
    }

    /// Values with what it takes to read them, to list them, and to write all that is in them, and their nodes.
    #[test]
    fn values_cost_what_they_hold() {
        let pair = Value::from_pairs([("ab", Value::from("cde"))]);
        let lazy = Value::make_iterable(|| 0..3);
        let cases = [
            (Value::from(7), 1, 1, 16, 1),
            (Value::from(""), 1, 1, 16, 1),
            // A text is listed by its characters, at two entries for each byte.
            (Value::from("abc"), 4, 2 * 32 * 3 + 1, 16 + 3, 1),
            (Value::from(vec![1, 2]), 1, 2 * 32 + 1, 3 * 16, 3),
            // Texts may grow to six times their length where a list or map is written.
            (Value::from(vec!["abc"]), 1, 32 + 1, 16 + (16 + 18), 2),
            (pair, 1, 32 + 1, 16 + (16 + 12) + (16 + 18), 3),
            (lazy, 1, 3 * 32 + 1, 4 * 16, 4),
        ];
        for (value, read, listed, written, nodes) in cases {
            set(1000);
            assert_eq!((shallow(&value), entries(&value)), (read, listed), "{value:?}");
            assert_eq!(left(), 1000);
            assert_eq!(deep(&value).ok(), Some(written), "{value:?}");
            assert_eq!(left(), 1000 - 16 * nodes, "{value:?}");
            set(1000);
            assert_eq!(deep_all(&[value.clone(), value.clone()]).ok(), Some(2 * written));
            set(16 * nodes - 1);
            assert!(deep(&value).is_err(), "{value:?} is visited within the budget");
        }
    }

    #[test]
    fn values_nest_to_a_limit() {
        set(u64::MAX);
        for (levels, is_fine) in [(0, true), (100, true), (101, false)] {
            let value = nested(levels);
            assert_eq!(check_depth(&value).is_ok(), is_fine, "{levels}");
            assert_eq!(deep(&value).is_ok(), is_fine, "{levels}");
            let map = Value::from_pairs([("a", value)]);
            assert_eq!(check_depth(&map).is_ok(), levels < 100, "{levels}");
        }
    }

    #[test]
    fn what_was_made_is_paid_for() {
        for (value, cost) in [
            (Value::from("abc"), 4),
            (Value::from(3), 1),
            (Value::from(vec![1, 2]), 65),
            (Value::make_iterable(|| 0..3), 3 * 32),
        ] {
            set(100);
            let made = made(value.clone()).unwrap();
            assert_eq!(left(), 100 - cost, "{value:?}");
            assert_ne!(made.kind(), ValueKind::Iterable);
            assert_eq!(made.to_string(), value.to_string());
            set(cost - 1);
            assert!(super::made(value).is_err());
        }
        set(0);
        assert_eq!(listed(Value::from("abc")).ok(), Some(Value::from("abc")));
    }
}
