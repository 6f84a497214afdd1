//! A template's instructions, each preceded by what charges for it.
//!
//! An instruction with operands whose cost is not constant is preceded by a call of a function that takes the operands
//! from the stack, draws on the [budget](super::budget), and puts them back. The functions' names are no identifiers, so
//! a template can neither call nor replace them.

use std::collections::BTreeMap;

use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, ast, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value};

use super::budget::{ENTRY, shallow, spend};
use super::instructions::{
    ADD, ARGUMENTS, ASSIGN, CALL, COMPARE, CONCAT, KEEP, LISTED, ORDER, PERCENT, READ, SLICE,
    TIMES, WRITTEN, add, target,
};
use super::macros::with_ordered_defaults;

/// Limit on the source in bytes; the largest known have some 20,000.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;

/// Limit on the tokens between the braces of one tag. Operators and filters in a row nest the syntax tree, which is
/// walked recursively.
pub const TAG_TOKENS_MAX: usize = 2048;

/// Limit on `elif`, each of which nests the syntax tree.
pub const ELIFS_MAX: usize = 512;

/// A compiled template.
pub struct Program<'s> {
    /// The main instructions.
    pub root: Instructions<'s>,
    /// Those of named blocks.
    pub blocks: BTreeMap<&'s str, Instructions<'s>>,
}

/// Compiles `source`. Constants that the compiler computes draw on the budget.
///
/// # Errors
/// It is not valid, or exceeds a limit.
pub fn compile<'s>(source: &'s str, syntax: &SyntaxConfig) -> Result<Program<'s>, Error> {
    check(source, syntax)?;
    let name = super::NAME;
    let tree = parse(source, name, syntax.clone())?;
    check_statement(&tree)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    let (root, blocks) = generator.finish();
    let finished = |part| charged(&with_ordered_defaults(part)?);
    let blocks = blocks.into_iter().map(|(name, block)| Ok((name, finished(block)?)));
    Ok(Program { blocks: blocks.collect::<Result<_, Error>>()?, root: finished(root)? })
}

/// Checks the limits on a source.
fn check(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    if source.len() > SOURCE_BYTES_MAX {
        let reason = format!("the source has {} bytes; {SOURCE_BYTES_MAX} at most", source.len());
        return Err(Error::new(ErrorKind::SyntaxError, reason));
    }
    let (mut tokens, mut elifs) = (0, 0);
    // Errors are those of the parser.
    for (token, _) in tokenize(source, false, syntax.clone()).map_while(Result::ok) {
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => tokens = 0,
            Token::Ident("elif") => elifs += 1,
            _ => {}
        }
        tokens += 1;
        if tokens > TAG_TOKENS_MAX {
            let reason = format!("a tag has more than {TAG_TOKENS_MAX} words and operators");
            return Err(Error::new(ErrorKind::SyntaxError, reason));
        }
        if elifs > ELIFS_MAX {
            let reason = format!("there are more than {ELIFS_MAX} elif");
            return Err(Error::new(ErrorKind::SyntaxError, reason));
        }
    }
    Ok(())
}

/// The instructions with charges.
fn charged<'s>(from: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let mut to = Instructions::new(from.name(), from.source());
    // Where each instruction and its charge begin.
    let mut places = Vec::new();
    let mut count = 0;
    for at in 0.. {
        places.push(count);
        let Some(instruction) = from.get(at) else { break };
        for instruction in with_charge(instruction)? {
            count = add(&mut to, instruction, from, at) + 1;
        }
    }
    for at in 0..count {
        if let Some(target) = to.get_mut(at).and_then(target) {
            let place = places.get(*target as usize).copied();
            *target = place.ok_or_else(|| super::budget::invalid("a jump has no target"))?;
        }
    }
    Ok(to)
}

/// An instruction with its charge.
fn with_charge<'s>(instruction: &Instruction<'s>) -> Result<Vec<Instruction<'s>>, Error> {
    use Instruction as I;
    let too_many = || super::budget::invalid("a map or call has too many entries");
    let (charge, operands) = match instruction {
        // Captured text is not bounded by the output, so all text is written by the formatter, which charges.
        I::EmitRaw(text) => {
            return Ok(vec![I::LoadConst(Value::from_safe_string((*text).to_owned())), I::Emit]);
        }
        I::StoreLocal(_) => {
            return Ok(vec![I::CallFunction(KEEP, Some(1)), instruction.clone()]);
        }
        I::Rem => return Ok(vec![I::CallFunction(PERCENT, Some(2))]),
        I::StringConcat => return Ok(vec![I::CallFunction(CONCAT, Some(2))]),
        I::Slice => return Ok(vec![I::CallFunction(SLICE, Some(4))]),
        I::CallFunction(name, Some(count @ 1..)) => {
            let all = count.checked_add(1).ok_or_else(too_many)?;
            return Ok(vec![
                I::LoadConst(Value::from(*name)),
                I::CallFunction(ARGUMENTS, Some(all)),
                I::UnpackList(usize::from(*count)),
                instruction.clone(),
            ]);
        }
        I::SetAttr(_) => (ASSIGN, 2),
        I::GetItem => (ADD, 2),
        I::Add => (ADD, 2),
        I::Mul => (TIMES, 2),
        I::Gt | I::Gte | I::Lt | I::Lte => (ORDER, 2),
        I::CompareAndPreserve(op) if is_order(op) => (ORDER, 2),
        I::Eq | I::Ne | I::In | I::CompareAndPreserve(_) => (COMPARE, 2),
        I::PushLoop(_) | I::UnpackList(_) => (READ, 1),
        I::UnpackLists(count) | I::MergeKwargs(count) => (READ, *count),
        I::BuildMap(pairs) | I::BuildKwargs(pairs) => (WRITTEN, 2 * pairs),
        I::CallMethod(_, Some(count)) => (CALL, usize::from(*count)),
        I::CallMethod(_, None) => {
            return Err(super::budget::invalid("a method's arguments cannot be unpacked"));
        }
        _ => return Ok(vec![instruction.clone()]),
    };
    let count = u16::try_from(operands).map_err(|_| too_many())?;
    let mut group =
        vec![I::CallFunction(charge, Some(count)), I::UnpackList(operands), instruction.clone()];
    if matches!(instruction, I::Mul | I::Add) {
        group.push(I::CallFunction(LISTED, Some(1)));
    }
    Ok(group)
}

/// Whether an operator of a chain of comparisons compares by order. Its type has no public name.
fn is_order(operator: &impl std::fmt::Debug) -> bool {
    matches!(format!("{operator:?}").as_str(), "Lt" | "Lte" | "Gt" | "Gte")
}

/// Refuses products of constants that would take much memory, since they are computed during compilation.
fn check_statement(statement: &ast::Stmt<'_>) -> Result<(), Error> {
    use ast::Stmt as S;
    let (expressions, bodies): (Vec<&ast::Expr<'_>>, Vec<&[ast::Stmt<'_>]>) = match statement {
        S::Template(it) => (vec![], vec![&it.children]),
        S::EmitExpr(it) => (vec![&it.expr], vec![]),
        S::ForLoop(it) => {
            let filter = it.filter_expr.as_ref();
            ([&it.iter].into_iter().chain(filter).collect(), vec![&it.body, &it.else_body])
        }
        S::IfCond(it) => (vec![&it.expr], vec![&it.true_body, &it.false_body]),
        S::WithBlock(it) => {
            (it.assignments.iter().map(|(_, value)| value).collect(), vec![&it.body])
        }
        S::Set(it) => (vec![&it.target, &it.expr], vec![]),
        S::SetBlock(it) => (it.filter.iter().collect(), vec![&it.body]),
        S::AutoEscape(it) => (vec![&it.enabled], vec![&it.body]),
        S::FilterBlock(it) => (vec![&it.filter], vec![&it.body]),
        S::Block(it) => (vec![], vec![&it.body]),
        // The parser takes any expression, of which the code generator knows names alone.
        S::Import(it) if !matches!(it.name, ast::Expr::Var(_)) => {
            return Err(Error::new(ErrorKind::SyntaxError, "`import` needs a name behind `as`"));
        }
        S::Import(it) => (vec![&it.expr], vec![]),
        S::FromImport(it) => (vec![&it.expr], vec![]),
        S::Extends(it) => (vec![&it.name], vec![]),
        S::Include(it) => (vec![&it.name], vec![]),
        S::Macro(it) => (it.defaults.iter().collect(), vec![&it.body]),
        S::CallBlock(it) => {
            let defaults = it.macro_decl.defaults.iter();
            (arguments(&it.call.args).chain(defaults).collect(), vec![&it.macro_decl.body])
        }
        S::Do(it) => (arguments(&it.call.args).chain([&it.call.expr]).collect(), vec![]),
        S::EmitRaw(_) | S::Continue(_) | S::Break(_) => return Ok(()),
    };
    expressions.into_iter().try_for_each(|it| check_expression(it).map(drop))?;
    bodies.into_iter().flatten().try_for_each(check_statement)
}

/// What is known about a constant that the compiler computes.
struct Constant {
    /// Its size, or more.
    bytes: u64,
    /// Its value if it is an integer in the source.
    number: Option<u64>,
    /// Whether it is a text or list, which a product repeats.
    repeats: bool,
}

/// Checks an expression and what is in it. Returns what is known about a constant.
fn check_expression(expression: &ast::Expr<'_>) -> Result<Option<Constant>, Error> {
    use ast::Expr as E;
    if let E::Const(it) = expression {
        let number = it.value.as_usize().map(|number| number as u64);
        let (bytes, repeats) = (shallow(&it.value), it.value.as_str().is_some());
        return Ok(Some(Constant { bytes, number, repeats }));
    }
    let mut constants = Vec::new();
    let parts = parts(expression);
    for part in &parts {
        constants.extend(check_expression(part)?);
    }
    let is_folded = matches!(
        expression,
        E::BinOp(_) | E::UnaryOp(_) | E::Compare(_) | E::List(_) | E::Tuple(_) | E::Map(_)
    );
    if !is_folded || constants.len() < parts.len() {
        return Ok(None);
    }
    let is_list = matches!(expression, E::List(_) | E::Tuple(_) | E::Map(_));
    let mut bytes = constants.iter().map(|part| part.bytes + ENTRY).sum();
    if let (E::BinOp(it), [left, right]) = (expression, &*constants)
        && matches!(it.op, ast::BinOpKind::Mul)
    {
        let repeated = |list: &Constant, times: &Constant| match list.repeats {
            true => list.bytes.saturating_mul(times.number.unwrap_or(u64::MAX)),
            false => 1,
        };
        bytes = repeated(left, right).max(repeated(right, left));
    }
    spend(bytes)?;
    let repeats = is_list || constants.iter().any(|part| part.repeats);
    Ok(Some(Constant { bytes, number: None, repeats }))
}

/// The expressions that an expression consists of.
fn parts<'a, 's>(expression: &'a ast::Expr<'s>) -> Vec<&'a ast::Expr<'s>> {
    use ast::Expr as E;
    match expression {
        E::Var(_) | E::Const(_) => vec![],
        E::Slice(it) => {
            let bounds = [&it.start, &it.stop, &it.step];
            [&it.expr].into_iter().chain(bounds.into_iter().flatten()).collect()
        }
        E::UnaryOp(it) => vec![&it.expr],
        E::BinOp(it) => vec![&it.left, &it.right],
        E::Compare(it) => [&it.expr].into_iter().chain(it.ops.iter().map(|op| &op.expr)).collect(),
        E::IfExpr(it) => [&it.test_expr, &it.true_expr].into_iter().chain(&it.false_expr).collect(),
        E::Filter(it) => it.expr.iter().chain(arguments(&it.args)).collect(),
        E::Test(it) => [&it.expr].into_iter().chain(arguments(&it.args)).collect(),
        E::GetAttr(it) => vec![&it.expr],
        E::GetItem(it) => vec![&it.expr, &it.subscript_expr],
        E::Call(it) => [&it.expr].into_iter().chain(arguments(&it.args)).collect(),
        E::List(it) => it.items.iter().collect(),
        E::Tuple(it) => it.items.iter().collect(),
        E::Map(it) => it.keys.iter().chain(&it.values).collect(),
    }
}

fn arguments<'a, 's>(arguments: &'a [ast::CallArg<'s>]) -> impl Iterator<Item = &'a ast::Expr<'s>> {
    use ast::CallArg as A;
    arguments.iter().map(|argument| match argument {
        A::Pos(value) | A::Kwarg(_, value) | A::PosSplat(value) | A::KwargSplat(value) => value,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Template;
    use crate::Error;

    /// The reason why a source is refused.
    fn refused(source: &str) -> Option<String> {
        let error = Template::new("limits", source).err()?;
        match error {
            Error::Template { reason, .. } => Some(reason),
            other => Some(other.to_string()),
        }
    }

    /// As many sources as there are limits, each at its limit and above it.
    #[test]
    fn sources_are_refused_above_their_limits() {
        let items = |count: usize, last: &str| format!("{{{{ [{}{last}] }}}}", "1,".repeat(count));
        let elifs =
            |count: usize| format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(count));
        let cases = [
            ("a".repeat(256 << 10), "a".repeat((256 << 10) + 1), "262145 bytes; 262144 at most"),
            // Two braces, two brackets, 1021 numbers with a comma each, and a sign with the last: 2048.
            (items(1021, "-1"), items(1022, "1"), "more than 2048 words and operators"),
            (elifs(512), elifs(513), "more than 512 elif"),
        ];
        for (fine, broken, expected) in cases {
            assert_eq!(refused(&fine), None, "{expected}");
            let reason = refused(&broken).expect(expected);
            assert!(reason.contains(expected), "{reason}");
        }
        // Each tag counts for itself.
        assert_eq!(refused(&items(1021, "1").repeat(3)), None);
    }

    #[test]
    fn an_import_is_given_a_name() {
        for target in ["i|map('upper')", "1", "i.j"] {
            let reason = refused(&format!("{{% import 'chat' as {target} %}}")).expect(target);
            assert!(reason.contains("`import` needs a name"), "{target}: {reason}");
        }
        assert_eq!(refused("{% import 'chat' as i %}"), None);
    }

    /// Products of constants are computed by the compiler, which has 16 MiB for them. Entries count 32 more.
    #[test]
    fn constants_are_bounded() {
        let cases = [
            // A text of one byte is 2, of any number of times.
            ("'a' * N", (16 << 20) / 2),
            ("N * 'a'", (16 << 20) / 2),
            // The list is paid for as well as what it is repeated to.
            ("(1, 2) * N", (16 << 20) / 66 - 1),
            ("['', {}] * N", (16 << 20) / 65 - 1),
            ("('a' + 'b') * N", (16 << 20) / 68 - 1),
        ];
        for (product, most) in cases {
            let source =
                |times: u64| format!("{{{{ {} }}}}", product.replace('N', &times.to_string()));
            assert_eq!(refused(&source(most)), None, "{product}");
            let reason = refused(&source(most + 1)).expect(product);
            assert!(reason.contains("too much memory or time"), "{product}: {reason}");
        }
        // A number that is computed may be any.
        assert!(refused("{{ 'a' * (1 + 1) }}").is_some());
        // What is not computed by the compiler is paid for when it runs.
        for source in ["{{ x * 99999999 }}", "{{ ('a' | upper) * 99999999 }}", "{{ 2 * 99999999 }}"]
        {
            assert_eq!(refused(source), None, "{source}");
        }
    }
}
