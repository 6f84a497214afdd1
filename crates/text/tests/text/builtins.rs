//! The known formats: their prompts, calls and ends, and replies in them.

use bilayer_text::chat::reply::{Delta, Format, Options, Tool};
use bilayer_text::chat::{Builtin, Inputs, Segment, Template, Templates};
use bilayer_text::{Decode, Decoder, Encode};
use serde_json::{Value, json};

use super::formats::{CALLS, OF_LLAMA_CPP, OF_MODELS, REPLIES, SYSTEM_MESSAGES};
use super::prompts::{asked, bytes_and};

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
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/chat/builtin");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut sources: Vec<String> =
        files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    sources.sort_unstable();
    assert!(sources.is_sorted_by(|a, b| a < b), "two files of formats are equal");
    for builtin in Builtin::all() {
        assert_eq!(rows().filter(|(name, _)| *name == builtin.name).count(), 1, "{}", builtin.name);
    }
}

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

#[test]
fn replies_of_known_formats_are_taken_apart() {
    let zone = json!({ "type": "object", "properties": { "zone": { "type": "string" } } });
    let tools = vec![Tool { name: "now".into(), parameters: zone, ..Tool::default() }];
    for builtin in Builtin::all() {
        let template = Templates::default().find(Some(builtin.name)).unwrap();
        let format = Format::of(template.source());
        let Some((name, family, said, call)) =
            REPLIES.iter().find(|(name, ..)| *name == builtin.name)
        else {
            assert_eq!(format.name(), "generic", "{}", builtin.name);
            continue;
        };
        assert_eq!(format.name(), *family, "{name}");
        for (reply, calls) in
            [((*said).to_owned(), ""), (format!("{said}{call}"), "now{\"zone\":\"Rome\"}")]
        {
            let mut parser = format.parser(Options { tools: tools.clone(), ..Options::default() });
            let mut deltas = parser.push(&reply);
            deltas.extend(parser.finish());
            let (mut thought, mut text, mut called) = <(String, String, String)>::default();
            for delta in deltas {
                match delta {
                    Delta::Reasoning(more) => thought += &more,
                    Delta::Content(more) => text += &more,
                    Delta::Call { name: more, .. } | Delta::Arguments { text: more, .. } => {
                        called += &more
                    }
                }
            }
            called.retain(|c| c != ' ');
            let thinks = if said.contains("hmm") { "hmm" } else { "" };
            assert_eq!(
                (thought.as_str(), text.as_str(), called.as_str()),
                (thinks, "Hi", calls),
                "{name}: {reply}"
            );
        }
    }
}
