//! Constraints over small vocabularies: which texts each notation allows, and what each error says.

use llguidance::toktrie::SimpleVob;

use crate::{Constraint, Error, Grammar, Limits, Mask, Starts, Tags, Token, Tokens};

/// The texts of the tokens: one per byte, and a few longer ones.
pub fn texts() -> Vec<Vec<u8>> {
    let longer = ["{\"", "\":", "true", "null", "</think>", "\n\n", "ink>x"];
    let longer = longer.iter().map(|text| text.as_bytes().to_vec());
    (0..=255).map(|byte| vec![byte]).chain(longer).collect()
}

/// Tokens of these texts, and an end.
pub fn bytes() -> Tokens {
    let texts = texts();
    let tokens = texts.iter().map(|text| Token::Text(text)).chain([Token::Control(b"<end>")]);
    Tokens::new(tokens, &[END]).unwrap()
}

/// The token that ends a text.
const END: u32 = 263;

fn constraint(grammar: &Grammar) -> Constraint {
    Constraint::new(&bytes(), grammar, Limits::default()).unwrap()
}

/// Whether a grammar allows exactly this text, byte by byte.
pub fn matches(constraint: &Constraint, text: &str) -> bool {
    let mut constraint = constraint.clone();
    text.bytes().all(|byte| constraint.accept(u32::from(byte)).is_ok()) && constraint.may_end()
}

fn refusal(grammar: &Grammar) -> String {
    Constraint::new(&bytes(), grammar, Limits::default()).unwrap_err().to_string()
}

#[test]
fn a_schema_allows_its_instances_and_ends_by_itself() {
    let schema = r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],
        "additionalProperties":false}"#;
    let constraint = constraint(&Grammar::json_schema(schema));
    for text in [r#"{"a":1}"#, "{\n  \"a\": -12\n}"] {
        assert!(matches(&constraint, text), "{text}");
    }
    for text in ["", "{}", r#"{"a":1.5}"#, r#"{"a":1,"b":2}"#, "[1]", r#"{"a":1}x"#] {
        assert!(!matches(&constraint, text), "{text}");
    }
    let mut whole = constraint.clone();
    for byte in r#"{"a":1}"#.bytes() {
        assert!(!whole.is_complete());
        whole.accept(u32::from(byte)).unwrap();
    }
    assert!(whole.is_complete());
    assert_eq!(whole.mask().unwrap().iter().collect::<Vec<_>>(), [END]);
    assert_eq!(whole.accept(65), Err(Error::NotAllowed { token: 65 }));
    whole.accept(END).unwrap();
    assert!(whole.is_complete());
}

#[test]
fn a_mask_is_read_in_blocks() {
    let mut constraint = constraint(&Grammar::regex("[^a]*"));
    let mask = constraint.mask().unwrap();
    let bits = |block: usize| (0..64).filter(move |bit| mask.block(block) >> bit & 1 == 1);
    let found: Vec<u32> =
        (0..9).flat_map(|block| bits(block).map(move |bit| 64 * block as u32 + bit)).collect();
    assert_eq!(found, mask.iter().collect::<Vec<_>>());
    assert!(found.contains(&END) && !found.contains(&97), "{found:?}");
    let whole = Mask(SimpleVob::from_slice(&[true; 70]));
    assert_eq!([0, 1, 2].map(|block| whole.block(block)), [u64::MAX, 63, 0]);
    let mut beyond = whole.clone();
    beyond.0.resize(100);
    beyond.0.set_all(true);
    assert_eq!(beyond.block(1), (1 << 36) - 1);
}

#[test]
fn json_objects_of_any_kind() {
    let constraint = constraint(&Grammar::json_object());
    for text in ["{}", r#"{"x":[1,2,{"y":null}],"z":"é\n"}"#.replace("\\n", "").as_str()] {
        assert!(matches(&constraint, text), "{text}");
    }
    for text in ["[]", "1", "", "{", "{}{}"] {
        assert!(!matches(&constraint, text), "{text}");
    }
}

#[test]
fn regular_expressions_match_whole_texts() {
    for expression in ["[a-c]+x?", "^[a-c]+x?$"] {
        let constraint = constraint(&Grammar::regex(expression));
        for (text, expected) in [("a", true), ("abcx", true), ("x", false), ("axx", false)] {
            assert_eq!(matches(&constraint, text), expected, "{text}");
        }
    }
    let slash = constraint(&Grammar::regex("a/b \"c\" \\\\d"));
    assert!(matches(&slash, "a/b \"c\" \\d"));
    let error = refusal(&Grammar::regex("a(b"));
    assert_eq!(error, "the regular expression, line 1, column 2: unclosed group");
    refusal(&Grammar::regex(""));
    refusal(&Grammar::regex("a\\"));
}

#[test]
fn lark_grammars() {
    let constraint =
        constraint(&Grammar::lark("start: \"a\" b \"c\"\nb: /[0-9]+/ | \"(\" b \")\"\n"));
    for (text, expected) in [("a12c", true), ("a((7))c", true), ("a((7)c", false), ("ac", false)] {
        assert_eq!(matches(&constraint, text), expected, "{text}");
    }
    let error = refusal(&Grammar::lark("start: \"a\"\nb: ]\n"));
    assert!(error.starts_with("the Lark grammar, line 2, column "), "{error}");
    refusal(&Grammar::lark(""));
    assert_eq!(
        refusal(&Grammar::lark("start: x\n")),
        "the Lark grammar, line 1, column 8: unknown name: \"x\""
    );
}

/// Schemas within a grammar are checked as if alone; their titles name them.
#[test]
fn lark_grammars_have_checked_schemas() {
    let lark = |unique: bool| {
        let list =
            format!(r#"{{"type":"array","items":{{"type":"null"}},"uniqueItems":{unique}}}"#);
        let options = r#""x-guidance":{"whitespace_flexible":false}"#;
        let schema = format!(r#"{{"title":"f","anyOf":[{list}],{options}}}"#);
        format!("start: \"%json \" r1 \"!\"\nr1: %json {schema}\n")
    };
    let constraint = constraint(&Grammar::lark(lark(false)));
    for (text, expected) in [("%json [null,null]!", true), ("%json [ ]!", false)] {
        assert_eq!(matches(&constraint, text), expected, "{text}");
    }
    let place = "the Lark grammar: schema 'f' at #/anyOf/0/uniqueItems";
    assert_eq!(
        refusal(&Grammar::lark(lark(true))),
        format!("{place}: the keyword `uniqueItems` is not supported")
    );
    let error = refusal(&Grammar::lark(r#"start: %json {"properties":{"a":3}}"#));
    let place = "the Lark grammar: schema at #/properties/a";
    assert_eq!(error, format!("{place}: a schema must be an object, true or false"));
}

#[test]
fn control_tokens_are_allowed_only_where_asked_for() {
    let mut constraint = constraint(&Grammar::regex("(?s).*"));
    let mask = constraint.mask().unwrap();
    assert!(mask.allows(u32::from(b'a')) && mask.allows(END), "the empty text may end");
    assert!(!mask.allows(0xFF), "no UTF-8 has this byte");
    assert!(!mask.allows(1000));
}

#[test]
fn a_grammar_begins_after_its_trigger() {
    let grammar = Grammar::json_schema(r#"{"const": true}"#);
    let waiting = constraint(&grammar).after("</think>");
    // The trigger in one token, in single bytes, and across both.
    for start in ["</think>", "well</think>\n", "<</think>", "</thi</think>\n\n"] {
        let mut constraint = waiting.clone();
        for byte in start.bytes() {
            assert!(!constraint.may_end());
            assert!(!constraint.mask().unwrap().allows(END), "the answer must not end yet");
            constraint.accept(u32::from(byte)).unwrap();
        }
        let allowed: Vec<u32> = constraint.mask().unwrap().iter().filter(|&t| t > 32).collect();
        let blank = if start.ends_with("\n\n") { vec![] } else { vec![261] };
        assert_eq!(allowed, [vec![u32::from(b't'), 258], blank].concat(), "after {start:?}");
        constraint.accept(258).unwrap();
        assert!(constraint.is_complete());
    }
    let mut one = waiting.clone();
    one.accept(260).unwrap();
    assert!(one.mask().unwrap().allows(258));
    let mut partial = waiting.clone();
    assert!(partial.mask().unwrap().allows(262));
    "</th".bytes().for_each(|byte| partial.accept(u32::from(byte)).unwrap());
    assert!(!partial.mask().unwrap().allows(262), "text after the trigger and before the grammar");
    let mut optional = constraint(&grammar).once("</think>");
    assert!(optional.may_end() && optional.mask().unwrap().allows(END));
    optional.accept(END).unwrap();
    assert!(optional.is_complete());
}

/// A model may mention a call while it reasons.
#[test]
fn a_trigger_means_nothing_between_tags() {
    let made = constraint(&Grammar::lark(r#"start: "<call>true""#));
    let texts = ["<call>".to_owned()];
    let starts = Starts { texts: &texts, first: None };
    let tags = |is_open| Tags { open: "<t>", close: "</t>", is_open };
    let cases = [
        (false, "a <call>", true),
        (false, "<t>a <call> b", false),
        (false, " \n<t>a <call></t> \n<t><call></t>", false),
        (false, "<t>a</t><call>", true),
        (false, "<t>a</t>b<t><call>", true),
        (false, "<<t><call>", true),
        (true, "a <call> b<t>", false),
        (true, "a <call> b</t>", false),
        (true, "a</t>b <call>", true),
        (true, "a</t\u{3e}</call><c<call>", true),
    ];
    for (is_open, text, is_found) in cases {
        let mut made = made.clone().once_outside(starts, tags(is_open));
        for byte in text.bytes() {
            assert!(made.may_end(), "{text}");
            made.accept(u32::from(byte)).unwrap();
        }
        // Behind the trigger a `t` is all that follows.
        assert_eq!(made.may_end(), !is_found, "{text}");
        assert_eq!(made.mask().unwrap().allows(u32::from(b'x')), !is_found, "{text}");
        assert!(made.mask().unwrap().allows(u32::from(b't')), "{text}");
    }
}

/// Each beginning leads to its own part of the grammar, as text or as a control token.
#[test]
fn a_grammar_may_begin_in_several_ways() {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let controls = [Token::Control(b"<s>"), Token::Control(b"<s>>"), Token::Control(b"<end>")];
    let longer = ["ll>a", "ll>b", "{y", " {x", "<c>b", "<c>a"];
    let longer = longer.iter().map(|text| Token::Text(text.as_bytes()));
    let tokens = bytes.iter().map(|byte| Token::Text(byte)).chain(controls).chain(longer);
    let tokens = Tokens::new(tokens, &[258]).unwrap();
    let lark = "start: \"<call>\" \"a\" | \"<c>\" \"b\" | T | \"-\" <[257]> \"d\"\nT: /\\{[a-z]*/ & ~/\\{x.*/";
    let made = Constraint::new(&tokens, &Grammar::lark(lark), Limits::default()).unwrap();
    let texts = ["<call>", "<c>", "-<s>>"].map(str::to_owned);
    let starts = Starts { texts: &texts, first: Some(b'{') };
    let tags = |is_open| Tags { open: "<t>", close: "</t>", is_open };
    let cases = [
        (false, "x<call>", "a", "bd{"),
        (false, "x<c>", "b", "ad{"),
        (false, "-<s>>", "d", "ab{"),
        (false, " {", "ab", "x{"),
        (false, "<t>{</t>{", "ab", "x{"),
        (true, "{</t>{y", "abx", "{"),
        // A brace begins the grammar only as the first character.
        (false, "a{", "x{", ""),
        (true, "{", "x{", ""),
    ];
    // A token may begin the grammar and go on, but only as the grammar does.
    let mut whole = made.clone().once_outside(starts, tags(false));
    let allowed = |made: &mut Constraint| -> Vec<u32> {
        made.mask().unwrap().iter().filter(|&id| id > 258).collect()
    };
    assert_eq!(allowed(&mut whole), [259, 260, 261, 263]);
    let mut parts = whole.clone();
    for byte in "<ca".bytes() {
        parts.accept(u32::from(byte)).unwrap();
    }
    assert_eq!(allowed(&mut parts), [259, 261, 262, 263]);
    for tokens in [&[261][..], &[263], &[60, 99, 97, 259]] {
        let mut made = whole.clone();
        tokens.iter().for_each(|&id| made.accept(id).unwrap());
        assert!(made.may_end(), "{tokens:?}");
    }
    for (is_open, text, allowed, refused) in cases {
        let mut made = made.clone().once_outside(starts, tags(is_open));
        for byte in text.bytes() {
            made.accept(u32::from(byte)).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        let mask = made.mask().unwrap();
        for (letters, is_allowed) in [(allowed, true), (refused, false)] {
            for letter in letters.bytes() {
                assert_eq!(mask.allows(u32::from(letter)), is_allowed, "{text} and {letter}");
            }
        }
    }
}

#[test]
fn clones_are_independent() {
    let mut one = constraint(&Grammar::regex("ab|ac"));
    one.accept(u32::from(b'a')).unwrap();
    let mut two = one.clone();
    one.accept(u32::from(b'b')).unwrap();
    assert!(one.is_complete() && !two.is_complete());
    two.accept(u32::from(b'c')).unwrap();
    assert!(two.is_complete());
}

#[test]
fn schema_errors_name_the_place() {
    let cases = [
        ("{", "the schema is not JSON: EOF while parsing an object at line 1 column 1"),
        ("false", "schema at #: the schema false allows no value"),
        ("3", "schema at #: a schema must be an object, true or false"),
        (
            r#"{"properties":{"a/b":{"not":{"type":"null"}}}}"#,
            "schema at #/properties/a~1b/not: the keyword `not` is not supported",
        ),
        (
            r#"{"items":{"uniqueItems":true}}"#,
            "schema at #/items/uniqueItems: the keyword `uniqueItems` is not supported",
        ),
        (
            r#"{"oneOf":[{"const":1},{"type":"string","not":{"const":"a"}}]}"#,
            "schema at #/oneOf/1/not: the keyword `not` is not supported",
        ),
        (
            r#"{"properties":{"a":{}},"patternProperties":{"^a$":{"uniqueItems":true}}}"#,
            "schema at #/patternProperties/^a$/uniqueItems: the keyword",
        ),
        (r##"{"$ref":"#/$defs/x"}"##, "schema at #/$ref: the schema has no #/$defs/x"),
        (
            r##"{"$ref":"#/$defs/x","not":{"const":1},"$defs":{"x":{}}}"##,
            "schema at #/not: the keyword `not` is not supported",
        ),
        (
            r#"{"properties":{"a":{"minLength":-1}}}"#,
            "schema at #/properties/a/minLength: it must be a number of 0 or more",
        ),
        (
            r#"{"type":"object","properties":{"a":{"type":"array","items":{"type":"strin"}}}}"#,
            "schema at #/properties/a/items: Invalid type: strin",
        ),
        (
            r#"{"anyOf":[{"type":"object","properties":{"b":{"type":"string","pattern":"(a"}}}]}"#,
            "schema at #/anyOf/0/properties/b/pattern: regex parse error: unclosed group",
        ),
        (
            r#"{"items":{"oneOf":[{"type":"integer"},{"type":"number"}]}}"#,
            "schema at #/items: the options of `oneOf` must exclude each other, and these may not; use `anyOf`",
        ),
        (
            r#"{"items":{"type":"object","properties":{"a":{},"b":{}},"minProperties":1,"additionalProperties":true}}"#,
            "schema at #/items/minProperties: it is supported only if all of `properties` are required, or if there are no others",
        ),
        (
            r#"{"type":"object","properties":{"a":{},"b":{},"c":{}},"maxProperties":2}"#,
            "schema at #/maxProperties: it is supported only if all of `properties` are required",
        ),
        (
            r#"{"properties":{"a":{"minimum":1e20}}}"#,
            "schema at #/properties/a/minimum: numbers beyond 9223372036854774784 are not supported",
        ),
    ];
    for (schema, expected) in cases {
        let error = refusal(&Grammar::json_schema(schema));
        assert!(error.starts_with(expected), "{error}");
    }
}

/// Generators of schemas keep definitions that nothing uses.
#[test]
fn definitions_are_checked_where_they_are_used() {
    let options = (0..10).map(|at| format!(r#"{{"const":{at}}}"#)).collect::<Vec<_>>().join(",");
    let wide =
        format!(r#"{{"allOf":[{}]}}"#, vec![format!(r#"{{"anyOf":[{options}]}}"#); 10].join(","));
    let definitions = [
        (r#"{"not":{"const":1}}"#, "#/$defs/x/not: the keyword `not` is not supported"),
        (
            r#"{"items":{"if":{},"then":{}}}"#,
            "#/$defs/x/items/if: the keyword `if` is not supported",
        ),
        (&*wide, "#/$defs/x: combined, it has more than 20000 alternatives"),
    ];
    for (definition, expected) in definitions {
        let schema = |of: &str| {
            format!(r##"{{{of},"$defs":{{"x":{definition},"y":{{"$ref":"#/$defs/x"}}}}}}"##)
        };
        assert!(matches(&constraint(&Grammar::json_schema(schema(r#""type":"null""#))), "null"));
        for used in [r##""$ref":"#/$defs/x""##, r##""items":{"$ref":"#/$defs/y"}"##] {
            let error = refusal(&Grammar::json_schema(schema(used)));
            assert_eq!(error, format!("schema at {expected}"));
        }
    }
}

#[test]
fn a_vocabulary_without_an_end_is_complete_where_nothing_fits() {
    let tokens = Tokens::new([Token::Text(b"a"), Token::Text(b"b")], &[]).unwrap();
    let grammar = Grammar::regex("ab?c?");
    let mut constraint = Constraint::new(&tokens, &grammar, Limits::default()).unwrap();
    constraint.accept(0).unwrap();
    assert!(!constraint.is_complete());
    constraint.accept(1).unwrap();
    assert!(constraint.is_complete());
    let stuck = Grammar::regex("ac");
    let mut constraint = Constraint::new(&tokens, &stuck, Limits::default()).unwrap();
    constraint.accept(0).unwrap();
    assert!(matches!(constraint.mask(), Err(Error::Stuck { .. })));
}

#[path = "tests/gbnf.rs"]
mod gbnf;

#[path = "tests/checker.rs"]
mod checker;
#[path = "tests/closed.rs"]
mod closed;
#[path = "tests/counted.rs"]
mod counted;
#[path = "tests/schemas.rs"]
mod schemas;
#[path = "tests/sound.rs"]
mod sound;

/// Generators of schemas write the largest integer of JavaScript where there is no limit.
#[test]
fn a_most_that_nothing_exceeds_says_nothing() {
    for schema in [
        r#"{"type":"string","maxLength":9007199254740991}"#,
        r#"{"anyOf":[{"type":"string","maxLength":1e300}]}"#,
    ] {
        assert!(matches(&constraint(&Grammar::json_schema(schema)), r#""abc""#), "{schema}");
    }
    let array = constraint(&Grammar::json_schema(
        r#"{"items":{"type":"null"},"type":"array","maxItems":4294967296}"#,
    ));
    assert!(matches(&array, "[null]") && !matches(&array, "[1]"));
}

/// As in schemas of functions that are written by hand.
#[test]
fn required_beside_another_type_than_object_says_nothing() {
    let city = r#""properties":{"city":{"type":"string","required":true}}"#;
    let constraint = constraint(&Grammar::json_schema(format!(
        r#"{{"type":"object",{city},"required":["city"]}}"#
    )));
    assert!(matches(&constraint, r#"{"city":"Rome"}"#));
    assert!(!matches(&constraint, "{}"));
    for schema in
        [r#"{"type":"object","required":true}"#, r#"{"type":["null","object"],"required":1}"#]
    {
        let error = refusal(&Grammar::json_schema(schema));
        assert!(error.contains("an array of strings"), "{error}");
    }
}

#[test]
fn a_schema_may_be_one_of_several_texts() {
    let schema = Grammar::json_schema(
        r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}"#,
    );
    let answer = schema.lark_expression().unwrap();
    let either = constraint(&Grammar::lark(format!("start: (\"no\" | r1)\nr1: {answer}\n")));
    for text in ["no", r#"{"a":1}"#, "{\n  \"a\": 1\n}"] {
        assert!(matches(&either, text), "{text}");
    }
    for text in ["", "{}", "no{", r#"{"a":1}no"#] {
        assert!(!matches(&either, text), "{text}");
    }
    assert_eq!(Grammar::gbnf("root ::= \"a\"").lark_expression(), None);
    for (any, text) in [("true", "3"), ("{}", "[]")] {
        let any = Grammar::json_schema(any).lark_expression().unwrap();
        assert!(matches(&constraint(&Grammar::lark(format!("start: {any}\n"))), text), "{any}");
    }
}
