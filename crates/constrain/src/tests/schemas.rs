//! Schemas as generators and clients write them: what says nothing, what is written in other ways, what may be left out.

use std::cell::Cell;

use serde_json::{Value, json};

use super::{constraint, matches, refusal};
use crate::Grammar;
use crate::schema::lenient;
use crate::schema::trials::Trials;

/// Each schema, texts that it allows, and texts that it does not.
pub(super) fn check(cases: &[(&str, &[&str], &[&str])]) {
    for (schema, allowed, refused) in cases {
        let made = constraint(&Grammar::json_schema(*schema));
        for text in *allowed {
            assert!(matches(&made, text), "{schema}: {text}");
        }
        for text in *refused {
            assert!(!matches(&made, text), "{schema}: {text}");
        }
    }
}

/// Pydantic's unions with a discriminator are `oneOf` of references.
#[test]
fn options_are_told_apart_by_a_required_property() {
    let union = |keyword: &str, second: &str, required: &str| {
        format!(
            r##"{{"{keyword}":[{{"$ref":"#/$defs/Cat"}},{{"$ref":"#/$defs/Dog"}}],
            "discriminator":{{"propertyName":"kind"}},"$defs":{{
            "Cat":{{"type":"object","properties":{{"kind":{{"const":"cat","type":"string"}},
            "lives":{{"type":"integer"}}}},"required":["kind","lives"]}},
            "Dog":{{"type":"object","properties":{{"kind":{second},"age":{{"type":"integer"}}}},
            "required":[{required}]}}}}}}"##
        )
    };
    for second in
        [r#"{"const":"dog","type":"string"}"#, r#"{"enum":["dog","hound"],"type":"string"}"#]
    {
        let schema = union("oneOf", second, r#""kind","age""#);
        let allowed = [r#"{"kind":"cat","lives":9}"#, r#"{"kind":"dog","age":3}"#];
        let refused = [r#"{"kind":"cat","age":3}"#, r#"{"kind":"cow","age":3}"#];
        check(&[(&schema, &allowed, &refused)]);
    }
    // What references name stays where it is.
    let schema = r##"{"oneOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},
        {"type":"object","properties":{"k":{"const":"b"},"next":{"$ref":"#/oneOf/0"}},"required":["k","next"]}]}"##;
    check(&[(schema, &[r#"{"k":"b","next":{"k":"a"}}"#], &[r#"{"k":"b","next":1}"#])]);
    // Both may be a cat that has what the other has.
    let schema = union("oneOf", r#"{"enum":["dog","cat"],"type":"string"}"#, r#""kind","age""#);
    let error = refusal(&Grammar::json_schema(schema));
    assert!(error.contains("must exclude each other"), "{error}");
}

#[test]
fn keywords_that_say_nothing_are_left_out() {
    let records = [
        r#""propertyNames":{"type":"string"}"#,
        r#""propertyNames":true"#,
        r#""propertyNames":{"description":"a name"}"#,
        r#""unevaluatedProperties":true"#,
        r#""unevaluatedProperties":{}"#,
        r#""dependentRequired":{}"#,
        r#""dependentSchemas":{}"#,
        r#""not":false"#,
        r#""then":{"required":["b"]},"else":false"#,
        r#""if":{"required":["b"]}"#,
        r#""$dynamicAnchor":"meta""#,
        r#""properties":null,"required":null,"minProperties":null,"enum":null,"format":null"#,
    ];
    for keywords in records {
        let schema = format!(
            r#"{{"type":"object",{keywords},"additionalProperties":{{"type":"integer"}}}}"#
        );
        check(&[(&schema, &[r#"{"a":1}"#, "{}"], &[r#"{"a":"x"}"#])]);
    }
    check(&[
        (
            r#"{"type":"array","items":{"type":"null"},"minContains":2,"maxContains":3}"#,
            &["[]"],
            &["[1]"],
        ),
        (r#"{"type":"string","format":"password","minLength":2}"#, &[r#""abc""#], &[r#""a""#]),
        (r#"{"type":"string","format":"uri-reference"}"#, &[r#""/a b""#], &[]),
        (r#"{"type":"integer","format":"int32"}"#, &["5"], &["5.5"]),
        (r#"{"type":"string","format":"date"}"#, &[r#""2020-02-29""#], &[r#""2020""#]),
        (
            r#"{"type":"object","properties":{"a":{"not":{}}},"additionalProperties":true}"#,
            &["{}", r#"{"b":1}"#],
            &[r#"{"a":1}"#],
        ),
        (r#"{"const":null}"#, &["null"], &["1"]),
    ]);
    for schema in [r#"{"not":{}}"#, r#"{"type":"string","not":true}"#] {
        let error = refusal(&Grammar::json_schema(schema));
        assert_eq!(error, "schema at #: the schema false allows no value");
    }
    let error = refusal(&Grammar::json_schema(r#"{"propertyNames":{"maxLength":3}}"#));
    assert_eq!(error, "schema at #/propertyNames: the keyword `propertyNames` is not supported");
}

#[test]
fn counts_may_be_written_as_decimals() {
    check(&[
        (
            r#"{"type":"string","minLength":1.0,"maxLength":2.0}"#,
            &[r#""ab""#],
            &[r#""""#, r#""abc""#],
        ),
        (r#"{"items":{"maxItems":1e0,"type":"array"},"type":"array"}"#, &["[[1]]"], &["[[1,2]]"]),
    ]);
}

#[test]
fn bounds_may_be_those_of_integer_types() {
    check(&[
        (
            r#"{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}"#,
            &["0", "-1", "9223372036854774784", "-9223372036854774784"],
            &["9223372036854775808", "-9223372036854775809", "10000000000000000000"],
        ),
        (
            r#"{"type":"integer","minimum":0,"maximum":18446744073709551615}"#,
            &["0", "9000000000000000000"],
            &["-1", "18446744073709551616"],
        ),
        (
            r#"{"type":"number","minimum":-1.7976931348623157e308,"maximum":3.4028235e38}"#,
            &["0.5", "-1.5", "12"],
            &["1e40"],
        ),
        (
            r#"{"type":"integer","minimum":1000000000000000001}"#,
            &["2000000000000000000"],
            &["0", "-2000000000000000000"],
        ),
        (
            r#"{"type":"number","exclusiveMaximum":-2e18}"#,
            &["-2000000000000000001"],
            &["0", "-2000000000000000000"],
        ),
    ]);
}

/// Names of properties cannot be written as others by escapes, nor to avoid the schemas of patterns.
#[test]
fn escapes_do_not_hide_names() {
    check(&[
        (
            r#"{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":true}"#,
            &[r#"{"a":1}"#, r#"{"a":1,"b":"x\n\"\\"}"#],
            &[r#"{"a":1,"\u0061":"x"}"#, r#"{"\u0061":"x"}"#, r#"{"a":1,"a":"x"}"#],
        ),
        (
            r#"{"type":"object","patternProperties":{"^s":{"type":"string"}},"additionalProperties":{"type":"integer"}}"#,
            &[r#"{"s":"x","q":1}"#],
            &[r#"{"\u0073":1}"#, r#"{"s\u0073":1}"#],
        ),
        (
            r#"{"items":{"properties":{"a":{"type":"integer"}},"additionalProperties":{}},"type":"array"}"#,
            &[r#"[{"b":"x"}]"#],
            &[r#"[{"\u0061":"x"}]"#],
        ),
        (r#"{"type":"object"}"#, &[r#"{"a":"\u001b"}"#], &[]),
    ]);
    let named = r#"{"properties":{"a":{"type":"integer"}},"additionalProperties":true}"#;
    let lark = constraint(&Grammar::lark(format!("start: %json {named}")));
    assert!(!matches(&lark, r#"{"\u0061":"x"}"#));
}

/// Otherwise an answer would begin a name that cannot go on.
#[test]
fn no_name_begins_where_all_are_taken() {
    for schema in [
        r#"{"type":"object","properties":{"de":{"const":1},"en":{"const":1}},"required":["de"],
        "patternProperties":{"^(de|en)$":{"type":"integer"},"^x":{"const":2}},"additionalProperties":false}"#,
        r#"{"type":"object","properties":{"de":{"const":1}},"required":["en"],
        "patternProperties":{"^(de|en)$":{"const":1},"^x":{"const":2}},"additionalProperties":false}"#,
    ] {
        let texts = [r#"{"en":1}"#, r#"{"de":1,"en":1,"xy":2}"#];
        let allowed = if schema.contains(r#"["de"]"#) { &texts[1..] } else { &texts };
        check(&[(schema, allowed, &["{}", r#"{"de":2,"en":1}"#, r#"{"de":1,"en":1.5}"#])]);
        let schema = schema.replace(r#","^x":{"const":2}"#, "");
        let mut made = constraint(&Grammar::json_schema(schema));
        r#"{"de":1,"en":1"#.bytes().for_each(|byte| made.accept(u32::from(byte)).unwrap());
        let mask = made.mask().unwrap();
        assert!(mask.allows(u32::from(b'}')) && !mask.allows(u32::from(b',')));
    }
}

#[test]
fn references_may_have_escapes() {
    check(&[
        (
            r##"{"$ref":"#/$defs/List%5Bint%5D","$defs":{"List[int]":{"type":"array","items":{"$ref":"#/$defs/a~1b"}},"a/b":{"type":"integer"}}}"##,
            &["[1]"],
            &[r#"["x"]"#, "1"],
        ),
        (
            r##"{"type":"object","properties":{"x/y":{"type":"integer"},"z":{"$ref":"#/properties/x~1y"}},"additionalProperties":false}"##,
            &[r#"{"x/y":1,"z":2}"#],
            &[r#"{"z":"a"}"#, r#"{"x/y":"a"}"#],
        ),
        (
            r##"{"$ref":"#/$defs/a~1b/properties/c~0d","$defs":{"a/b":{"properties":{"c~d":{"type":"null"}}},"a_b":{"$ref":"#/$defs/a%2F"},"c_d":false,"a":{"":true}}}"##,
            &["null"],
            &["1"],
        ),
        (
            r##"{"$ref":"#/$defs/T~1a","$defs":{"T/a":{"type":"array","items":{"$ref":"#/$defs/T~1a"}}}}"##,
            &["[[],[[]]]"],
            &["[1]"],
        ),
        (
            r##"{"$defs":null,"properties":{"x/y":{"type":"integer"},"z":{"$ref":"#/properties/x~1y"}},"type":"object","additionalProperties":false}"##,
            &[r#"{"x/y":1,"z":2}"#],
            &[r#"{"z":"a"}"#],
        ),
    ]);
    let error = refusal(&Grammar::json_schema(r##"{"$ref":"#/$defs/a~1b"}"##));
    assert_eq!(error, "schema at #/$ref: the schema has no #/$defs/a~1b");
}

/// A grammar of a schema with the title `f`, of which is left out what cannot be followed.
pub(super) fn best_effort(schema: &str) -> Grammar {
    let options = r#""title":"f","x-guidance":{"whitespace_flexible":false,"best_effort":true}"#;
    Grammar::lark(format!("start: %json {},{options}}}", schema.strip_suffix('}').unwrap()))
}

#[test]
fn what_cannot_be_followed_is_left_out_where_a_schema_allows_it() {
    let field = |field: &str| {
        format!(
            r##"{{"type":"object","properties":{{"n":{{"type":"integer"}},"x":{field}}},"required":["n"],"additionalProperties":false,"$defs":{{"d":{{"not":{{"const":1}}}}}}}}"##
        )
    };
    let unsupported = |name: &str| {
        format!("{name}: the keyword `{}` is not supported", name.rsplit('/').next().unwrap())
    };
    let x = "#/properties/x";
    let cases = [
        (
            r#"{"type":"array","uniqueItems":true}"#,
            "[1,1]",
            "1",
            unsupported(&format!("{x}/uniqueItems")),
        ),
        (
            r#"{"type":"object","propertyNames":{"maxLength":2}}"#,
            r#"{"abc":1}"#,
            "1",
            unsupported(&format!("{x}/propertyNames")),
        ),
        (r##"{"$ref":"#/$defs/d"}"##, "1", "", unsupported("#/$defs/d/not")),
        (
            r#"{"type":"string","pattern":"^(?!-)[a-z]+$","maxLength":3}"#,
            r#""-""#,
            r#""abcd""#,
            format!(
                "{x}/pattern: regex parse error: look-around, including look-ahead and look-behind, is not supported"
            ),
        ),
        (
            r#"{"type":"string","pattern":"a\\bc","maxLength":3}"#,
            r#""-""#,
            r#""abcd""#,
            format!("{x}/pattern: "),
        ),
        (r#"{"type":"strin"}"#, "[1]", "", format!("{x}: Invalid type: strin")),
        (
            r#"{"patternProperties":{"^a":{"type":"null"},"b$":{}},"type":"object"}"#,
            r#"{"a":1}"#,
            "1",
            format!("{x}/patternProperties: "),
        ),
        (
            r#"{"type":"string","minLength":"3"}"#,
            r#""""#,
            "1",
            format!("{x}/minLength: it must be a number of 0 or more"),
        ),
        (r#"3"#, r#""""#, "", format!("{x}: a schema must be an object, true or false")),
        (r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#, "1.5", r#""a""#, String::new()),
    ];
    for (schema, allowed, refused, note) in cases {
        let made = constraint(&best_effort(&field(schema)));
        let text = |x: &str| format!(r#"{{"n":1,"x":{x}}}"#);
        assert!(matches(&made, &text(allowed)), "{schema}: {allowed}");
        assert!(!matches(&made, &text(refused)), "{schema}: {refused}");
        assert!(!matches(&made, r#"{"n":"a"}"#), "{schema}");
        let notes = made.notes().concat();
        assert_eq!(notes.is_empty(), note.is_empty(), "{notes}");
        assert!(notes.is_empty() || notes.starts_with(&format!("schema 'f' at {note}")), "{notes}");
    }
}

/// Where no part is at fault, only the type of the whole is followed.
#[test]
fn a_schema_without_a_part_at_fault_keeps_its_type() {
    let made =
        constraint(&best_effort(r#"{"type":"object","properties":{"a":false},"required":["a"]}"#));
    assert!(matches(&made, r#"{"b":1}"#) && !matches(&made, "1"));
    let [note] = made.notes() else { panic!("{:?}", made.notes()) };
    assert!(note.starts_with("schema 'f' at #: Unsatisfiable schema"), "{note}");
    assert!(note.ends_with(", so only its type is followed"), "{note}");
}

/// Other schemas are followed or refused.
#[test]
fn limits_hold_for_every_schema() {
    let wide = (0..1001).map(|at| format!(r#""p{at}":{{}}"#)).collect::<Vec<_>>().join(",");
    let error = refusal(&best_effort(&format!(r#"{{"type":"object","properties":{{{wide}}}}}"#)));
    assert!(error.contains("schema 'f' at #/properties: it has 1001 entries"), "{error}");
    let strict =
        r#"start: %json {"title":"g","items":{"oneOf":[{"type":"integer"},{"type":"number"}]}}"#;
    let error = refusal(&Grammar::lark(strict));
    assert!(
        error.starts_with("the Lark grammar: schema 'g' at #/items: the options of `oneOf`"),
        "{error}"
    );
}

/// Properties of an object: `count` with the schema `field` each, named by `name` and a number.
pub(super) fn fields(name: &str, count: usize, field: impl Fn(usize) -> String) -> String {
    let all = (0..count).map(|at| format!(r#""{name}{at}":{}"#, field(at)));
    all.collect::<Vec<_>>().join(",")
}

#[test]
fn faults_that_appear_twice_leave_out_one_keyword_each() {
    let texts =
        fields("p", 2, |_| r#"{"type":"string","pattern":"a\\bc","maxLength":3}"#.to_owned());
    let schema = format!(r#"{{"type":"object","properties":{{{texts}}},"required":["p0","p1"]}}"#);
    let made = constraint(&best_effort(&schema));
    assert!(matches(&made, r#"{"p0":"-","p1":"-"}"#), "{:?}", made.notes());
    for text in [r#"{"p0":"abcd","p1":"a"}"#, r#"{"p0":"a","p1":"abcd"}"#] {
        assert!(!matches(&made, text), "{:?}", made.notes());
    }
    assert_eq!(made.notes().len(), 2, "{:?}", made.notes());
    // More of them than are removed one by one.
    let counted = |_| {
        let properties = r#""properties":{"a":{"type":"integer"}}"#;
        format!(r#"{{"type":"object",{properties},"additionalProperties":true,"minProperties":1}}"#)
    };
    for count in [2, 20] {
        let all = fields("p", count, counted);
        let schema = format!(r#"{{"type":"object","properties":{{{all}}},"required":["p1"]}}"#);
        let made = constraint(&best_effort(&schema));
        assert!(matches(&made, r#"{"p0":{},"p1":{"a":1}}"#), "{:?}", made.notes());
        assert!(!matches(&made, r#"{"p1":{"a":"x"}}"#), "{:?}", made.notes());
        assert!(!matches(&made, "{}"), "{:?}", made.notes());
        assert_eq!(made.notes().len(), count.min(9), "{:?}", made.notes());
        assert!(made.notes().iter().all(|note| note.contains("minProperties")));
    }
}

/// `additionalProperties` is about the properties that others leave.
#[test]
fn what_is_left_out_does_not_make_a_schema_allow_less() {
    let note = "; with it `additionalProperties` is left out";
    for (keyword, value) in [
        (r#""patternProperties":{"^(?!x)[a-z]+$":{"type":"null"}}"#, r#"{"ab":null}"#),
        (r#""patternProperties":{"a\\bc":{"type":"null"}}"#, r#"{"ab":null}"#),
        (r#""patternProperties":{"^a":{"type":"null"},"b$":{}}"#, r#"{"ab":null}"#),
        (r#""properties":3"#, r#"{"ab":null}"#),
    ] {
        let schema = format!(r#"{{"type":"object",{keyword},"additionalProperties":false}}"#);
        let made = constraint(&best_effort(&schema));
        assert!(matches(&made, value), "{keyword}: {:?}", made.notes());
        assert!(made.notes().iter().any(|added| added.ends_with(note)), "{:?}", made.notes());
    }
    // The name of a property is no keyword.
    let made = constraint(&best_effort(
        r#"{"properties":{"patternProperties":{"pattern":"(?=a)","additionalProperties":false}},"type":"object"}"#,
    ));
    assert!(!matches(&made, r#"{"patternProperties":{"a":1}}"#), "{:?}", made.notes());
}

/// The number of trials is bounded over all schemas of a grammar, without a clock.
#[test]
fn parts_at_fault_are_looked_for_within_a_bound() {
    let numbers = fields("g", 250, |_| r#"{"type":"integer"}"#.to_owned());
    let texts = fields("p", 9, |_| r#"{"type":"string","pattern":"a\\bc"}"#.to_owned());
    let made = constraint(&best_effort(&format!(
        r#"{{"type":"object","properties":{{{numbers},{texts}}},"required":["g0"]}}"#
    )));
    assert!(matches(&made, r#"{"g0":1,"p0":"x"}"#) && !matches(&made, r#"{"g0":"x"}"#));
    assert_eq!(made.notes().len(), 9, "{:?}", made.notes());

    let calls = Cell::new(0);
    let fails = |schema: Value| {
        calls.set(calls.get() + 1);
        schema.to_string().contains("strin\"").then(|| "wrong".to_owned())
    };
    let mut trials = Trials::new(&fails);
    let wide = fields("p", 900, |_| r#"{"type":"strin"}"#.to_owned());
    let wide = format!(r#"{{"type":"object","properties":{{{wide}}}}}"#);
    let schema: Value = serde_json::from_str(&wide).unwrap();
    for _ in 0..10 {
        let mut schema = schema.clone();
        let notes = lenient::compile(&mut schema, &mut trials).unwrap();
        let note = "#: not all of its faults were found, so only its type is followed";
        assert_eq!(notes.last().map(String::as_str), Some(note));
        assert_eq!(schema, json!({ "type": "object" }));
    }
    assert!(calls.get() < 2020, "{}", calls.get());
}

/// Keywords about texts say nothing beside another type.
#[test]
fn patterns_are_checked_where_a_value_may_be_a_text() {
    check(&[(r#"{"type":"integer","pattern":"(?=a)"}"#, &["1"], &[r#""a""#])]);
    let error = refusal(&Grammar::json_schema(r#"{"type":["null","string"],"pattern":"(?=a)"}"#));
    assert!(error.starts_with("schema at #/pattern: regex parse error"), "{error}");
}
