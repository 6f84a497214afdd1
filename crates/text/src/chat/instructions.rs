//! The functions that a template's instructions call, by names that are no identifiers, and copies of instructions.

use minijinja::machinery::{Instruction, Instructions};

/// Charges for the entries of all operands.
pub const READ: &str = " read";
/// Charges for all that is in the operands.
pub const WRITTEN: &str = " written";
/// Charges for a method's arguments.
pub const CALL: &str = " call";
/// Charges for a comparison or search.
pub const COMPARE: &str = " compare";
/// Charges for a sum.
pub const ADD: &str = " add";
/// Charges for a product.
pub const TIMES: &str = " times";
/// Computes `%`, of texts as well, in place of the instruction.
pub const PERCENT: &str = " percent";
/// Marks the arguments of a macro that are undefined, before a call.
pub const ARGUMENTS: &str = " arguments";
/// Computes an argument of a macro from what [`ARGUMENTS`] made.
pub const ARGUMENT: &str = " argument";
/// Computes a slice as Python does, in place of the instruction.
pub const SLICE: &str = " slice";
/// Charges for a comparison by order and refuses values that Python does not order.
pub const ORDER: &str = " order";
/// Computes `~`, with floats as Python writes them, in place of the instruction.
pub const CONCAT: &str = " concat";
/// Checks an assignment to an attribute.
pub const ASSIGN: &str = " assign";
/// Checks the nesting of a value and returns it.
pub const KEEP: &str = " keep";
/// Turns a lazy sequence into a list.
pub const LISTED: &str = " listed";

/// Appends an instruction with the place in the source of that at `at` of `from`. Returns its own place.
pub fn add<'s>(
    to: &mut Instructions<'s>,
    instruction: Instruction<'s>,
    from: &Instructions<'s>,
    at: u32,
) -> u32 {
    let line = from.get_line(at).and_then(|line| u16::try_from(line).ok());
    match (from.get_span(at), line) {
        (Some(span), _) => to.add_with_span(instruction, span),
        (None, Some(line)) => to.add_with_line(instruction, line),
        (None, None) => to.add(instruction),
    }
}

/// The place of another instruction that an instruction holds.
pub fn target<'i>(instruction: &'i mut Instruction<'_>) -> Option<&'i mut u32> {
    use Instruction as I;
    match instruction {
        I::Jump(target)
        | I::JumpIfFalse(target)
        | I::JumpIfFalseOrPop(target)
        | I::JumpIfTrueOrPop(target)
        | I::Iterate(target)
        | I::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}
