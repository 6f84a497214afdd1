//! What a template says, its limits, its variables, and what its failures say.

use bilayer_text::chat::{Builtin, Inputs, Segment, Template, Templates};
use bilayer_text::{Decode, Decoder, Encode, Error, Vocabulary};
use serde_json::{Map, Value, json};

use super::data::shared;
use super::prompts::{CHATML, asked, bytes_and, specials};
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

/// The texts that llama.cpp writes under these names for four messages, with the first token where the model has one.
const OF_LLAMA_CPP: &[(&str, &str)] = &[
    (
        "chatml",
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n B <|im_end|>\n\
             <|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
    ),
    (
        "llama3",
        "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    (
        "gemma",
        "<s><start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n\
             <start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n",
    ),
    (
        "phi3",
        "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\n B <|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n",
    ),
    (
        "phi4",
        "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>A<|im_end|>\
             <|im_start|>assistant<|im_sep|> B <|im_end|><|im_start|>user<|im_sep|>C<|im_end|><|im_start|>assistant<|im_sep|>",
    ),
    ("falcon3", "<|system|>\nS\n<|user|>\nA\n<|assistant|>\n B \n<|user|>\nC\n<|assistant|>\n"),
    ("vicuna", "<s>S\n\nUSER: A\nASSISTANT:  B </s>\nUSER: C\nASSISTANT:"),
    ("deepseek3", "<s>S\n\n<｜User｜>A<｜Assistant｜> B </s><｜User｜>C<｜Assistant｜>"),
    (
        "command-r",
        "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>\
             <|START_OF_TURN_TOKEN|><|USER_TOKEN|>A<|END_OF_TURN_TOKEN|>\
             <|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>B<|END_OF_TURN_TOKEN|>\
             <|START_OF_TURN_TOKEN|><|USER_TOKEN|>C<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    ("mistral-v1", "<s> [INST] S\n\nA [/INST]  B </s> [INST] C [/INST]"),
    ("mistral-v3", "<s>[INST] S\n\nA[/INST] B</s>[INST] C[/INST]"),
    (
        "hunyuan-dense",
        "<｜hy_begin▁of▁sentence｜>S<｜hy_place▁holder▁no▁3｜><｜hy_User｜>A<｜hy_Assistant｜> B <｜hy_place▁holder▁no▁2｜>\
             <｜hy_User｜>C<｜hy_Assistant｜>",
    ),
    (
        "grok-2",
        "System: S<|separator|>\n\nHuman: A<|separator|>\n\nAssistant:  B <|separator|>\n\nHuman: C<|separator|>\n\nAssistant:",
    ),
    ("llama2-sys", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s>[INST] C [/INST]"),
    ("llama2-sys-bos", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]"),
    ("llama2-sys-strip", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST]B</s>[INST] C [/INST]"),
    ("mistral-v3-tekken", "<s>[INST]S\n\nA[/INST] B </s>[INST]C[/INST]"),
    ("mistral-v7", "<s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] A[/INST]  B </s>[INST] C[/INST]"),
    ("mistral-v7-tekken", "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]A[/INST] B </s>[INST]C[/INST]"),
    (
        "monarch",
        "<s>system\nS</s>\n<s>user\nA</s>\n<s>assistant\n B </s>\n<s>user\nC</s>\n<s>assistant\n",
    ),
    ("orion", "<s>Human: S\n\nA\n\nAssistant: </s> B </s>Human: C\n\nAssistant: </s>"),
    (
        "openchat",
        "<s>S<|end_of_turn|>GPT4 Correct User: A<|end_of_turn|>GPT4 Correct Assistant:  B <|end_of_turn|>\
             GPT4 Correct User: C<|end_of_turn|>GPT4 Correct Assistant:",
    ),
    ("vicuna-orca", "<s>SYSTEM: S\nUSER: A\nASSISTANT:  B </s>\nUSER: C\nASSISTANT:"),
    (
        "deepseek",
        "<s>S### Instruction:\nA\n### Response:\n B \n<|EOT|>\n### Instruction:\nC\n### Response:\n",
    ),
    ("deepseek2", "<s>S\n\nUser: A\n\nAssistant:  B </s>User: C\n\nAssistant:"),
    (
        "chatglm3",
        "[gMASK]sop<|system|>\n S<|user|>\n A<|assistant|>\n  B <|user|>\n C<|assistant|>",
    ),
    (
        "chatglm4",
        "[gMASK]<sop><|system|>\nS<|user|>\nA<|assistant|>\n B <|user|>\nC<|assistant|>\n",
    ),
    ("glmedge", "<|system|>\nS<|user|>\nA<|assistant|>\n B <|user|>\nC<|assistant|>"),
    ("minicpm", "<s>S<用户>A<AI>B<用户>C<AI>"),
    ("exaone3", EXAONE),
    ("exaone4", EXAONE),
    ("rwkv-world", "System: S\n\nUser: A\n\nAssistant: B\n\nUser: C\n\nAssistant:"),
    (
        "gigachat",
        "<s>S<|message_sep|>user<|role_sep|>A<|message_sep|>available functions<|role_sep|>[]<|message_sep|>\
             assistant<|role_sep|> B <|message_sep|>user<|role_sep|>C<|message_sep|>\
             available functions<|role_sep|>[]<|message_sep|>assistant<|role_sep|>",
    ),
    (
        "megrez",
        "<|role_start|>system<|role_end|>S<|turn_end|><|role_start|>user<|role_end|>A<|turn_end|>\
             <|role_start|>assistant<|role_end|> B <|turn_end|><|role_start|>user<|role_end|>C<|turn_end|>\
             <|role_start|>assistant<|role_end|>",
    ),
    (
        "bailing",
        "<role>SYSTEM</role>S<role>HUMAN</role>A<role>ASSISTANT</role> B <role>HUMAN</role>C<role>ASSISTANT</role>",
    ),
    (
        "llama4",
        "<s><|header_start|>system<|header_end|>\n\nS<|eot|><|header_start|>user<|header_end|>\n\nA<|eot|>\
             <|header_start|>assistant<|header_end|>\n\nB<|eot|><|header_start|>user<|header_end|>\n\nC<|eot|>\
             <|header_start|>assistant<|header_end|>\n\n",
    ),
    (
        "smolvlm",
        "<|im_start|>S\n\nUser: A<end_of_utterance>\nAssistant:  B <end_of_utterance>\nUser: C<end_of_utterance>\nAssistant:",
    ),
    (
        "hunyuan-moe",
        "<|startoftext|>S<|extra_4|><|startoftext|>A<|extra_0|> B <|eos|><|startoftext|>C<|extra_0|>",
    ),
    (
        "kimi-k2",
        "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>A<|im_end|>\
             <|im_assistant|>assistant<|im_middle|> B <|im_end|><|im_user|>user<|im_middle|>C<|im_end|>\
             <|im_assistant|>assistant<|im_middle|>",
    ),
    (
        "seed_oss",
        "<seed:bos>system\nS<seed:eos><seed:bos>user\nA<seed:eos><seed:bos>assistant\nB<seed:eos>\
             <seed:bos>user\nC<seed:eos><seed:bos>assistant\n",
    ),
];

/// Those of the models' own templates, from which llama.cpp's texts differ. The model of `yandex` has no system message.
const OF_MODELS: &[(&str, &str)] = &[
    ("llama2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]"),
    (
        "zephyr",
        "<|system|>\nS</s>\n<|user|>\nA</s>\n<|assistant|>\n B </s>\n<|user|>\nC</s>\n<|assistant|>\n",
    ),
    (
        "granite",
        "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>A<|end_of_text|>\n\
             <|start_of_role|>assistant<|end_of_role|> B <|end_of_text|>\n\
             <|start_of_role|>user<|end_of_role|>C<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    (
        "gpt-oss",
        "<|start|>system<|message|>S<|end|><|start|>user<|message|>A<|end|>\
             <|start|>assistant<|channel|>final<|message|> B <|end|><|start|>user<|message|>C<|end|><|start|>assistant",
    ),
    (
        "yandex",
        "<s> Пользователь: S\n\nA\n\n Ассистент:  B \n\n Пользователь: C\n\n Ассистент:[SEP]",
    ),
];

const EXAONE: &str =
    "[|system|]S[|endofturn|]\n[|user|]A\n[|assistant|]B[|endofturn|]\n[|user|]C\n[|assistant|]";

#[test]
fn known_formats_are_those_of_llama_cpp_or_of_the_models() {
    let messages = [("system", "S"), ("user", "A"), ("assistant", " B "), ("user", "C")];
    let messages = messages.map(|(role, content)| json!({ "role": role, "content": content }));
    let inputs = asked(&messages);
    let rows = || OF_LLAMA_CPP.iter().chain(OF_MODELS);
    for (name, expected) in rows() {
        let template = Templates::default().find(Some(name)).unwrap();
        assert_eq!(template.render(&inputs).unwrap(), *expected, "{name}");
    }
    for builtin in Builtin::all() {
        assert_eq!(rows().filter(|(name, _)| *name == builtin.name).count(), 1, "{}", builtin.name);
    }
}

/// A question, what an answer calls with text before it, and the result.
const CALLS: &[(&str, &str)] = &[
    (
        "mistral-v3",
        "[INST] A[/INST] B[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}, \"id\": \"100000000\"}]</s>\
             [TOOL_RESULTS] {\"content\": \"R\", \"call_id\": \"100000000\"}[/TOOL_RESULTS]",
    ),
    (
        "mistral-v3-tekken",
        "[INST]A[/INST]B[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}, \"id\": \"100000000\"}]</s>\
             [TOOL_RESULTS]{\"content\": \"R\", \"call_id\": \"100000000\"}[/TOOL_RESULTS]",
    ),
    (
        "mistral-v7",
        "[INST] A[/INST] B[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}, \"id\": \"100000000\"}]</s>\
             [TOOL_RESULTS] 100000000[TOOL_CONTENT] R[/TOOL_RESULTS]",
    ),
    (
        "mistral-v7-tekken",
        "[INST]A[/INST]B[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}, \"id\": \"100000000\"}]</s>\
             [TOOL_RESULTS]100000000[TOOL_CONTENT]R[/TOOL_RESULTS]",
    ),
    (
        "kimi-k2",
        "<|im_user|>user<|im_middle|>A<|im_end|><|im_assistant|>assistant<|im_middle|>B<|tool_calls_section_begin|>\
             <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": \"x\", \"n\": [1]}<|tool_call_end|>\
             <|tool_calls_section_end|><|im_end|><|im_system|>tool<|im_middle|>## Return of functions.f:0\nR<|im_end|>\
             <|im_assistant|>assistant<|im_middle|>",
    ),
    (
        "gpt-oss",
        "<|start|>user<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>T<|end|>\
             <|start|>assistant<|channel|>commentary<|message|>B<|end|>\
             <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": \"x\", \"n\": [1]}<|call|>\
             <|start|>functions.f to=assistant<|channel|>commentary<|message|>R<|end|><|start|>assistant",
    ),
    (
        "seed_oss",
        "<seed:bos>user\nA<seed:eos><seed:bos>assistant\n<seed:think>T</seed:think>\nB\n<seed:tool_call>\n<function=f>\n\
             <parameter=a>x</parameter>\n<parameter=n>[1]</parameter>\n</function>\n</seed:tool_call><seed:eos>\
             <seed:bos>tool\nR<seed:eos><seed:bos>assistant\n",
    ),
    ("llama4", "B\n<|python_start|>[f(a=\"x\", n=[1])]<|python_end|><|eot|>"),
    (
        "command-r",
        "B\nAction:\n```json\n[{\"tool_name\": \"f\", \"parameters\": {\"a\": \"x\", \"n\": [1]}}]\n```<|END_OF_TURN_TOKEN|>",
    ),
    (
        "granite",
        "B\n<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}}]<|end_of_text|>",
    ),
    (
        "deepseek3",
        "B\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"x\", \"n\": [1]}\n\
             ```<｜tool▁call▁end｜><｜tool▁calls▁end｜></s>",
    ),
    (
        "chatml",
        "B\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}}\n</tool_call><|im_end|>",
    ),
];

#[test]
fn known_formats_write_calls_as_their_models_do() {
    let arguments = "{\"a\": \"x\", \"n\": [1]}";
    let call = json!({ "id": "call_1", "type": "function", "function": { "name": "f", "arguments": arguments } });
    let messages = [
        json!({ "role": "user", "content": "A" }),
        json!({ "role": "assistant", "content": "B", "reasoning_content": "T", "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": "call_1", "content": "R" }),
    ];
    let marks = ["[TOOL_CALLS]", "<|tool_call_begin|>", "<|call|>", "<seed:tool_call>"];
    let tokenizer = bytes_and(&marks, &[]);
    for (name, expected) in CALLS {
        let template = Templates::default().find(Some(name)).unwrap();
        let prompt = template.conversation(&asked(&messages), &tokenizer).unwrap();
        assert!(prompt.text.contains(expected), "{name}: {}", prompt.text);
        // Of the template, not text of a message.
        let tokens = prompt.segments.iter().filter(|part| matches!(part, Segment::Token(_)));
        let is_marked = marks.iter().any(|mark| expected.contains(mark));
        assert_eq!(tokens.count(), usize::from(is_marked), "{name}");
    }
    // Arguments that are no object, and functions in every format.
    let mut odd = messages.clone();
    odd[1]["tool_calls"][0]["function"]["arguments"] = "[1".into();
    let tools = json!([{ "type": "function", "function": { "name": "look", "parameters": {} } }]);
    for builtin in Builtin::all() {
        let template = Templates::default().find(Some(builtin.name)).unwrap();
        let inputs = Inputs { tools: Some(&tools), ..asked(&odd) };
        let text = template.conversation(&inputs, &tokenizer).unwrap().text;
        for part in ["look", "[1", "A", "B", "R"] {
            assert!(text.contains(part), "{}: no {part} in {text}", builtin.name);
        }
    }
}

/// Also those that are control tokens and end no answer of other formats.
#[test]
fn every_end_of_a_known_format_ends_an_answer() {
    for builtin in Builtin::all() {
        let template = Templates::default().find(Some(builtin.name)).unwrap();
        let none = bytes_and(&[], &[]);
        for end in template.stops(&none) {
            for controls in [&[][..], &[end.trim()]] {
                let tokenizer = bytes_and(controls, &[]);
                let stops = template.stops(&tokenizer);
                for show_control in [false, true] {
                    let decode = Decode { stops: stops.clone().into(), show_control };
                    let mut decoder = Decoder::new(&tokenizer, decode);
                    let parse = Encode { parse_special: true, ..Encode::default() };
                    let ids = tokenizer.encode(&format!("Hi{end}"), parse).unwrap();
                    let mut text = String::new();
                    let has_ended = ids.iter().any(|&id| {
                        let piece = match tokenizer.is_end(id) {
                            true => return true,
                            false => decoder.push(id),
                        };
                        text += &piece.text;
                        piece.stop.is_some()
                    });
                    let name = builtin.name;
                    assert!(has_ended, "{name}: {end:?} of {controls:?} {show_control}");
                    assert_eq!(
                        text.trim_end(),
                        "Hi",
                        "{name}: {end:?} of {controls:?} {show_control}"
                    );
                }
            }
        }
    }
}

/// Several system messages, one without a question, and one after a conversation, under the names of the formats.
const SYSTEM_MESSAGES: &[(&str, [&str; 3])] = &[
    (
        "llama2",
        [
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n<<SYS>>\nS2\n<</SYS>>\n\nA [/INST]",
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
            "<s>[INST] A [/INST] B </s><s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
        ],
    ),
    (
        "llama2-sys",
        [
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n<<SYS>>\nS2\n<</SYS>>\n\nA [/INST]",
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
            "<s>[INST] A [/INST]B</s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
        ],
    ),
    (
        "llama2-sys-bos",
        [
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n<<SYS>>\nS2\n<</SYS>>\n\nA [/INST]",
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
            "<s>[INST] A [/INST]B</s><s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
        ],
    ),
    (
        "llama2-sys-strip",
        [
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n<<SYS>>\nS2\n<</SYS>>\n\nA [/INST]",
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
            "<s>[INST] A [/INST]B</s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
        ],
    ),
    (
        "mistral-v1",
        [
            "<s> [INST] S1\n\nS2\n\nA [/INST]",
            "<s> [INST] S1\n\n",
            "<s> [INST] A [/INST] B</s> [INST] S1\n\n",
        ],
    ),
    (
        "mistral-v3",
        [
            "<s>[INST] S1\n\nS2\n\nA[/INST]",
            "<s>[INST] S1\n\n",
            "<s>[INST] A[/INST] B</s>[INST] S1\n\n",
        ],
    ),
    (
        "mistral-v3-tekken",
        ["<s>[INST]S1\n\nS2\n\nA[/INST]", "<s>[INST]S1\n\n", "<s>[INST]A[/INST]B</s>[INST]S1\n\n"],
    ),
    (
        "orion",
        [
            "<s>Human: S1\n\nS2\n\nA\n\nAssistant: </s>",
            "<s>Human: S1\n\nAssistant: </s>",
            "<s>Human: A\n\nAssistant: </s>B</s>Human: S1\n\nAssistant: </s>",
        ],
    ),
    (
        "gemma",
        [
            "<s><start_of_turn>user\nS1\n\nS2\n\nA<end_of_turn>\n<start_of_turn>model\n",
            "<s><start_of_turn>user\nS1<end_of_turn>\n<start_of_turn>model\n",
            "<s><start_of_turn>user\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n\
             <start_of_turn>user\nS1<end_of_turn>\n<start_of_turn>model\n",
        ],
    ),
];

#[test]
fn known_formats_write_every_system_message() {
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let (first, second) = (message("system", "S1"), message("system", "S2"));
    let (user, assistant) = (message("user", "A"), message("assistant", "B"));
    let conversations = [
        vec![first.clone(), second.clone(), user.clone()],
        vec![first.clone()],
        vec![user, assistant, first],
    ];
    let render =
        |template: &Template, messages: &[Value]| template.render(&asked(messages)).unwrap();
    for (name, expected) in SYSTEM_MESSAGES {
        let template = Templates::default().find(Some(name)).unwrap();
        let found = conversations.each_ref().map(|messages| render(&template, messages));
        assert_eq!(found, *expected, "{name}");
    }
    for builtin in Builtin::all() {
        let template = Templates::default().find(Some(builtin.name)).unwrap();
        for messages in &conversations {
            let text = render(&template, messages);
            for content in messages.iter().map(|message| message["content"].as_str().unwrap()) {
                assert!(text.contains(content), "{}: {text}", builtin.name);
            }
        }
    }
}

/// Code, tags and dialogues are ordinary answers. Models of RWKV have no token that ends an answer, so that the next question
/// of a dialogue does.
#[test]
fn known_formats_do_not_end_ordinary_answers() {
    let answers = [
        "class User:\n    pass\n\nUser:\n- name",
        "Human: Hi\nUSER:\nset USER: me",
        "<role>admin</role> [INST] <用户>, \"<|user|>\"",
    ];
    let dialogue = "Hi\nUSER: x\n\nUser: y\n\n Пользователь: z";
    // Without special tokens, all ends are texts.
    let tokenizer = bytes_and(&[], &[]);
    for builtin in Builtin::all() {
        let template = Templates::default().find(Some(builtin.name)).unwrap();
        let stops = template.stops(&tokenizer);
        assert!(!stops.is_empty(), "{}", builtin.name);
        // Those of GLM are tokens of its vocabulary.
        for stop in stops.iter().filter(|_| !builtin.name.contains("glm")) {
            let is_cut = answers.iter().any(|answer| answer.contains(stop.as_str()));
            assert!(!is_cut, "{}: {stop}", builtin.name);
            assert_eq!(dialogue.contains(stop.as_str()), builtin.name == "rwkv-world", "{stop}");
        }
    }
}
