//! Objects that list properties: closed where they stand alone, open where schemas hold together.

use super::schemas::{best_effort, check};
use super::{constraint, matches};

/// As llama.cpp does: a model would invent names otherwise.
#[test]
fn objects_have_only_their_properties_unless_the_schema_says_otherwise() {
    check(&[
        (
            r#"{"properties":{"a":{"const":1}}}"#,
            &["{}", r#"{"a":1}"#],
            &[r#"{"b":1}"#, r#"{"a":1,"b":1}"#],
        ),
        (r#"{"type":"object","properties":{}}"#, &["{}"], &[r#"{"b":1}"#]),
        (r#"{"type":"object"}"#, &["{}", r#"{"b":1}"#], &[]),
        (
            r#"{"properties":{"a":{}},"additionalProperties":null}"#,
            &[r#"{"a":1}"#],
            &[r#"{"b":1}"#],
        ),
        (r#"{"properties":{"a":{}},"additionalProperties":true}"#, &[r#"{"a":1,"b":1}"#], &[]),
        (
            r#"{"properties":{"a":{}},"additionalProperties":{"const":2}}"#,
            &[r#"{"a":1,"b":2}"#],
            &[r#"{"b":1}"#],
        ),
        (r#"{"properties":{"a":{}},"unevaluatedProperties":true}"#, &[r#"{"a":1,"b":1}"#], &[]),
        (
            r#"{"properties":{"a":{}},"patternProperties":{"^x":{"const":1}}}"#,
            &[r#"{"a":1,"xy":1}"#],
            &[r#"{"xy":2}"#, r#"{"b":1}"#],
        ),
        // What it needs but does not list.
        (
            r#"{"properties":{"a":{}},"required":["b"]}"#,
            &[r#"{"b":1}"#],
            &["{}", r#"{"b":1,"c":1}"#],
        ),
        (
            r#"{"properties":{"a":{}},"required":["a"],"minProperties":2}"#,
            &[r#"{"a":1,"b":1}"#],
            &["{}"],
        ),
        (
            r#"{"properties":{"a":{}},"required":["xy"],"patternProperties":{"^x":{"const":1}}}"#,
            &[r#"{"xy":1}"#, r#"{"a":1,"xy":1,"xz":1}"#],
            &["{}", r#"{"xy":2}"#, r#"{"xy":1,"b":1}"#],
        ),
        (
            r#"{"properties":{"a":{"type":"integer"}},"minProperties":1}"#,
            &[r#"{"a":1}"#],
            &["{}", r#"{"b":1}"#],
        ),
        // Inner objects, and items.
        (
            r#"{"properties":{"a":{"items":{"properties":{"b":{}}}}}}"#,
            &[r#"{"a":[{"b":1}]}"#],
            &[r#"{"a":[{"c":1}]}"#],
        ),
        (
            r#"{"prefixItems":[{"properties":{"b":{}}}],"items":{"properties":{"c":{}}}}"#,
            &[r#"[{"b":1},{"c":1}]"#],
            &[r#"[{"c":1}]"#, r#"[{"b":1},{"b":1}]"#],
        ),
        (
            r#"{"additionalProperties":{"properties":{"b":{}}}}"#,
            &[r#"{"a":{"b":1}}"#],
            &[r#"{"a":{"c":1}}"#],
        ),
        (
            r#"{"patternProperties":{"^x":{"properties":{"b":{}}}},"additionalProperties":false}"#,
            &[r#"{"x":{"b":1}}"#],
            &[r#"{"x":{"c":1}}"#],
        ),
    ]);
}

/// Also what lists properties without a type is an object.
#[test]
fn what_lists_properties_is_an_object() {
    check(&[
        (
            r#"{"properties":{"a":{"const":1}}}"#,
            &["{}", r#"{"a":1}"#],
            &["1", "null", "[]", "\"a\""],
        ),
        (r#"{"additionalProperties":{"const":1}}"#, &["{}", r#"{"a":1}"#], &["1", r#"{"a":2}"#]),
        (r#"{"additionalProperties":false}"#, &["{}"], &["1"]),
        (r#"{"additionalProperties":true}"#, &["1", r#"{"a":1}"#], &[]),
        (r#"{"required":["a"]}"#, &["1", r#"{"a":1}"#], &["{}"]),
        (r#"{"properties":{"a":{}},"type":["object","null"]}"#, &["{}", "null"], &["1"]),
        (
            r#"{"properties":{"a":{}},"type":null,"additionalProperties":true}"#,
            &[r#"{"b":1}"#],
            &["1"],
        ),
        (
            r#"{"items":{"properties":{"a":{}}},"type":"array"}"#,
            &[r#"[{"a":1}]"#],
            &["[1]", r#"[{"b":1}]"#],
        ),
        (r#"{"anyOf":[{"properties":{"a":{}}},{"type":"null"}]}"#, &["{}", "null"], &["1"]),
        (r#"{"properties":{"a":{}},"enum":[1,{"a":2}]}"#, &["1", r#"{"a":2}"#], &["{}"]),
        (r#"{"allOf":[{"properties":{"a":{"const":1}}},{"title":"t"}]}"#, &["1"], &[r#"{"a":2}"#]),
    ]);
}

/// As Pydantic and others write them.
#[test]
fn references_and_options_are_closed_where_they_stand_alone() {
    check(&[
        (
            r##"{"$defs":{"P":{"title":"P","type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}},
            "type":"object","properties":{"all":{"type":"array","items":{"$ref":"#/$defs/P"}},
            "one":{"$ref":"#/$defs/P","description":"a point"},"base":{"allOf":[{"$ref":"#/$defs/P"}],"title":"Base"},
            "may":{"anyOf":[{"$ref":"#/$defs/P"},{"type":"null"}],"default":null}}}"##,
            &[
                r#"{"all":[{"x":1},{"x":2}],"one":{"x":1},"base":{"x":1},"may":{"x":1}}"#,
                r#"{"may":null}"#,
            ],
            &[
                r#"{"all":[{"x":1,"y":2}]}"#,
                r#"{"one":{"x":1,"y":2}}"#,
                r#"{"base":{"x":1,"y":2}}"#,
                r#"{"may":{"x":1,"y":2}}"#,
                r#"{"other":1}"#,
            ],
        ),
        (
            r##"{"oneOf":[{"$ref":"#/$defs/Cat"},{"$ref":"#/$defs/Dog"}],"discriminator":{"propertyName":"k"},
            "type":"object","$defs":{
            "Cat":{"type":"object","properties":{"k":{"const":"cat"},"a":{}},"required":["k"]},
            "Dog":{"type":"object","properties":{"k":{"const":"dog"},"b":{}},"required":["k"]}}}"##,
            &[r#"{"k":"cat","a":1}"#, r#"{"k":"dog","b":1}"#],
            &[r#"{"k":"cat","b":1}"#, r#"{"k":"dog","c":1}"#],
        ),
        (
            r##"{"$ref":"#/$defs/n","$defs":{"n":{"properties":{"v":{"const":1},"n":{"$ref":"#/$defs/n"}}}}}"##,
            &["{}", r#"{"v":1,"n":{"v":1,"n":{}}}"#],
            &[r#"{"x":1}"#, r#"{"n":{"n":{"x":1}}}"#],
        ),
        (
            r##"{"$ref":"#/components/schemas/A~1B","components":{"schemas":{"A/B":{"properties":{"a":{}}}}}}"##,
            &[r#"{"a":1}"#],
            &[r#"{"b":1}"#],
        ),
    ]);
}

/// Schemas that describe a value together with others, texts that they allow, and texts that they do not.
const TOGETHER: &[(&str, &[&str], &[&str])] = &[
    (
        r##"{"$defs":{"N":{"type":"object","properties":{"v":{"type":"integer"},"n":{"$ref":"#/$defs/N"}},"required":["v"]}},
            "allOf":[{"$ref":"#/$defs/N"},{"properties":{"t":{"type":"string"}},"required":["t"]}]}"##,
        &[r#"{"v":1,"t":"x"}"#, r#"{"v":1,"n":{"v":2},"t":"x","more":1}"#],
        &[r#"{"v":1}"#, r#"{"t":"x"}"#, r#"{"v":1,"n":{"v":"x"},"t":"x"}"#],
    ),
    (
        r##"{"$defs":{"N":{"type":"object","properties":{"v":{"type":"integer"},"n":{"$ref":"#/$defs/N"}},"required":["v"]}},
            "$ref":"#/$defs/N","properties":{"t":{"type":"string"}},"required":["t"]}"##,
        &[r#"{"v":1,"t":"x"}"#, r#"{"v":1,"n":{"v":2},"t":"x"}"#],
        &[r#"{"v":1}"#],
    ),
    (
        r##"{"$defs":{"N":{"type":"object","properties":{"v":{"type":"integer"},"n":{"$ref":"#/$defs/N"}},"required":["v"]}},
            "type":"object","properties":{"x":{"$ref":"#/$defs/N","required":["n"]},"y":{"$ref":"#/$defs/N"}}}"##,
        &[r#"{"x":{"v":1,"n":{"v":2}},"y":{"v":1}}"#],
        &[r#"{"x":{"v":1}}"#, r#"{"x":{"v":1,"n":{}}}"#],
    ),
    (
        r#"{"allOf":[{"type":"object","properties":{"meta":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}},"required":["meta"]},
            {"type":"object","properties":{"meta":{"type":"object","properties":{"extra":{"type":"string"}},"required":["extra"]}},"required":["meta"]}]}"#,
        &[r#"{"meta":{"id":1,"extra":"x"}}"#],
        &[
            r#"{"meta":{"id":1}}"#,
            r#"{"meta":{"extra":"x"}}"#,
            r#"{"meta":{"id":"x","extra":"x"}}"#,
        ],
    ),
    (
        r#"{"type":"object","properties":{"data":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}},"required":["data"],
            "anyOf":[{"properties":{"data":{"type":"object","properties":{"x":{"const":1}},"required":["x"]}}},
            {"properties":{"data":{"type":"object","properties":{"y":{"const":2}},"required":["y"]}}}]}"#,
        &[r#"{"data":{"id":1,"x":1}}"#, r#"{"data":{"id":1,"y":2}}"#],
        &[r#"{"data":{"id":1}}"#, r#"{"data":{"id":"x","x":1}}"#],
    ),
    (
        r#"{"type":"object","required":["id"],"anyOf":[{"properties":{"x":{"const":1}},"required":["x"]},
            {"properties":{"y":{"const":2}},"required":["y"]}]}"#,
        &[r#"{"x":1,"id":0}"#, r#"{"y":2,"id":0}"#],
        &[r#"{"x":1}"#, r#"{"id":0}"#],
    ),
    (
        r#"{"type":"object","required":["a"],"anyOf":[{"properties":{"a":{"const":1}}},{"properties":{"c":{"const":3}}}]}"#,
        &[r#"{"a":1}"#, r#"{"c":3,"a":2}"#],
        &["{}", r#"{"c":3}"#],
    ),
    (
        r#"{"type":"object","patternProperties":{"^x-":{"type":"integer"}},
            "anyOf":[{"properties":{"a":{"const":1}},"required":["x-1"]},{"properties":{"b":{"const":2}},"required":["b"]}]}"#,
        &[r#"{"a":1,"x-1":1}"#, r#"{"x-1":1}"#, r#"{"b":2,"x-2":3}"#],
        &[r#"{"a":1}"#, r#"{"x-1":"x"}"#],
    ),
    (
        r#"{"type":"object","patternProperties":{"^x-":{"type":"integer"}},
            "anyOf":[{"properties":{"a":{"const":1}},"required":["a"],"minProperties":2},{"required":["b"]}]}"#,
        &[r#"{"a":1,"x-1":1}"#, r#"{"b":2}"#],
        &[r#"{"a":1}"#, r#"{"a":1,"x-1":"x"}"#],
    ),
    (
        r##"{"$defs":{"U":{"anyOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"]},
            {"type":"object","properties":{"b":{"const":2}},"required":["b"]}]}},"type":"object","properties":{
            "x":{"allOf":[{"$ref":"#/$defs/U"},{"properties":{"c":{"const":3}},"required":["c"]}]},
            "y":{"allOf":[{"$ref":"#/$defs/U"},{"properties":{"d":{"const":4}},"required":["d"]}]}}}"##,
        &[r#"{"x":{"a":1,"c":3},"y":{"b":2,"d":4}}"#],
        &[r#"{"x":{"a":1}}"#, r#"{"x":{"c":3}}"#, r#"{"y":{"b":2,"c":3}}"#],
    ),
    (
        r##"{"$defs":{"U":{"anyOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"]},
            {"type":"object","properties":{"b":{"const":2}},"required":["b"]}]}},"type":"object","properties":{
            "x":{"allOf":[{"$ref":"#/$defs/U"},{"properties":{"c":{"const":3}},"required":["c"]}]},
            "y":{"$ref":"#/$defs/U"}}}"##,
        &[r#"{"x":{"b":2,"c":3},"y":{"b":2}}"#],
        &[r#"{"x":{"b":2}}"#, r#"{"y":{"c":3}}"#],
    ),
    (
        r##"{"type":"object","properties":{"a":{"type":"object","properties":{"v":{"const":1}}},
            "b":{"allOf":[{"$ref":"#/properties/a"},{"properties":{"w":{"const":2}},"required":["w"]}]}}}"##,
        &[r#"{"a":{"v":1},"b":{"v":1,"w":2}}"#],
        &[r#"{"b":{"v":1}}"#, r#"{"c":1}"#],
    ),
    (
        r#"{"allOf":[{"anyOf":[{"properties":{"a":{"const":1}},"required":["a"]},{"properties":{"b":{"const":2}},"required":["b"]}]},
            {"anyOf":[{"properties":{"c":{"const":3}},"required":["c"]},{"properties":{"d":{"const":4}},"required":["d"]}]}],"type":"object"}"#,
        &[r#"{"a":1,"c":3}"#, r#"{"a":1,"d":4}"#, r#"{"b":2,"c":3}"#, r#"{"b":2,"d":4}"#],
        &["{}", r#"{"a":1}"#, r#"{"c":3}"#],
    ),
    // Values that are listed, and names that match a pattern.
    (
        r#"{"type":"object","properties":{"a":{"type":"object","properties":{"b":{}}}},"enum":[{"a":{"b":1,"c":1}}]}"#,
        &[r#"{"a":{"b":1,"c":1}}"#],
        &[r#"{"a":{"b":1}}"#],
    ),
    (
        r#"{"type":"object","properties":{"xa":{"type":"object","properties":{"b":{"const":1}}}},
            "patternProperties":{"^x":{"type":"object","required":["c"]}},"required":["xa"]}"#,
        &[r#"{"xa":{"b":1,"c":1}}"#],
        &[r#"{"xa":{"b":1}}"#, r#"{"xa":{"c":1},"d":1}"#],
    ),
    // None of the names that are listed can be written.
    (
        r#"{"type":"object","properties":{"a":false},"minProperties":1}"#,
        &[r#"{"b":1}"#],
        &["{}", r#"{"a":1}"#],
    ),
];

/// Each of the schemas of a value may need names that only another lists.
#[test]
fn schemas_that_hold_together_stay_open() {
    check(TOGETHER);
    let endless = r##"{"type":"object","properties":{"n":{"$ref":"#"}},"minProperties":1}"##;
    assert!(matches(&constraint(&best_effort(endless)), r#"{"m":1}"#));
}

/// Also in a schema of which what cannot be followed is left out, as that of a tool.
#[test]
fn tools_have_only_their_arguments() {
    let made = constraint(&best_effort(
        r#"{"properties":{"a":{"uniqueItems":true},"b":{"properties":{"c":{}}}}}"#,
    ));
    let cases = [
        (r#"{"a":1}"#, true),
        (r#"{"b":{"c":1}}"#, true),
        (r#"{"d":1}"#, false),
        (r#"{"b":{"d":1}}"#, false),
    ];
    for (text, expected) in cases {
        assert_eq!(matches(&made, text), expected, "{text}");
    }
}
