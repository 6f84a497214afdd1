//! Grammars of every way of writing calls, as the templates of the families write them.

use serde_json::{Value, json};

use super::super::families::{FAMILIES, THINKING};
use super::*;
use crate::Vocabulary;

/// What every schema ends with: JSON is written as templates write it.
const STYLE: &str = r#""x-guidance":{"whitespace_flexible":false,"item_separator":", ","key_separator":": ","best_effort":true}"#;

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.into(), parameters, ..Tool::default() }
}

/// A function without arguments, and one with a text that is required and a number that is not.
fn tools() -> [Tool; 2] {
    let properties = json!({ "a": { "type": "string" }, "n": { "type": "integer" } });
    let schema = json!({ "type": "object", "properties": properties, "required": ["a"] });
    [tool("f", json!({ "type": "object" })), tool("g", schema)]
}

fn rules<'a>(tools: &'a [Tool], choice: ToolChoice<'static>) -> CallRules<'a> {
    CallRules {
        tools,
        choice,
        parallel: false,
        thinking_is_open: false,
        may_think: false,
        tokenizer: None,
    }
}

fn format(name: &str) -> Format {
    let family = FAMILIES.iter().find(|family| family.name == name).expect(name);
    Format { family, thinking: THINKING[THINKING.len() - 1] }
}

/// The grammar without spaces that separate nothing and titles of schemas; `J` stands for the schema of any object.
fn lark(name: &str, rules: &CallRules<'_>) -> String {
    let text = format(name).call_grammar(rules).expect(name).lark;
    let mut parts = text.split("\"title\":\"");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |text, part| text + part.split_once("\",").expect("a title").1);
    let text = text.replace(&format!("%json {{\"type\":\"object\",{STYLE}}}"), "J");
    let lines = text.lines().map(|line| line.replace("  ", " ").trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Grammars of one call of a function without arguments, by family.
const ONE_CALL: &[(&str, &str)] = &[
    (
        "hermes",
        r#"start: "<tool_call>" "\n"? r2 "\n"? "</tool_call>"
r1: J
r2: "{\"name\": \"f\", \"arguments\": " r1 "}""#,
    ),
    (
        "llama3",
        r#"start: "<|python_tag|>" "\n"? r2
r1: J
r2: "{\"name\": \"f\", \"parameters\": " r1 "}""#,
    ),
    (
        "generic",
        r#"start: "<tool_call>" "\n"? r2 "\n"? "</tool_call>"
r1: J
r2: "{\"name\": \"f\", \"arguments\": " r1 "}""#,
    ),
    (
        "command-r7b",
        r#"start: "<|START_ACTION|>" "\n"? "[" r2 "]" "\n"? "<|END_ACTION|>"
r1: J
r2: "{\"tool_call_id\": \"" /[0-9]{1,9}/ "\", \"tool_name\": \"f\", \"parameters\": " r1 "}""#,
    ),
    (
        "command-r",
        r#"start: "Action:\n```json\n" "\n"? "[" r2 "]" "\n"? "```"
r1: J
r2: "{\"tool_name\": \"f\", \"parameters\": " r1 "}""#,
    ),
    (
        "apertus",
        r#"start: "<|tools_prefix|>" "\n"? "[" r2 "]" "\n"? "<|tools_suffix|>"
r1: J
r2: "{\"f\": " r1 "}""#,
    ),
    (
        "mistral-v3",
        r#"start: "[TOOL_CALLS]" "\n"? "[" r2 "]"
r1: J
r2: "{\"name\": \"f\", \"arguments\": " r1 "}""#,
    ),
    (
        "kimi-k2",
        r#"start: "<|tool_calls_section_begin|>" "\n"? "<|tool_call_begin|>" r2 "\n"? "<|tool_calls_section_end|>"
r1: J
r2: "functions.f" ":" /[0-9]{1,9}/ "<|tool_call_argument_begin|>" r1 "<|tool_call_end|>""#,
    ),
    (
        "solar-open",
        r#"start: "<|tool_calls|>" "\n"? "<|tool_call:begin|>" r2 "\n"?
r1: J
r2: "0<|tool_call:name|>f" "<|tool_call:args|>" r1 "<|tool_call:end|>""#,
    ),
    (
        "deepseek-r1",
        r#"start: "<｜tool▁calls▁begin｜>" "\n"? "<｜tool▁call▁begin｜>" r2 "\n"? "<｜tool▁calls▁end｜>"
r1: J
r2: "function<｜tool▁sep｜>f" "\n```json\n" r1 "\n```<｜tool▁call▁end｜>""#,
    ),
    (
        "mistral",
        r#"start: "[TOOL_CALLS]" r2
r1: J
r2: "f" ("[CALL_ID]" /[a-zA-Z0-9]{9}/)? "[ARGS]" r1"#,
    ),
    (
        "functionary-v3.2",
        r#"start: r2
r1: J
r2: "f" "\n" r1"#,
    ),
    (
        "gemma4",
        r#"start: "<|tool_call>" r1 "<tool_call|>"
r1: "call:f{" "}""#,
    ),
    (
        "lfm2",
        r#"start: "<|tool_call_start|>" "[" r1 "]" "<|tool_call_end|>"
r1: "f(" ")""#,
    ),
    (
        "gpt-oss",
        r#"start: ("<|channel|>analysis<|message|>" r3 "<|start|>assistant")? ("<|channel|>commentary")? " to=functions." r2
r1: J
r2: "f" ("<|channel|>commentary")? (" <|constrain|>json" | "<|constrain|>json" | " json" | " ")? "<|message|>" r1
r3[suffix="<|end|>"]: /(?s:.*)/"#,
    ),
    (
        "muse",
        r#"start: (" to=self<|message|>" r3 "<|start|>assistant")? " to=" r2
r1: "f" "\">\n" "</atem:invoke>"
r2: "f" "<|message|>" "<atem:function_calls>" "\n"? "<atem:invoke name=\"" r1 "\n"? "</atem:function_calls>"
r3[suffix="<|eom|>"]: /(?s:.*)/"#,
    ),
];

#[test]
fn a_call_is_between_the_markers_of_its_family() {
    let tools = &tools()[..1];
    for (family, expected) in ONE_CALL {
        assert_eq!(lark(family, &rules(tools, ToolChoice::Required)), *expected, "{family}");
    }
}

/// For several calls of two functions, by family: what begins a call, how the grammar begins, and what that of calls that
/// the model decides has besides.
const SEVERAL_CALLS: &[(&str, &str, &str, &str)] = &[
    (
        "hermes",
        "<tool_call>",
        r#""<tool_call>" "\n"? r3 "\n"? "</tool_call>" (/\n{0,2}/ "<tool_call>" "\n"? r3 "\n"? "</tool_call>")* /\n{0,2}/"#,
        "",
    ),
    (
        "qwen3-coder",
        "<tool_call>",
        r#""<tool_call>" "\n"? "<function=" r1 (/\n{0,2}/ "<function=" r1)* /\n{0,2}/ "</tool_call>" (/\n{0,2}/ "<tool_call>" "\n"? "<function=" r1 (/\n{0,2}/ "<function=" r1)* /\n{0,2}/ "</tool_call>")* /\n{0,2}/"#,
        r#" | "<function=" r1 (/\n{0,2}/ "<function=" r1)* /\n{0,2}/ ("</tool_call>")?"#,
    ),
    (
        "llama3",
        "<|python_tag|>",
        r#""<|python_tag|>" "\n"? r3 ("\n" r3)* "\n"?"#,
        r#" | r7 (/;? ?\n?/ r7)* "\n"? | T4"#,
    ),
    (
        "nemotron",
        "<TOOLCALL>",
        r#""<TOOLCALL>" "\n"? "[" r3 (", " r3)* "]" "\n"? "</TOOLCALL>""#,
        "",
    ),
    (
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜>",
        r#""<｜tool▁calls▁begin｜>" "\n"? "<｜tool▁call▁begin｜>" r3 (/\n{0,2}/ "<｜tool▁call▁begin｜>" r3)* /\n{0,2}/ "<｜tool▁calls▁end｜>""#,
        r#" | "<｜tool▁call▁begin｜>" r3 (/\n{0,2}/ "<｜tool▁call▁begin｜>" r3)* /\n{0,2}/ ("<｜tool▁calls▁end｜>")?"#,
    ),
    (
        "solar-open",
        "<|tool_calls|>",
        r#""<|tool_calls|>" "\n"? "<|tool_call:begin|>" r3 (/\n{0,2}/ "<|tool_call:begin|>" r3)* /\n{0,2}/"#,
        r#" | "<|tool_call:begin|>" r3 (/\n{0,2}/ "<|tool_call:begin|>" r3)* /\n{0,2}/"#,
    ),
    (
        "functionary-v3.1",
        "<function=",
        r#""<function=" r3 (/\n{0,2}/ "<function=" r3)* /\n{0,2}/"#,
        "",
    ),
    (
        "functiongemma",
        "<start_function_call>",
        r#""<start_function_call>" r1 "<end_function_call>" ("<start_function_call>" r1 "<end_function_call>")*"#,
        "",
    ),
    ("gemma3", "```tool_code\n", r#""```tool_code\n" "[" r1 (", " r1)* "]" "```""#, ""),
];

#[test]
fn several_calls_are_separated_as_the_family_does() {
    let tools = [tool("f", Value::Null), tool("g", json!({ "properties": {} }))];
    for &(family, trigger, whole, more) in SEVERAL_CALLS {
        let start = |choice| {
            let rules = CallRules { parallel: true, ..rules(&tools, choice) };
            let grammar = lark(family, &rules);
            let head = grammar.lines().next().expect("a rule");
            (format(family).call_grammar(&rules).expect(family).trigger, head.to_owned())
        };
        let (found, head) = start(ToolChoice::Auto);
        assert_eq!(found.expect(family).texts[0], trigger, "{family}");
        assert_eq!(head, format!("start: {whole}{more}"), "{family}");
        assert_eq!(start(ToolChoice::Required), (None, format!("start: {whole}")), "{family}");
        // One function is called once.
        let (_, named) = start(ToolChoice::Named("g"));
        assert!(!named.contains(")*"), "{family}: {named}");
    }
    // What the model decides has no reasoning before it, nor a channel.
    let begun = lark("gpt-oss", &rules(&tools, ToolChoice::Auto));
    assert_eq!(begun.lines().next(), Some(r#"start: " to=functions." r3"#));
    let rules = CallRules { parallel: true, ..rules(&tools, ToolChoice::Required) };
    let begun = lark("functionary-v3.2", &rules);
    assert_eq!(begun.lines().next(), Some(r#"start: r3 (/\n{0,2}/ ">>>" r3)* /\n{0,2}/"#));
    // Schemas that are none, or do not say so, are those of objects.
    let more = "\"properties\":{},\"type\":\"object\"";
    let schema = format!("r2: %json {{{more},{STYLE}}}");
    let both = r#"r3: "f" "\n" r1 | "g" "\n" r2"#;
    assert_eq!(begun.lines().skip(1).collect::<Vec<_>>(), ["r1: J", &schema, both]);
}

/// Each argument as its family writes it: the text, then the number, which may be missing.
#[test]
fn arguments_are_written_as_the_family_does() {
    let tools = &tools()[1..];
    let lines = r#""g" ">\n" "<parameter=a>\n" r1 "\n"? ( "<parameter=n>\n" r2 "\n</parameter>" "\n"?)? "</function>""#;
    let cases = [
        ("qwen3-coder", r#"\n</parameter>"#, lines),
        ("seed-oss", r#"\n</parameter>"#, lines),
        (
            "deepseek-dsml",
            "</｜DSML｜parameter>",
            r#""g" "\">\n" "<｜DSML｜parameter name=\"a\" string=\"true\">" r1 "\n"? ( "<｜DSML｜parameter name=\"n\" string=\"false\">" r2 "</｜DSML｜parameter>" "\n"?)? "</｜DSML｜invoke>""#,
        ),
        (
            "kimi-k3",
            "<|close|>argument<|sep|>",
            r#""g" "\" index=\"" /[0-9]{1,9}/ "\"<|sep|>" "<|open|>argument key=\"a\" type=\"string\"<|sep|>" r1 "\n"? ( "<|open|>argument key=\"n\" type=\"integer\"<|sep|>" r2 "<|close|>argument<|sep|>" "\n"?)? "<|close|>call<|sep|>""#,
        ),
        (
            "minimax-m2",
            "</parameter>",
            r#""g" "\">\n" "<parameter name=\"a\">" r1 "\n"? ( "<parameter name=\"n\">" r2 "</parameter>" "\n"?)? "</invoke>""#,
        ),
        (
            "minimax-m3",
            "]<]minimax[>[</a>",
            r#""g" "\">\n" "]<]minimax[>[<a>" r1 "\n"? ( "]<]minimax[>[<n>" r2 "]<]minimax[>[</n>" "\n"?)? "]<]minimax[>[</invoke>""#,
        ),
        (
            "glm",
            "</arg_value>",
            r#""g" ("\n")? "<arg_key>a</arg_key>" "\n"? "<arg_value>" r1 "\n"? ( "<arg_key>n</arg_key>" "\n"? "<arg_value>" r2 "</arg_value>" "\n"?)? "</tool_call>""#,
        ),
    ];
    for (family, end, call) in cases {
        let found = lark(family, &rules(tools, ToolChoice::Required));
        let expected = [
            format!("r1[suffix=\"{end}\"]: /(?s:.*)/"),
            format!("r2: %json {{\"type\":\"integer\",{STYLE}}}"),
            format!("r3: {call}"),
        ];
        assert_eq!(found.lines().skip(1).collect::<Vec<_>>(), expected, "{family}");
    }
    let integer = format!("r2: %json {{\"type\":\"integer\",{STYLE}}}");
    let expected = [
        r#"r1[suffix="<|\"|>"]: /(?s:.*)/"#,
        &integer,
        r#"r3: "call:g{" ("a:" "<|\"|>" r1 ("," "n:" r2)?) "}""#,
    ];
    let found = lark("gemma4", &rules(tools, ToolChoice::Required));
    assert_eq!(found.lines().skip(1).collect::<Vec<_>>(), expected);
    let integer = integer.replace("r2", "r1");
    let expected = [&integer, r#"r2: "g(" ("a=" /"([^"\\\n]|\\.)*"/ (", " "n=" r1)?) ")""#];
    let found = lark("lfm2", &rules(tools, ToolChoice::Required));
    assert_eq!(found.lines().skip(1).collect::<Vec<_>>(), expected);
}

/// Values of a list, of a type that is defined elsewhere, and of no type.
#[test]
fn values_follow_their_schemas() {
    let made = |properties| {
        let definitions = json!({ "D": { "type": "integer" } });
        [tool("g", json!({ "properties": properties, "$defs": definitions }))]
    };
    let lines = |family: &str, properties: Value| -> Vec<String> {
        let found = lark(family, &rules(&made(properties), ToolChoice::Required));
        found.lines().skip(1).map(str::to_owned).collect()
    };
    let choice = json!({ "u": { "enum": ["C", "F\""] } });
    assert_eq!(
        lines("qwen3-coder", choice.clone()),
        [
            r#"r1: "g" ">\n" ( "<parameter=u>\n" ("C" | "F\"") "\n</parameter>" "\n"?)? "</function>""#
        ]
    );
    assert_eq!(
        lines("lfm2", json!({ "u": { "enum": ["C", "F"] } })),
        [r#"r1: "g(" ("u=" ("\"C\"" | "\"F\""))? ")""#]
    );
    assert_eq!(
        lines("functiongemma", json!({ "u": { "enum": ["C", "F"] } })),
        [r#"r1: "call:g{" ("u:" ("<escape>C<escape>" | "<escape>F<escape>"))? "}""#]
    );
    let defined = json!({ "d": { "$ref": "#/$defs/D" } });
    let schema = format!(
        "r1: %json {{\"$ref\":\"#/$defs/D\",\"$defs\":{{\"D\":{{\"type\":\"integer\"}}}},{STYLE}}}"
    );
    assert_eq!(lines("lfm2", defined.clone()), [&schema, r#"r2: "g(" ("d=" r1)? ")""#]);
    let tagged = r#"r2: "g" ">\n" ( "<parameter=d>\n" r1 "\n</parameter>" "\n"?)? "</function>""#;
    assert_eq!(lines("qwen3-coder", defined.clone()), [&schema, tagged]);
    // The type is not in the schema itself.
    assert!(lines("kimi-k3", defined)[1].contains(r#"key=\"d\" type=\"object\"<|sep|>"#));
    // Any text up to the end tag, or any JSON where there are no tags.
    let any = lines("qwen3-coder", json!({ "x": {} }));
    assert_eq!(any[0], r#"r1[suffix="\n</parameter>"]: /(?s:.*)/"#);
    let definitions = "\"$defs\":{\"D\":{\"type\":\"integer\"}}";
    assert_eq!(
        lines("lfm2", json!({ "x": {} }))[0],
        format!("r1: %json {{{definitions},{STYLE}}}")
    );
}

#[test]
fn arguments_that_are_not_required_may_be_left_out() {
    let item = |text: &str, is_required| Item { text: text.into(), is_required };
    let cases = [
        ("", "", ""),
        ("A", "(A)", ""),
        ("a", "(a)?", ""),
        ("ab", "(a r1 | b)?", "r1: (, b)?\n"),
        ("abc", "(a r2 | b r1 | c)?", "r1: (, c)?\nr2: (, b)? r1\n"),
        ("aB", "(a r1 | B)", "r1: , B\n"),
        ("Ab", "(A (, b)?)", ""),
        ("aBc", "(a r1 | B (, c)?)", "r1: , B (, c)?\n"),
    ];
    for (letters, expected, rules) in cases {
        let items: Vec<Item> =
            letters.chars().map(|c| item(&c.to_string(), c.is_uppercase())).collect();
        let mut writer = Writer::default();
        assert_eq!(writer.sequence(&tools()[0], &items, ","), expected, "{letters}");
        assert_eq!(writer.lines, rules, "{letters}");
    }
    let items = [item("a", false), item("B", true), item("c", false)];
    assert_eq!(Writer::default().sequence(&tools()[0], &items, ""), "( a)?  B ( c)?");
    // Too many are left to the checks of schemas.
    for (count, is_schema) in [(1000, false), (1001, true)] {
        let items: Vec<Item> = (0..count).map(|_| item("a", false)).collect();
        let mut writer = Writer::default();
        writer.sequence(&tools()[1], &items, ",");
        assert_eq!(writer.lines.contains(r#"%json {"type":"object""#), is_schema, "{count}");
        assert_eq!(writer.lines.contains(r#""title":"g""#), is_schema, "{count}");
    }
}

/// Many arguments make a grammar that is longer by as much, also where each refers to the definitions; beyond a limit
/// no rules are written.
#[test]
fn the_text_is_linear_in_the_tools() {
    let bytes = |family: &str, tool: Tool| {
        let rules = rules(std::slice::from_ref(&tool), ToolChoice::Required);
        format(family).call_grammar(&rules).expect(family).lark.len()
    };
    for family in ["qwen3-coder", "glm", "minimax-m3", "kimi-k3", "gemma4", "lfm2", "llama4"] {
        let of = |count: usize| {
            let keys = (0..count).map(|at| (format!("key{at:04}"), json!({ "type": "string" })));
            bytes(family, tool("f", json!({ "properties": keys.collect::<Value>() })))
        };
        let [few, many] = [of(200), of(400)];
        assert!(many < 2 * few + 1000, "{family}: {few} and {many} bytes");
    }
    let keys = (0..1000).map(|at| (format!("key{at}"), json!({ "$ref": "#/$defs/d" })));
    let keys = keys.collect::<Value>();
    let definitions = json!({ "d": { "type": "object", "description": "d".repeat(20_000) } });
    let found = bytes("glm", tool("f", json!({ "properties": keys, "$defs": definitions })));
    assert!((1 << 20..2 << 20).contains(&found), "{found} bytes");
}

#[test]
fn schemas_of_strict_functions_are_followed_as_a_whole() {
    let list =
        json!([{ "name": "f", "strict": true }, { "function": { "name": "g", "strict": null } }]);
    for (tool, is_best_effort) in Tool::list(&list).expect("tools").into_iter().zip([false, true]) {
        let made = rules(std::slice::from_ref(&tool), ToolChoice::Required);
        let made = format("hermes").call_grammar(&made).expect("a grammar");
        assert_eq!(made.lark.contains(r#""best_effort":true"#), is_best_effort, "{}", tool.name);
    }
}

/// The schema of an object is taken as it is where it says so.
#[test]
fn schemas_of_arguments_are_those_of_objects() {
    let reference = json!({ "$ref": "#/$defs/D" });
    assert_eq!(object(&reference), reference);
    let typed = json!({ "type": "object", "properties": {} });
    assert_eq!(object(&typed), typed);
    assert_eq!(object(&json!({ "title": "t" })), json!({ "title": "t", "type": "object" }));
    assert_eq!(object(&json!(true)), json!({ "type": "object" }));
}

#[test]
fn reasoning_comes_first_where_it_may() {
    let tools = &tools()[..1];
    let whole = |may_think, thinking_is_open, name: &str| {
        let required = rules(tools, ToolChoice::Required);
        lark(name, &CallRules { may_think, thinking_is_open, ..required })
    };
    let call = r#""<tool_call>" "\n"? r2 "\n"? "</tool_call>""#;
    let rest = r#"
r1: J
r2: "{\"name\": \"f\", \"arguments\": " r1 "}"
r3[suffix="</think>"]: /(?s:.*)/"#;
    let may = format!(r#"start: ("<think>" r3 /[ \n]{{0,2}}/)? {call}{rest}"#);
    assert_eq!(whole(true, false, "hermes"), may);
    let open = format!(r#"start: r3 /[ \n]{{0,2}}/ {call}{rest}"#);
    assert_eq!(whole(false, true, "hermes"), open);
    assert_eq!(whole(true, true, "hermes"), open);
    // A reply that begins with a name has no room for it.
    assert!(!whole(true, true, "functionary-v3.2").contains("think"));
    let auto = rules(tools, ToolChoice::Auto);
    let auto = CallRules { may_think: true, thinking_is_open: true, ..auto };
    assert!(!lark("hermes", &auto).contains("think"), "it was read before the call began");
}

/// Markers that the vocabulary has as control tokens are tokens; a text cannot contain them.
#[test]
fn control_tokens_are_written_as_tokens() {
    let tokens = ["<unk>", "</think>", "<tool_call>", "</parameter>", "x"];
    let tokenizer = Tokenizer::new(Vocabulary {
        model: "llama".into(),
        tokens: tokens.map(Into::into).to_vec(),
        types: vec![2, 3, 3, 3, 1],
        scores: vec![0.0; 5],
        unk: Some(0),
        ..Vocabulary::default()
    });
    let tokenizer = tokenizer.expect("a vocabulary");
    let with = |name: &str, tools: &[Tool]| {
        let rules = rules(tools, ToolChoice::Required);
        lark(name, &CallRules { tokenizer: Some(&tokenizer), thinking_is_open: true, ..rules })
    };
    assert_eq!(
        with("hermes", &tools()[..1]),
        r#"start: /(?s:.*)/ <[1]> /[ \n]{0,2}/ <[2]> "\n"? r2 "\n"? "</tool_call>"
r1: J
r2: "{\"name\": \"f\", \"arguments\": " r1 "}""#
    );
    // A line break comes before the token.
    let found = with("qwen3-coder", &tools()[1..]);
    assert!(found.contains(r#"r1[suffix="\n"]: /(?s:.*)/"#), "{found}");
    assert!(found.contains(r#""<parameter=a>\n" r1 <[3]> "\n"? ("#), "{found}");
}

/// A reply of either kind follows the reasoning; formats in which calls have no marker have no such grammar.
#[test]
fn a_reply_may_be_calls_or_an_answer() {
    let tools = &tools()[..1];
    let given = rules(tools, ToolChoice::Auto);
    let either = |name: &str, rules: &CallRules<'_>| {
        let made = format(name).call_or_answer_grammar(rules, "%json {}");
        made.map(|made| made.lark.lines().next().unwrap_or_default().to_owned())
    };
    let call = r#"start: ("<tool_call>" "\n"? r2 "\n"? "</tool_call>" | r3)"#;
    // Some families may leave the marker out.
    for (name, call) in [
        ("hermes", call),
        ("generic", r#"start: ("<tool_call>" "\n"? r2 "\n"? "</tool_call>" | r3 | r4)"#),
        ("llama3", r#"start: ("<|python_tag|>" "\n"? r2 | r3 | r4)"#),
        ("llama4", r#"start: ("<|python_start|>" "[" r1 "]" "<|python_end|>" | "[" r1 "]" | r2)"#),
    ] {
        assert_eq!(either(name, &given).as_deref(), Some(call), "{name}");
    }
    let thinks = CallRules { may_think: true, ..given };
    let thought = r#"start: ("<think>" r4 /[ \n]{0,2}/)? ("#;
    let found = either("hermes", &thinks).expect("a grammar");
    assert!(found.starts_with(thought), "{found}");
    let found = either("gpt-oss", &given).expect("a grammar");
    assert!(
        found.ends_with(
            r#"(("<|channel|>commentary")? " to=functions." r2 | "<|channel|>final<|message|>" r3)"#
        ),
        "{found}"
    );
    assert_eq!(either("functionary-v3.2", &given), None);
    assert_eq!(either("muse", &given), None);
    assert_eq!(either("hermes", &rules(&[], ToolChoice::Auto)), None);
}

/// Where an answer has a header, so has one that follows a schema, and reasoning may come before.
#[test]
fn an_answer_has_the_header_of_its_family() {
    let of = |name: &str| format(name).answer_grammar("%json {}", None);
    let expected = r#"start: ("<|channel|>analysis<|message|>" r2 "<|start|>assistant")? "<|channel|>final<|message|>" r1
r1: %json {}
r2[suffix="<|end|>"]: /(?s:.*)/
"#;
    assert_eq!(of("gpt-oss").as_deref(), Some(expected));
    assert_eq!([of("muse"), of("hermes")], [None, None]);
}
