//! Operations on single scalars, as bits, and constants.

use naga::{BinaryOperator as Bin, Expression, Handle, Literal, Module, ScalarKind, UnaryOperator};

use crate::layout::scalars;

/// A literal's bits.
pub fn word_of(literal: &Literal) -> Result<u32, String> {
    match *literal {
        Literal::F32(value) => Ok(value.to_bits()),
        Literal::U32(value) => Ok(value),
        Literal::I32(value) => Ok(value.cast_unsigned()),
        Literal::Bool(value) => Ok(u32::from(value)),
        other => Err(format!("a literal {other:?}")),
    }
}

/// An operation on one scalar of a kind.
pub fn unary(op: UnaryOperator, word: u32, kind: Option<ScalarKind>) -> u32 {
    match op {
        UnaryOperator::Negate if kind == Some(ScalarKind::Float) => {
            (-f32::from_bits(word)).to_bits()
        }
        UnaryOperator::Negate => word.wrapping_neg(),
        UnaryOperator::LogicalNot => u32::from(word == 0),
        UnaryOperator::BitwiseNot => !word,
    }
}

/// An operation on two scalars of a kind; comparisons give 1 or 0.
pub fn binary(op: Bin, a: u32, b: u32, kind: Option<ScalarKind>) -> u32 {
    if kind == Some(ScalarKind::Float) {
        let (a, b) = (f32::from_bits(a), f32::from_bits(b));
        let number = match op {
            Bin::Add => a + b,
            Bin::Subtract => a - b,
            Bin::Multiply => a * b,
            Bin::Divide => a / b,
            Bin::Modulo => a % b,
            _ => return u32::from(compared(op, a.partial_cmp(&b))),
        };
        return number.to_bits();
    }
    let signed = kind == Some(ScalarKind::Sint);
    let (sa, sb) = (a.cast_signed(), b.cast_signed());
    match op {
        Bin::Add => a.wrapping_add(b),
        Bin::Subtract => a.wrapping_sub(b),
        Bin::Multiply => a.wrapping_mul(b),
        Bin::Divide if signed => sa.checked_div(sb).unwrap_or(0).cast_unsigned(),
        Bin::Divide => a.checked_div(b).unwrap_or(0),
        Bin::Modulo if signed => sa.checked_rem(sb).unwrap_or(0).cast_unsigned(),
        Bin::Modulo => a.checked_rem(b).unwrap_or(0),
        Bin::And | Bin::LogicalAnd => a & b,
        Bin::InclusiveOr | Bin::LogicalOr => a | b,
        Bin::ExclusiveOr => a ^ b,
        Bin::ShiftLeft => a.wrapping_shl(b),
        Bin::ShiftRight if signed => sa.wrapping_shr(b).cast_unsigned(),
        Bin::ShiftRight => a.wrapping_shr(b),
        _ if signed => u32::from(compared(op, Some(sa.cmp(&sb)))),
        _ => u32::from(compared(op, Some(a.cmp(&b)))),
    }
}

fn compared(op: Bin, order: Option<std::cmp::Ordering>) -> bool {
    let Some(order) = order else { return op == Bin::NotEqual };
    match op {
        Bin::Equal => order.is_eq(),
        Bin::NotEqual => order.is_ne(),
        Bin::Less => order.is_lt(),
        Bin::LessEqual => order.is_le(),
        Bin::Greater => order.is_gt(),
        _ => order.is_ge(),
    }
}

/// A scalar of a kind as one of another.
pub fn converted(word: u32, from: Option<ScalarKind>, to: ScalarKind) -> u32 {
    let float = f32::from_bits(word);
    match (from, to) {
        (Some(ScalarKind::Float), ScalarKind::Sint) => (float as i32).cast_unsigned(),
        (Some(ScalarKind::Float), ScalarKind::Uint) => float as u32,
        (Some(ScalarKind::Sint), ScalarKind::Float) => (word.cast_signed() as f32).to_bits(),
        (Some(ScalarKind::Uint | ScalarKind::Bool), ScalarKind::Float) => (word as f32).to_bits(),
        (_, ScalarKind::Bool) => u32::from(word != 0),
        _ => word,
    }
}

/// A constant expression of the module.
pub fn constant(module: &Module, at: Handle<Expression>) -> Result<Vec<u32>, String> {
    match &module.global_expressions[at] {
        Expression::Literal(literal) => Ok(vec![word_of(literal)?]),
        Expression::ZeroValue(ty) => Ok(vec![0; scalars(module, *ty)]),
        Expression::Constant(named) => constant(module, module.constants[*named].init),
        Expression::Splat { size, value } => Ok(vec![constant(module, *value)?[0]; *size as usize]),
        Expression::Compose { components, .. } => {
            let parts = components.iter().map(|component| constant(module, *component));
            Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
        }
        other => Err(format!("a constant {other:?}")),
    }
}
