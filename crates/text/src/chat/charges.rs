//! The functions that charge for a template's instructions, or compute in their place.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::budget::{self, deep_all, entries, shallow, spend};
use super::cost::{Cost, all, comparing, formatting, written};
use super::instructions::{
    ADD, ARGUMENT, ARGUMENTS, ASSIGN, CALL, COMPARE, CONCAT, KEEP, LISTED, ORDER, PERCENT, READ,
    SLICE, TIMES, WRITTEN,
};
use super::{macros, python, repr};

/// The functions that charge for instructions; see [`program`](super::program).
pub fn add(environment: &mut Environment<'static>) {
    charge(environment, READ, |values| Ok(values.iter().map(entries).sum()));
    charge(environment, WRITTEN, written);
    charge(environment, CALL, |values| {
        let Some((receiver, arguments)) = values.split_first() else { return Ok(1) };
        if receiver.as_object().is_some_and(budget::is_mutable) {
            arguments.iter().try_for_each(budget::check_plain)?;
            if arguments.is_empty() {
                return Err(budget::invalid("a method of a loop needs arguments"));
            }
        }
        Ok(shallow(receiver).saturating_add(deep_all(arguments)?))
    });
    charge(environment, COMPARE, comparing);
    environment.add_function(ORDER, |left: Value, right: Value| -> Result<Value, Error> {
        let operands = [left, right];
        spend(comparing(&operands)?)?;
        let [left, right] = python::ordered(&operands)?;
        Ok(vec![right, left].into())
    });
    charge(environment, ADD, |values| {
        Ok(values.iter().map(|value| shallow(value).saturating_mul(2)).sum())
    });
    charge(environment, TIMES, |values| {
        let [left, right] = values else { return Ok(1) };
        let repeated = |list: &Value, times: &Value| match list.kind() {
            ValueKind::Number | ValueKind::Bool => 1,
            _ => {
                (shallow(list) + entries(list)).saturating_mul(times.as_usize().unwrap_or(0) as u64)
            }
        };
        Ok(repeated(left, right).saturating_add(repeated(right, left)))
    });
    charge(environment, ASSIGN, |values| {
        values.first().map_or(Ok(()), budget::check_plain)?;
        Ok(1)
    });
    environment.add_function(PERCENT, |left: Value, right: Value| -> Result<Value, Error> {
        // Only a text costs more than a number.
        let operands = [left, right];
        spend(formatting(&operands)?)?;
        python::percent(&operands[0], &operands[1])
    });
    environment.add_function(ARGUMENTS, macros::arguments);
    environment.add_function(ARGUMENT, macros::argument);
    environment.add_function(
        SLICE,
        |value: Value, start: Value, stop: Value, step: Value| -> Result<Value, Error> {
            spend(entries(&value))?;
            python::slice(&value, &[start, stop, step])
        },
    );
    environment.add_function(CONCAT, |left: Value, right: Value| -> Result<Value, Error> {
        let operands = [left, right];
        spend(written(&operands)?)?;
        Ok(Value::from(operands.map(|operand| repr::text(&operand)).concat()))
    });
    environment.add_function(KEEP, |value: Value| -> Result<Value, Error> {
        budget::check_depth(&value)?;
        Ok(value)
    });
    environment.add_function(LISTED, budget::listed);
}

/// A function that charges for its arguments and returns them in reverse, as unpacking a list expects.
fn charge(environment: &mut Environment<'static>, name: &'static str, cost: Cost) {
    environment.add_function(
        name,
        move |values: Rest<Value>, named: Kwargs| -> Result<Value, Error> {
            let values = all(values, named);
            spend(cost(&values)?)?;
            Ok(values.into_iter().rev().collect::<Vec<_>>().into())
        },
    );
}
