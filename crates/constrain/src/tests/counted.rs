//! Numbers of properties: which of the optional ones an object has does not matter, but how many.

use std::time::{Duration, Instant};

use super::schemas::{best_effort, check, fields};
use super::{bytes, constraint, matches, refusal};
use crate::{Constraint, Grammar, Limits};

/// Every combination of properties, in the order of the schema.
#[test]
fn an_object_has_as_many_properties_as_it_needs() {
    // The number of properties, those that are required, and how many there must be.
    let cases: &[(usize, &[usize], usize)] = &[
        (2, &[], 2),
        (4, &[], 2),
        (5, &[], 3),
        (5, &[0], 3),
        (5, &[2, 4], 4),
        (6, &[1], 5),
        (6, &[], 1),
        (6, &[3, 5], 2),
    ];
    for &(count, required, least) in cases {
        for most in ["", r#","maxProperties":9"#] {
            let properties = fields("p", count, |_| r#"{"type":"integer","minimum":0}"#.to_owned());
            let names: Vec<String> = required.iter().map(|at| format!(r#""p{at}""#)).collect();
            let schema = format!(
                r#"{{"properties":{{{properties}}},"required":[{}],"minProperties":{least}{most}}}"#,
                names.join(",")
            );
            let made = constraint(&Grammar::json_schema(&schema));
            for set in 0..1u32 << count {
                let has = |at: &usize| set >> at & 1 == 1;
                let fields: Vec<String> =
                    (0..count).filter(has).map(|at| format!(r#""p{at}":{at}"#)).collect();
                let expected = required.iter().all(has) && fields.len() >= least;
                let text = format!("{{{}}}", fields.join(","));
                assert_eq!(matches(&made, &text), expected, "{schema}: {text}");
            }
            assert!(!matches(&made, r#"{"p0":0,"p1":1,"p2":2,"p3":3,"p4":4,"p5":5,"q":6}"#));
        }
    }
}

#[test]
fn properties_that_are_counted_have_any_schema() {
    let inner = r#"{"type":"object","properties":{"x":{"type":"integer","minimum":1},"y":{"const":1},"z":{"enum":["a","b"]}},"minProperties":2}"#;
    let items = format!(r#"{{"type":"array","items":{inner},"maxItems":2}}"#);
    let nested = format!(
        r#"{{"properties":{{"a":{items},"b":{{"type":"object","additionalProperties":{inner}}},"c":false,"d":{{}}}},
            "additionalProperties":false,"minProperties":2,"type":"object"}}"#
    );
    let within = |keyword: &str| {
        format!(r#"{{"{keyword}":[{inner},{{"type":"array","items":{{"type":"null"}}}}]}}"#)
    };
    let pair = r#"{"x":1,"y":1}"#;
    let choices: &[&str] = &[pair, r#"{"x":1,"z":"b"}"#, r#"{"y":1,"z":"a"}"#, "[null]"];
    let wrong: &[&str] = &[r#"{"x":1}"#, r#"{"x":0,"y":1}"#, r#"{"x":1,"w":1}"#, "{}", "[1]"];
    check(&[
        (
            &nested,
            &[
                &format!(r#"{{"a":[{pair}],"b":{{"k":{pair}}}}}"#),
                r#"{"a":[],"d":7}"#,
                r#"{"b":{},"d":null}"#,
            ],
            &[r#"{"a":[]}"#, r#"{"a":[],"c":1}"#, r#"{"a":[{"x":1}],"d":1}"#, r#"{"d":1,"e":1}"#],
        ),
        (&within("anyOf"), choices, wrong),
        (&within("oneOf"), choices, wrong),
        // A definition that refers to itself, beside one with a name that new ones could have.
        (
            r##"{"$ref":"#/$defs/node","$defs":{"counted1":{"type":"null"},"node":{"type":"object","additionalProperties":false,
                "properties":{"l":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}],"title":"left"},
                "r":{"anyOf":[{"$ref":"#/$defs/node"},{"$ref":"#/$defs/counted1"}]},"v":{"type":"integer"}},
                "minProperties":2}}}"##,
            &[
                r#"{"l":null,"r":null}"#,
                r#"{"l":{"r":null,"v":1},"v":2}"#,
                r#"{"r":{"l":null,"v":1},"v":2}"#,
            ],
            &[r#"{"l":null}"#, r#"{"l":{"v":1},"v":2}"#, r#"{"l":1,"v":2}"#],
        ),
    ]);
}

#[test]
fn objects_with_many_choices_are_refused() {
    let object = |count: usize, least: usize| {
        let properties = fields("p", count, |_| r#"{"type":"string","maxLength":3}"#.to_owned());
        format!(r#"{{"type":"object","properties":{{{properties}}},"minProperties":{least}}}"#)
    };
    // As many as are written out, and one more.
    for (count, least) in [(31, 2), (18, 3), (12, 6), (40, 40)] {
        let start = Instant::now();
        let mut made = constraint(&Grammar::json_schema(object(count, least)));
        r#"{"p0":"a","p1":""#.bytes().for_each(|byte| made.accept(u32::from(byte)).unwrap());
        assert!(made.mask().is_ok());
        assert!(start.elapsed() < Duration::from_secs(10), "{count}: {:?}", start.elapsed());
    }
    for (count, least) in [(32, 2), (19, 3), (13, 6), (30, 15)] {
        let error = refusal(&Grammar::json_schema(object(count, least)));
        let expected = "schema at #/minProperties: it is supported only if";
        assert!(error.starts_with(expected), "{error}");
        let made = constraint(&best_effort(&object(count, least)));
        assert!(matches(&made, r#"{"p3":"a"}"#) && !matches(&made, r#"{"p3":1}"#));
        assert!(made.notes()[0].contains("minProperties"), "{:?}", made.notes());
    }
    // All schemas of a grammar count.
    let tool = |name: &str| {
        let options = format!(r#""title":"{name}","x-guidance":{{"best_effort":true}}"#);
        format!("%json {},{options}}}", object(31, 2).strip_suffix('}').unwrap())
    };
    let two = constraint(&Grammar::lark(format!("start: {} | {}", tool("f"), tool("g"))));
    assert_eq!(two.notes().len(), 1, "{:?}", two.notes());
    // Our own keyword is no way around the limit.
    let many = object(30, 15);
    let marked = format!(r#"{},"x-bilayer-counted":true}}"#, many.strip_suffix('}').unwrap());
    assert!(refusal(&Grammar::json_schema(marked)).contains("#/minProperties"));
    // A reference into what would be moved.
    let referred = r##"{"type":"object","properties":{"a":{},"b":{"$ref":"#/properties/a"},"c":{}},
        "minProperties":2,"additionalProperties":false}"##;
    assert!(refusal(&Grammar::json_schema(referred)).contains("#/minProperties"));
}

/// The options of an outer object share what is in them.
#[test]
fn counted_objects_within_each_other_are_written_once() {
    let others = fields("n", 4, |_| r#"{"type":"null"}"#.to_owned());
    let values: Vec<String> = (0..200).map(|i| format!("\"value{i}\"")).collect();
    let innermost = format!(r#"{{"enum":[{}]}}"#, values.join(","));
    let object = |inner: String, _| {
        format!(r#"{{"type":"object","properties":{{"p":{inner},{others}}},"minProperties":3}}"#)
    };
    let nested = (0..8).fold(innermost, object);
    let start = Instant::now();
    for grammar in [Grammar::json_schema(&nested), best_effort(&nested)] {
        let made = constraint(&grammar);
        let text = |last: &str| {
            let last = format!(r#"{{"p":"value7"{last}}}"#);
            (0..7).fold(last, |inner, _| format!(r#"{{"p":{inner},"n1":null,"n3":null}}"#))
        };
        assert!(matches(&made, &text(r#","n0":null,"n2":null"#)), "{:?}", made.notes());
        assert!(!matches(&made, &text(r#","n0":null"#)), "{:?}", made.notes());
        assert!(made.notes().is_empty(), "{:?}", made.notes());
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// The number is left out where a schema allows that and its choices are too much.
#[test]
fn choices_that_cannot_be_compiled_are_left_out() {
    let least = "minProperties: the grammar of its choices cannot be compiled";
    let values: Vec<String> = (0..20).map(|i| format!("\"value{i}\"")).collect();
    let enums = fields("p", 25, |_| format!(r#"{{"enum":[{}]}}"#, values.join(",")));
    let enums = format!(r#"{{"type":"object","properties":{{{enums}}},"minProperties":2}}"#);
    let closed = |name: &str| {
        let fields = fields(name, 16, |_| r#"{"type":"string"}"#.to_owned());
        format!(
            r#"{{"type":"object","properties":{{{fields}}},"additionalProperties":false,"minProperties":2}}"#
        )
    };
    let all = format!(r#"{{"allOf":[{},{}]}}"#, closed("p"), closed("p"));
    // These share their values.
    let made = constraint(&best_effort(&enums));
    assert!(matches(&made, r#"{"p3":"value1","p4":"value2"}"#), "{:?}", made.notes());
    assert!(!matches(&made, r#"{"p3":"value1"}"#) && made.notes().is_empty(), "{:?}", made.notes());
    let made = constraint(&best_effort(&all));
    assert!(matches(&made, r#"{"p3":"a"}"#) && !matches(&made, r#"{"p3":1}"#));
    let notes = ["#/allOf/0", "#/allOf/1"].map(|at| format!("schema 'f' at {at}/{least}"));
    assert_eq!(made.notes(), notes);
    // Each of two can be compiled, but not both together.
    let few = fields("p", 12, |_| r#"{"type":"string"}"#.to_owned());
    let tool = |name: &str| {
        let rest =
            format!(r#""minProperties":2,"title":"{name}","x-guidance":{{"best_effort":true}}}}"#);
        format!(r#"%json {{"type":"object","properties":{{{few}}},{rest}"#)
    };
    let made = |source: String, symbols: usize| {
        let limits = Limits { symbols, ..Limits::default() };
        Constraint::new(&bytes(), &Grammar::lark(format!("start: {source}")), limits)
    };
    let fits =
        |symbols: &usize| made(tool("f"), *symbols).is_ok_and(|made| made.notes().is_empty());
    let mut steps = std::iter::successors(Some(1000), |symbols| Some(symbols * 5 / 4)).take(24);
    let symbols = steps.find(fits).unwrap();
    let made = made(format!("{} | {}", tool("f"), tool("g")), symbols).unwrap();
    assert!(matches(&made, r#"{"p3":"a"}"#) && !matches(&made, r#"{"p3":1}"#));
    let notes = ["f", "g"].map(|name| format!("schema '{name}' at #/{least}"));
    assert_eq!(made.notes(), notes);
}

/// Faults within a counted object are found, and the number stays.
#[test]
fn faults_in_counted_objects_are_those_of_the_schema() {
    let most = r#"{"type":"object","properties":{"x":{},"y":{},"z":{}},"maxProperties":2}"#;
    let object = |field: &str| {
        format!(
            r##"{{"type":"object","properties":{{"a":{field},"b":{{"type":"integer"}},"c":{{"$ref":"#/$defs/n"}}}},
                "additionalProperties":false,"minProperties":2,"$defs":{{"n":{{"type":"null","title":"none"}}}}}}"##
        )
    };
    let within = |field: &str| {
        let inner = r##"{"type":"object","properties":{"i":{"$ref":"#/$defs/n"},"j":{},"k":{}},"minProperties":2}"##;
        object(&format!(
            r#"{{"type":"object","properties":{{"o":{inner},"w":{field}}},"required":["w"]}}"#
        ))
    };
    for (schema, path, text, wrong) in [
        (object(most), "#/properties/a", r#"{"a":{"x":1,"y":1,"z":1},"b":1}"#, r#"{"b":1}"#),
        (
            within(most),
            "#/properties/a/properties/w",
            r#"{"a":{"o":{"i":null,"k":1},"w":{"x":1,"y":1,"z":1}},"b":1}"#,
            r#"{"a":{"o":{"i":null},"w":{}},"b":1}"#,
        ),
    ] {
        let error = refusal(&Grammar::json_schema(&schema));
        assert!(error.starts_with(&format!("schema at {path}/maxProperties: ")), "{error}");
        let made = constraint(&best_effort(&schema));
        let [note] = made.notes() else { panic!("{:?}", made.notes()) };
        assert!(note.starts_with(&format!("schema 'f' at {path}/maxProperties: ")), "{note}");
        assert!(matches(&made, text) && !matches(&made, wrong), "{path}");
        assert!(!matches(&made, r#"{"b":1,"c":1}"#), "{path}");
    }
    let error = refusal(&Grammar::json_schema(within(r#"{"type":"strin"}"#)));
    assert_eq!(error, "schema at #/properties/a/properties/w: Invalid type: strin");
}
