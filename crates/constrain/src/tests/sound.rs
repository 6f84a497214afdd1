//! Soundness: whatever the logits, an answer is valid under its schema; hostile schemas are refused soon.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::checker;
use super::{END, bytes};
use crate::schema::closed;
use crate::{Constraint, Error, Grammar, Limits, Tokens};

/// Schemas of the keywords that are supported, a line each.
const SCHEMAS: &str = r##"
{}
true
{"type":"object"}
{"type":"array"}
{"type":"string"}
{"type":"number"}
{"type":"integer"}
{"type":"boolean"}
{"type":"null"}
{"type":["string","null"]}
{"type":["integer","boolean","array"],"items":{"type":"null"}}
{"const":"a \"quoted\" word"}
{"const":{"a":[1,2.5,null,{"b":"é"}]}}
{"enum":["red","green","blue"]}
{"enum":[1,"1",null,true,[],{"x":1}]}
{"type":"string","enum":["x","y"]}
{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a","b"],"additionalProperties":false}
{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"additionalProperties":false}
{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"},"c":{"type":"boolean"}},"required":["b"],"additionalProperties":false}
{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}
{"type":"object","additionalProperties":{"type":"integer"}}
{"type":"object","properties":{"n":{"type":"null"}},"additionalProperties":{"type":"boolean"}}
{"type":"object","required":["must"],"additionalProperties":{"type":"integer"}}
{"type":"object","patternProperties":{"^x-[a-z]{1,4}$":{"type":"integer"}},"additionalProperties":false}
{"type":"object","patternProperties":{"^i":{"type":"integer"},"^s":{"type":"string"}},"additionalProperties":false}
{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"},"c":{"type":"boolean"},"d":{"enum":["x",1]}},"required":["b"],"minProperties":3,"additionalProperties":false}
{"type":"array","items":{"type":"object","properties":{"a":{"type":"integer","minimum":1},"b":{"type":"array","items":{"type":"null"},"maxItems":1},"c":{},"d":{"type":"string","maxLength":2}},"minProperties":2},"maxItems":2}
{"type":"object","minProperties":1,"maxProperties":3,"additionalProperties":{"type":"null"}}
{"type":"array","items":{"type":"integer"}}
{"type":"array","items":{"type":"string","maxLength":3},"minItems":2,"maxItems":4}
{"type":"array","items":{"type":"array","items":{"type":"boolean"},"maxItems":2},"minItems":1}
{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}
{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":2,"maxItems":5}
{"type":"array","maxItems":0}
{"type":"array","minItems":3,"items":{"const":0}}
{"type":"string","minLength":2,"maxLength":5}
{"type":"string","maxLength":0}
{"type":"string","minLength":10}
{"type":"string","pattern":"^[A-Z]{2}[0-9]{3}$"}
{"type":"string","pattern":"^.{0,6}ab+c.{0,3}$"}
{"type":"string","pattern":"^(foo|bar)+$","minLength":4}
{"type":"string","format":"date"}
{"type":"string","format":"time"}
{"type":"string","format":"date-time"}
{"type":"string","format":"uuid"}
{"type":"string","format":"ipv4"}
{"type":"string","format":"email"}
{"type":"integer","minimum":3,"maximum":17}
{"type":"integer","exclusiveMinimum":-5,"exclusiveMaximum":5}
{"type":"integer","minimum":1000}
{"type":"integer","multipleOf":7,"minimum":0,"maximum":1000}
{"type":"number","minimum":0,"maximum":1}
{"type":"number","exclusiveMinimum":0.5,"exclusiveMaximum":2.25}
{"type":"number","multipleOf":0.25,"minimum":-2,"maximum":2}
{"anyOf":[{"type":"integer"},{"type":"string","maxLength":2}]}
{"anyOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"type":"object","properties":{"b":{"type":"null"}},"required":["b"]}]}
{"oneOf":[{"type":"integer"},{"type":"boolean"},{"type":"null"}]}
{"oneOf":[{"type":"object","properties":{"kind":{"const":"a"},"x":{"type":"integer"}},"required":["kind","x"]},{"type":"object","properties":{"kind":{"const":"b"},"y":{"type":"boolean"}},"required":["kind","y"]}]}
{"allOf":[{"type":"integer","minimum":5},{"maximum":9}]}
{"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"string"}},"required":["b"]}]}
{"allOf":[{"enum":[1,2,3]},{"enum":[2,3,4]}]}
{"type":"object","properties":{"tags":{"type":"array","items":{"enum":["x","y"]},"maxItems":3},"at":{"type":"object","properties":{"lat":{"type":"number","minimum":-90,"maximum":90}},"required":["lat"],"additionalProperties":false}},"required":["tags","at"],"additionalProperties":false}
{"$defs":{"node":{"type":"object","properties":{"value":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["value","next"],"additionalProperties":false}},"$ref":"#/$defs/node"}
{"$defs":{"tree":{"type":"object","properties":{"children":{"type":"array","items":{"$ref":"#/$defs/tree"},"maxItems":2}},"required":["children"],"additionalProperties":false}},"type":"array","items":{"$ref":"#/$defs/tree"},"maxItems":2}
{"definitions":{"p":{"type":"integer","minimum":0}},"type":"object","properties":{"x":{"$ref":"#/definitions/p"},"y":{"$ref":"#/definitions/p"}},"required":["x","y"],"additionalProperties":false,"title":"point","description":"a point"}
{"type":"object","properties":{"näme \"q\"":{"type":"string","maxLength":3}},"required":["näme \"q\""],"additionalProperties":false}
{"$schema":"http://json-schema.org/draft-07/schema#","type":"array","items":[{"type":"integer"},{"type":"boolean"}],"additionalItems":false}
{"type":"object","properties":{"a":{"type":"array","uniqueItems":false,"items":{"type":"null"}}},"required":["a"],"x-note":"unknown keywords say nothing"}
"##;

fn schemas() -> Vec<&'static str> {
    SCHEMAS.lines().filter(|line| !line.is_empty()).collect()
}

/// A step of the generator xorshift64*.
fn random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D)
}

/// A text of random allowed tokens. Late in the text what ends it is preferred.
fn babble(tokens: &[&[u8]], constraint: &Constraint, seed: u64) -> String {
    let mut constraint = constraint.clone();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut text = Vec::new();
    for step in 0.. {
        if constraint.is_complete() {
            break;
        }
        assert!(step < 3000, "no end: {}", String::from_utf8_lossy(&text));
        let may_end = constraint.may_end();
        let mask = constraint.mask().expect("a mask");
        assert_eq!(mask.allows(END), may_end);
        let allowed: Vec<u32> = mask.iter().filter(|&token| token != END).collect();
        let ends = |token: &&u32| [&b"\""[..], b"]", b"}"].contains(&tokens[**token as usize]);
        let hurries = step > 40 && random(&mut state).is_multiple_of(2);
        let shortest = allowed.iter().find(ends).filter(|_| hurries);
        let mut any = || allowed[(random(&mut state) % allowed.len() as u64) as usize];
        let token = match shortest {
            _ if may_end && (step > 40 || allowed.is_empty()) => END,
            Some(&token) => token,
            None => any(),
        };
        constraint.accept(token).expect("an allowed token");
        if token != END {
            text.extend_from_slice(tokens[token as usize]);
        }
    }
    String::from_utf8(text).expect("whole characters")
}

#[test]
fn every_answer_is_valid_under_its_schema() {
    let all = super::texts();
    let texts: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let tokens = bytes();
    assert!(schemas().len() >= 60, "{}", schemas().len());
    let mut lengths = 0;
    for schema in schemas() {
        let grammar = Grammar::json_schema(schema);
        let constraint = Constraint::new(&tokens, &grammar, Limits::default()).expect(schema);
        let parsed: Value = serde_json::from_str(schema).expect("a schema");
        for seed in 1..40 {
            let text = babble(&texts, &constraint, seed);
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // JSON, but more than a number of 64 bits can hold.
                Err(error) if error.to_string().contains("number out of range") => continue,
                Err(error) => panic!("{error}: {text}\n{schema}"),
            };
            if let Err(reason) = checker::check(&value, &parsed, &parsed) {
                panic!("{reason}: {text}\n{schema}");
            }
            assert_eq!(text, babble(&texts, &constraint, seed), "a seed gives one text");
            lengths += text.len();
        }
    }
    assert!(lengths > 20_000, "the texts say little: {lengths} bytes");
}

/// Schemas with `oneOf`, a line each: whether they are followed, or refused since their options may overlap.
const EXCLUSIVE: &str = r##"
no {"oneOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"]},{"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"required":["a","b"]}]}
no {"oneOf":[{"type":"object","properties":{"a":{"type":"integer"}}},{"type":"object","properties":{"b":{"type":"integer"}}}]}
no {"oneOf":[{"type":"object","properties":{"a":{}},"required":["a"]},{"type":"object","properties":{"b":{}},"required":["b"]}]}
no {"oneOf":[{"type":"object","properties":{"k":{"properties":{"a":{"const":1}},"required":["a"]}},"required":["k"]},{"type":"object","properties":{"k":{"type":"string"}},"required":["k"]}]}
no {"oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{"a":{"type":"object","properties":{"a":{"const":1}}},"b":{"type":"object","properties":{"b":{"const":2}}}}}
no {"items":{"oneOf":[{"properties":{"k":{"const":"a"}},"required":["k"]},{"properties":{"k":{"const":"b"}},"required":["k"]}]},"type":"array"}
no {"oneOf":[{"const":1},{"enum":[2,1.0]}]}
yes {"oneOf":[{"const":1},{"enum":[2,"1",[1]]}]}
yes {"oneOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"],"additionalProperties":false},{"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"required":["a","b"]}]}
yes {"oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"},{"type":"null"}],"$defs":{"a":{"type":"object","properties":{"k":{"const":1},"x":{"const":3}},"required":["k"]},"b":{"type":"object","properties":{"k":{"enum":[2,3]},"y":{"const":4}},"required":["k"]}}}
yes {"type":"object","oneOf":[{"properties":{"k":{"const":"a"},"x":{"const":3}},"required":["k"]},{"properties":{"k":{"const":"b"}},"required":["k"]}]}
yes {"oneOf":[{"type":"object","properties":{"k":{"const":true},"x":{"const":3}},"required":["k"]},{"type":"object","properties":{"k":{"const":false},"x":{"const":4}},"required":["k","x"]},{"type":"object","properties":{"k":{"type":"null"}},"required":["k"]}]}
yes {"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"n":{"oneOf":[{"type":"object","properties":{"m":{"const":1}},"required":["m"]},{"type":"object","properties":{"m":{"const":2}},"required":["m"]}]}},"required":["k","n"]},{"type":"array","maxItems":1}]}
yes {"oneOf":[{"anyOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},{"type":"null"}]},{"allOf":[{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]}]}
yes {"oneOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},{"type":"object","properties":{"k":{"const":"b"},"n":{"$ref":"#/oneOf/0"}},"required":["k","n"]}]}
"##;

/// Objects are closed, so an answer may be valid under another option than the one that is written.
#[test]
fn an_answer_is_valid_under_one_option_of_one_of() {
    let all = super::texts();
    let texts: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let tokens = bytes();
    for line in EXCLUSIVE.lines().filter(|line| !line.is_empty()) {
        let (is_followed, schema) = line.split_once(' ').expect("two parts");
        let made = Constraint::new(&tokens, &Grammar::json_schema(schema), Limits::default());
        assert_eq!(made.is_ok(), is_followed == "yes", "{schema}: {:?}", made.err());
        let Ok(made) = made else { continue };
        let parsed: Value = serde_json::from_str(schema).expect("a schema");
        for seed in 1..40 {
            let text = babble(&texts, &made, seed);
            let value: Value = serde_json::from_str(&text).expect("JSON");
            checker::check(&value, &parsed, &parsed).expect(&text);
        }
    }
}

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
        (r#"{"x-guidance":{"best_effort":true}}"#, "x-guidance"),
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
        if let Ok(mut constraint) = result.clone() {
            let _ = constraint.mask();
        }
        // Generous, since the machine may be busy.
        assert!(took < Duration::from_secs(20), "{took:?}");
        result.map(drop).map_err(|error| error.to_string())
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(work).expect("a thread");
    thread.join().expect("no panic")
}

#[test]
fn a_grammar_without_any_text_says_so() {
    for grammar in [Grammar::json_schema(r##"{"$ref": "#"}"##), Grammar::lark("start: start")] {
        let mut constraint = Constraint::new(&bytes(), &grammar, Limits::default()).unwrap();
        let error = constraint.mask().unwrap_err();
        assert!(matches!(error, Error::Stuck { .. }), "{error:?}");
        assert!(error.to_string().contains("no text that it allows begins so"), "{error}");
    }
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
    let product = format!(r#"{{"allOf":[{}]}}"#, [any.as_str(); 10].join(","));
    let refused = soon(&model, &Grammar::json_schema(&product)).unwrap_err();
    assert!(refused.contains("alternatives"), "{refused}");
    let nested = format!(r#"{{"properties":{{"a":{any}}}}}"#);
    let product = format!(r#"{{"allOf":[{}]}}"#, [nested.as_str(); 10].join(","));
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
    assert_eq!(soon(&model, &Grammar::json_schema(chain)), Ok(()));
    let chain: Vec<String> =
        (0..5000).map(|i| format!(r##""d{i}":{{"$ref":"#/$defs/d{}"}}"##, i + 1)).collect();
    let chain =
        format!(r##"{{"$defs":{{{},"d5000":true}},"$ref":"#/$defs/d0"}}"##, chain.join(","));
    assert_eq!(soon(&model, &Grammar::json_schema(chain)), Ok(()));
    let own = r##"{"$ref":"#"}"##;
    assert_eq!(soon(&model, &Grammar::json_schema(own)), Ok(()));
    let own = r##"{"allOf":[{"$ref":"#"},{"type":"object"}]}"##;
    let error = soon(&model, &Grammar::json_schema(own)).unwrap_err();
    assert!(error.contains("circular references"), "{error}");
}

#[test]
fn large_schemas_are_compiled_or_refused_soon() {
    let model = bytes();
    let many: Vec<String> = (0..1000).map(|i| format!(r#""p{i}":{{"type":"integer"}}"#)).collect();
    let many = format!(r#"{{"properties":{{{}}}}}"#, many.join(","));
    assert_eq!(soon(&model, &Grammar::json_schema(many)), Ok(()));
    let long = r#"{"type":"string","maxLength":1000000000,"minLength":999999999}"#;
    assert_eq!(soon(&model, &Grammar::json_schema(long)), Ok(()));
    let many = r#"{"type":"array","minItems":1000000000,"items":{"type":"object"}}"#;
    assert_eq!(soon(&model, &Grammar::json_schema(many)), Ok(()));
}

/// What is closed depends on all uses of a schema.
#[test]
fn objects_of_hostile_schemas_are_closed_or_left_open_soon() {
    let model = bytes();
    let joined = |count: usize, part: &dyn Fn(usize) -> String| -> String {
        (0..count).map(part).collect::<Vec<_>>().join(",")
    };
    let object = |fields: &str| format!(r#"{{"type":"object","properties":{{{fields}}}}}"#);
    let field = |i: usize| format!(r#""p{i}":{{"properties":{{"a":{{}}}}}}"#);
    let wide = joined(6000, &|i| format!(r#""q{i}":{}"#, object(&field(i))));
    // A chain that is used alone and from its end on in combination.
    let chain = joined(2000, &|i| {
        format!(
            r##""d{i}":{{"properties":{{"n":{{"$ref":"#/$defs/d{}"}}}},"required":["x"]}}"##,
            i + 1
        )
    });
    let part = r##"{"allOf":[{"$ref":"#/$defs/d0"},{"required":["y"]}]}"##;
    let chain = format!(
        r##"{{"$defs":{{{chain},"d2000":{part}}},"properties":{{"a":{{"$ref":"#/$defs/d0"}},"b":{part}}}}}"##
    );
    let all = joined(60, &|i| format!(r##""f{i}":{{"$ref":"#/$defs/c{i}"}}"##));
    let cycles = joined(60, &|i| format!(r#""c{i}":{}"#, object(&all)));
    let cycles = format!(r##"{{"$defs":{{{cycles}}},"$ref":"#/$defs/c0"}}"##);
    let names = joined(40_000, &|i| format!("\"{i}\""));
    let deep = (0..30).fold(object(&field(0)), |inner, i| {
        object(&format!(r#""{}{i}":{inner},{}"#, "n".repeat(4000), joined(60, &field)))
    });
    // Options that are compared in pairs.
    let options = joined(500, &|_| r##"{"$ref":"#/$defs/o"}"##.to_owned());
    let values = joined(2000, &|i| i.to_string());
    let options = [
        format!(r#"{{"type":"object","required":[{names}]}}"#),
        format!(r#"{{"enum":[{values}]}}"#),
        format!(r#"{{"anyOf":[{{"enum":[{values}]}},{{"type":"object","required":[{values}]}}]}}"#),
    ]
    .map(|option| format!(r##"{{"$defs":{{"o":{option}}},"oneOf":[{options}]}}"##));
    let schemas = [
        object(&wide),
        chain,
        cycles,
        format!(r#"{{"properties":{{"a":{{}}}},"required":[{names}]}}"#),
        deep,
    ];
    for schema in schemas.iter().chain(&options) {
        assert!(schema.len() > 150_000 || schema.contains("$defs"), "{}", schema.len());
        let _ = soon(&model, &Grammar::json_schema(schema));
        let mut schema: Value = serde_json::from_str(schema).unwrap();
        let start = Instant::now();
        closed::close(&mut schema, closed::Overlaps::Refused);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

/// Every property may be the next.
#[test]
fn as_many_properties_as_are_allowed_can_be_written() {
    let model = bytes();
    for kind in ["integer", "string"] {
        let many: Vec<String> =
            (0..1000).map(|i| format!(r#""p{i}":{{"type":"{kind}"}}"#)).collect();
        let many = format!(
            r#"{{"type":"object","properties":{{{}}},"additionalProperties":false}}"#,
            many.join(",")
        );
        let limits = Limits::default();
        let constraint = Constraint::new(&model, &Grammar::json_schema(many), limits).unwrap();
        let value = if kind == "integer" { "1" } else { "\"x\"" };
        for text in [format!("{{\"p0\": {value}, \"p999\": {value}}}"), "{}".to_owned()] {
            let mut constraint = constraint.clone();
            for byte in text.bytes() {
                assert!(constraint.mask().unwrap().allows(u32::from(byte)), "{text}");
                constraint.accept(u32::from(byte)).unwrap();
            }
            assert!(constraint.may_end());
        }
    }
}

/// Patterns are compared in pairs, those of one object and those that are combined.
#[test]
fn many_patterns_of_properties_are_refused() {
    let model = bytes();
    let object = |from: usize, count: usize| {
        let patterns: Vec<String> =
            (from..from + count).map(|i| format!(r#""^k{i}$":{{"type":"null"}}"#)).collect();
        format!(r#"{{"type":"object","patternProperties":{{{}}}}}"#, patterns.join(","))
    };
    assert_eq!(soon(&model, &Grammar::json_schema(object(0, 64))), Ok(()));
    let refused = |schema: String| soon(&model, &Grammar::json_schema(schema)).unwrap_err();
    let error = refused(object(0, 65));
    assert!(error.starts_with("schema at #/patternProperties: it has 65 entries"), "{error}");
    let all: Vec<String> = (0..3).map(|i| object(i * 64, 64)).collect();
    let error = refused(format!(r#"{{"allOf":[{}]}}"#, all.join(",")));
    assert!(error.contains("too many patterns"), "{error}");
    // Once for each alternative.
    let any: Vec<String> = (0..100).map(|i| format!(r#"{{"title":"{i}"}}"#)).collect();
    let error = refused(format!(r#"{{"allOf":[{{"anyOf":[{}]}},{}]}}"#, any.join(","), all[0]));
    assert!(error.contains("too many patterns"), "{error}");
    // In one grammar.
    let rules: Vec<String> = (0..20).map(|i| format!("r{i}: %json {}\n", object(0, 64))).collect();
    let lark = Grammar::lark(format!("start: r0\n{}", rules.concat()));
    let error = soon(&model, &lark).unwrap_err();
    assert!(error.contains("too many patterns"), "{error}");
}

#[test]
fn large_enums_are_compiled_or_refused_soon() {
    let model = bytes();
    let values: Vec<String> = (0..2000).map(|i| format!("\"value{i}\"")).collect();
    let values = format!(r#"{{"enum":[{}]}}"#, values.join(","));
    assert_eq!(soon(&model, &Grammar::json_schema(values)), Ok(()));
    let one: Vec<String> = (0..5000).map(|i| format!(r#"{{"const":{i}}}"#)).collect();
    let one = format!(r#"{{"oneOf":[{}]}}"#, one.join(","));
    assert!(soon(&model, &Grammar::json_schema(one)).unwrap_err().contains("at most 500"));
    let pattern = r#"{"type":"string","pattern":"^(((a{1,1000}){1,1000}){1,1000}b?){1,1000}$"}"#;
    assert_eq!(soon(&model, &Grammar::json_schema(pattern)), Ok(()));
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
        assert_eq!(soon(&model, &Grammar::regex(expression)), Ok(()), "{expression}");
    }
    assert_eq!(soon(&model, &Grammar::regex("(a|b)*a(a|b){40}")), Ok(()));
    assert_eq!(soon(&model, &Grammar::regex("a".repeat(250_000))), Ok(()));
    let groups = format!("start: {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    assert!(soon(&model, &Grammar::lark(groups)).is_err());
    let chain: String = (0..10_000).map(|i| format!("r{i}: \"a\" r{}\n", i + 1)).collect();
    assert!(soon(&model, &Grammar::lark(format!("start: r0\n{chain}r10000: \"\""))).is_err());
    let chain: String = (0..4000).map(|i| format!("r{i}: \"a\" r{} \"b\"\n", i + 1)).collect();
    assert_eq!(soon(&model, &Grammar::lark(format!("start: r0\n{chain}r4000: \"\""))), Ok(()));
    let chain: String = (0..4000).map(|i| format!("T{i}: \"a\" T{} \"b\"\n", i + 1)).collect();
    let error = soon(&model, &Grammar::lark(format!("start: T0\n{chain}T4000: \"\""))).unwrap_err();
    assert!(error.contains("too big"), "{error}");
    let deep = format!("start: %json {}true{}", r#"{"items":"#.repeat(9000), "}".repeat(9000));
    assert!(soon(&model, &Grammar::lark(deep)).is_err());
    for grammar in ["start: start", "start: \"a\" | start start", "start: \"a\"{0,1000000000}"] {
        assert_eq!(soon(&model, &Grammar::lark(grammar)), Ok(()), "{grammar}");
    }
    for (grammar, part) in
        [("start: x", "unknown name"), ("", "it is empty"), ("start", "Expected token ':'")]
    {
        let error = soon(&model, &Grammar::lark(grammar)).unwrap_err();
        assert!(error.contains(part), "{grammar}: {error}");
    }
}
