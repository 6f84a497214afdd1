//! Numbers of properties: which of the optional ones an object has does not matter, but how many.

use std::time::{Duration, Instant};

use super::schemas::{best_effort, check, fields};
use super::{constraint, matches, refusal};
use crate::Grammar;

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
            if !most.is_empty() && least <= required.len() + 1 {
                // llguidance's own counts, which take no maximum beside them.
                continue;
            }
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
    // A reference into what would be moved.
    let referred = r##"{"type":"object","properties":{"a":{},"b":{"$ref":"#/properties/a"},"c":{}},
        "minProperties":2,"additionalProperties":false}"##;
    assert!(refusal(&Grammar::json_schema(referred)).contains("#/minProperties"));
}
