//! Replies of every family, each read whole and split at every position, and arbitrary text.

use serde_json::{Value, json};

use super::*;

#[path = "tests_cases.rs"]
mod cases;
#[path = "tests_limits.rs"]
mod limits;

use cases::CASES;

/// A reply and what it says.
pub struct Case {
    /// The format's name.
    pub format: &'static str,
    /// What the model wrote.
    pub reply: &'static str,
    pub reasoning: &'static str,
    pub content: &'static str,
    /// Names and arguments as JSON.
    pub calls: &'static [(&'static str, &'static str)],
}

fn tools() -> Vec<Tool> {
    let tool = |name: &str, parameters| Tool { name: name.into(), parameters, ..Tool::default() };
    let city = json!({ "type": "object", "properties": {
        "city": { "type": "string" }, "days": { "type": "integer" },
        "exact": { "type": "boolean" }, "tags": { "type": "array" }, "any": {},
        "unit": { "enum": ["C", "F"] } } });
    vec![
        tool("weather", city.clone()),
        tool("time", city),
        tool("none", json!({ "type": "object", "properties": {} })),
        tool("run", json!({ "type": "object", "properties": { "code": { "type": "string" } } })),
    ]
}

fn format(name: &str) -> Format {
    let family = FAMILIES.iter().find(|family| family.name == name).expect(name);
    let thinking = match name {
        "seed-oss" => 0,
        "minimax-m3" => 1,
        "command-r7b" => 2,
        "apertus" => 3,
        "mistral" => 4,
        "gemma4" => 6,
        "apriel" => 7,
        "kimi-k3" => 8,
        "solar-open" => 9,
        _ => THINKING.len() - 1,
    };
    Format { family, thinking: THINKING[thinking] }
}

/// A reply taken apart: reasoning, content, calls.
type Parts = (String, String, Vec<(String, String)>);

fn parts(deltas: &[Delta]) -> Parts {
    let (mut reasoning, mut content, mut calls) = Parts::default();
    for delta in deltas {
        match delta {
            Delta::Content(text) => content.push_str(text),
            Delta::Reasoning(text) => reasoning.push_str(text),
            Delta::Call { index, name } => {
                assert_eq!(*index, calls.len());
                calls.push((name.clone(), String::new()));
            }
            Delta::Arguments { index, text } => {
                assert_eq!(index + 1, calls.len(), "arguments of the last call");
                calls[*index].1.push_str(text);
            }
        }
    }
    (reasoning, content, calls)
}

fn read(format: Format, options: &Options, pieces: &[&str]) -> Parts {
    let mut parser = format.parser(options.clone());
    let mut deltas = Vec::new();
    for piece in pieces {
        deltas.extend(parser.push(piece));
    }
    deltas.extend(parser.finish());
    parts(&deltas)
}

/// The parts of a reply that is cut off.
fn cut(format: Format, options: &Options, reply: &str) -> Parts {
    let mut parser = format.parser(options.clone());
    let mut deltas = parser.push(reply);
    deltas.extend(parser.cut());
    parts(&deltas)
}

fn splits(text: &str) -> impl Iterator<Item = (&str, &str)> {
    (0..=text.len()).filter(|&at| text.is_char_boundary(at)).map(|at| text.split_at(at))
}

#[test]
fn every_family_is_read_however_it_is_split() {
    assert!(CASES.len() >= 80, "{} cases", CASES.len());
    let options = Options { tools: tools(), ..Options::default() };
    for case in CASES {
        let format = format(case.format);
        let name = format!("{}: {:?}", case.format, case.reply);
        let whole = read(format, &options, &[case.reply]);
        assert_eq!(whole.0, case.reasoning, "reasoning of {name}");
        assert_eq!(whole.1, case.content, "content of {name}");
        let found: Vec<(&str, Value)> = whole
            .2
            .iter()
            .map(|(call, text)| {
                let value = serde_json::from_str(text);
                (call.as_str(), value.unwrap_or_else(|e| panic!("{name}: {e} in {text}")))
            })
            .collect();
        let expected: Vec<(&str, Value)> = case
            .calls
            .iter()
            .map(|(call, text)| (*call, serde_json::from_str(text).expect("a valid case")))
            .collect();
        assert_eq!(found, expected, "calls of {name}");
        for (before, after) in splits(case.reply) {
            assert_eq!(read(format, &options, &[before, after]), whole, "{name} at {before:?}");
        }
        let each: Vec<String> = case.reply.chars().map(String::from).collect();
        let each: Vec<&str> = each.iter().map(String::as_str).collect();
        assert_eq!(read(format, &options, &each), whole, "{name} by character");
    }
    for family in FAMILIES {
        let has_calls = |case: &&Case| case.format == family.name && !case.calls.is_empty();
        assert!(CASES.iter().any(|case| has_calls(&case)), "no case calls with {}", family.name);
    }
}

/// What begins a call of a format, and the other markers of its replies.
fn markers(format: Format) -> (Vec<String>, Vec<String>) {
    let (family, thinking) = (format.family, format.thinking);
    let mut begins = calls::triggers(&family.calls);
    begins.extend(calls::bare(&family.calls));
    let mut others = [family.wrappers, &[thinking.open, thinking.close]].concat();
    if let families::Syntax::Channels(channels) = &family.calls {
        begins.extend(channels.markup.map(calls::framed_triggers).unwrap_or_default());
        begins.extend(channels::HEADS);
        others.extend([channels.ends, channels::HEADS].concat());
    }
    if let families::Syntax::Framed(framed) = &family.calls
        && framed.is_begun
    {
        others.extend(["all\n"]);
        begins.extend(["all\n", "none\n", "time\n"]);
    }
    (
        begins.into_iter().map(str::to_owned).collect(),
        others.into_iter().map(str::to_owned).collect(),
    )
}

/// Wherever a reply is cut off, its parts lack nothing that was written but the beginning of a call or of a header, and
/// show nothing that the whole reply does not but the beginning of another marker.
#[test]
fn a_reply_that_is_cut_off_lacks_only_the_beginning_of_a_call() {
    let (with, without) = (Options { tools: tools(), ..Options::default() }, Options::default());
    for (case, options) in CASES.iter().flat_map(|case| [(case, &with), (case, &without)]) {
        let format = format(case.format);
        let (begins, others) = markers(format);
        let is_channels = matches!(format.family.calls, families::Syntax::Channels(_));
        let whole = read(format, options, &[case.reply]);
        for (before, _) in splits(case.reply) {
            let name = format!("{}, {} tools, {before:?}", case.format, options.tools.len());
            let written = read(format, options, &[before]);
            let found = cut(format, options, before);
            assert_eq!(found.2, written.2, "{name}");
            let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok();
            let found_calls = &found.2;
            let is_open = found_calls.last().is_some_and(|(_, arguments)| !is_json(arguments));
            for (whole, written, found) in
                [(&whole.0, &written.0, &found.0), (&whole.1, &written.1, &found.1)]
            {
                let is_part = |text: &str| whole.starts_with(text.trim_end());
                let lost = written.strip_prefix(found.as_str());
                let lost = lost.unwrap_or_else(|| panic!("{name}: {found:?} of {written:?}"));
                let begun = lost.trim_start();
                let is_header =
                    is_channels && channels::HEADS.iter().any(|head| lost.starts_with(head));
                let is_call = begins.iter().any(|m| m.starts_with(begun) || begun.starts_with(m));
                // Such as the parentheses behind a call.
                let is_behind = !found_calls.is_empty() && !lost.contains(char::is_alphanumeric);
                let is_call = is_call || is_open || is_behind || !is_part(written);
                let is_call = is_call && !options.tools.is_empty();
                assert!(lost.is_empty() || is_header || is_call, "{name}: {lost:?} is lost");
                let is_begun = others.iter().any(|marker| {
                    marker.char_indices().skip(1).any(|(at, _)| found.ends_with(&marker[..at]))
                });
                assert!(is_part(found) || is_begun, "{name}: {found:?} is not content");
            }
        }
    }
}

#[test]
fn text_that_begins_no_call_is_shown_where_it_is_cut_off() {
    let (with, without) = (Options { tools: tools(), ..Options::default() }, Options::default());
    for (format_name, reply, options, reasoning, content) in [
        ("hermes", "if (a <", &without, "", "if (a <"),
        ("hermes", "if (a <", &with, "", "if (a "),
        ("hermes", "if (a </thi", &with, "", "if (a </thi"),
        ("hermes", "<think>if (a <", &with, "if (a <", ""),
        ("hermes", "<tool_call>{\"na", &without, "", "<tool_call>{\"na"),
        ("hermes", "<tool_call>{\"na", &with, "", ""),
        ("llama3", "{\"na", &without, "", "{\"na"),
        ("functionary-v3.2", "Hello wor", &without, "", "Hello wor"),
        ("command-r7b", "Hi<|END_RESP", &with, "", "Hi<|END_RESP"),
        ("gpt-oss", "if (a <", &without, "", "if (a <"),
        ("gpt-oss", "<|channel|>final<|message|>if (a <", &without, "", "if (a <"),
        ("gpt-oss", "<|channel|>final<|message|>Hi<|en", &with, "", "Hi<|en"),
        ("gpt-oss", "<|channel|>analysis<|message|>a <", &without, "a <", ""),
        ("gpt-oss", "<|channel|>final<|message|>Hi<|start|>assis", &with, "", "Hi"),
        ("gpt-oss", "<|channel|>analy", &without, "", ""),
    ] {
        let found = cut(format(format_name), options, reply);
        let expected = (reasoning.to_owned(), content.to_owned(), vec![]);
        assert_eq!(found, expected, "{format_name}, {} tools: {reply:?}", options.tools.len());
    }
}

#[test]
fn markers_never_hide_one_another() {
    for family in FAMILIES {
        let mut markers = calls::triggers(&family.calls);
        markers.extend(family.wrappers);
        markers.sort_unstable();
        let count = markers.len();
        markers.dedup();
        assert_eq!(markers.len(), count, "{}: a marker twice", family.name);
        for marker in &markers {
            for other in markers.iter().filter(|other| other != &marker) {
                assert!(!marker.contains(other), "{}: {other} within {marker}", family.name);
            }
        }
    }
}

#[test]
fn without_tools_nothing_is_a_call() {
    for case in CASES.iter().filter(|case| !case.calls.is_empty()) {
        let (_, content, calls) = read(format(case.format), &Options::default(), &[case.reply]);
        assert_eq!(calls, []);
        for word in case.calls.iter().map(|(name, _)| name) {
            assert!(content.contains(word), "{}: {word} is lost in {content:?}", case.format);
        }
    }
}

#[test]
fn reasoning_may_stay_in_the_content() {
    let options =
        Options { reasoning: ReasoningFormat::Content, tools: tools(), ..Options::default() };
    let text = "<think>\nWhy <tool_call>?\n</think>\n\nSo. <tool_call>{\"name\": \"none\", \"arguments\": {}}</tool_call>";
    let (reasoning, content, calls) = read(format("hermes"), &options, &[text]);
    assert_eq!((reasoning.as_str(), calls.len()), ("", 1));
    assert_eq!(content, "<think>\nWhy <tool_call>?\n</think>\n\nSo.");
    let text =
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi";
    let (_, content, _) = read(format("gpt-oss"), &options, &[text]);
    assert_eq!(content, "<|channel|>analysis<|message|>Hm<|end|>Hi");
}

#[test]
fn a_prompt_may_open_the_reasoning() {
    let open = Options { thinking_is_open: true, ..Options::default() };
    for (reply, reasoning, content) in [
        ("Hm.\n</think>\n\nHi", "Hm.", "Hi"),
        ("<think>\nHm.</think>Hi <think>", "Hm.", "Hi <think>"),
        ("cut off  ", "cut off  ", ""),
        ("</think>Hi", "", "Hi"),
    ] {
        for (before, after) in splits(reply) {
            let (found, rest, _) = read(format("hermes"), &open, &[before, after]);
            assert_eq!((found.as_str(), rest.as_str()), (reasoning, content), "{reply:?}");
        }
    }
    let format = Format::of("{{ '<think>' }}</think>");
    assert!(format.opens_thinking("<|assistant|>\n<think>\n"));
    assert!(!format.opens_thinking("<|assistant|>\n<think>\n\n</think>\n\n"));
    assert!(!format.opens_thinking("<|assistant|>\n"));
}

#[test]
fn calls_beyond_the_limit_are_content() {
    let options = Options { tools: tools(), calls_max: Some(1), ..Options::default() };
    let call = "<tool_call>{\"name\": \"none\", \"arguments\": {}}</tool_call>";
    let (_, content, calls) = read(format("hermes"), &options, &[call, call]);
    assert_eq!((calls.len(), content.as_str()), (1, call));
    let text = "[{\"name\": \"none\", \"arguments\": {}}, {\"name\": \"none\", \"arguments\": {}}]";
    let (_, content, calls) = read(format("mistral-v3"), &options, &["[TOOL_CALLS]", text]);
    assert_eq!((calls.len(), content.as_str()), (1, ", {\"name\": \"none\", \"arguments\": {}}]"));
}

#[test]
fn arguments_are_streamed() {
    let options = Options { tools: tools(), ..Options::default() };
    let mut parser = format("qwen3-coder").parser(options.clone());
    assert_eq!(
        parser.push("<tool_call>\n<function=run>\n"),
        [
            Delta::Call { index: 0, name: "run".into() },
            Delta::Arguments { index: 0, text: "{".into() },
        ]
    );
    let text = |text: &str| vec![Delta::Arguments { index: 0, text: text.into() }];
    assert_eq!(parser.push("<parameter=code>\nprint(\"a\")"), text("\"code\":\"print(\\\"a\\\")"));
    assert_eq!(parser.push("\n</par"), []);
    assert_eq!(parser.push("ty\n</parameter>"), text("\\n</party\""));
    assert_eq!(parser.push("\n</function>\n</tool_call>"), text("}"));
    let mut parser = format("hermes").parser(options);
    parser.push("<tool_call>{\"name\": \"run\", \"arguments\": ");
    let begun = [Delta::Call { index: 0, name: "run".into() }]
        .into_iter()
        .chain(text("{\"code\": \"a"))
        .collect::<Vec<_>>();
    assert_eq!(parser.push("{\"code\": \"a"), begun);
    assert_eq!(parser.push("b\"}}"), text("b\"}"));
}

/// Numbers for arbitrary text.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn arbitrary_text_loses_nothing_and_never_panics() {
    let options = Options { tools: tools(), ..Options::default() };
    let plain = [
        "{", "}", "[", "]", "\"", ":", ",", "(", ")", "=", "'", "<", ">", "\n", " ", "\\", "|",
        "/", "é",
    ];
    let mut random = Random(21);
    for family in FAMILIES {
        let format = format(family.name);
        let mut pieces: Vec<String> =
            calls::triggers(&family.calls).iter().map(|&m| m.into()).collect();
        pieces.extend(family.wrappers.iter().map(|&marker| marker.to_owned()));
        pieces.extend([format.thinking.open.to_owned(), format.thinking.close.to_owned()]);
        for case in CASES.iter().filter(|case| case.format == family.name) {
            // Pieces of real calls, cut at markup.
            pieces.extend(case.reply.split_inclusive(['>', '{', '"', '(', ']']).map(str::to_owned));
        }
        for round in 0..150 {
            let mut text = String::new();
            let mut words = Vec::new();
            for at in 0..random.below(40) {
                match random.below(4) {
                    0 => text.push_str(plain[random.below(plain.len())]),
                    1 => {
                        let word = format!("w{round}x{at}w");
                        text.push_str(&word);
                        words.push(word);
                    }
                    _ => text.push_str(&pieces[random.below(pieces.len())]),
                }
            }
            let whole = read(format, &options, &[&text]);
            let at = random.below(text.len() + 1);
            let at = (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            let (before, after) = text.split_at(at);
            assert_eq!(
                read(format, &options, &[before, after]),
                whole,
                "{}: {text:?}",
                family.name
            );
            let (reasoning, content, calls) = &whole;
            let calls: String =
                calls.iter().map(|(name, text)| format!("{name} {text}\n")).collect();
            for word in words {
                // The values of ids and attributes are not passed on.
                let known = text[..text.find(&word).unwrap_or(0)].rfind(['{', ',', '<', '[', '|']);
                let before = &text[known.unwrap_or(0)..];
                let is_dropped = ["id\"", "type", "index", "[CALL_ID]", "<|", "string", "name"];
                let found =
                    reasoning.contains(&word) || content.contains(&word) || calls.contains(&word);
                assert!(
                    found || is_dropped.iter().any(|key| before.contains(key)),
                    "{}: {word} is lost in {text:?}: {whole:?}",
                    family.name
                );
            }
        }
    }
}

#[test]
fn hostile_replies_are_bounded() {
    let options = Options { tools: tools(), ..Options::default() };
    let deep = format!("<tool_call>{{\"name\": \"run\", \"arguments\": {}", "[".repeat(5000));
    let (_, content, calls) = read(format("hermes"), &options, &[&deep]);
    assert!(calls.is_empty() && content.len() + 100 > deep.len());
    let spaces = format!("<tool_call>{}end", " ".repeat(300_000));
    let (_, content, _) = read(format("hermes"), &options, &[&spaces]);
    assert_eq!(content, spaces);
    let long = format!("<tool_call>{}", "a".repeat(10_000));
    let (_, content, _) = read(format("glm"), &options, &[&long]);
    assert_eq!(content, long);
    let early = format!("<tool_call>{{\"arguments\": {{\"a\": \"{}\"}}", "x".repeat(200_000));
    let (_, content, _) = read(format("hermes"), &options, &[&early]);
    assert_eq!(content, early);
}

#[test]
fn grammars_name_every_tool_and_marker() {
    let tools = tools();
    for family in FAMILIES {
        let format = format(family.name);
        let rules = |choice| CallRules {
            tools: &tools,
            choice,
            parallel: true,
            thinking_is_open: false,
            may_think: true,
            tokenizer: None,
        };
        let silent = CallRules { may_think: false, ..rules(ToolChoice::Required) };
        let silent = format.call_grammar(&silent).expect("a grammar").lark;
        let tag = json::quoted(format.thinking_tags().0);
        let is_free = !matches!(family.calls, super::families::Syntax::Channels(_));
        assert!(!is_free || !silent.contains(&tag), "{}: {silent}", family.name);
        let required = format.call_grammar(&rules(ToolChoice::Required)).expect("a grammar");
        assert!(required.trigger.is_none() && required.lark.starts_with("start: "));
        assert!(tools.iter().all(|tool| required.lark.contains(&tool.name)), "{}", family.name);
        if let Some(marker) = calls::triggers(&family.calls).first() {
            let marker = json::quoted(marker);
            let begins = required.lark.contains(marker.trim_end_matches('"'));
            assert!(begins || family.name == "functionary-v3.2", "{}: {marker}", family.name);
        }
        let named = format.call_grammar(&rules(ToolChoice::Named("time"))).expect("a grammar");
        assert!(named.lark.contains("time") && !named.lark.contains("weather"));
        assert_eq!(format.call_grammar(&rules(ToolChoice::Named("other"))), None);
        let auto = format.call_grammar(&rules(ToolChoice::Auto));
        let has_no_marker = family.name == "functionary-v3.2";
        assert_eq!(auto.is_none(), has_no_marker, "{}", family.name);
    }
}
