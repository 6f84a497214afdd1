//! The defaults of a macro's parameters, evaluated as in Jinja2: for the arguments that are missing, not for those that are
//! undefined, once all arguments are assigned, and in order, so that a default can refer to other parameters.
//!
//! The compiler assigns the arguments, which are on the stack, from the last to the first, and evaluates the default of
//! each just before. Missing arguments are undefined there. Others that are undefined are replaced where a macro is called,
//! and become undefined again where the macro begins.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, ValueOrKwargs};
use minijinja::{Error, State, Value};

use super::instructions::{ARGUMENT, add, target};

/// Stands for an argument that is undefined.
#[derive(Debug)]
struct Undefined;

impl Object for Undefined {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// The arguments of a call of the function whose name comes last, in reverse, as unpacking a list expects. Those of a macro
/// are defined.
pub fn arguments(state: &State, values: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let values = values.into_values();
    let Some((name, arguments)) = values.split_last() else { return Ok(Value::UNDEFINED) };
    let function = name.as_str().and_then(|name| state.lookup(name));
    let object = function.as_ref().and_then(Value::as_object);
    let is_macro = object.is_some_and(|object| object.type_name().ends_with("::Macro"));
    let defined = |value: &Value| match is_macro {
        true => defined(value),
        false => Ok(value.clone()),
    };
    Ok(Value::from(arguments.iter().rev().map(defined).collect::<Result<Vec<_>, Error>>()?))
}

/// An argument, or those that have names, with what stands for undefined.
fn defined(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from_object(Undefined));
    }
    if !value.is_kwargs() {
        return Ok(value.clone());
    }
    let named = Kwargs::try_from(value.clone())?;
    let each = |name| Ok((name, defined(&named.peek::<Value>(name)?)?));
    Ok(named.args().map(each).collect::<Result<Kwargs, Error>>()?.into())
}

/// An argument as the macro sees it.
pub fn argument(value: Value) -> Value {
    match value.downcast_object_ref::<Undefined>() {
        Some(_) => Value::UNDEFINED,
        None => value,
    }
}

/// A parameter as compiled.
struct Parameter<'s> {
    name: &'s str,
    /// Where its default is evaluated.
    default: Option<Range<u32>>,
    /// Where it is assigned.
    store: u32,
}

/// How a macro begins.
struct Beginning<'s> {
    start: u32,
    end: u32,
    /// From the last to the first.
    parameters: Vec<Parameter<'s>>,
}

/// The instructions, in which the defaults of macros are evaluated in order and for missing arguments.
pub fn with_ordered_defaults<'s>(from: Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let beginnings: Vec<Beginning<'s>> = beginnings(&from);
    if beginnings.is_empty() {
        return Ok(from);
    }
    let mut to = Instructions::new(from.name(), from.source());
    // Where each instruction is now, and the targets of the jumps that were added.
    let (mut places, mut added) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(instruction) = from.get(at) {
        let len = places.len();
        if let Some(beginning) = beginnings.iter().find(|it| it.start == at) {
            at = beginning.end;
            places.resize(at as usize, 0);
            order(beginning, &from, &mut to, (&mut places, &mut added));
            debug_assert!(len < places.len(), "a parameter is assigned");
        } else {
            places.push(add(&mut to, instruction.clone(), &from, at));
            at += 1;
        }
    }
    places.push(places.last().map_or(0, |last| last + 1));
    let mut at = 0;
    while let Some(instruction) = to.get_mut(at) {
        if let Some(target) = target(instruction) {
            let moved = added.iter().find(|(jump, _)| *jump == at).map(|(_, target)| *target);
            let place = moved.or_else(|| places.get(*target as usize).copied());
            *target = place.ok_or_else(|| super::budget::invalid("a jump has no target"))?;
        }
        at += 1;
    }
    Ok(to)
}

/// Appends the beginning of a macro: all assignments, then the defaults of what is missing.
fn order<'s>(
    beginning: &Beginning<'s>,
    from: &Instructions<'s>,
    to: &mut Instructions<'s>,
    (places, added): (&mut [u32], &mut Vec<(u32, u32)>),
) {
    use Instruction as I;
    for (index, parameter) in beginning.parameters.iter().enumerate() {
        let store = I::StoreLocal(parameter.name);
        let instructions = match parameter.default {
            Some(_) => vec![store],
            None => vec![I::CallFunction(ARGUMENT, Some(1)), store],
        };
        for (part, instruction) in instructions.into_iter().enumerate() {
            let place = add(to, instruction, from, parameter.store);
            if (index, part) == (0, 0) {
                places[beginning.start as usize] = place;
            }
        }
    }
    for parameter in beginning.parameters.iter().rev() {
        let Some(default) = &parameter.default else { continue };
        let store = parameter.store;
        add(to, I::Lookup(parameter.name), from, store);
        add(to, I::DupTop, from, store);
        add(to, I::IsUndefined, from, store);
        let jump = add(to, I::JumpIfFalse(0), from, store);
        add(to, I::DiscardTop, from, store);
        for at in default.clone() {
            if let Some(instruction) = from.get(at) {
                places[at as usize] = add(to, instruction.clone(), from, at);
            }
        }
        let place = add(to, I::CallFunction(ARGUMENT, Some(1)), from, store);
        add(to, I::StoreLocal(parameter.name), from, store);
        places[store as usize] = place;
        added.push((jump, place));
    }
}

/// The beginnings of macros with parameters.
fn beginnings<'s>(from: &Instructions<'s>) -> Vec<Beginning<'s>> {
    let mut beginnings = Vec::new();
    for at in 0.. {
        let Some(instruction) = from.get(at) else { break };
        let Instruction::BuildMacro(_, start, _) = instruction else { continue };
        // The names of the parameters are loaded just before.
        let names = at.checked_sub(1).and_then(|at| from.get(at));
        let Some(Instruction::LoadConst(names)) = names else { continue };
        let count = names.len().unwrap_or(0);
        beginnings.extend(beginning(from, *start, count).filter(|it| it.start < it.end));
    }
    beginnings
}

/// The beginning of the macro with `count` parameters at `start`.
fn beginning<'s>(from: &Instructions<'s>, start: u32, count: usize) -> Option<Beginning<'s>> {
    use Instruction as I;
    let (mut at, mut parameters) = (start, Vec::new());
    while parameters.len() < count {
        let four = [0, 1, 2, 3].map(|more| from.get(at + more));
        let default = match four {
            [
                Some(I::DupTop),
                Some(I::IsUndefined),
                Some(I::JumpIfFalse(end)),
                Some(I::DiscardTop),
            ] => {
                let default = at + 4..*end;
                at = *end;
                Some(default)
            }
            _ => None,
        };
        let Some(I::StoreLocal(name)) = from.get(at) else { return None };
        parameters.push(Parameter { name, default, store: at });
        at += 1;
    }
    Some(Beginning { start, end: at, parameters })
}

#[cfg(test)]
mod tests {
    use crate::chat::{Inputs, Template};

    /// Expected are the texts of Jinja2 3.1.6.
    #[test]
    fn defaults_refer_to_other_parameters() {
        let cases = [
            ("{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(2) }}{{ m(2, 3) }}", "23"),
            (
                "{% macro m(a, b=a, c=b ~ a) %}{{ c }}{% endmacro %}{{ m(2) }}{{ m(2, b=3) }}",
                "2232",
            ),
            (
                "{% macro m(a=1, b=a + 1) %}{{ a }}{{ b }}{% endmacro %}{{ m() }} {{ m(b=7) }}",
                "12 17",
            ),
            ("{% macro m(a=b, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ m() }} {{ m(b=5) }}", "1 55"),
            ("{% set x = 4 %}{% macro m(a=x) %}{{ a }}{% endmacro %}{{ m() }}{{ m(1) }}", "41"),
            (
                "{% macro m(a, b=('x' if a else 'y'), c=a or b) %}{{ b }}{{ c }}{% endmacro %}{{ m(0) }}{{ m(1) }}",
                "yyx1",
            ),
            (
                "{% macro m(a, b=a) %}{% if b %}{% for i in [1, 2] %}{{ i }}{{ b }}{% endfor %}{% endif %}{% endmacro %}{{ m(3) }}",
                "1323",
            ),
            (
                "{% macro o(a, b=a) %}{% macro i(c, d=c ~ b) %}{{ d }}{% endmacro %}{{ i(5) }}{% endmacro %}{{ o(1) }}{{ o(2, 3) }}",
                "5153",
            ),
            (
                "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(a, b=a) m() %}{{ a }}{{ b }}{% endcall %}",
                "11",
            ),
            (
                "{% macro m(a, b=[a, a]) %}{{ b | length }}{% endmacro %}{{ m(1) }}{{ m(1, '') }}",
                "20",
            ),
            // What is undefined is not missing.
            (
                "{% macro m(a, b=true) %}{{ b }}{% endmacro %}{{ m(1, b=x) }}{{ m(1, x) }}{{ m(1) }}",
                "True",
            ),
            (
                "{% macro m(a, b=a) %}{{ a is defined }}{{ b is defined }} {% endmacro %}{{ m(x) }}{{ m(1, x) }}",
                "FalseFalse TrueFalse ",
            ),
            (
                "{% macro m(a={}) %}{{ a }}{% endmacro %}{% set f = m %}{{ f(x) }}{{ f({'a': 1}) }}",
                "{'a': 1}",
            ),
            (
                "{% macro m() %}{{ caller(x) }}{% endmacro %}{% call(a=1) m() %}<{{ a }}>{% endcall %}",
                "<>",
            ),
            ("{{ dict(a=x).a is defined }}{{ dict({'a': 2}, b=x).a }}", "False2"),
        ];
        for (source, expected) in cases {
            let template = Template::new("macros", source).expect(source);
            assert_eq!(template.render(&Inputs::new(&[])).as_deref(), Ok(expected), "{source}");
        }
    }
}
