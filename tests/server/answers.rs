//! What answers say of their tokens, and how they end.

use serde_json::{Value, json};

use super::support::http::Server;
use super::support::program::Place;
use super::{chat, with};

/// The texts of tokens up to a stop text are those of the answer: entries of the stop text itself are left out.
#[test]
fn log_probabilities_end_with_the_text() {
    let server = Server::start("-np 1 -c 512");
    let greedy = json!({ "temperature": 0, "max_tokens": 12, "n_predict": 12 });
    let ask = |path: &str, body: Value| server.post(path, &with(body, &greedy)).good();
    let tokens = |list: &Value| -> Vec<String> {
        let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().map(|entry| entry["token"].as_str().unwrap().to_owned()).collect()
    };
    let body = with(chat("Who are you?"), &json!({ "logprobs": true }));
    let whole = ask("/v1/chat/completions", body.clone());
    let all = tokens(&whole["choices"][0]["logprobs"]["content"]);
    // A text that begins within a token and ends within the next but one.
    let stop: String =
        all[4].chars().skip(1).chain(all[5].chars()).chain(all[6].chars().take(1)).collect();
    let before: String = all[..4].concat() + &all[4].chars().take(1).collect::<String>();
    let stops = json!({ "stop": [stop] });
    let choice = &ask("/v1/chat/completions", with(body, &stops))["choices"][0];
    assert_eq!(
        choice["message"]["content"].as_str().map(str::trim_start),
        Some(before.trim_start())
    );
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(tokens(&choice["logprobs"]["content"]), all[..5], "{stop:?}");

    let prompt = json!({ "prompt": "ROMEO:\n", "logprobs": 1, "n_probs": 1 });
    let whole = ask("/completion", prompt.clone());
    let all = tokens(&whole["completion_probabilities"]);
    let stops = json!({ "stop": [all[3].clone() + &all[4]] });
    let found = ask("/completion", with(prompt.clone(), &stops));
    assert_eq!(found["content"], json!(all[..3].concat()));
    assert_eq!(tokens(&found["completion_probabilities"]), all[..3]);
    assert!(found["tokens_predicted"].as_u64() > Some(3), "the others were generated");
    for (echo, prompt_tokens) in [(false, 0), (true, whole["tokens_evaluated"].as_u64().unwrap())] {
        let body = with(with(prompt.clone(), &stops), &json!({ "echo": echo }));
        let found = &ask("/v1/completions", body)["choices"][0]["logprobs"];
        for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let count = found[key].as_array().map(Vec::len);
            assert_eq!(count, Some(prompt_tokens as usize + 3), "{key} with echo {echo}");
        }
    }
}

/// OpenAI's `top_logprobs` of completions has the token beside the most likely ones.
#[test]
fn the_most_likely_tokens_include_the_one_that_was_sampled() {
    let server = Server::start("-np 1 -c 512");
    for count in [0, 1, 3] {
        let body = json!({
            "prompt": "ROMEO:\n", "max_tokens": 12, "temperature": 2.0, "seed": 5, "logprobs": count,
            "top_k": 0, "top_p": 1.0, "min_p": 0.0, "suffix": "",
        });
        let found = server.post("/v1/completions", &body).good()["choices"][0]["logprobs"].clone();
        let tops = found["top_logprobs"].as_array().unwrap();
        assert_eq!(tops.len(), 12);
        let mut others = 0;
        for (at, top) in tops.iter().enumerate() {
            let top = top.as_object().unwrap();
            let token = found["tokens"][at].as_str().unwrap();
            assert_eq!(top.get(token), Some(&found["token_logprobs"][at]), "{token:?} of {top:?}");
            assert!((count..=count + 1).contains(&top.len()), "{top:?}");
            others += usize::from(top.len() > count);
        }
        assert!(others > 0, "only the most likely tokens were sampled");
    }
}

/// A model that would go on with line breaks may end behind two of them; a limit behind a call leaves it complete.
#[test]
fn calls_are_not_followed_by_line_breaks_without_end() {
    let server = Server::start("-np 1 -c 4096");
    let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": none } });
    let ask = |more: Value| {
        let body = json!({
            "tools": [tool("now"), tool("later")], "tool_choice": "required", "temperature": 0,
            "logprobs": true, "max_tokens": 120,
        });
        server.post("/v1/chat/completions", &with(with(chat("call"), &body), &more)).good()["choices"][0].clone()
    };
    let text = |choice: &Value| -> String {
        let list = choice["logprobs"]["content"].as_array().unwrap();
        list.iter().map(|entry| entry["token"].as_str().unwrap()).collect()
    };
    let found = ask(json!({ "logit_bias": [["\n", 100]] }));
    assert!(
        text(&found).contains("\n\n") && !text(&found).contains("\n\n\n"),
        "{:?}",
        text(&found)
    );
    assert_eq!(found["finish_reason"], "tool_calls", "{found}");
    // As many tokens as a call and its end have.
    let one = ask(json!({ "parallel_tool_calls": false }));
    assert_eq!(one["finish_reason"], "tool_calls");
    let length = one["logprobs"]["content"].as_array().unwrap().len();
    for (length, reason) in [(length, "tool_calls"), (length / 2, "length")] {
        let cut = ask(json!({ "max_tokens": length }));
        assert_eq!(cut["finish_reason"], reason, "{length}: {cut}");
    }
}

/// A template that refuses several calls in one message gets no answer with several, and one message for each of a request.
#[test]
fn an_answer_makes_one_call_where_the_template_shows_one() {
    let template = "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}\
                    {{ raise_exception('one call at a time') }}{% endif %}\
                    {{ m.role ~ m.content ~ m.tool_calls }}{% endfor %}{{ tools }}{# <tool_call> #}";
    let place = Place::new();
    let file = place.file("template.jinja", template);
    let flags = format!("-np 1 -c 4096 --chat-template-file {}", file.display());
    let server = Server::start_in(place, &flags);
    let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let tool = json!({ "type": "function", "function": { "name": "now", "parameters": none } });
    let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "now", "arguments": "{}" } });
    let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "noon" });
    let ask = |more: Value| {
        let body = json!({
            "messages": [
                { "role": "user", "content": "call" },
                { "role": "assistant", "content": "", "tool_calls": [call("a"), call("b")] },
                result("a"), result("b"),
            ],
            "tools": [tool], "tool_choice": "required", "temperature": 0, "max_tokens": 60,
            "logit_bias": [["\n", 100]], "logprobs": true,
        });
        let found = server.post("/v1/chat/completions", &with(body, &more)).good();
        let tokens = found["choices"][0]["logprobs"]["content"].clone();
        let tokens = tokens.as_array().unwrap().iter();
        tokens.map(|entry| entry["token"].as_str().unwrap()).collect::<String>()
    };
    // Another call may follow only after line breaks.
    assert!(!ask(json!({})).contains("</tool_call>\n"));
    assert!(ask(json!({ "parallel_tool_calls": true })).contains("</tool_call>\n"));
}

/// llama-server's `post_sampling_probs`: the samplers and the grammar have dropped the others.
#[test]
fn probabilities_are_those_after_sampling_if_asked() {
    let server = Server::start("-np 1 -c 512");
    let ask = |more: Value| -> Vec<Vec<(String, f64)>> {
        let body = json!({ "prompt": "ROMEO:\n", "n_predict": 3, "n_probs": 4, "post_sampling_probs": true, "seed": 1 });
        let found = server.post("/completion", &with(body, &more)).good();
        let entry = |entry: &Value| {
            (entry["token"].as_str().unwrap().to_owned(), entry["prob"].as_f64().unwrap())
        };
        let each = found["completion_probabilities"].as_array().unwrap().iter().map(|position| {
            let top: Vec<_> = position["top_probs"].as_array().unwrap().iter().map(entry).collect();
            assert!(top.contains(&entry(position)), "{position}");
            top
        });
        each.collect()
    };
    for top in ask(json!({ "temperature": 0 })) {
        assert_eq!((top.len(), top[0].1), (1, 1.0), "{top:?}");
    }
    for top in ask(json!({ "temperature": 1.0, "top_k": 2, "top_p": 1.0, "min_p": 0.0 })) {
        assert_eq!(top.len(), 2, "{top:?}");
        assert!((top[0].1 + top[1].1 - 1.0).abs() < 1e-5 && top[0].1 >= top[1].1, "{top:?}");
    }
    for top in ask(json!({ "temperature": 1.0, "grammar": "root ::= [zq]+" })) {
        assert!(top.iter().all(|(token, _)| token.chars().all(|c| "zq".contains(c))), "{top:?}");
    }
}

/// OpenAI's older form of tools is answered in that form, streamed or not.
#[test]
fn functions_are_tools_of_an_older_form() {
    let server = Server::start("-np 1 -c 4096");
    let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let messages = json!([
        { "role": "user", "content": "When?" },
        { "role": "assistant", "content": null, "function_call": { "name": "now", "arguments": "{}" } },
        { "role": "function", "name": "now", "content": "noon" },
        { "role": "user", "content": "And later?" },
    ]);
    let body = json!({
        "messages": messages, "functions": [{ "name": "now", "parameters": none }], "max_tokens": 120,
        "function_call": { "name": "now" }, "temperature": 0,
    });
    let expected = json!({ "name": "now", "arguments": "{}" });
    let found = server.post("/v1/chat/completions", &body).good();
    let choice = &found["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["function_call"]),
        (&json!("function_call"), &expected)
    );
    assert!(choice["message"].get("tool_calls").is_none());
    let streamed = with(body.clone(), &json!({ "stream": true }));
    let events = server.send("POST", "/v1/chat/completions", &[], &streamed.to_string()).events();
    let of = |key: &str| -> String {
        let parts = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["function_call"][key].as_str());
        parts.collect()
    };
    assert_eq!((of("name"), of("arguments")), ("now".to_owned(), "{}".to_owned()));
    let prompt = server.post("/apply-template", &body).good()["prompt"].to_string();
    assert!(prompt.contains("noon"), "{prompt}");
    for (more, field) in [
        (json!({ "tools": [] }), "functions"),
        (json!({ "functions": null }), "function_call"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
    ] {
        let wrong = server.post("/v1/chat/completions", &with(body.clone(), &more));
        assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!(field)));
    }
}

/// What the command line says of sampling holds for requests that say nothing of it.
#[test]
fn sampling_flags_are_the_defaults_of_requests() {
    let flags =
        "-np 1 -c 512 --temp 0 -l 199-inf -l 5+100 --dry-multiplier 1 --dry-sequence-breaker x\\n";
    let server = Server::start(flags);
    let ask = |more: Value| {
        let body = with(json!({ "prompt": "ROMEO:\n", "n_predict": 2 }), &more);
        server.post("/completion", &body).good()
    };
    let found = ask(json!({}));
    let settings = &found["generation_settings"];
    assert_eq!(settings["dry_sequence_breakers"], json!(["x\n"]));
    let biases = json!([{ "token": 199, "bias": null }, { "token": 5, "bias": 100.0 }]);
    assert_eq!(settings["logit_bias"], biases);
    let own = ask(json!({ "logit_bias": [], "dry_sequence_breakers": ["y"] }));
    let settings = &own["generation_settings"];
    assert_eq!(settings["dry_sequence_breakers"], json!(["y"]));
    assert_eq!(settings["logit_bias"], json!([]));
    assert_ne!(own["content"], found["content"]);
}

/// Biases that add up to more than any number are an answer like any other.
#[test]
fn a_bias_beyond_all_numbers_ends_no_model() {
    let server = Server::start("-np 1 -c 512");
    let body = json!({
        "prompt": "ROMEO:\n", "n_predict": 4, "temperature": 0.8, "top_n_sigma": 1,
        "logit_bias": [[5, 3e38], [5, 3e38]], "n_probs": 1,
    });
    let found = server.post("/completion", &body).good();
    let tokens = found["completion_probabilities"].as_array().unwrap();
    assert!(tokens.len() == 4 && tokens.iter().all(|token| token["id"] == 5), "{found}");
}

/// A list of one prompt has one answer, which is no list.
#[test]
fn a_list_of_one_prompt_has_one_answer() {
    let server = Server::start("-np 1 -c 512");
    let body = |prompts: &[&str]| json!({ "prompt": prompts, "n_predict": 1 });
    assert!(server.post("/completion", &body(&["a"])).good()["content"].is_string());
    let two = server.post("/completion", &body(&["a", "b"])).good();
    assert_eq!(two.as_array().map(Vec::len), Some(2), "{two}");
}

/// The end texts of a known format are like tokens that end a text; those of the request are its own wish.
#[test]
fn ignored_ends_of_text_are_those_of_the_format_too() {
    let server = Server::start_in(Place::new(), "-np 1 -c 512 --chat-template chatml");
    let ask = |more: Value| {
        let body = json!({
            "messages": [{ "role": "user", "content": "Hi" }], "temperature": 0, "max_tokens": 60,
            "grammar": "root ::= \"a<|im_end|>bc\"",
        });
        let found = server.post("/v1/chat/completions", &with(body, &more)).good();
        found["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(ask(json!({})), "a");
    assert_eq!(ask(json!({ "ignore_eos": true })), "a<|im_end|>bc");
    assert_eq!(ask(json!({ "ignore_eos": true, "stop": "c" })), "a<|im_end|>b");
}
