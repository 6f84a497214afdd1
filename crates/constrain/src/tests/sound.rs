//! Hostile and unsupported schemas, expressions and grammars: refused soon, with their place.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::bytes;
use super::checker;
use crate::{Constraint, Error, Grammar, Limits, Tokens};

/// The checker of these tests finds what is wrong.
#[test]
fn the_checker_can_fail() {
    let wrong = [
        (r#"{"type":"integer"}"#, "1.5"),
        (r#"{"const":1}"#, "2"),
        (r#"{"required":["a"]}"#, "{}"),
        (r#"{"properties":{"a":{"type":"null"}}}"#, r#"{"a":1}"#),
        (r#"{"additionalProperties":false}"#, r#"{"a":1}"#),
        (r#"{"patternProperties":{"^a":{"type":"null"}}}"#, r#"{"ab":1}"#),
        (r#"{"items":{"type":"null"}}"#, "[1]"),
        (r#"{"prefixItems":[{"type":"null"}]}"#, "[1]"),
        (r#"{"minItems":2}"#, "[1]"),
        (r#"{"maxLength":1}"#, "\"ab\""),
        (r#"{"pattern":"^b"}"#, "\"ab\""),
        (r#"{"format":"date"}"#, "\"2020-13-01\""),
        (r#"{"exclusiveMaximum":1}"#, "1"),
        (r#"{"multipleOf":0.5}"#, "0.75"),
        (r#"{"oneOf":[true,{"type":"null"}]}"#, "null"),
        (r#"{"allOf":[{"minimum":5}]}"#, "4"),
        (r#"{"anyOf":[{"minimum":5},{"type":"null"}]}"#, "4"),
        (r##"{"$ref":"#/$defs/a","$defs":{"a":false}}"##, "4"),
    ];
    for (schema, value) in wrong {
        let schema: Value = serde_json::from_str(schema).expect("a schema");
        let value: Value = serde_json::from_str(value).expect("a value");
        assert!(checker::check(&value, &schema, &schema).is_err(), "{value} {schema}");
    }
}

#[test]
fn keywords_that_are_not_supported_are_named_with_their_place() {
    let model = bytes();
    let keywords = [
        (r#"{"not":{"type":"null"}}"#, "not"),
        (r#"{"if":{"type":"null"},"then":true}"#, "if"),
        (r#"{"contains":{"type":"null"}}"#, "contains"),
        (r#"{"uniqueItems":true}"#, "uniqueItems"),
        (r#"{"propertyNames":{"maxLength":3}}"#, "propertyNames"),
        (r#"{"dependentRequired":{"a":["b"]}}"#, "dependentRequired"),
        (r#"{"unevaluatedProperties":false}"#, "unevaluatedProperties"),
        (r#"{"x-guidance":{"lenient":true}}"#, "x-guidance"),
    ];
    for (part, keyword) in keywords {
        let schema = format!(r#"{{"type":"object","properties":{{"deep":{{"items":{part}}}}}}}"#);
        match Constraint::new(&model, &Grammar::json_schema(schema), Limits::default()) {
            Err(Error::Schema { path, reason }) => {
                assert_eq!(path, format!("#/properties/deep/items/{keyword}"));
                assert_eq!(reason, format!("the keyword `{keyword}` is not supported"));
            }
            other => panic!("{keyword}: {other:?}"),
        }
    }
}

/// Compiled or refused, but soon, and without a stack overflow on a thread as small as a server's.
fn soon(model: &Tokens, grammar: &Grammar) -> Result<(), String> {
    let (model, grammar) = (model.clone(), grammar.clone());
    let work = move || {
        let start = Instant::now();
        let result = Constraint::new(&model, &grammar, Limits::default());
        let took = start.elapsed();
        if let Ok(mut constraint) = result.as_ref().map(Constraint::clone) {
            let _ = constraint.mask();
        }
        assert!(took < Duration::from_secs(3), "{took:?}");
        result.map(drop).map_err(|error| error.to_string())
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(work).expect("a thread");
    thread.join().expect("no panic")
}

#[test]
fn hostile_schemas_are_refused_soon() {
    let model = bytes();
    let deep = format!("{}true{}", r#"{"items":"#.repeat(10_000), "}".repeat(10_000));
    assert!(soon(&model, &Grammar::json_schema(deep)).unwrap_err().contains("recursion limit"));
    let deep = format!("{}true{}", r#"{"items":"#.repeat(100), "}".repeat(100));
    assert!(soon(&model, &Grammar::json_schema(deep)).unwrap_err().contains("64 deep"));
    let options: Vec<String> = (0..10).map(|i| format!(r#"{{"pattern":"{i}"}}"#)).collect();
    let any = format!(r#"{{"anyOf":[{}]}}"#, options.join(","));
    let product = format!(r#"{{"allOf":[{}]}}"#, vec![any.as_str(); 10].join(","));
    let refused = soon(&model, &Grammar::json_schema(&product)).unwrap_err();
    assert!(refused.contains("alternatives"), "{refused}");
    let nested = format!(r#"{{"properties":{{"a":{any}}}}}"#);
    let product = format!(r#"{{"allOf":[{}]}}"#, vec![nested.as_str(); 10].join(","));
    assert!(soon(&model, &Grammar::json_schema(product)).is_err());
}

#[test]
fn chains_of_references_are_compiled_or_refused_soon() {
    let model = bytes();
    let chain: Vec<String> = (0..4000)
        .map(|i| format!(r##""d{i}":{{"items":{{"$ref":"#/$defs/d{}"}}}}"##, i + 1))
        .collect();
    let chain =
        format!(r##"{{"$defs":{{{},"d4000":true}},"$ref":"#/$defs/d0"}}"##, chain.join(","));
    let _ = soon(&model, &Grammar::json_schema(chain));
    let chain: Vec<String> =
        (0..5000).map(|i| format!(r##""d{i}":{{"$ref":"#/$defs/d{}"}}"##, i + 1)).collect();
    let chain =
        format!(r##"{{"$defs":{{{},"d5000":true}},"$ref":"#/$defs/d0"}}"##, chain.join(","));
    let _ = soon(&model, &Grammar::json_schema(chain));
    let own = r##"{"$ref":"#"}"##;
    let _ = soon(&model, &Grammar::json_schema(own));
    let own = r##"{"allOf":[{"$ref":"#"},{"type":"object"}]}"##;
    let _ = soon(&model, &Grammar::json_schema(own));
}

#[test]
fn large_schemas_are_compiled_or_refused_soon() {
    let model = bytes();
    let many: Vec<String> = (0..1000).map(|i| format!(r#""p{i}":{{"type":"integer"}}"#)).collect();
    let many = format!(r#"{{"properties":{{{}}}}}"#, many.join(","));
    let _ = soon(&model, &Grammar::json_schema(many));
    let long = r#"{"type":"string","maxLength":1000000000,"minLength":999999999}"#;
    let _ = soon(&model, &Grammar::json_schema(long));
    let many = r#"{"type":"array","minItems":1000000000,"items":{"type":"object"}}"#;
    let _ = soon(&model, &Grammar::json_schema(many));
}

#[test]
fn large_enums_are_compiled_or_refused_soon() {
    let model = bytes();
    let values: Vec<String> = (0..2000).map(|i| format!("\"value{i}\"")).collect();
    let _ = soon(&model, &Grammar::json_schema(format!(r#"{{"enum":[{}]}}"#, values.join(","))));
    let one: Vec<String> = (0..5000).map(|i| format!(r#"{{"const":{i}}}"#)).collect();
    let one = format!(r#"{{"oneOf":[{}]}}"#, one.join(","));
    assert!(soon(&model, &Grammar::json_schema(one)).unwrap_err().contains("at most 500"));
    let pattern = r#"{"type":"string","pattern":"^(((a{1,1000}){1,1000}){1,1000}b?){1,1000}$"}"#;
    let _ = soon(&model, &Grammar::json_schema(pattern));
}

#[test]
fn hostile_expressions_and_lark_grammars_are_refused_soon() {
    let model = bytes();
    let groups = format!("{}a{}", "(".repeat(60_000), ")".repeat(60_000));
    assert!(soon(&model, &Grammar::regex(groups)).is_err());
    for expression in [
        "(((a{1000}){1000}){1000}){1000}",
        "(a*)*b",
        "(.*.*.*.*.*.*.*.*)*x",
        r"\w{1,100000}",
        "[^x]{5000}",
    ] {
        let _ = soon(&model, &Grammar::regex(expression));
    }
    let _ = soon(&model, &Grammar::regex("(a|b)*a(a|b){40}"));
    let _ = soon(&model, &Grammar::regex("a".repeat(250_000)));
    let groups = format!("start: {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    assert!(soon(&model, &Grammar::lark(groups)).is_err());
    let chain: String = (0..10_000).map(|i| format!("r{i}: \"a\" r{}\n", i + 1)).collect();
    assert!(soon(&model, &Grammar::lark(format!("start: r0\n{chain}r10000: \"\""))).is_err());
    let chain: String = (0..4000).map(|i| format!("r{i}: \"a\" r{} \"b\"\n", i + 1)).collect();
    let _ = soon(&model, &Grammar::lark(format!("start: r0\n{chain}r4000: \"\"")));
    let chain: String = (0..4000).map(|i| format!("T{i}: \"a\" T{} \"b\"\n", i + 1)).collect();
    let _ = soon(&model, &Grammar::lark(format!("start: T0\n{chain}T4000: \"\"")));
    let deep = format!("start: %json {}true{}", r#"{"items":"#.repeat(9000), "}".repeat(9000));
    assert!(soon(&model, &Grammar::lark(deep)).is_err());
    for grammar in [
        "start: start",
        "start: \"a\" | start start",
        "start: x",
        "",
        "start",
        "start: \"a\"{0,1000000000}",
    ] {
        let _ = soon(&model, &Grammar::lark(grammar));
    }
}
