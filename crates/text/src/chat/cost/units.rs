//! What calls and instructions cost, by hand from the units in `budget.rs`: a byte read or written is 1, an entry of a
//! list 32, a node that is visited 16.

use minijinja::{AutoEscape, machinery};

use super::super::environment::ENVIRONMENT;
use super::super::program;
use super::*;

fn text(text: &str) -> Value {
    Value::from(text)
}

fn list(texts: &[&str]) -> Value {
    texts.iter().copied().map(Value::from).collect()
}

/// A list of 2 numbers: 65 as a list, 48 with all that is in it.
fn pair() -> Value {
    Value::from(vec![1, 2])
}

#[test]
fn calls_cost_what_their_functions_do() {
    let (ten, named) = (Value::from(10), Value::from_pairs([("count", 10)]));
    let cases: &[(&str, Cost, &[Value], u64)] = &[
        ("read", read, &[], 0),
        ("read", read, &[text("abc"), Value::from(5), pair()], 4 + 1 + 1),
        ("listing", listing, &[], 1),
        ("listing", listing, &[pair()], 65),
        ("listing", listing, &[text("abc"), text("xy")], (2 * 32 * 3 + 1) + (16 + 2)),
        ("written", written, &[text("abc"), Value::from(5)], 2 * (19 + 16)),
        ("sorting", sorting, &[], 0),
        ("sorting", sorting, &[list(&["b", "a"])], 16 * (16 + 2 * (16 + 6)) + 65),
        ("filling", filling, &[pair(), ten.clone()], (65 + 16) + 10 * 32),
        ("filling", filling, &[pair(), text(" 10 ")], (65 + 16 + 4) + 10 * 32),
        ("filling", filling, &[pair(), named], (65 + 16 + (16 + 6 * 5) + 16) + 10 * 32),
        ("replacing", replacing, &[text("banana"), text("an")], 1),
        (
            "replacing",
            replacing,
            &[text("banana"), text("an"), text("x")],
            2 * 17 + (16 + 6) + (16 + 2),
        ),
        // What is no text is written first, and may be all matches.
        ("replacing", replacing, &[Value::from(5), text("a"), text("x")], 16 * 17 + 16 + 17),
        ("indenting", indenting, &[], 1),
        ("indenting", indenting, &[text("a\nb"), Value::from(4)], 2 * (4 + 16) + 19),
        ("indenting", indenting, &[pair(), Value::from(4)], 48 * (4 + 16) + 48),
        ("formatting", formatting, &[], 1),
        (
            "formatting",
            formatting,
            &[text("%5d{}"), Value::from(7), text("ab")],
            2 * (5 + 7 + 16 + 18) + (16 + 5),
        ),
        ("formatting", formatting, &[text("%99999999999999999999d"), ten], u64::MAX),
        ("joining", joining, &[], 1),
        (
            "joining",
            joining,
            &[list(&["a", "b", "c"]), text(", ")],
            (16 + 3 * (16 + 6)) + 3 * (16 + 2),
        ),
        ("splitting", splitting, &[], 1),
        ("splitting", splitting, &[text("a,b,c"), text(",")], 3 * 64 + (16 + 5)),
        ("splitting", splitting, &[text("a b")], 2 * 64 + (16 + 3)),
        ("splitting", splitting, &[text("a b"), text("")], 2 * 64 + (16 + 3)),
        ("summing", summing, &[], 1),
        ("summing", summing, &[pair()], 48),
        ("summing", summing, &[pair(), Value::from(0)], 2 * (48 + 16)),
        ("summing", summing, &[list(&[]), Value::from(0)], 16 + 16),
    ];
    for (name, cost, arguments, expected) in cases {
        budget::set(1 << 20);
        assert_eq!(cost(arguments).ok(), Some(*expected), "{name} {arguments:?}");
    }
}

#[test]
fn the_largest_number_among_arguments_counts() {
    let map = Value::from_pairs([("width", Value::from(11)), ("fill", Value::from("3"))]);
    let cases: &[(&[Value], u64)] = &[
        (&[], 0),
        (&[Value::from(5), text("7"), Value::from(vec![9])], 7),
        (&[Value::from(5), map], 11),
        (&[Value::from(-5), text("x"), Value::from(2.0)], 2),
    ];
    for (arguments, expected) in cases {
        assert_eq!(number(arguments), *expected, "{arguments:?}");
    }
}

/// The units of running `source` with `x`, a text of `len` bytes, `l`, a list of `len` numbers, `m`, a map of `len`
/// entries whose keys have 5 bytes, and `p`, a pair.
fn units(source: &str, len: usize) -> u64 {
    budget::set(1 << 30);
    let compiled = program::compile(source, ENVIRONMENT.syntax()).expect(source);
    let mut written = String::new();
    let mut out = machinery::make_string_output(&mut written);
    let entries = (10_000..10_000 + len).map(|at| (at.to_string(), Value::from(1)));
    let context = Value::from_pairs([
        ("x", Value::from("a".repeat(len))),
        ("l", Value::from(vec![1; len])),
        ("m", Value::from_pairs(entries)),
        ("p", pair()),
    ]);
    budget::set(1 << 30);
    let (root, blocks) = (&compiled.root, &compiled.blocks);
    let done = machinery::eval(&ENVIRONMENT, root, context, blocks, &mut out, AutoEscape::None);
    done.expect(source);
    (1 << 30) - budget::left()
}

/// Expressions, and the units for each byte of the text or entry of the list.
#[test]
fn instructions_cost_by_the_size_of_their_operands() {
    let cases = [
        // Sums read and write both operands.
        ("x + x", 2 * 2),
        ("x ~ x", 2 * 2),
        // Products make a text of as many bytes or a list of as many characters.
        ("x * 3", 3 * (1 + 64)),
        ("3 * x", 3 * (1 + 64)),
        // Once for the product, and once for the list that it becomes.
        ("l * 3", 3 * 32 + 3 * 32),
        ("x == x", 1 + 1),
        ("x != 'b'", 1),
        ("'b' in x", 1),
        ("'a' < x < 'b'", 1 + 1),
        // Nodes are paid when they are visited and when they are compared.
        ("l == l", 2 * (16 + 16)),
        ("x[0:1]", 64),
        ("x[0]", 2),
        ("'%s' % x", 1),
        ("{x: 1}", 2),
        ("dict(a=x)", 2 + 2 * 6),
        ("dict(**m)", 32 + 2 * ((16 + 6 * 5) + 16) + 2 * 16 + 32),
        // Methods: the receiver is read for the call, then as the method does, and the result is paid for.
        ("x.count('b')", 1 + 2),
        ("x.replace('b', 'c')", 1 + 1 + 1),
        ("x.format()", 1 + 1 + 1),
        ("x.split('b')", 1 + 1),
        ("x.rsplit('b')", 1 + 1),
        ("x.splitlines()", 1 + 64),
        ("x.join(['b', 'b'])", 1 + 2 + 1),
        ("l.count(1)", 2 * 16 + 16),
        ("m.get('a')", 0),
        ("m.items()", 32 + 32),
        // Filters and tests.
        ("x | length", 1),
        ("x | upper", 1 + 1),
        ("x | string", 2 + 1),
        ("x | list", 64 + 32),
        ("l | batch(2)", 32 + 32 / 2),
        ("l | slice(2)", 32),
        ("x | replace('a', 'cc')", 1 + (16 + 2) + 2),
        ("x is string", 1),
        ("x is eq('b')", 2),
    ];
    for (expression, each) in cases {
        let source = format!("{{% if {expression} %}}{{% endif %}}");
        let grown = units(&source, 2000) - units(&source, 1000);
        assert_eq!(grown, 1000 * each, "{expression}");
    }
    let statements = [
        ("{{ x }}", 1),
        ("{% for c in x %}{% break %}{% endfor %}", 64),
        // A value is visited before it is stored.
        ("{% for e in l %}{% endfor %}", 32 + 16),
        ("{% set y = l %}", 16),
        ("{% set n = namespace() %}{% set n.y = l %}", 16),
        ("{% set y %}{{ x }}{% endset %}", 1),
    ];
    for (source, each) in statements {
        assert_eq!(units(source, 2000) - units(source, 1000), 1000 * each, "{source}");
    }
    assert_eq!(units(&"b".repeat(500), 0), 16 + 16 + 500, "text is written as values are");
    assert_eq!(units("{% if range(*p) %}{% endif %}", 0), 65, "a list of arguments is read");
    assert_eq!(units("{% set a, b = p %}", 0), 65 + 2 * 16);
}
