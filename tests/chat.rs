//! The promise of chat: templates render as their makers' own library renders them, no message makes a special token,
//! a conversation runs only what is new, and at a terminal one can type, stop, ask again and leave.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bilayer_text::Error;
use bilayer_text::chat::{Inputs, Template};
use serde::Deserialize;
use serde_json::{Map, Value, json};

mod support {
    pub mod data;
}

use support::data::shared;

/// A conversation of `expected.json`.
#[derive(Deserialize)]
struct Case {
    case: String,
    messages: Vec<Value>,
    tools: Value,
    add_generation_prompt: bool,
    extra: Map<String, Value>,
}

/// What a template makes of it.
#[derive(Deserialize)]
struct Expected {
    case: String,
    output: Option<String>,
    raises: Option<String>,
}

#[derive(Deserialize)]
struct Table {
    cases: Vec<Case>,
    #[serde(rename = "TOOLS")]
    tools: Value,
    expected: BTreeMap<String, Vec<Expected>>,
}

/// The differences from Python that are left, and why: (template, case, reason).
const EXPLAINED: &[(&str, &str, &str)] = &[];

fn table() -> Option<Table> {
    let text = std::fs::read_to_string(shared("chat-templates/expected.json")?).unwrap();
    Some(serde_json::from_str(&text).unwrap())
}

fn inputs<'a>(table: &'a Table, case: &'a Case) -> Inputs<'a> {
    Inputs {
        tools: (!case.tools.is_null()).then_some(&table.tools),
        add_generation_prompt: case.add_generation_prompt,
        extra: case.extra.clone(),
        bos_token: "<|BOS|>".into(),
        eos_token: "<|EOS|>".into(),
        now: "2026-01-02T03:04:05[UTC]".parse().unwrap(),
        ..Inputs::new(&case.messages)
    }
}

#[test]
fn templates_render_as_python_renders_them() {
    let Some(table) = table() else { return };
    let (mut equal, mut refused, mut explained) = (0, 0, Vec::new());
    let mut broken = Vec::new();
    for (name, expected) in &table.expected {
        let path = shared(&format!("chat-templates/templates/{name}.jinja")).unwrap();
        let source = std::fs::read_to_string(path).unwrap();
        let template = Template::new(name, &source).unwrap_or_else(|e| panic!("{e}"));
        for Expected { case, output, raises } in expected {
            let conversation = table.cases.iter().find(|c| c.case == *case).unwrap();
            let rendered = template.render(&inputs(&table, conversation));
            let found = match (&rendered, output, raises) {
                (Ok(text), Some(output), _) if text == output => {
                    equal += 1;
                    continue;
                }
                (Err(Error::Refused { reason, .. }), _, Some(raises)) if reason == raises => {
                    refused += 1;
                    continue;
                }
                (Ok(text), Some(output), _) => {
                    let same = text.bytes().zip(output.bytes()).take_while(|(a, b)| a == b).count();
                    let from = (0..=same.saturating_sub(30))
                        .rev()
                        .find(|&at| text.is_char_boundary(at))
                        .unwrap();
                    let end = |text: &str| text[from..].chars().take(90).collect::<String>();
                    format!("{:?} is not {:?}", end(text), end(output))
                }
                _ => format!("{rendered:?}, not {output:?} or {raises:?}"),
            };
            match EXPLAINED.iter().find(|(t, c, _)| t == name && c == case) {
                Some(known) => explained.push(known),
                None => broken.push(format!("{name}, {case}: {found}")),
            }
        }
    }
    assert!(broken.is_empty(), "{} of {equal}:\n{}", broken.len(), broken.join("\n"));
    assert_eq!(explained.len(), EXPLAINED.len(), "a difference is gone: {explained:?}");
    assert!(equal + explained.len() >= 620 && refused == 8, "{equal} equal, {refused} refused");
}

#[test]
fn what_does_not_end_is_ended() {
    let endless = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ messages }}{% endfor %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for a in range(99999) %}{% set ns.l = ns.l + [a] %}{% endfor %}{% for a in range(99999) %}{% for b in ns.l %}{% endfor %}{% endfor %}",
    ];
    let messages = [json!({ "role": "user", "content": "Hello" })];
    for source in endless {
        let template = Template::new("endless", source).unwrap();
        let began = Instant::now();
        let error = template.render(&Inputs::new(&messages)).unwrap_err();
        let took = began.elapsed();
        println!("{took:?} {error}");
        assert!(took < Duration::from_secs(1), "{source}: {took:?}");
    }
}
