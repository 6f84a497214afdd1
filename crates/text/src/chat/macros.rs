//! The defaults of a macro's parameters, evaluated as in Jinja2: once all arguments are assigned, and in order, so that a
//! default can refer to other parameters.
//!
//! The compiler assigns the arguments, which are on the stack, from the last to the first, and evaluates the default of
//! each just before.

use std::ops::Range;

use minijinja::Error;
use minijinja::machinery::{Instruction, Instructions};

use super::program::{add, target};

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

/// The instructions, in which the defaults of macros are evaluated in order.
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

/// Appends the beginning of a macro: all assignments, then the defaults of what is undefined.
fn order<'s>(
    beginning: &Beginning<'s>,
    from: &Instructions<'s>,
    to: &mut Instructions<'s>,
    (places, added): (&mut [u32], &mut Vec<(u32, u32)>),
) {
    use Instruction as I;
    for (index, parameter) in beginning.parameters.iter().enumerate() {
        let place = add(to, I::StoreLocal(parameter.name), from, parameter.store);
        if index == 0 {
            places[beginning.start as usize] = place;
        }
    }
    for parameter in beginning.parameters.iter().rev() {
        let Some(default) = &parameter.default else { continue };
        let store = parameter.store;
        add(to, I::Lookup(parameter.name), from, store);
        add(to, I::IsUndefined, from, store);
        let jump = add(to, I::JumpIfFalse(0), from, store);
        for at in default.clone() {
            if let Some(instruction) = from.get(at) {
                places[at as usize] = add(to, instruction.clone(), from, at);
            }
        }
        let place = add(to, I::StoreLocal(parameter.name), from, store);
        places[store as usize] = place;
        added.push((jump, place + 1));
    }
}

/// The beginnings of macros with a default that is no constant.
fn beginnings<'s>(from: &Instructions<'s>) -> Vec<Beginning<'s>> {
    let mut beginnings = Vec::new();
    for at in 0.. {
        let Some(instruction) = from.get(at) else { break };
        let Instruction::BuildMacro(_, start, _) = instruction else { continue };
        // The names of the parameters are loaded just before.
        let names = at.checked_sub(1).and_then(|at| from.get(at));
        let Some(Instruction::LoadConst(names)) = names else { continue };
        let count = names.len().unwrap_or(0);
        beginnings.extend(beginning(from, *start, count).filter(|it| it.needs_order(from)));
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

impl Beginning<'_> {
    fn needs_order(&self, from: &Instructions<'_>) -> bool {
        let mut defaults = self.parameters.iter().filter_map(|it| it.default.clone());
        defaults.any(|mut it| it.any(|at| !matches!(from.get(at), Some(Instruction::LoadConst(_)))))
    }
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
        ];
        for (source, expected) in cases {
            let template = Template::new("macros", source).expect(source);
            assert_eq!(template.render(&Inputs::new(&[])).as_deref(), Ok(expected), "{source}");
        }
    }
}
