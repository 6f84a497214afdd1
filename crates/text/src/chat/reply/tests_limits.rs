//! Replies at the limits of what is read, and one byte beyond them.

use super::*;

/// A function whose name has `len` bytes.
fn long_name(len: usize) -> String {
    "n".repeat(len)
}

/// Reads a reply with the usual functions and one of each given name.
fn read_with(format_name: &str, names: &[&str], reply: &str) -> Parts {
    let more = names.iter().map(|&name| Tool { name: name.into(), ..Tool::default() });
    let options =
        Options { tools: tools().into_iter().chain(more).collect(), ..Options::default() };
    read(format(format_name), &options, &[reply])
}

/// Cut off behind the last of these, a reply has all of its calls; cut off within or before another, it has not.
#[test]
fn a_reply_ends_with_a_call_until_another_begins() {
    let cases = [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"none\", \"arguments\": {}}",
            &["\n", "</tool_call>", "\n\n"][..],
            &["</too", "<tool", "<tool_call>", "<tool_call>{\"name\"", "so"][..],
        ),
        ("llama3", "{\"name\": \"none\", \"parameters\": {}}", &["\n"], &["{", "{\"name\": \"no"]),
        (
            "qwen3-coder",
            "<tool_call>\n<function=none>\n</function>",
            &["\n\n", "</tool_call>", "\n"],
            &["<function=", "</tool_", "<tool_call>", "x"],
        ),
        ("mistral", "[TOOL_CALLS]none[ARGS]{}", &["\n"], &["[TOOL_", "[TOOL_CALLS]", "and"]),
        ("lfm2", "<|tool_call_start|>[none()", &["]", "<|tool_call_end|>"], &["<|to", "x"]),
        (
            "gpt-oss",
            " to=functions.none<|channel|>commentary <|constrain|>json<|message|>{}",
            &["<|call|>"],
            &[
                "<|start|>",
                "<|start|>assistant to=functions.none<|message|>",
                "<|start|>assistant<|channel|>",
            ],
        ),
        (
            "muse",
            " to=none<|message|><atem:function_calls><atem:invoke name=\"none\">\n</atem:invoke>",
            &["\n", "</atem:function_calls>", "<|eom|>"],
            &["<|start|>assistant to=none<|message|>", "<atem:"],
        ),
    ];
    let options = Options { tools: tools(), ..Options::default() };
    for (name, call, ends, more) in cases {
        let is_end = |reply: &str| {
            let mut parser = format(name).parser(options.clone());
            parser.push(reply);
            parser.ends_with_call()
        };
        let mut reply = call.to_owned();
        for end in ends {
            reply += end;
            assert!(is_end(&reply), "{name}: {reply:?}");
        }
        for more in more {
            let reply = format!("{call}{more}");
            assert!(!is_end(&reply), "{name}: {reply:?}");
            let reply = format!("{call}{}{more}", ends.concat());
            assert!(!is_end(&reply) || more.starts_with("</"), "{name}: {reply:?}");
        }
        for (before, _) in splits(call) {
            assert!(before == call || !is_end(before), "{name}: {before:?}");
        }
    }
}

/// Names of 256 bytes are read, and calls of longer ones are content.
#[test]
fn names_have_at_most_256_bytes() {
    type Write = fn(&str) -> String;
    let cases: [(&str, Write); 6] = [
        ("hermes", |name| format!("<tool_call>{{\"name\": \"{name}\"}}</tool_call>")),
        ("apertus", |name| format!("<|tools_prefix|>[{{\"{name}\": {{}}}}]<|tools_suffix|>")),
        ("functionary-v3.1", |name| format!("<function={name}>{{}}</function>")),
        ("qwen3-coder", |name| format!("<tool_call><function={name}></function></tool_call>")),
        ("lfm2", |name| format!("<|tool_call_start|>[{name}()]<|tool_call_end|>")),
        ("gemma4", |name| format!("<|tool_call>{name}{{}}<tool_call|>")),
    ];
    for (format, write) in cases {
        let (fine, long) = (long_name(256), long_name(257));
        let names = [fine.as_str(), long.as_str()];
        let (_, content, calls) = read_with(format, &names, &write(&fine));
        assert_eq!(
            (content.as_str(), calls),
            ("", vec![(fine.clone(), "{}".to_owned())]),
            "{format}"
        );
        let (_, content, calls) = read_with(format, &names, &write(&long));
        assert_eq!((content, calls), (write(&long), vec![]), "{format}");
    }
    // What is skipped behind a name is as short.
    for (len, count) in [(256, 1), (257, 0)] {
        let reply = format!("[TOOL_CALLS]none[CALL_ID]{}[ARGS]{{}}", "1".repeat(len));
        let (_, content, calls) = read_with("mistral", &[], &reply);
        assert_eq!((calls.len(), content.is_empty()), (count, count == 1), "{len}");
    }
}

/// A key has up to 1024 bytes with its markup; then the call ends as far as it was read.
#[test]
fn keys_have_a_limit() {
    let reply = |len: usize| {
        let key = "k".repeat(len);
        format!(
            "<tool_call><function=time><parameter={key}>\n1\n</parameter></function></tool_call>"
        )
    };
    let len = 1024 - "<parameter=>".len();
    let (_, content, calls) = read_with("qwen3-coder", &[], &reply(len));
    let arguments = format!("{{\"{}\":1}}", "k".repeat(len));
    assert_eq!((content.as_str(), calls), ("", vec![("time".into(), arguments)]));
    let (_, content, calls) = read_with("qwen3-coder", &[], &reply(len + 1));
    assert_eq!(calls, [("time".to_owned(), "{}".to_owned())]);
    assert!(
        content.starts_with("<parameter=kkk") && content.ends_with("</tool_call>"),
        "{content}"
    );
}

/// Arguments nest to 128, those of the call included.
#[test]
fn arguments_nest_to_a_limit() {
    let lists = |count: usize| "[".repeat(count) + &"]".repeat(count);
    let json = |count| {
        let arguments = format!("{{\"any\": {}}}", lists(count));
        format!("<tool_call>{{\"name\": \"time\", \"arguments\": {arguments}}}</tool_call>")
    };
    let python =
        |count| format!("<|tool_call_start|>[time(any={})]<|tool_call_end|>", lists(count));
    let [fine, deep] = [127, 128].map(|count| [("hermes", json(count)), ("lfm2", python(count))]);
    for (format, reply) in fine {
        let (_, content, calls) = read_with(format, &[], &reply);
        assert_eq!(content, "", "{format}");
        let arguments = &calls[0].1.replace(' ', "");
        assert_eq!(*arguments, format!("{{\"any\":{}}}", lists(127)), "{format}");
    }
    for (format, reply) in deep {
        let (_, content, calls) = read_with(format, &[], &reply);
        assert!(content.starts_with("[]]") && calls.len() == 1, "{format}: {content}");
    }
}

/// Words and numbers of Python's calls have at most 4096 bytes, quoted texts any number.
#[test]
fn words_have_a_limit_and_texts_have_none() {
    let reply = |value: &str| format!("<|tool_call_start|>[time(any={value})]<|tool_call_end|>");
    let word = |len: usize| "w".repeat(len);
    for value in [word(4096), format!("'{}'", word(5000))] {
        let (_, content, calls) = read_with("lfm2", &[], &reply(&value));
        let expected = format!("{{\"any\":\"{}\"}}", value.trim_matches('\''));
        assert_eq!((content.as_str(), &calls[0].1), ("", &expected));
    }
    let (_, content, calls) = read_with("lfm2", &[], &reply(&word(4097)));
    assert_eq!(content, format!("{})]<|tool_call_end|>", word(4097)));
    assert_eq!(calls, [("time".to_owned(), "{\"any\":".to_owned())]);
}

/// Arguments before the name are kept up to 64 KiB, written as an object or as a text of one.
#[test]
fn early_arguments_have_a_limit() {
    let limit = 64 << 10;
    let object = |len: usize| format!("{{\"code\":\"{}\"}}", "x".repeat(len - 11));
    let quoted = |len: usize| json::quoted(&object(len - 6));
    for write in [&object as &dyn Fn(usize) -> String, &quoted] {
        for (len, is_call) in [(limit, true), (limit + 1, false)] {
            let arguments = write(len);
            assert_eq!(arguments.len(), len);
            let reply =
                format!("<tool_call>{{\"arguments\": {arguments}, \"name\": \"run\"}}</tool_call>");
            let (_, content, calls) = read_with("hermes", &[], &reply);
            assert_eq!(content, if is_call { "" } else { &reply });
            assert_eq!(calls.len(), usize::from(is_call), "{len}");
            assert!(calls.iter().all(|(_, text)| text.starts_with("{\"code\":\"xx")));
        }
    }
}

/// What may become a call is withheld up to 128 KiB.
#[test]
fn text_before_a_call_has_a_limit() {
    let begun = "{\"name\": \"none\"";
    let most = (128 << 10) - 1 - "<tool_call>".len() - begun.len();
    for (spaces, is_call) in [(most, true), (most + 1, false)] {
        let reply = format!("<tool_call>{}{begun}}}</tool_call>", " ".repeat(spaces));
        let (_, content, calls) = read_with("hermes", &[], &reply);
        assert_eq!((content.is_empty(), calls.len()), (is_call, usize::from(is_call)), "{spaces}");
    }
}

/// White space that may belong to a marker is withheld up to 256 bytes; behind a marker none is shown.
#[test]
fn white_space_beside_markers_is_dropped_to_a_limit() {
    let call = "<tool_call>{\"name\": \"none\"}</tool_call>";
    for (count, shown) in [(256, 0), (257, 257), (300, 257)] {
        let spaces = " ".repeat(count);
        let expected = format!("a{}", " ".repeat(shown));
        let (_, content, calls) = read_with("hermes", &[], &format!("a{spaces}{call}"));
        assert_eq!((content, calls.len()), (expected.clone(), 1), "{count}");
        let reply = format!("<think>{spaces}a{spaces}</think>{spaces}b");
        let (reasoning, content, _) = read_with("hermes", &[], &reply);
        assert_eq!((reasoning, content.as_str()), (expected, "b"), "{count}");
        let (_, content, _) = read_with("hermes", &[], &format!("{call}{spaces}b{spaces}"));
        assert_eq!(content, format!("b{spaces}"), "{count}");
    }
}

/// A header has at most 512 bytes; a longer one is content.
#[test]
fn headers_have_a_limit() {
    for (len, is_header) in [(512, true), (513, false)] {
        let header = format!("<|channel|>{}", "x".repeat(len - "<|channel|>".len()));
        let reply = format!("{header}<|message|>Hi");
        let (_, content, _) = read_with("gpt-oss", &[], &reply);
        assert_eq!(content, if is_header { "Hi" } else { &reply });
    }
}
