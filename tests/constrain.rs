//! The promise of constrained output on a whole model: answers are valid, repeat with their seed, and are not changed by
//! draft tokens. Soundness over many schemas is tested in `crates/constrain`.

#![allow(clippy::print_stdout, reason = "says what a mask costs")]

use std::path::Path;
use std::time::Instant;

use bilayer_engine::constrain::{Constraint, Grammar, Limits, Token, Tokens};
use bilayer_engine::generate::speculate::{Bounds, Drafter, Lookup};
use bilayer_engine::generate::{Generation, Request, Stop};
use bilayer_engine::sampling::{Mirostat, Options, Sampler};
use bilayer_engine::session::{Session, Settings};
use bilayer_engine::tools::{self, Reasoning};
use bilayer_engine::{Model, OpenOptions};
use bilayer_text::Encode;
use bilayer_text::chat::reply::{CallRules, Format, Tool, ToolChoice};
use serde_json::{Value, json};

mod support {
    pub mod data;
}

use support::data::shared;

fn demo() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/cli/assets/demo.gguf");
    Model::open(&path, OpenOptions::default()).expect("the demo model")
}

/// An answer of the demo model, with the statistics of its drafts.
fn answer(
    model: &Model,
    grammar: &Grammar,
    options: Options,
    drafter: Option<&mut dyn Drafter>,
) -> (String, usize, Stop) {
    let settings = Settings { outputs: Some(8), ctx_size: Some(512), ..Settings::default() };
    let mut session = Session::new(model, settings).expect("a session");
    let sequence = session.open().expect("a sequence");
    let mut sampler = Sampler::new(options, session.vocab(), session.context()).expect("options");
    sampler.set_constraint(model.constraint(grammar).expect("a grammar"));
    let prompt = model.prompt_tokens("ROMEO:\nmy own, my own, my own\n").expect("tokens");
    let request = Request { predict: Some(400), ..Request::new(&prompt) };
    let mut generation =
        Generation::new(model, &mut session, sequence, sampler, request).expect("a generation");
    if let Some(drafter) = drafter {
        generation = generation.with_drafter(drafter).expect("a drafter");
    }
    let mut text = String::new();
    while let Some(token) = generation.next().expect("a token") {
        text += &token.text;
    }
    text += &generation.finish();
    (text, generation.statistics().drafted, generation.stop().expect("it ended"))
}

#[test]
fn answers_of_a_model_are_valid_and_repeat_with_their_seed() {
    let model = demo();
    let schema = r#"{"type":"object","properties":{"name":{"enum":["ROMEO","JULIET"]},
        "lines":{"type":"array","items":{"type":"string","maxLength":12},"minItems":1,"maxItems":3}},
        "required":["name","lines"],"additionalProperties":false}"#;
    let grammar = Grammar::json_schema(schema);
    for seed in 0..3 {
        let options = Options { seed, ..Options::default() };
        let (text, _, stop) = answer(&model, &grammar, options.clone(), None);
        assert_eq!(stop, Stop::EndOfText, "{text}");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert!(["ROMEO", "JULIET"].iter().any(|name| value["name"] == *name), "{text}");
        let lines = value["lines"].as_array().expect("lines");
        assert!((1..=3).contains(&lines.len()), "{text}");
        let is_short = |line: &Value| line.as_str().is_some_and(|l| l.chars().count() <= 12);
        assert!(lines.iter().all(is_short), "{text}");
        assert_eq!(text, answer(&model, &grammar, options, None).0);
    }
}

#[test]
fn drafts_that_the_grammar_forbids_are_refused() {
    let model = demo();
    // What prompt lookup proposes after "my own" is ", my own", which only the second grammar allows.
    for expression in ["my own( and my own){3,8}\\.", "(my own, ){3,8}my own\\."] {
        let grammar = Grammar::regex(expression);
        let greedy = Options { temperature: 0.0, ..Options::default() };
        let (plain, _, stop) = answer(&model, &grammar, greedy.clone(), None);
        let (drafted, drafts, _) =
            answer(&model, &grammar, greedy, Some(&mut Lookup::new(Bounds::default())));
        assert_eq!(plain, drafted);
        assert!(drafts > 0, "nothing was drafted");
        assert_eq!(stop, Stop::EndOfText);
        assert!(regex::Regex::new(&format!("^{expression}$")).expect("valid").is_match(&plain));
        let sampled = Options { seed: 5, ..Options::default() };
        let (text, ..) =
            answer(&model, &grammar, sampled, Some(&mut Lookup::new(Bounds::default())));
        assert!(regex::Regex::new(&format!("^{expression}$")).expect("valid").is_match(&text));
    }
}

#[test]
fn every_sampler_obeys_and_all_logits_are_needed() {
    let model = demo();
    let vocab = model.config().vocab;
    let constraint = model.constraint(&Grammar::regex("[a-c]{30}")).expect("an expression");
    let free = Options { temperature: 1.0, ..Options::default() };
    let all = [
        Options { temperature: 0.0, ..free.clone() },
        Options { top_k: 1, ..free.clone() },
        Options { mirostat: Some(Mirostat { version: 1, tau: 5.0, eta: 0.1 }), ..free.clone() },
        Options { mirostat: Some(Mirostat { version: 2, tau: 5.0, eta: 0.1 }), ..free.clone() },
        Options { repeat_penalty: 2.0, presence_penalty: 3.0, ..free },
    ];
    for options in all {
        let mut sampler = Sampler::new(options, vocab, 256).expect("options");
        sampler.set_constraint(constraint.clone());
        assert_eq!(sampler.needs(), None);
        let mut tokens = Vec::new();
        // The model prefers all that the grammar forbids.
        let dislikes = |id: u32| match model.tokenizer().text(id) {
            Some(text) if text.iter().all(|byte| (b'a'..=b'c').contains(byte)) => -50.0,
            _ => (id % 17) as f32,
        };
        let logits: Vec<f32> = (0..vocab as u32).map(dislikes).collect();
        while !sampler.is_complete() {
            tokens.push(sampler.sample(&logits).expect("a token"));
        }
        let text: Vec<u8> = tokens
            .iter()
            .flat_map(|&id| model.tokenizer().text(id).unwrap_or_default())
            .copied()
            .collect();
        assert_eq!(text.len(), 30);
        assert!(text.iter().all(|byte| (b'a'..=b'c').contains(byte)));
    }
}

/// `count` functions with as many optional texts `p0`, `p1` and so on.
fn tools(count: usize, texts: usize) -> Vec<Tool> {
    let text = |at: usize| (format!("p{at}"), json!({ "type": "string" }));
    let properties: Value = (0..texts).map(text).collect();
    let parameters = json!({ "type": "object", "properties": properties });
    let tool = Tool { parameters, ..Tool::default() };
    (0..count).map(|at| Tool { name: format!("f{at}"), ..tool.clone() }).collect()
}

/// A template of each kind of format, and two calls as its maker writes them: the first of two texts, the second of none.
const CALLS: &[(&str, &str)] = &[
    (
        "<tool_call><function=<parameter=",
        "<tool_call>\n<function=f0>\n<parameter=p2>\nx\n</parameter>\n<parameter=p9>\ny\n</parameter>\n</function>\n\
         </tool_call>\n<tool_call>\n<function=f0>\n</function>\n</tool_call>",
    ),
    (
        "<tool_call>",
        "<tool_call>\n{\"name\": \"f0\", \"arguments\": {\"p2\": \"x\", \"p9\": \"y\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"f0\", \"arguments\": {}}\n</tool_call>",
    ),
    ("<|tool_call_start|>", "<|tool_call_start|>[f0(p2=\"x\", p9=\"y\"), f0()]<|tool_call_end|>"),
    (
        "<|tool_call>",
        "<|tool_call>call:f0{p2:<|\"|>x<|\"|>,p9:<|\"|>y<|\"|>}<tool_call|><|tool_call>call:f0{}<tool_call|>",
    ),
];

/// Calls without a marker, which a reply may begin with in some formats.
const BARE_CALLS: &[(&str, &str)] = &[
    (
        "<|python_tag|>",
        "{\"name\": \"f0\", \"parameters\": {\"p2\": \"x\", \"p9\": \"y\"}}\n{\"name\":\"f0\",\"parameters\":{}}",
    ),
    ("<|python_tag|>", "<|python_tag|>{\"name\": \"f0\", \"parameters\": {\"p2\": \"x\"}}"),
    ("<|python_start|>", "[f0(p2=\"x\", p9=\"y\"), f0()]"),
    ("", "{\"name\": \"f1\", \"arguments\": {\"p2\": \"x\"}}"),
];

/// A grammar over a vocabulary of single bytes.
fn of_bytes(lark: String) -> Option<Constraint> {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let tokens = bytes.iter().map(|byte| Token::Text(byte)).chain([Token::Control(b"<end>")]);
    let tokens = Tokens::new(tokens, &[256]).expect("a vocabulary");
    Constraint::new(&tokens, &Grammar::lark(lark), Limits::default()).ok()
}

/// Calls of the functions as the model decides, without reasoning.
fn rules(tools: &[Tool]) -> CallRules<'_> {
    CallRules {
        tools,
        choice: ToolChoice::Auto,
        parallel: true,
        thinking_is_open: false,
        may_think: false,
        tokenizer: None,
    }
}

/// What calls of the functions must follow.
fn constraint(template: &str, tools: &[Tool]) -> Option<Constraint> {
    let format = Format::of(template);
    let grammar = format.call_grammar(&rules(tools)).expect("a grammar");
    let trigger = grammar.trigger.expect("a marker");
    of_bytes(grammar.lark).map(|made| tools::lazy(made, &format, &trigger, Reasoning::Free))
}

/// Whether each byte of a text is allowed, and the text may end there.
fn allows(made: &Constraint, text: &str) -> bool {
    let mut made = made.clone();
    let fed = text.bytes().try_for_each(|byte| made.accept(u32::from(byte)));
    fed.is_ok() && made.may_end()
}

/// Calls without the marker of their family, or with another one, are held to their schemas; `J` stands for the value of
/// an argument that must be a whole number.
#[test]
fn calls_are_held_to_their_schemas_however_they_begin() {
    let properties = json!({ "n": { "type": "integer" } });
    let parameters = json!({ "type": "object", "properties": properties, "required": ["n"],
        "additionalProperties": false });
    let tools = [Tool { name: "f".to_owned(), parameters, ..Tool::default() }];
    let calls = [
        ("<|python_tag|>", "{\"name\": \"f\", \"parameters\": {\"n\": J}}"),
        ("<|python_tag|>", " \n{\n \"name\":\"f\" ,\"parameters\":\n{\"n\": J}\n}"),
        ("<|python_tag|>", "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"n\": J}}"),
        ("<|python_tag|>", "<think>{</think>{\"name\": \"f\", \"parameters\": {\"n\": J}}"),
        (
            "<|python_tag|>",
            "{\"name\": \"f\", \"parameters\": {\"n\": J}}; {\"name\": \"f\", \"parameters\": {\"n\": J}}",
        ),
        ("", "{\"name\": \"f\", \"arguments\": {\"n\": J}}"),
        (
            "<|tool_call:begin|>",
            "Hm<|tool_calls|><|tool_call:begin|>0<|tool_call:name|>f<|tool_call:args|>{\"n\": J}<|tool_call:end|>",
        ),
        (
            "<|tool_call:begin|>",
            "<|tool_call:begin|>0<|tool_call:name|>f<|tool_call:args|>{\"n\": J}<|tool_call:end|>",
        ),
        ("<|python_start|>", "[f(n=J)]"),
        ("<|python_start|>", "[ f(n=J), f(n=J)]"),
        (
            "<tool_call><function=<parameter=",
            "So <function=f>\n<parameter=n>\nJ\n</parameter>\n</function>",
        ),
        (
            "<tool_call><function=<parameter=",
            "<function=f>\n<parameter=n>\nJ\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            "｜DSML｜",
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" string=\"false\">J\
             </｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ),
        ("[TOOL_CALLS][ARGS]", "[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{\"n\": J}"),
        ("<arg_key>", "<tool_call>f<arg_key>n</arg_key>\n<arg_value>J</arg_value>\n</tool_call>"),
        ("<arg_key>", "<tool_call>f\n<arg_key>n</arg_key><arg_value>J</arg_value></tool_call>"),
        (
            "<|channel|><|message|>",
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": J}",
        ),
        (
            "<|channel|><|message|>",
            " to=functions.f<|channel|>commentary json<|message|>{\"n\": J}",
        ),
    ];
    for (template, call) in calls {
        let made = constraint(template, &tools).expect(template);
        assert!(allows(&made, &call.replace('J', "12")), "{template}: {call}");
        assert!(!allows(&made, &call.replace('J', "soon")), "{template}: {call}");
    }
    let answers = [
        ("<|python_tag|>", "{\"name\": \"g\", \"parameters\": {\"n\": \"soon\"}}"),
        ("<|python_tag|>", "{\"name\": \"f"),
        ("<|python_tag|>", "{1, 2} is a set, and {\"name\": \"f\"} is none."),
        ("<|python_tag|>", "It is {\"name\": \"f\"}."),
        ("<|python_start|>", "[f](x) is a link, [g(n='soon')] is none"),
        ("", "{}"),
    ];
    for (template, answer) in answers {
        assert!(allows(&constraint(template, &tools).expect(template), answer), "{answer}");
    }
}

/// A reply is calls as its maker writes them, or an answer that follows a schema, and nothing else.
#[test]
fn a_reply_may_be_calls_or_follow_a_schema() {
    let properties = json!({ "name": { "type": "string" }, "a": { "type": "integer" } });
    let schema = json!({ "type": "object", "properties": properties, "required": ["a"],
        "additionalProperties": false });
    let schema = Grammar::json_schema(schema.to_string()).lark_expression().expect("a schema");
    let answer = r#"{"a": 1}"#;
    for (template, calls) in CALLS.iter().chain(BARE_CALLS) {
        let tools = tools(2, 20);
        let made = Format::of(template).call_or_answer_grammar(&rules(&tools), &schema);
        let made = of_bytes(made.expect("a grammar").lark).expect(template);
        for (text, is_allowed) in [
            ((*calls).to_owned(), true),
            (answer.to_owned(), true),
            (r#"{"name": "f0", "a": 1}"#.to_owned(), true),
            (r#"{"name":"f","a":1}"#.to_owned(), true),
            (r#"{"name": "f0"}"#.to_owned(), false),
            ("Hello".to_owned(), false),
            (r#"{"b": 1}"#.to_owned(), false),
            (format!("{answer}{calls}"), false),
            (format!("{calls}{answer}"), false),
        ] {
            assert_eq!(allows(&made, &text), is_allowed, "{template}: {text}");
        }
    }
}

/// However a family writes texts: as JSON, between tags, or in quotes of its own.
#[test]
fn texts_of_calls_keep_the_limits_of_their_schemas() {
    let properties = json!({
        "p2": { "type": "string", "maxLength": 3, "pattern": r"(^[a-z</]+$)|(^\d{3}$)" },
        "p9": { "type": "string", "minLength": 2, "maxLength": 1000 },
    });
    let parameters = json!({ "type": "object", "properties": properties });
    let tools = [Tool { name: "f0".to_owned(), parameters, ..Tool::default() }];
    for (template, calls) in CALLS {
        let made = constraint(template, &tools).expect(template);
        for (x, y, is_allowed) in [
            ("a</", "</y>", true),
            ("123", "yy", true),
            ("12", "yy", false),
            ("abcd", "yy", false),
            ("", "yy", false),
            ("aB", "yy", false),
            ("abc", "y", false),
        ] {
            let call = calls.replacen('x', x, 1).replacen('y', y, 1);
            let mut made = made.clone();
            let fed = call.bytes().try_for_each(|byte| made.accept(u32::from(byte)));
            assert_eq!(fed.is_ok(), is_allowed, "{call}");
        }
    }
}

#[test]
fn calls_are_allowed_as_their_makers_write_them() {
    for (template, calls) in CALLS {
        for (count, texts) in [(2, 20), (40, 20), (1, 700)] {
            let made = constraint(template, &tools(count, texts)).expect(template);
            let mut made = made.clone();
            for (at, byte) in calls.bytes().enumerate() {
                let fed = made.accept(u32::from(byte));
                assert_eq!(fed, Ok(()), "{count}, {texts}: {:?}", &calls[..at]);
            }
            assert!(made.may_end(), "{count}, {texts}: {template}");
        }
        assert!(constraint(template, &tools(1, 4000)).is_none(), "{template}");
    }
}

/// Prints what a mask costs with 128 thousand tokens, where the shared data is present; no bound, since machines and
/// their load differ.
#[test]
fn the_cost_of_a_mask_is_printed() {
    let Some(path) = shared("vocab/ggml-vocab-llama-bpe.gguf") else { return };
    let tokenizer = bilayer_engine::tokenizer(&path).expect("a vocabulary");
    let start = Instant::now();
    let token = |id| match (tokenizer.text(id), tokenizer.piece(id)) {
        (Some(bytes), _) => Token::Text(bytes),
        (None, Some(name)) => Token::Control(name),
        (None, None) => Token::Unused,
    };
    let tokens = Tokens::new((0..tokenizer.len() as u32).map(token), tokenizer.ends());
    let tokens = tokens.expect("a vocabulary");
    println!("vocabulary of {} tokens prepared in {:?}", tokens.len(), start.elapsed());
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 60 },
            "tags": { "type": "array", "items": { "type": "string" } },
            "score": { "type": "number", "minimum": 0, "maximum": 1 },
            "kind": { "enum": ["person", "place", "other"] },
            "more": { "type": "object" },
        },
        "required": ["name", "tags", "score", "kind", "more"],
        "additionalProperties": false,
    });
    let mut times = Vec::new();
    for number in 0..30 {
        let start = Instant::now();
        let grammar = Grammar::json_schema(schema.to_string());
        let mut constraint = Constraint::new(&tokens, &grammar, Limits::default()).expect("valid");
        if number == 0 {
            println!("schema compiled in {:?}", start.elapsed());
        }
        let value = json!({
            "name": format!("Ada Lovelace, number {number}, of London"),
            "tags": ["first programmer", "mathematics and poetical science", "näive café"],
            "score": 0.25 + f64::from(number) / 100.0,
            "kind": "person",
            "more": { "born": 1815, "notes": [null, true, { "text": "The engine weaves algebraic patterns." }] },
        });
        let text = serde_json::to_string_pretty(&value).expect("JSON");
        for token in tokenizer.encode(&text, Encode::default()).expect("tokens") {
            let start = Instant::now();
            constraint.mask().expect("a mask");
            times.push(start.elapsed());
            constraint.accept(token).expect("an allowed token");
        }
        assert!(constraint.is_complete());
    }
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{} masks: median {:?}, p99 {:?}, most {:?}", times.len(), at(0.5), at(0.99), at(1.0));
}
