//! Requests, results and streams of both APIs.

use serde_json::{Value, json};

use super::messages::{self, MessageStream};
use super::responses::{self, ResponseStream};

mod tools;

fn chunk(delta: &Value) -> Value {
    json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m",
        "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
}

/// A reply with reasoning, text and two calls.
fn chunks() -> Vec<Value> {
    let call =
        |index: u64, text: Value| json!({ "tool_calls": [{ "index": index, "function": text }] });
    let begun = |index: u64, name: &str| {
        json!({ "tool_calls": [{ "index": index, "id": format!("call_{index}"), "type": "function",
            "function": { "name": name, "arguments": "" } }] })
    };
    let mut last = chunk(&json!({}));
    last["choices"][0]["finish_reason"] = "tool_calls".into();
    let usage = json!({ "id": "chatcmpl-1", "model": "m", "choices": [], "usage": {
        "prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21,
        "prompt_tokens_details": { "cached_tokens": 4 } } });
    vec![
        chunk(&json!({ "role": "assistant", "content": null })),
        chunk(&json!({ "reasoning_content": "Hm" })),
        chunk(&json!({ "reasoning_content": "." })),
        chunk(&json!({ "content": "He" })),
        chunk(&json!({ "content": "llo" })),
        chunk(&begun(0, "f")),
        chunk(&call(0, json!({ "arguments": "{\"a\":" }))),
        chunk(&call(0, json!({ "arguments": "1}" }))),
        chunk(&begun(1, "g")),
        chunk(&call(1, json!({ "arguments": "{}" }))),
        last,
        usage,
    ]
}

/// A whole reply, whose chunks are those of `chunks`.
fn completion() -> Value {
    let call = |id: &str, name: &str, text: &str| super::call(id, name, text);
    json!({ "id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m",
        "choices": [{ "index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": "Hello", "reasoning_content": "Hm.",
            "tool_calls": [call("call_0", "f", "{\"a\":1}"), call("call_1", "g", "{}")] } }],
        "usage": { "prompt_tokens": 12, "completion_tokens": 9,
            "prompt_tokens_details": { "cached_tokens": 4 } } })
}

fn message_events(chunks: &[Value]) -> Vec<Value> {
    let mut stream = MessageStream::new(12);
    let mut events: Vec<Value> = chunks.iter().flat_map(|chunk| stream.push(chunk)).collect();
    events.extend(stream.finish());
    events
}

fn response_events(chunks: &[Value]) -> Vec<Value> {
    let mut stream = ResponseStream::new(&json!({ "model": "m" }), 7);
    let mut events: Vec<Value> = chunks.iter().flat_map(|chunk| stream.push(chunk)).collect();
    events.extend(stream.finish());
    events
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["type"].as_str()).collect()
}

#[test]
fn messages_become_chat_messages() {
    let chat = messages::request(&json!({
        "model": "m", "max_tokens": 5, "temperature": 0.5, "stream": true,
        "system": [{ "type": "text", "text": "Be" }, { "type": "text", "text": " brief" }],
        "messages": [
            { "role": "user", "content": "Hi" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "Hm", "signature": "x" },
                { "type": "text", "text": "Ok" },
                { "type": "tool_use", "id": "t1", "name": "f", "input": { "a": 1 } } ] },
            { "role": "user", "content": [
                { "type": "text", "text": "Here" },
                { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "9" }] } ] },
        ],
        "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" } }],
        "tool_choice": { "type": "tool", "name": "f", "disable_parallel_tool_use": true },
        "stop_sequences": ["END"], "thinking": { "type": "enabled", "budget_tokens": 100 },
        "metadata": { "user_id": "u" },
    }));
    let expected = json!({
        "model": "m", "max_tokens": 5, "temperature": 0.5, "stream": true,
        "messages": [
            { "role": "system", "content": "Be brief" },
            { "role": "user", "content": "Hi" },
            { "role": "assistant", "content": "Ok", "reasoning_content": "Hm",
                "tool_calls": [super::call("t1", "f", "{\"a\":1}")] },
            { "role": "tool", "tool_call_id": "t1", "content": "9" },
            { "role": "user", "content": "Here" },
        ],
        "tools": [{ "type": "function", "function": {
            "name": "f", "parameters": { "type": "object" }, "description": "d" } }],
        "tool_choice": { "type": "function", "function": { "name": "f" } },
        "parallel_tool_calls": false,
        "stop": ["END"],
        "chat_template_kwargs": { "enable_thinking": true },
        "user": "u",
        "stream_options": { "include_usage": true },
    });
    assert_eq!(chat, Ok(expected));
}

#[test]
fn wrong_messages_name_the_field() {
    let of = |messages: Value| json!({ "messages": messages });
    let tool = json!({ "name": "f", "input_schema": {} });
    for (body, field) in [
        (json!([]), "the request"),
        (json!({}), "messages"),
        (of(json!({})), "messages"),
        (of(json!([3])), "messages[0]"),
        (of(json!([{ "role": "tool", "content": "" }])), "messages[0].role"),
        (of(json!([{ "role": "user" }])), "messages[0].content"),
        (
            of(json!([{ "role": "user", "content": [{ "type": "text" }] }])),
            "messages[0].content[0].text",
        ),
        (
            of(json!([{ "role": "user", "content": [{ "type": "tool_use" }] }])),
            "messages[0].content[0]",
        ),
        (json!({ "messages": [], "system": 3 }), "system"),
        (json!({ "messages": [], "tools": [{ "name": "f" }] }), "tools[0].input_schema"),
        (json!({ "messages": [], "tools": [{ "name": "f", "type": 1 }] }), "tools[0].type"),
        (json!({ "messages": [], "tool_choice": { "type": "all" } }), "tool_choice.type"),
        (json!({ "messages": [], "tools": [tool, tool] }), "tools[1].name"),
        (
            json!({ "messages": [], "tools": [{ "type": "bash_20250124" }], "tool_choice": { "type": "any" } }),
            "tool_choice",
        ),
        (json!({ "messages": [], "stop_sequences": "x" }), "stop_sequences"),
        (json!({ "messages": [], "thinking": true }), "thinking"),
    ] {
        assert_eq!(messages::request(&body).expect_err("an error").field, field, "{body}");
    }
}

#[test]
fn a_completion_becomes_a_message() {
    let message = messages::response(&completion());
    assert_eq!(message["id"], "msg_1");
    assert_eq!(message["stop_reason"], "tool_use");
    let content = json!([
        { "type": "thinking", "thinking": "Hm.", "signature": "" },
        { "type": "text", "text": "Hello" },
        { "type": "tool_use", "id": "call_0", "name": "f", "input": { "a": 1 } },
        { "type": "tool_use", "id": "call_1", "name": "g", "input": {} },
    ]);
    assert_eq!(message["content"], content);
    let usage = json!({ "input_tokens": 8, "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0, "output_tokens": 9 });
    assert_eq!(message["usage"], usage);
    let empty = json!({ "id": "x", "choices": [{ "message": { "content": "" }, "finish_reason": "length" }] });
    let message = messages::response(&empty);
    assert_eq!(message["content"], json!([{ "type": "text", "text": "" }]));
    assert_eq!(message["stop_reason"], "max_tokens");
    let stopped = json!({ "choices": [{ "message": { "content": "a" }, "finish_reason": "stop",
        "stop_sequence": "END" }] });
    assert_eq!(messages::response(&stopped)["stop_reason"], "stop_sequence");
}

#[test]
fn chunks_become_message_events() {
    let events = message_events(&chunks());
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let expected = [
        &["message_start", "content_block_start", "ping"][..],
        &["content_block_delta"; 3],
        &["content_block_stop", "content_block_start"],
        &["content_block_delta"; 2],
        &["content_block_stop", "content_block_start"],
        &["content_block_delta"; 2],
        &["content_block_stop"],
        &block,
        &["message_delta", "message_stop"],
    ];
    assert_eq!(types(&events), expected.concat());
    let started: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "content_block_start").collect();
    let indices: Vec<u64> = started.iter().filter_map(|event| event["index"].as_u64()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(started[2]["content_block"]["id"], "call_0");
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 12);
    let last = &events[events.len() - 2];
    assert_eq!(last["delta"]["stop_reason"], "tool_use");
    assert_eq!(last["usage"]["output_tokens"], 9);
    let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, "Hello");
    let text: String =
        events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(text, "{\"a\":1}{}");
}

#[test]
fn an_empty_reply_is_still_a_message() {
    let events = message_events(&[chunk(&json!({ "role": "assistant" }))]);
    let expected = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(types(&events), expected);
    let events = response_events(&[chunk(&json!({ "role": "assistant" }))]);
    assert_eq!(events.last().expect("an event")["response"]["output"][0]["content"][0]["text"], "");
}

#[test]
fn failures_in_a_stream_are_typed_events() {
    let failed = json!({ "error": { "message": "NaN", "type": "server_error", "code": 500 } });
    let mut stream = MessageStream::new(1);
    stream.push(&chunks()[0]);
    assert_eq!(stream.push(&failed), [messages::error(500, "NaN")]);
    assert_eq!(messages::error(429, "")["error"]["type"], "rate_limit_error");
    let mut stream = ResponseStream::new(&json!({}), 7);
    stream.push(&chunks()[0]);
    let event = &stream.push(&failed)[0];
    assert_eq!((&event["type"], &event["code"]), (&json!("error"), &json!("server_error")));
    assert_eq!(event["sequence_number"], 2);
}

#[test]
fn responses_become_chat_messages() {
    let chat = responses::request(&json!({
        "model": "m", "instructions": "Be brief", "max_output_tokens": 5, "top_p": 0.5, "store": true,
        "input": [
            { "role": "developer", "content": [{ "type": "input_text", "text": "D" }] },
            { "type": "message", "role": "user", "content": "Hi" },
            { "type": "reasoning", "id": "r", "summary": [{ "type": "summary_text", "text": "Hm" }] },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
            { "type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c1", "output": "1" },
            { "type": "function_call_output", "call_id": "c2",
                "output": [{ "type": "input_text", "text": "2" }] },
        ],
        "tools": [{ "type": "function", "name": "f", "parameters": { "type": "object" }, "strict": true }],
        "tool_choice": { "type": "function", "name": "f" },
        "text": { "format": { "type": "json_schema", "name": "s", "schema": {}, "strict": true } },
        "reasoning": { "effort": "low" },
    }));
    let expected = json!({
        "model": "m", "top_p": 0.5,
        "messages": [
            { "role": "system", "content": "Be brief" },
            { "role": "system", "content": "D" },
            { "role": "user", "content": "Hi" },
            { "role": "assistant", "content": "", "reasoning_content": "Hm", "tool_calls": [
                super::call("c1", "f", "{}"), super::call("c2", "g", "{}")] },
            { "role": "tool", "tool_call_id": "c1", "content": "1" },
            { "role": "tool", "tool_call_id": "c2", "content": "2" },
        ],
        "tools": [{ "type": "function", "function": {
            "name": "f", "parameters": { "type": "object" }, "strict": true } }],
        "tool_choice": { "type": "function", "function": { "name": "f" } },
        "response_format": { "type": "json_schema", "json_schema": {
            "name": "s", "schema": {}, "strict": true } },
        "max_tokens": 5,
        "reasoning_effort": "low",
    });
    assert_eq!(chat, Ok(expected));
    let chat = responses::request(&json!({ "input": "Hi" })).expect("a request");
    assert_eq!(chat["messages"], json!([{ "role": "user", "content": "Hi" }]));
}

#[test]
fn wrong_responses_name_the_field() {
    let function = |name: &str| json!({ "type": "function", "name": name });
    let space = |name: &str, inner: &str| json!({ "type": "namespace", "name": name, "tools": [function(inner)] });
    let many = |numbers: std::ops::Range<usize>| {
        let functions: Vec<Value> = numbers.map(|number| function(&format!("f{number}"))).collect();
        json!({ "type": "namespace", "name": "n", "tools": functions })
    };
    let web =
        json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "web_search" }] });
    for (body, field) in [
        (json!({}), "input"),
        (json!({ "input": 3 }), "input"),
        (json!({ "input": [3] }), "input[0]"),
        (json!({ "input": [{ "role": "x", "content": "" }] }), "input[0].role"),
        (json!({ "input": [{ "role": "user" }] }), "input[0].content"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0].type"),
        (json!({ "input": [{ "type": "function_call", "call_id": "c" }] }), "input[0].name"),
        (json!({ "input": "", "instructions": 3 }), "instructions"),
        (json!({ "input": "", "previous_response_id": "r" }), "previous_response_id"),
        (json!({ "input": "", "conversation": "c" }), "conversation"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": "", "background": true }), "background"),
        (json!({ "input": "", "tools": [{ "name": "f" }] }), "tools[0].type"),
        (json!({ "input": "", "tools": [{ "type": "namespace" }] }), "tools[0].name"),
        (
            json!({ "input": "", "tools": [space("a", "b__c"), space("a__b", "c")] }),
            "tools[1].tools[0].name",
        ),
        (json!({ "input": "", "tools": [function("f"), function("f")] }), "tools[1].name"),
        (
            json!({ "input": "", "tools": [function("f"), space("", "f")] }),
            "tools[1].tools[0].name",
        ),
        (json!({ "input": "", "tools": [many(0..200), many(200..257)] }), "tools[1].tools"),
        (json!({ "input": "", "tools": [many(0..256), function("f")] }), "tools"),
        (
            json!({ "input": "", "tools": [{ "type": "web_search" }], "tool_choice": "required" }),
            "tool_choice",
        ),
        (json!({ "input": "", "tool_choice": web }), "tool_choice.tools"),
        (json!({ "input": [{ "type": "computer_call", "call_id": "c" }] }), "input[0].type"),
        (json!({ "input": [{ "type": "custom_tool_call", "call_id": "c" }] }), "input[0].input"),
        (json!({ "input": [{ "type": "local_shell_call", "call_id": "c" }] }), "input[0].action"),
        (
            json!({ "input": [{ "type": "apply_patch_call", "call_id": "c" }] }),
            "input[0].operation",
        ),
        (json!({ "input": [{ "type": "shell_call_output", "call_id": "c" }] }), "input[0].output"),
        (json!({ "input": [{ "type": "computer_call_output", "call_id": "c" }] }), "input[0].type"),
        (json!({ "input": "", "tool_choice": "all" }), "tool_choice"),
        (json!({ "input": "", "tool_choice": { "type": "web_search" } }), "tool_choice.type"),
        (json!({ "input": "", "text": { "format": { "type": "xml" } } }), "text.format.type"),
    ] {
        let error = responses::request(&body).expect_err("an error");
        assert_eq!(error.field, field, "{body}");
    }
}

#[test]
fn chunks_become_response_events() {
    let events = response_events(&chunks());
    let item = |delta: &'static str, times: usize, done: &'static str| {
        let mut types = vec!["response.output_item.added", "response.content_part.added"];
        types.extend(std::iter::repeat_n(delta, times));
        types.extend([done, "response.content_part.done", "response.output_item.done"]);
        types
    };
    let call = |times: usize| {
        let mut types = vec!["response.output_item.added"];
        types.extend(std::iter::repeat_n("response.function_call_arguments.delta", times));
        types.extend(["response.function_call_arguments.done", "response.output_item.done"]);
        types
    };
    let expected = [
        vec!["response.created", "response.in_progress"],
        item("response.reasoning_text.delta", 2, "response.reasoning_text.done"),
        item("response.output_text.delta", 2, "response.output_text.done"),
        call(2),
        call(1),
        vec!["response.completed"],
    ];
    assert_eq!(types(&events), expected.concat());
    let numbers: Vec<u64> =
        events.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let last = &events[events.len() - 1]["response"];
    assert_eq!(
        *last,
        responses::response(&json!({ "model": "m" }), &completion()),
        "streamed or not"
    );
    assert_eq!(last["output"][1]["content"][0]["text"], "Hello");
    assert_eq!(last["output"][2]["arguments"], "{\"a\":1}");
    assert_eq!(last["usage"]["input_tokens_details"]["cached_tokens"], 4);
    assert_eq!((&last["id"], &last["status"]), (&json!("resp_1"), &json!("completed")));
}

/// Those of a token whose text comes later too, but not those of reasoning.
#[test]
fn log_probabilities_stay_with_the_text_of_a_response() {
    let entry = |token: &str| json!({ "token": token, "logprob": -1.0 });
    let with = |delta: &Value, token: &str| {
        let mut chunk = chunk(delta);
        chunk["choices"][0]["logprobs"] = json!({ "content": [entry(token)] });
        chunk
    };
    let events = response_events(&[
        with(&json!({ "reasoning_content": "Hm" }), "Hm"),
        with(&json!({}), "</think>"),
        with(&json!({ "content": "He" }), "He"),
        with(&json!({}), "l"),
        with(&json!({ "content": "llo" }), "lo"),
        // The text that ended the answer.
        with(&json!({}), "END"),
    ]);
    let of = |kind: &str| {
        let found = events.iter().filter(|event| event["type"] == kind);
        found.map(|event| event["logprobs"].clone()).collect::<Vec<_>>()
    };
    let all = json!([entry("He"), entry("l"), entry("lo")]);
    let later = json!([entry("l"), entry("lo")]);
    assert_eq!(of("response.output_text.delta"), [json!([entry("He")]), later]);
    assert_eq!(of("response.output_text.done"), std::slice::from_ref(&all));
    let last = &events[events.len() - 1]["response"];
    assert_eq!(last["output"][1]["content"][0]["logprobs"], all);
    let mut whole = completion();
    let tokens = ["Hm", ".", "</think>", "He", "l", "lo", "<call>", "f"].map(entry);
    whole["choices"][0]["logprobs"] = json!({ "content": tokens });
    let whole = responses::response(&json!({}), &whole);
    assert_eq!(whole["output"][1]["content"][0]["logprobs"], all);
}

/// Reasoning belongs to the call or message of the assistant that follows.
#[test]
fn reasoning_of_a_response_is_joined_and_does_not_reach_later_turns() {
    let thought = |key: &str, text: &str| json!({ "type": "reasoning", key: [{ "text": text }] });
    let said = |role: &str, text: &str| json!({ "role": role, "content": text });
    let call = json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" });
    let output = json!({ "type": "function_call_output", "call_id": "1", "output": "2" });
    let items = json!([
        said("user", "a"),
        thought("content", "lost"),
        said("user", "b"),
        said("assistant", "c"),
        said("user", "d"),
        thought("content", "one"),
        thought("summary", "two"),
        thought("content", ""),
        call,
        thought("content", "late"),
        output,
        said("assistant", "e"),
    ]);
    let chat = responses::request(&json!({ "input": items })).expect("a chat");
    let messages = chat["messages"].as_array().expect("messages");
    let reasoning: Vec<&Value> =
        messages.iter().filter_map(|message| message.get("reasoning_content")).collect();
    assert_eq!(reasoning, [&json!("one\n\ntwo")]);
    assert_eq!(messages[4]["tool_calls"][0]["function"]["name"], "f");
}

#[test]
fn requests_have_one_answer() {
    let message = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    for field in ["n", "n_cmpl"] {
        for (count, is_one) in [(json!(1), true), (Value::Null, true), (json!(2), false)] {
            let with = |mut body: Value| {
                body[field] = count.clone();
                body
            };
            let found = responses::request(&with(json!({ "input": "Hi" })));
            assert_eq!(found.is_ok(), is_one, "{field}: {count}");
            let found = messages::request(&with(message.clone())).map_err(|error| error.field);
            assert_eq!(found.err().as_deref(), (!is_one).then_some(field));
        }
    }
}

#[test]
fn timings_and_progress_stay_in_the_events() {
    let mut first = chunk(&json!({ "content": "a" }));
    first["timings"] = json!({ "predicted_per_second": 1.0 });
    first["prompt_progress"] = json!({ "total": 4 });
    let mut last = chunk(&json!({}));
    last["choices"][0]["finish_reason"] = "length".into();
    let events = response_events(&[first, last]);
    let delta = events.iter().find(|event| event["type"] == "response.output_text.delta");
    assert!(delta.is_some_and(|event| event["timings"].is_object()));
    let progress = events.iter().find(|event| event.get("prompt_progress").is_some());
    assert_eq!(progress.expect("an event")["type"], "response.in_progress");
    let last = &events[events.len() - 1];
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
    assert!(last["timings"].is_object());
}

#[test]
fn schemas_and_effort_of_messages_are_those_of_chats() {
    let of = |more: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("fields").clone());
        messages::request(&body)
    };
    let schema = json!({ "type": "object" });
    let format = json!({ "type": "json_schema", "schema": schema });
    let chat =
        of(json!({ "output_config": { "format": format, "effort": "max" } })).expect("a chat");
    assert_eq!(chat["response_format"]["type"], "json_schema");
    assert_eq!(chat["response_format"]["json_schema"]["schema"], schema);
    // Not as OpenAI's effort, which turns reasoning on.
    assert_eq!(chat["chat_template_kwargs"], json!({ "reasoning_effort": "max" }));
    assert!(chat.get("output_config").is_none() && chat.get("reasoning_effort").is_none());
    let off = json!({ "thinking": { "type": "disabled" }, "output_config": { "effort": "max" } });
    let kwargs = of(off).expect("a chat")["chat_template_kwargs"].clone();
    assert!(kwargs.get("reasoning_effort").is_none(), "{kwargs}");
    let beta = of(json!({ "output_format": format, "output_config": null })).expect("a chat");
    assert_eq!(beta["response_format"], chat["response_format"]);
    let none = of(json!({ "output_config": { "format": null, "effort": null } })).expect("a chat");
    assert!(none.get("response_format").is_none() && none.get("chat_template_kwargs").is_none());
    for (more, field) in [
        (json!({ "output_config": 3 }), "output_config"),
        (json!({ "output_config": { "effort": 3 } }), "output_config.effort"),
        (json!({ "output_config": { "effort": "none" } }), "output_config.effort"),
        (json!({ "output_config": { "format": { "type": "xml" } } }), "output_config.format.type"),
        (json!({ "output_format": { "type": "json_schema" } }), "output_format.schema"),
        (
            json!({ "output_format": { "type": "json_schema", "schema": 3 } }),
            "output_format.schema",
        ),
    ] {
        assert_eq!(of(more).expect_err(field).field, field);
    }
}

#[test]
fn responses_may_include_log_probabilities_and_leave_types_out() {
    let chat = responses::request(&json!({
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
        "input": [{ "type": null, "role": "user", "content": "Hi" }],
    }))
    .expect("a chat");
    assert_eq!(chat["logprobs"], true);
    let text = responses::request(&json!({ "input": "Hi", "text": { "format": null } }));
    assert!(text.expect("a chat").get("response_format").is_none());
    assert!(chat.get("top_logprobs").is_none() && chat.get("include").is_none());
    assert_eq!(chat["messages"], json!([{ "role": "user", "content": "Hi" }]));
    let refused = responses::request(&json!({ "input": "Hi", "include": "logprobs" }));
    assert_eq!(refused.expect_err("no list").field, "include");
    let allowed = json!({ "type": "allowed_tools", "mode": "auto", "tools": [{ "name": "f" }] });
    let chat = responses::request(&json!({ "input": "Hi", "tool_choice": allowed }));
    assert_eq!(chat.expect("a chat")["tool_choice"], allowed);
}
