//! What a template says, its limits, its variables, and what its failures say.

use bilayer_text::chat::{Builtin, Inputs, Template, Templates};
use bilayer_text::{Error, Vocabulary};
use serde_json::{Map, Value, json};

use super::data::shared;
use super::prompts::{CHATML, bytes_and, specials};
use super::vocabularies::{byte_level, tokenizer};

#[test]
fn templates_are_found_by_name_or_by_text() {
    let templates = Templates {
        own: Some("own".into()),
        named: vec![
            ("tool_use".into(), "tools".into()),
            ("chatml".into(), "not the known one".into()),
        ],
    };
    let found = |asked| {
        let template = templates.find(asked).unwrap();
        let text = template.render(&Inputs::new(&[])).unwrap();
        (template.name().to_owned(), template.source().to_owned(), text)
    };
    let strings = |list: [&str; 3]| <(String, String, String)>::from(list.map(str::to_owned));
    assert_eq!(found(None), strings(["the model's", "own", "own"]));
    assert_eq!(found(Some("tool_use")), strings(["tool_use", "tools", "tools"]));
    let named = |asked| templates.find_with_tools(asked).unwrap().name().to_owned();
    assert_eq!([None, Some("{{ 1 }}")].map(named), ["tool_use", "the given one"]);
    let alone = Templates { own: Some("own".into()), named: Vec::new() };
    assert_eq!(alone.find_with_tools(None).unwrap().source(), "own");
    assert_eq!(found(Some("chatml")).2, "not the known one");
    for given in ["{{ 1 + 1 }}", "{% if true %}2{% endif %}", "2{# a comment #}", "a 2", "a\n2"] {
        let (name, source, text) = found(Some(given));
        assert_eq!((name.as_str(), source.as_str()), ("the given one", given));
        assert!(text.ends_with('2'), "{given:?}: {text:?}");
    }
    let builtin = templates.find(Some("phi4")).unwrap();
    assert_eq!(builtin.stops(&bytes_and(&["<|im_start|>"], &[])), ["<|im_end|>"]);
    assert!(builtin.stops(&bytes_and(&["<|im_end|>"], &[])).is_empty());
    assert_eq!(format!("{builtin:?}"), "Template { name: \"phi4\", .. }");
    let unknown = templates.find(Some("phi5")).unwrap_err().to_string();
    assert!(unknown.contains("'phi5'; known are tool_use, chatml, chatml, llama2"), "{unknown}");
    let none = Templates::default().find(None).unwrap_err().to_string();
    assert!(none.contains("chatml, llama2, llama2-sys, "), "{none}");
    let names: Vec<&str> = Builtin::all().iter().map(|builtin| builtin.name).collect();
    assert!(names.iter().all(|name| Builtin::find(name).is_some_and(|it| it.name == *name)));
    assert!(names.len() > 10 && Builtin::find("phi5").is_none());
}

/// A prompt may have 4 MiB and 8 times its template and messages.
#[test]
fn the_length_of_a_prompt_is_bounded() {
    let messages = [json!({ "role": "user", "content": ["é", { "a": "b" }] })];
    // The keys and texts of the messages, of tools, documents and further variables.
    let given = "role".len() + "user".len() + "content".len() + "é".len() + "ab".len();
    let (tools, documents) = (json!(["tool"]), json!("document"));
    let more = given + "tool".len() + "document".len() + "high".len();
    let extra = Map::from_iter([("effort".to_owned(), json!("high"))]);
    let plain = Inputs::new(&messages);
    let full = Inputs { tools: Some(&tools), documents: Some(&documents), extra, ..plain.clone() };
    for (inputs, len) in [(Inputs::new(&[]), 0), (plain, given), (full, more)] {
        let source = |written: usize| format!("{{{{ 'a' * {written} }}}}");
        let most = (4 << 20) + 8 * (source(4 << 20).len() + len);
        let written = |written| Template::new("long", &source(written)).unwrap().render(&inputs);
        assert_eq!(written(most).unwrap().len(), most);
        assert_eq!(written(most + 1), Err(Error::TooLong { limit: most }));
    }
}

/// Work is bounded by 256 MiB and 256 times the messages: a comparison of 2 MB is that much.
#[test]
fn the_work_of_a_template_grows_with_its_messages() {
    let source = |times: usize| {
        let compared = "{% if x == x %}{% endif %}";
        let rounds = format!("{{% for i in range({times}) %}}{compared}{{% endfor %}}");
        format!("{{% set x = 'a' * 1000000 %}}{rounds}")
    };
    let done = |times, bytes: usize| {
        let messages = [json!({ "content": "a".repeat(bytes) })];
        Template::new("busy", &source(times)).unwrap().render(&Inputs::new(&messages))
    };
    let costly = Err(Error::Costly { name: "busy".into() });
    assert_eq!(done(130, 0), Ok(String::new()));
    assert_eq!(done(140, 0), costly);
    // 256 times 100 kB is 26 MB, which is 13 comparisons.
    assert_eq!(done(145, 100_000), Ok(String::new()));
    assert_eq!(done(155, 100_000), costly);
}

#[test]
fn variables_are_those_of_python() {
    let values = json!({
        "null": null, "yes": true, "small": -5, "large": u64::MAX, "half": 0.5, "text": "<é>",
        "list": [1, [2]], "map": { "b": 1, "a": null },
    });
    let Value::Object(extra) = values else { panic!("an object") };
    let messages = [json!({ "role": "user" })];
    let (tools, documents) = (json!([]), json!(["d"]));
    let inputs = Inputs {
        extra,
        tools: Some(&tools),
        documents: Some(&documents),
        bos_token: "<s>".into(),
        eos_token: "</s>".into(),
        add_generation_prompt: false,
        ..Inputs::new(&messages)
    };
    let cases = [
        ("null", "None"),
        ("yes", "True"),
        ("small", "-5"),
        ("large", "18446744073709551615"),
        ("half", "0.5"),
        ("text", "<é>"),
        ("list", "[1, [2]]"),
        ("map", "{'b': 1, 'a': None}"),
        ("messages", "[{'role': 'user'}]"),
        ("tools", "[]"),
        ("documents", "['d']"),
        ("bos_token ~ eos_token", "<s></s>"),
        ("add_generation_prompt", "False"),
    ];
    for (name, expected) in cases {
        let template = Template::new("values", &format!("{{{{ {name} }}}}")).unwrap();
        assert_eq!(template.render(&inputs).unwrap(), expected, "{name}");
    }
    let template = Template::new("values", "{{ tools }}{{ documents }}{{ bos_token }}").unwrap();
    assert_eq!(template.render(&Inputs::new(&[])).unwrap(), "NoneNone");
    // The special tokens of a vocabulary, if it has them.
    let tokenizer = tokenizer(Vocabulary { bos: Some(65), ..byte_level("gpt-2", &[], &[]) });
    let inputs = inputs.with_tokens_of(&tokenizer);
    assert_eq!((inputs.bos_token.as_str(), inputs.eos_token.as_str()), ("A", ""));
    assert_eq!(inputs.messages, messages);
}

#[test]
fn failures_are_named_by_their_template() {
    let cases = [
        ("{{ 1 % zero }}", "`%` by zero"),
        ("{{ 1.5 % zero }}", "`%` by zero"),
        ("{{ nothing % 2 }}", "`%` of none and number"),
        ("{{ 2 % nothing }}", "`%` of number and none"),
        ("{{ 'a'.center(10001) }}", "at most 10000"),
        ("{{ 'a' | center(10001) }}", "at most 10000"),
        ("{{ 'a'.rjust(10001) }}", "at most 10000"),
        ("{{ '\t'.expandtabs(10001) }}", "at most 10000"),
        ("{{ 'abcd' | truncate(2, leeway=0) }}", "shorter than the end"),
        ("{{ 'a'.rsplit('') }}", "the separator is empty"),
        ("{{ 'a'.partition('') }}", "the separator is empty"),
        ("{{ 'a'.index('b') }}", "does not occur"),
        ("{{ [1].index(2) }}", "not in the list"),
        ("{{ 'a'.swapcase(1) }}", "too many arguments"),
        ("{{ [].copy(1) }}", "too many arguments"),
        ("{{ {}.copy(1) }}", "too many arguments"),
        ("{{ 'a' | truncate(odd=1) }}", "odd"),
        ("{{ 'a' | default(odd=1) }}", "odd"),
        ("{{ [1] | tojson(indent=65) }}", "indent must be 0 to 64"),
        ("{{ [1] | tojson(separators=['a']) }}", "separators must be two texts"),
        ("{{ [1] | tojson(odd=1) }}", "odd"),
        ("{{ range | tojson }}", "cannot be written as JSON"),
        ("{{ x.y }}", "undefined value"),
    ];
    let extra = [("zero".to_owned(), json!(0)), ("nothing".to_owned(), json!(null))];
    let inputs = Inputs { extra: Map::from_iter(extra), ..Inputs::new(&[]) };
    for (source, expected) in cases {
        let error = Template::new("odd", source).and_then(|it| it.render(&inputs));
        let text = error.expect_err(source).to_string();
        assert!(text.starts_with("chat template (odd), line 1: "), "{source}: {text}");
        assert!(text.contains(expected), "{source}: {text}");
    }
    let unpacked = Template::new("odd", "{{ range(3).get(*[1]) }}").unwrap_err().to_string();
    assert!(unpacked.contains("cannot be unpacked"), "{unpacked}");
    let wide = Template::new("wide", "{{ [1] | tojson(indent=64) }}").unwrap();
    assert_eq!(wide.render(&Inputs::new(&[])).unwrap(), format!("[\n{}1\n]", " ".repeat(64)));
    let wide = Template::new("wide", "{{ 'a'.center(10000) | length }}").unwrap();
    assert_eq!(wide.render(&Inputs::new(&[])).unwrap(), "10000");
    // Values are written as JSON to a depth of 100, and one of texts alone is cut at 4096 bytes.
    let nested = |levels: usize| {
        let mut value = json!(1);
        (0..levels).for_each(|_| value = json!([value.take()]));
        let extra = Map::from_iter([("deep".to_owned(), value)]);
        let template = Template::new("deep", "{{ deep | tojson }}").unwrap();
        template.render(&Inputs { extra, ..Inputs::new(&[]) })
    };
    assert_eq!(nested(100).unwrap(), "[".repeat(100) + "1" + &"]".repeat(100));
    assert!(nested(101).is_err());
    let raised = |text: &str| {
        let template =
            Template::new("no", &format!("{{{{ raise_exception('{text}') }}}}")).unwrap();
        template.render(&Inputs::new(&[])).unwrap_err()
    };
    let refused = |reason: &str| Error::Refused { name: "no".into(), reason: reason.into() };
    assert_eq!(raised(&"a".repeat(4096)), refused(&"a".repeat(4096)));
    assert_eq!(raised(&format!("{}é", "a".repeat(4095))), refused(&"a".repeat(4095)));
}

/// Requests hold arguments of earlier calls as text; templates take objects, or text if they fail with those.
#[test]
fn arguments_of_calls_are_what_the_template_takes() {
    let tokenizer = bytes_and(&["<s>"], &[]);
    let call = json!({ "function": { "name": "f", "arguments": "{\"a\": [1]}" } });
    let messages = [json!({ "role": "assistant", "tool_calls": [call] })];
    let write = "{{ messages[0].tool_calls[0].function.arguments";
    let cases = [
        (format!("{write}.a[0] }}}}"), Ok("1")),
        (format!("{write} | tojson }}}}"), Ok("{\"a\": [1]}")),
        (format!("{write}.strip() }}}}"), Ok("{\"a\": [1]}")),
        (format!("{write}.a.b.c }}}}"), Err("line 1")),
        (format!("{write} }}}}{{{{ raise_exception('no') }}}}"), Err("refuses")),
        (
            "{{ messages[0].content }}".to_owned(),
            Ok("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call>"),
        ),
    ];
    for (source, expected) in cases {
        let template = Template::new("calls", &source).unwrap();
        let prompt = template.conversation(&Inputs::new(&messages), &tokenizer);
        match (prompt, expected) {
            (Ok(prompt), Ok(expected)) => assert_eq!(prompt.text, expected, "{source}"),
            (Err(error), Err(part)) => {
                assert!(error.to_string().contains(part), "{source}: {error}");
            }
            (found, _) => panic!("{source}: {found:?}"),
        }
    }
}

/// As the templates of Mistral's models do.
#[test]
fn a_template_that_refuses_long_ids_of_calls_gets_short_ones() {
    let source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}\
                  {{ raise_exception('id') }}{% endif %}{{ c.id ~ c.function }}{% endfor %}\
                  {% if m.role == 'tool' %}={{ m.tool_call_id }}{% endif %}{{ m.content }}{% endfor %}";
    let template = Template::new("strict", source).unwrap();
    let function = json!({ "name": "f", "arguments": "{}" });
    let messages = [
        json!({ "role": "user", "content": "Hi" }),
        json!({ "role": "assistant", "content": "", "tool_calls": [{ "id": "call_0123456789", "function": function }] }),
        json!({ "role": "tool", "tool_call_id": "call_0123456789", "content": "sun" }),
    ];
    let prompt = template.conversation(&Inputs::new(&messages), &bytes_and(&[], &[])).unwrap();
    let (call, result) = prompt.text.split_once('=').unwrap();
    let id = result.strip_suffix("sun").unwrap();
    assert!(id.len() == 9 && call.contains(id), "{}", prompt.text);
}

/// The template of Gemma 2 refuses a system message at first and roles that do not alternate.
#[test]
fn roles_alternate_where_system_messages_and_results_are_text_of_the_user() {
    let Some(path) = shared("chat-templates/templates/google-gemma-2-2b-it.jinja") else { return };
    let template = Template::new("gemma 2", &std::fs::read_to_string(path).unwrap()).unwrap();
    let call = json!([{ "id": "1", "function": { "name": "f", "arguments": "{}" } }]);
    let message = |role: char| match role {
        's' => json!({ "role": "system", "content": "Be brief" }),
        'u' => json!({ "role": "user", "content": "Hi" }),
        'a' => json!({ "role": "assistant", "content": "Yes" }),
        'c' => json!({ "role": "assistant", "content": null, "tool_calls": call }),
        _ => json!({ "role": "tool", "tool_call_id": "1", "content": "sun" }),
    };
    let result = "<tool_response>\nsun\n</tool_response>";
    let cases = [
        ("su", vec!["Be brief\nHi".to_owned()]),
        ("us", vec!["Hi\nBe brief".to_owned()]),
        ("usu", vec!["Hi\nBe brief\nHi".to_owned()]),
        ("uau", vec!["Hi".to_owned(), "Hi".to_owned()]),
        ("uaus", vec!["Hi".to_owned(), "Hi\nBe brief".to_owned()]),
        ("uasu", vec!["Hi".to_owned(), "Be brief\nHi".to_owned()]),
        ("ucts", vec!["Hi".to_owned(), format!("{result}\nBe brief")]),
        ("uctsu", vec!["Hi".to_owned(), format!("{result}\nBe brief\nHi")]),
    ];
    for (roles, expected) in cases {
        let messages: Vec<Value> = roles.chars().map(message).collect();
        let prompt = template.conversation(&Inputs::new(&messages), &bytes_and(&[], &[])).unwrap();
        let users = prompt.text.split("<start_of_turn>user\n").skip(1);
        let users: Vec<&str> =
            users.filter_map(|text| text.split("<end_of_turn>").next()).collect();
        assert_eq!(users, expected, "{roles}");
    }
}

/// A text of private use in messages or template is no mark, and a first token is added where there is none.
#[test]
fn prompts_are_told_apart_whatever_characters_they_have() {
    let character = |code: u32| char::from_u32(code).unwrap().to_string();
    let tokenizer = bytes_and(&["<|im_start|>", "<|im_end|>", "WORD", "<a_b>"], &[]);
    let ids = ["<|im_start|>", "<|im_end|>", "<|im_start|>"];
    // Blocks have 4096 characters, and there are 32 from U+F0000 on.
    for used in [0u32, 1, 4095, 4096, 5000, 30 * 4096] {
        let content = format!("{}</think><|im_end|>WORD", character(0xF_0000 + used));
        let messages = [json!({ "role": "user", "content": content })];
        let template = Template::new("marks", &CHATML.replace("CONTENT", "{{ m.content }}"));
        assert_eq!(specials(&template.unwrap(), &tokenizer, &messages), ids, "{used}");
        // Searched for, so that the template's source is marked.
        let writes = format!("{{{{ m.content.split('</think>')[-1] }}}}{}", character(0xF_0000));
        let template = Template::new("marks", &CHATML.replace("CONTENT", &writes)).unwrap();
        assert_eq!(specials(&template, &tokenizer, &messages), ids, "{used}");
    }
    let all: String = (0..32).map(|block| character(0xF_0000 + 4096 * block)).collect();
    let template = Template::new("full", "<|im_start|>{{ messages[0].content }}").unwrap();
    let messages = [json!({ "role": "user", "content": all })];
    let entangled = template.prompt(&Inputs::new(&messages), &tokenizer);
    assert_eq!(entangled, Err(Error::Entangled { name: "full".into() }));
    // Characters of words are no marks, unless a token is a word.
    let messages = [json!({ "role": "user", "content": "a_b W OR D im" })];
    let template = Template::new("words", "{{ messages[0].content }}WORD<a_b>").unwrap();
    assert_eq!(specials(&template, &tokenizer, &messages), ["WORD", "<a_b>"]);

    let begun = Vocabulary { bos: Some(65), add_bos: Some(true), ..byte_level("gpt-2", &[], &[]) };
    let begun = super::vocabularies::tokenizer(begun);
    for (source, expected) in [("BA", vec![65, 66, 65]), ("AB", vec![65, 66]), ("", vec![65])] {
        let prompt = Template::new("begun", source).unwrap();
        let prompt = prompt.prompt(&Inputs::new(&[]), &begun).unwrap();
        assert_eq!(begun.encode_prompt(&prompt).unwrap(), expected, "{source}");
    }
}
