//! The promise of `bilayer serve`: what clients of OpenAI's API and of llama-server expect, within limits, and no answer
//! lost.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "counts are shown")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bilayer_gguf::{File, NewTensor, to_bytes};
use serde_json::{Value, json};

mod answers;
mod batch;
mod clients;
mod encoders;
mod faults;

#[path = "../support"]
mod support {
    pub mod gpu;
    pub mod http;
    pub mod model;
    pub mod program;
    pub mod tried;
    pub mod words;
}

use support::gpu;
use support::http::{Reply, Server};
use support::program::Place;
use support::words;

fn chat(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 8, "seed": 1 })
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cli/assets/demo.gguf");

#[test]
fn answers_are_those_of_the_library() {
    let server = Server::start("-np 2 -c 256");
    let mut model = bilayer::Model::builder(DEMO).gpu_layers(0).open().unwrap();
    for prompt in ["ROMEO:\n", "KING RICHARD III:\nNow is the winter"] {
        let request = bilayer::Request::new(prompt).max_tokens(20).greedy();
        let expected = model.generate(request).unwrap().text().unwrap();
        let body = json!({ "prompt": prompt, "temperature": 0.0, "max_tokens": 20 });
        let found = server.post("/v1/completions", &body).good();
        assert_eq!(found["choices"][0]["text"], json!(expected));
        assert_eq!(found["choices"][0]["finish_reason"], "length");
        let native = json!({ "prompt": prompt, "temperature": 0.0, "n_predict": 20 });
        let found = server.post("/completion", &native).good();
        assert_eq!(found["content"], json!(expected));
        assert_eq!(found["timings"]["predicted_n"], 20);
        assert!(found["timings"]["cache_n"].as_u64() > Some(0), "the prompt was cached: {found}");
    }
}

/// A GPU is lost while four requests are answered: the CPU goes on with each of them, and answers later ones.
#[test]
fn a_lost_gpu_loses_no_answer() {
    // Slow devices, so that measuring their steps at the start takes less than 100 submits.
    const MACHINE: &str = "[cpu]\nname = \"c\"\nmemory = \"8GiB\"\nread_gbps = 0.001\ntops = 0.0001\n\
        [gpu]\nname = \"g\"\nmemory = \"1GiB\"\nread_gbps = 0.01\ntops = 0.001\nlost_at = 130\n";
    let prompts = ["abc", "cab", "abcabc", "bbaacc"];
    let ask = |server: &Server, prompt: &str, most: u32| {
        let body = json!({
            "prompt": prompt, "temperature": 0.0, "max_tokens": most, "ignore_eos": true
        });
        server.post("/v1/completions", &body).good()
    };
    let answers = |server: &Server| -> Vec<Value> {
        std::thread::scope(|scope| {
            let asked = prompts.map(|prompt| scope.spawn(move || ask(server, prompt, 160)));
            let answers = asked.into_iter().map(|asked| asked.join().unwrap());
            answers.map(|answer| answer["choices"][0]["text"].clone()).collect()
        })
    };
    let places = |server: &Server| ask(server, "a", 2)["devices"].as_array().unwrap().len();
    // Keys and values are computed again in larger batches, which matters little to weights that are floats.
    let place = || {
        let place = Place::new();
        place.file("model.gguf", words::tiny(bilayer_quant::Type::F32, 1));
        place.file("m.toml", MACHINE);
        place
    };
    let shared = "-m model.gguf --metrics -np 4 -c 1024";
    let expected = answers(&Server::start_in(place(), shared));
    for placement in ["-ngl all", "-ngl 2"] {
        let server = Server::start_in(place(), &format!("--simulate m.toml {placement} {shared}"));
        let warnings = || {
            let metrics = server.get("/metrics").body;
            let mut lines = metrics.lines();
            lines.find_map(|line| line.strip_prefix("bilayer:warnings_total ")?.parse::<u32>().ok())
        };
        assert_eq!(places(&server), 2, "{placement}");
        let before = warnings();
        assert_eq!(answers(&server), expected, "{placement}");
        assert_eq!(warnings(), before.map(|before| before + 1), "{placement}");
        assert_eq!((places(&server), answers(&server)), (1, expected.clone()), "{placement}");
    }
}

#[test]
fn prompts_have_the_log_probabilities_of_the_library() {
    let server = Server::start("-np 2");
    let mut model = bilayer::Model::builder(DEMO).gpu_layers(0).open().unwrap();
    let prompt = "ROMEO:\nBut, soft! what light through yonder window breaks?";
    let logits = model.logits(prompt).unwrap();
    let tokens = logits.tokens().to_vec();
    let body = json!({ "prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 2 });
    let found = server.post("/v1/completions", &body).good();
    let found = &found["choices"][0]["logprobs"];
    let list = found["token_logprobs"].as_array().unwrap();
    assert_eq!(list.len(), tokens.len());
    assert!(list[0].is_null(), "nothing comes before the first token");
    for (at, &token) in tokens.iter().enumerate().skip(1) {
        let row = logits.row(at - 1);
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
        let expected = f64::from(row[token as usize] - max) - sum.ln();
        let found = list[at].as_f64().unwrap();
        assert!((found - expected).abs() < 2e-3, "token {at}: {found}, not {expected}");
    }
    let (first, top) = (found["tokens"][1].as_str().unwrap(), &found["top_logprobs"][1]);
    assert_eq!(top[first], found["token_logprobs"][1]);
    let others = usize::from(top.as_object().unwrap().len() == 3);
    assert_eq!(
        top.as_object().unwrap().len(),
        2 + others,
        "the token may be none of the most likely"
    );
    let offsets: Vec<usize> = found["text_offset"]
        .as_array()
        .unwrap()
        .iter()
        .map(|at| at.as_u64().unwrap() as usize)
        .collect();
    assert_eq!(offsets[..2], [0, 0], "the first token is not in the text");
    for (at, pair) in offsets.windows(2).enumerate().skip(1) {
        assert_eq!(json!(prompt[pair[0]..pair[1]]), found["tokens"][at]);
    }
    let ask = with(body, &json!({ "max_tokens": 2, "temperature": 0.0 }));
    let whole = server.post("/v1/completions", &ask).good()["choices"][0]["logprobs"].clone();
    let ask = with(ask, &json!({ "stream": true }));
    let events = server.send("POST", "/v1/completions", &[], &ask.to_string()).events();
    for key in ["tokens", "token_logprobs", "text_offset"] {
        let lists = events.iter().map(|event| &event["choices"][0]["logprobs"][key]);
        let all: Vec<&Value> = lists.filter_map(Value::as_array).flatten().collect();
        assert_eq!(json!(all), whole[key], "streamed or not");
    }
    let models = server.get("/v1/models").good();
    assert_eq!(models["data"][0]["meta"]["size"], std::fs::metadata(DEMO).unwrap().len());
}

#[test]
fn streams_are_as_openai_sends_them_and_add_up() {
    let server = Server::start("-np 2");
    let whole = server.post("/v1/chat/completions", &chat("Who are you?")).good();
    let body = with(
        chat("Who are you?"),
        &json!({ "stream": true, "stream_options": { "include_usage": true } }),
    );
    let reply = server.send("POST", "/v1/chat/completions", &[], &body.to_string());
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert!(reply.body.ends_with("data: [DONE]\n\n"), "{reply:?}");
    let events = reply.events();
    let first = &events[0]["choices"][0]["delta"];
    assert_eq!(*first, json!({ "role": "assistant", "content": null }));
    let (last, rest) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 8);
    let text: String =
        rest.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(json!(text), whole["choices"][0]["message"]["content"]);
    assert_eq!(rest.last().unwrap()["choices"][0]["finish_reason"], "length");
    let ids: Vec<&Value> = events.iter().map(|event| &event["id"]).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    // Two answers come interleaved, each with its index.
    let body = with(body, &json!({ "n": 2 }));
    let reply = server.send("POST", "/v1/chat/completions", &[], &body.to_string());
    let of = |index: u64| {
        let mine = reply
            .events()
            .into_iter()
            .flat_map(|event| event["choices"].as_array().unwrap().clone());
        mine.filter(|choice| choice["index"] == index)
            .filter(|choice| choice["delta"]["content"].is_string())
            .count()
    };
    assert!(of(0) > 0 && of(1) > 0);
}

#[test]
fn every_documented_field_is_checked_and_named() {
    let server = Server::start("-np 2");
    let document = server.get("/openapi.json").good();
    let mut checked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(post) = methods.get("post") else { continue };
        let schema = &post["requestBody"]["content"]["application/json"]["schema"];
        // A list has no fields.
        let Some(properties) = schema["properties"].as_object() else { continue };
        let path = path.replace("{id}", "0?action=save");
        // Anthropic's errors have no place for the name of a field.
        let has_param = !path.starts_with("/v1/messages");
        for (name, field) in properties {
            for wrong in wrong_values(field) {
                let reply = server.post(&path, &json!({ name.as_str(): wrong }));
                let error = reply.json();
                assert_eq!(reply.status, 400, "{path} {name} {wrong}: {error}");
                let message = error["error"]["message"].as_str().unwrap();
                let param = has_param.then_some(name);
                assert_eq!(
                    error["error"].get("param"),
                    param.map(|name| json!(name)).as_ref(),
                    "{path} {wrong}: {error}"
                );
                assert!(message.contains(name.as_str()), "{path} {name}: {message}");
                checked += 1;
            }
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            let reply = server.post(&path, &json!({}));
            assert_eq!(reply.status, 400, "{path} without {name}");
            assert!(
                reply.body.contains(name.as_str().unwrap()),
                "{path} without {name}: {reply:?}"
            );
        }
    }
    assert!(checked > 300, "{checked}");
}

/// Values that a field must refuse.
fn wrong_values(field: &Value) -> Vec<Value> {
    let mut wrong = match field["type"].as_str() {
        Some("boolean") => vec![json!("yes"), json!(1)],
        Some("integer") => vec![json!("1"), json!(1.5), json!([1])],
        Some("number") => vec![json!("hot"), json!({})],
        Some("string") => vec![json!(7), json!(["a"])],
        Some("array") => vec![json!("a"), json!({})],
        Some("object") => vec![json!("a"), json!([])],
        _ => Vec::new(),
    };
    if let Some(most) = field["maximum"].as_f64() {
        wrong.push(json!(most + 1.0));
    }
    if let Some(least) = field["minimum"].as_f64() {
        wrong.push(json!(least - 1.0));
    }
    if field["enum"].is_array() {
        wrong.push(json!("none of them"));
    }
    wrong
}

#[test]
fn bad_requests_are_refused_by_what_is_wrong() {
    let server = Server::start("-np 1 -c 64");
    let cases = [
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{}] }), "messages[0]"),
        (json!({ "messages": [{ "role": 1 }] }), "role"),
        (json!({ "messages": [{ "role": "user", "content": 1 }] }), "content"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "text only",
        ),
        (with(chat("a"), &json!({ "response_format": { "type": "sound" } })), "response_format"),
        (with(chat("a"), &json!({ "grammar": "root ::= (not valid" })), "grammar"),
        (with(chat("a"), &json!({ "json_schema": { "type": "hiccup" } })), "json_schema"),
        (with(chat("a"), &json!({ "logit_bias": { "9999999": 1 } })), "logit_bias"),
        (chat(&"long ".repeat(200)), "exceeds the available context size"),
    ];
    for (body, part) in cases {
        let reply = server.post("/v1/chat/completions", &body);
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(reply.status, 400, "{body}: {message}");
        assert!(message.contains(part), "{body}: {message}");
    }
    for body in ["", "{", "[]", "\"a\"", "{\"messages\": NaN}"] {
        assert_eq!(server.send("POST", "/v1/chat/completions", &[], body).status, 400, "{body}");
    }
    let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(server.send("POST", "/v1/completions", &[], &deep).status, 400);
    // What this server does not have, or has in a range, is not ignored.
    for (field, value) in [
        ("top_n_sigma", json!("much")),
        ("adaptive_target", json!(1.5)),
        ("adaptive_decay", json!(1.0)),
        ("samplers", json!(["top_k", "nothing"])),
        ("samplers", json!("kq")),
        ("seed", json!(9_223_372_036_854_775_808_u64)),
        ("logit_bias", json!({ "many words ".repeat(5000): 1 })),
    ] {
        let reply = server.post("/completion", &json!({ "prompt": "a", field: value }));
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(field)));
    }
    let body = json!({
        "prompt": "a", "n_predict": 1, "seed": 1_099_511_627_776_u64, "top_n_sigma": -1.0,
        "samplers": ["temperature", "top_n_sigma", "top_k"],
    });
    let settings = &server.post("/completion", &body).good()["generation_settings"];
    let used = json!(["temperature", "top_n_sigma", "top_k"]);
    assert_eq!((&settings["samplers"], &settings["seed"]), (&used, &body["seed"]));
    assert_eq!(server.get("/nothing").status, 404);
    assert_eq!(server.get("/v1/chat/completions").status, 405);
    assert_eq!(server.post("/v1/embeddings", &json!({ "input": "a" })).status, 501);
    let large = format!("{{\"prompt\": \"{}\"}}", "a".repeat(9 << 20));
    assert_eq!(server.send("POST", "/v1/completions", &[], &large).status, 413);
    assert_eq!(server.post("/v1/chat/completions", &chat("still here")).status, 200);
}

#[test]
fn requests_with_many_tools_are_refused_soon() {
    let server = Server::start("-np 1 -c 64");
    let functions: Vec<Value> = (0..60_000)
        .map(|number| json!({ "type": "function", "name": number.to_string() }))
        .collect();
    let began = Instant::now();
    for (tools, choice, part) in [
        (
            json!([{ "type": "namespace", "name": "g_", "tools": functions }]),
            json!("auto"),
            "tools[0].tools",
        ),
        (
            json!([functions[0]]),
            json!({ "type": "allowed_tools", "mode": "auto", "tools": functions }),
            "tool_choice",
        ),
    ] {
        let body = json!({ "input": "Hi", "tools": tools, "tool_choice": choice });
        let reply = server.post("/v1/responses", &body);
        assert!(reply.status == 400 && reply.body.contains(part), "{part}: {}", reply.status);
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// Fields that editors and other clients of llama-server send.
#[test]
fn fields_of_llama_server_are_followed() {
    let server = Server::start("-np 1 -c 512");
    let prompt = json!({ "prompt": "ROMEO:\n", "n_predict": 4, "seed": 3 });
    for samplers in [json!(["top_k", "top_p", "infill"]), json!("kpi")] {
        let body = with(prompt.clone(), &json!({ "samplers": samplers }));
        let used = &server.post("/completion", &body).good()["generation_settings"]["samplers"];
        assert_eq!(*used, json!(["top_k", "top_p", "infill"]));
    }
    let props = server.get("/props").good();
    let settings = &props["default_generation_settings"]["params"];
    let usual = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
    let usual: Vec<&str> = usual.split(';').collect();
    assert_eq!((&settings["samplers"], &settings["top_n_sigma"]), (&json!(usual), &json!(-1.0)));
    let asked = json!({
        "top_n_sigma": 1.5, "adaptive_target": 0.5, "adaptive_decay": 0.8, "n_predict": 8,
    });
    let settings = server.post("/completion", &with(prompt.clone(), &asked)).good();
    let settings = &settings["generation_settings"];
    for field in ["top_n_sigma", "adaptive_target", "adaptive_decay"] {
        assert_eq!(settings[field], asked[field]);
    }
    assert_eq!(settings["samplers"].as_array().map(Vec::len), Some(10), "with adaptive-p");
    // A penalty before the greedy choice changes it.
    let text = |samplers: &str| {
        let asked = json!({
            "samplers": samplers, "temperature": 0, "top_k": 1, "repeat_penalty": 100.0,
            "n_predict": 24,
        });
        let found = server.post("/completion", &with(prompt.clone(), &asked)).good();
        found["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(text("te"), text("t"), "what follows a greedy choice changes nothing");
    assert_ne!(text("et"), text("te"));
    // The first line that ends after the time, or that is not indented, is the last.
    let long = with(prompt.clone(), &json!({ "n_predict": 400, "ignore_eos": true }));
    for limit in [json!({ "t_max_predict_ms": 1 }), json!({ "n_indent": 1 })] {
        let found = server.post("/completion", &with(long.clone(), &limit)).good();
        let text = found["content"].as_str().unwrap();
        assert!(found["tokens_predicted"].as_u64() < Some(400), "{limit}: {text}");
        assert_eq!((&found["stop_type"], &found["truncated"]), (&json!("limit"), &json!(false)));
        assert!(text.contains('\n'), "{limit}: {text}");
        assert!(text.ends_with('\n') || limit.get("n_indent").is_none(), "{text}");
    }
    // A number is a token as a key, and a text in the list.
    let digit = server.post("/tokenize", &json!({ "content": "5" })).good()["tokens"].clone();
    let biases = |bias: Value| {
        let body = with(prompt.clone(), &json!({ "logit_bias": bias }));
        let found = server.post("/completion", &body).good();
        let biases = found["generation_settings"]["logit_bias"].as_array().unwrap().clone();
        biases.iter().map(|bias| bias["token"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(json!(biases(json!([["5", -100]]))), digit);
    assert_eq!(biases(json!({ "5": -100 })), [5]);
    assert_ne!(digit, json!([5]));
    // Pieces add up, those of control tokens included.
    let content = json!({ "content": " upon", "add_special": true, "with_pieces": true });
    let found = server.post("/tokenize", &content).good();
    let tokens = found["tokens"].as_array().unwrap();
    let ids: Vec<&Value> = tokens.iter().map(|token| &token["id"]).collect();
    let pieces: String = tokens.iter().filter_map(|token| token["piece"].as_str()).collect();
    assert!(pieces.ends_with(" upon") && pieces.len() > " upon".len(), "{pieces:?}");
    let text = |ids: &[&Value]| server.post("/detokenize", &json!({ "tokens": ids })).good();
    assert_eq!(text(&ids)["content"], json!(pieces));
    let mixed = json!({ "content": [ids[0], "upon", 7] });
    let found = server.post("/tokenize", &mixed).good()["tokens"].clone();
    assert_eq!((&found[0], &found[found.as_array().unwrap().len() - 1]), (ids[0], &json!(7)));
    let both = with(prompt.clone(), &json!({ "n_cmpl": 2, "n": 1 }));
    assert_eq!(server.post("/completion", &both).good().as_array().map(Vec::len), Some(2));
    let many = json!({ "prompt": vec!["a"; 1025], "n_cmpl": 2 });
    let refused = server.post("/completion", &many);
    let part = "2 answers to each of 1025 prompts; at most 2048";
    assert!(refused.status == 400 && refused.body.contains(part), "{refused:?}");
    let body = with(prompt, &json!({ "best_of": 1, "stream": true })).to_string();
    assert_eq!(server.send("POST", "/v1/completions", &[], &body).status, 200);
}

/// Forms of OpenAI's chat requests that its own clients send.
#[test]
fn fields_of_openai_clients_are_taken() {
    let server = Server::start("-np 1 -c 512");
    let stops: Vec<String> = (0..300).map(|number| format!("<{number}>")).collect();
    let more = [
        json!({ "reasoning_effort": "max", "user": "u".repeat(2000), "stop": stops }),
        json!({ "messages": [
            { "role": "user", "content": "a" },
            { "role": "assistant", "content": [{ "type": "refusal", "refusal": "no" }] },
            { "role": "user", "content": "b" },
        ] }),
        json!({ "messages": [
            { "role": "user", "content": "a" },
            { "role": "assistant", "refusal": "no" },
            { "role": "user", "content": "b" },
        ] }),
    ];
    for more in more {
        let reply = server.post("/v1/chat/completions", &with(chat("Hi"), &more));
        assert_eq!(reply.status, 200, "{more}: {reply:?}");
    }
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let allowed = json!({ "mode": "auto", "tools": [tool("fold")] });
    let body = json!({
        "tools": [tool("unfurl"), tool("fold")],
        "tool_choice": { "type": "allowed_tools", "allowed_tools": allowed },
    });
    let body = with(chat("Hi"), &body);
    assert_eq!(server.post("/v1/chat/completions", &body).status, 200);
    let prompt = server.post("/apply-template", &body).good()["prompt"].to_string();
    assert!(prompt.contains("fold") && !prompt.contains("unfurl"), "{prompt}");
    let respond = |name: &str| {
        let tool = |name: &str| json!({ "type": "function", "name": name });
        let allowed = json!({ "type": "allowed_tools", "mode": "auto", "tools": [tool(name)] });
        let tools = json!([tool("unfurl"), tool("fold")]);
        let body = json!({ "input": "Hi", "max_output_tokens": 4, "tools": tools, "tool_choice": allowed });
        server.post("/v1/responses", &body)
    };
    assert_eq!(respond("fold").status, 200);
    let wrong = respond("bend");
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("tool_choice")));
}

#[test]
fn answers_follow_a_schema() {
    let server = Server::start("-np 1 -c 512");
    let schema = json!({
        "type": "object",
        "properties": { "name": { "enum": ["Romeo", "Juliet"] }, "age": { "type": "integer", "minimum": 10, "maximum": 19 } },
        "required": ["name", "age"], "additionalProperties": false,
    });
    for (seed, field) in [(1, "response_format"), (2, "json_schema"), (3, "response_format")] {
        let format = match field {
            "json_schema" => schema.clone(),
            _ => {
                json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": schema } })
            }
        };
        let body = with(chat("Who?"), &json!({ "max_tokens": 400, "seed": seed, field: format }));
        let found = server.post("/v1/chat/completions", &body).good();
        let text = found["choices"][0]["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(["Romeo", "Juliet"].contains(&value["name"].as_str().unwrap()), "{value}");
        assert!((10..=19).contains(&value["age"].as_u64().unwrap()), "{value}");
    }
    let body = json!({ "prompt": "a", "grammar": "root ::= \"yes\" | \"no\"", "n_predict": 9 });
    let found = server.post("/completion", &body).good();
    assert!(["yes", "no"].contains(&found["content"].as_str().unwrap()), "{found}");
    assert_eq!(found["stop_type"], "eos");
}

#[test]
fn a_client_that_leaves_frees_its_place_at_once() {
    let server = Server::start("-np 1 -c 512");
    let body = json!({ "prompt": "ROMEO:\n", "ignore_eos": true, "stream": true });
    let mut stream = server.stream("/completion", &body);
    assert!(stream.event().is_some());
    let is_busy = || server.get("/slots").good()[0]["is_processing"].as_bool().unwrap();
    assert!(is_busy());
    drop(stream);
    let began = Instant::now();
    while is_busy() {
        assert!(began.elapsed() < Duration::from_secs(5), "the answer was not cancelled");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.post("/completion", &json!({ "prompt": "a", "n_predict": 2 })).status, 200);
}

#[test]
fn a_full_queue_is_refused_at_once_with_a_time_to_retry() {
    let place = Place::new();
    let path = place.path().display().to_string();
    let flags = format!("-np 1 -c 512 --max-queue 2 --metrics --slot-save-path {path}");
    let server = Server::start_in(place, &flags);
    // While nobody waits, a request may have more prompts than the queue has places.
    let many = json!({ "prompt": ["a", "b", "c", "d", "e"], "max_tokens": 1 });
    let found = server.post("/v1/completions", &many).good();
    assert_eq!(found["choices"].as_array().unwrap().len(), 5);
    let long =
        json!({ "prompt": "ROMEO:\n", "ignore_eos": true, "stream": true, "n_predict": 400 });
    let mut streams: Vec<_> = (0..1).map(|_| server.stream("/completion", &long)).collect();
    assert!(streams[0].event().is_some());
    let waiting: Vec<_> = (0..2).map(|_| server.stream("/completion", &long)).collect();
    let is_full = || server.get("/metrics").body.contains("llamacpp:requests_deferred 2\n");
    let began = Instant::now();
    while !is_full() {
        assert!(began.elapsed() < Duration::from_secs(5), "{}", server.get("/metrics").body);
        std::thread::sleep(Duration::from_millis(5));
    }
    let began = Instant::now();
    let reply = server.post("/completion", &json!({ "prompt": "a", "n_predict": 2 }));
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert!(began.elapsed() < Duration::from_secs(1));
    // A save waits for no place.
    let saved = server.post("/slots/0?action=save", &json!({ "filename": "a.bin" })).good();
    assert!(saved["n_saved"].as_u64() > Some(4), "{saved}");
    drop((streams, waiting));
}

#[test]
fn keys_have_roles_and_origins_are_closed() {
    let place = Place::new();
    let file = place.file("keys", "sk-user inference\nsk-prom metrics\n");
    let arguments = format!("-np 1 --metrics --api-key sk-admin --api-key-file {}", file.display());
    let server = Server::start_in(place, &arguments);
    let ask = |key: &str| {
        let header = format!("Bearer {key}");
        let body = json!({ "prompt": "a", "n_predict": 1 }).to_string();
        server.send("POST", "/completion", &[("authorization", &header)], &body).status
    };
    assert_eq!((ask("sk-admin"), ask("sk-user"), ask("sk-prom"), ask("sk-")), (200, 200, 403, 401));
    assert_eq!(server.post("/completion", &json!({ "prompt": "a" })).status, 401);
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/").status, 200);
    let own = [("x-api-key", "sk-prom")];
    assert_eq!(server.send("GET", "/metrics", &own, "").status, 200);
    let both = [("authorization", "Bearer any"), own[0]];
    assert_eq!(server.send("GET", "/metrics", &both, "").status, 200);
    let both = [own[0], ("authorization", "Bearer sk-user")];
    let body = json!({ "prompt": "a", "n_predict": 1 }).to_string();
    assert_eq!(server.send("POST", "/completion", &both, &body).status, 200);
    let both = [("x-api-key", "sk-user"), ("authorization", "Bearer sk-prom")];
    assert_eq!(server.send("POST", "/completion", &both, &body).status, 200);
    let reply = server.send("OPTIONS", "/completion", &[("origin", "http://evil.com")], "");
    assert_eq!(reply.header("access-control-allow-origin"), None);
    // A browser sends a plain text without asking first.
    let from = |origin: &str| {
        let headers = [("origin", origin), ("authorization", "Bearer sk-admin")];
        server.send("POST", "/completion", &headers, r#"{"prompt": "a", "n_predict": 1}"#)
    };
    assert_eq!(from("http://evil.com").json()["error"]["code"], 403);
    assert_eq!(from("http://test").status, 200, "the host is the page's");
    #[cfg(unix)]
    {
        std::fs::write(&file, "sk-new inference\n").unwrap();
        let kill = |signal: &str| {
            std::process::Command::new("kill").args([signal, &server.pid().to_string()]).status()
        };
        assert!(kill("-HUP").unwrap().success());
        let began = Instant::now();
        while ask("sk-new") != 200 {
            assert!(began.elapsed() < Duration::from_secs(5), "the keys were not read again");
        }
        assert_eq!((ask("sk-user"), ask("sk-admin")), (401, 200));
    }
}

#[cfg(unix)]
#[test]
fn a_server_that_is_told_to_stop_finishes_what_runs() {
    let folder = Place::new();
    let trace = folder.path().join("trace.json");
    let flags = format!("-np 1 -c 512 --drain-timeout 120 --trace {}", trace.display());
    let mut server = Server::start(&flags);
    let body =
        json!({ "prompt": "ROMEO:\n", "ignore_eos": true, "stream": true, "n_predict": 200 });
    let mut stream = server.stream("/completion", &body);
    assert!(stream.event().is_some());
    // An open page does not keep it from stopping.
    let mut page = server.connect();
    page.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert!(page.read(&mut [0; 16]).unwrap() > 0);
    let status =
        std::process::Command::new("kill").args(["-TERM", &server.pid().to_string()]).status();
    assert!(status.unwrap().success());
    let began = Instant::now();
    let mut last = Value::Null;
    while let Some(event) = stream.event() {
        last = event;
    }
    assert_eq!(last["stop"], true, "{last}");
    assert_eq!(last["tokens_predicted"], 200);
    assert_eq!(server.wait(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(60), "half of the time that answers have");
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 200, "a step for each token");
}

#[cfg(unix)]
#[test]
fn a_unix_socket_serves_too_and_goes_away() {
    use std::os::unix::net::UnixStream;
    let place = Place::new();
    let path = place.path().join("bilayer.sock");
    let mut command = place.command(&format!("serve -ngl 0 --host {}", path.display()));
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = [0; 14];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn a_slow_head_is_cut_off_and_connections_are_counted() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // HTTP/2: empty settings; and headers that go on in a frame that does not come.
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const HEADERS: &[u8] = &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82];
    let server = Server::start("-np 1 --max-connections-per-ip 7");
    let head: &[u8] = b"POST /completion HTTP/1.1\r\nhost:";
    let (settings, headers) = ([PREFACE, SETTINGS].concat(), [PREFACE, SETTINGS, HEADERS].concat());
    let slow = [&b""[..], b"P", head, head, PREFACE, &settings, &headers].map(|sent: &[u8]| {
        let mut stream = server.connect();
        stream.write_all(sent).unwrap();
        stream
    });
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(
        Reply::read({
            let mut stream = server.connect();
            let _ = stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n");
            stream
        })
        .status,
        503,
        "an eighth connection is refused"
    );
    let began = Instant::now();
    for stream in slow {
        let reply = Reply::read(stream);
        assert!(reply.status == 0 || reply.status == 408, "{reply:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "slow heads end after 10 seconds");
    assert_eq!(server.get("/health").status, 200);
}

/// Each computed row routes the experts that it uses in each layer, and some of them are on the GPU.
#[test]
fn metrics_have_the_hit_rate_of_the_expert_cache() {
    const MACHINE: &str = "[cpu]\nname = \"c\"\nmemory = \"8GiB\"\nread_gbps = 50\ntops = 1\n\
        [gpu]\nname = \"g\"\nmemory = \"1GiB\"\nread_gbps = 100\ntops = 2\n";
    let place = Place::new();
    place.file("model.gguf", words::tiny_of("qwen3moe"));
    place.file("m.toml", MACHINE);
    let flags = "--simulate m.toml -ngl all --expert-cache 80KiB";
    let server = Server::start_in(place, &format!("-m model.gguf --metrics {flags}"));
    let body = json!({ "prompt": "abc", "n_predict": 9, "temperature": 0.0, "ignore_eos": true });
    let tokens = server.post("/completion", &body).good()["timings"]["prompt_n"].as_u64().unwrap();
    let metrics = server.get("/metrics").body;
    let count = |name: &str| -> u64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap().parse().unwrap()
    };
    let model = bilayer_engine::Model::from_bytes("tiny", words::tiny_of("qwen3moe")).unwrap();
    let mixtures = bilayer_scheduler::mixtures(model.graph());
    let used: Vec<u64> = mixtures.iter().map(|mixture| mixture.used as u64).collect();
    let (last, others) = used.split_last().unwrap();
    let routed = count("bilayer:experts_routed_total");
    // The last token of an answer is not run, and the last layer computes only rows whose logits are read.
    assert_eq!(routed, others.iter().sum::<u64>() * (tokens + 8) + last * 9);
    let resident = count("bilayer:experts_resident_total");
    assert!((1..routed).contains(&resident), "{resident} of {routed}");
}

#[test]
fn metrics_and_properties_have_the_names_that_others_read() {
    let server = Server::start("-np 3 -c 300 --metrics --alias b,a --tags t");
    server.post("/v1/completions", &json!({ "prompt": "ROMEO:\n", "max_tokens": 5 })).good();
    let metrics = server.get("/metrics").body;
    for line in [
        "llamacpp:tokens_predicted_total 5",
        "llamacpp:requests_processing 0",
        "bilayer:num_requests_waiting 0",
        "bilayer:kv_cache_usage_perc 0",
        "# TYPE bilayer:time_to_first_token_seconds histogram",
        "bilayer:device_busy_seconds_total{device=\"cpu\"}",
    ] {
        assert!(metrics.contains(line), "{line} is missing:\n{metrics}");
    }
    let props = server.get("/props").good();
    assert_eq!(props["total_slots"], 3);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 100);
    assert_eq!(server.get("/slots").good().as_array().unwrap().len(), 3);
    let models = server.get("/v1/models").good();
    assert_eq!(models["data"][0]["id"], "a");
    assert_eq!(server.get("/v1/models/b").good()["id"], "a");
    let page = server.get("/");
    assert!(page.body.starts_with("<!doctype html>"));
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
}

#[test]
fn several_models_are_loaded_when_asked_for_and_unloaded_when_there_are_too_many() {
    let server =
        Server::start(&format!("-np 1 --models-max 1 -m one={DEMO} --add-model two={DEMO}"));
    let state = || {
        let models = server.get("/v1/models").good();
        let list = models["data"].as_array().unwrap().clone();
        list.iter()
            .map(|model| model["status"]["value"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(state(), ["loaded", "unloaded"]);
    let ask = |model: &str| {
        let body = json!({ "prompt": "a", "max_tokens": 2, "model": model });
        server.post("/v1/completions", &body)
    };
    assert_eq!(ask("two").good()["model"], "two");
    assert_eq!(state(), ["unloaded", "loaded"]);
    // Looking at a model neither loads it nor another one.
    assert_eq!(server.get("/props").good()["model_alias"], "two");
    assert_eq!(server.get("/slots?model=two").good().as_array().unwrap().len(), 1);
    assert_eq!(server.get("/lora-adapters").good(), json!([]));
    for path in ["/props?model=one", "/slots?model=one", "/lora-adapters?model=one"] {
        assert_eq!(server.get(path).status, 409, "{path}");
    }
    assert_eq!(server.get("/props?model=three").status, 404);
    assert_eq!(server.post("/models/unload", &json!({ "model": "three" })).status, 404);
    assert_eq!(state(), ["unloaded", "loaded"]);
    assert_eq!(ask("one").good()["model"], "one");
    let missing = ask("three");
    assert_eq!(missing.status, 404);
    assert!(missing.body.contains("one, two"), "{missing:?}");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let place = Place::new();
    let ran = place.run("serve --port 0 -m missing.gguf");
    assert_eq!(ran.code, Some(66), "{}", ran.err);
    assert!(ran.err.contains("missing.gguf"), "{}", ran.err);
    for flags in ["--api-key-file nothing", "--ssl-cert-file nothing --ssl-key-file nothing"] {
        let ran = place.run(&format!("serve --port 0 {flags}"));
        assert_eq!(ran.code, Some(66), "{}", ran.err);
        assert!(ran.err.contains("nothing: cannot be read"), "{}", ran.err);
    }
    for (flags, code, part) in [
        ("--slot-save-path missing", 66, "missing: cannot be read"),
        ("--slot-save-path file", 74, "not a folder"),
        ("--embeddings", 2, "generates text"),
        ("--pooling rank", 2, "generates text"),
        ("--api-key=", 2, "--api-key is empty"),
        ("-m a=b.gguf -m a=c.gguf", 2, "two models are named `a`: b.gguf and c.gguf"),
    ] {
        place.file("file", "");
        let ran = place.run(&format!("serve --port 0 {flags}"));
        assert_eq!(ran.code, Some(code), "{flags}: {}", ran.err);
        assert!(ran.err.contains(part), "{flags}: {}", ran.err);
    }
    let ran = place.run("serve --port 0 -khad");
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("k-cache-hadamard is on with f16 keys"), "{}", ran.err);
    let taken = Server::start("-np 1");
    let port = taken.address.rsplit(':').next().unwrap();
    let ran = place.run(&format!("serve --port {port}"));
    assert_eq!(ran.code, Some(74), "{}", ran.err);
    assert!(ran.err.contains("cannot listen"), "{}", ran.err);
}

#[test]
fn a_broken_file_of_a_folder_is_a_warning() {
    let place = Place::new();
    let folder = place.path().join("models");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a.gguf"), "broken").unwrap();
    std::fs::copy(DEMO, folder.join("b.gguf")).unwrap();
    let server = Server::start_in(place, &format!("--models-dir {}", folder.display()));
    let ask = |model: &str| {
        let body = json!({ "prompt": "a", "max_tokens": 2, "model": model });
        server.post("/v1/completions", &body)
    };
    assert_eq!(ask("b").good()["model"], "b");
    let reply = ask("a");
    assert!(reply.status == 500 && reply.body.contains("a.gguf"), "{reply:?}");
}

/// With keys as they are and after a Hadamard transform.
#[test]
fn slots_are_saved_restored_and_erased() {
    let place = Place::new();
    let line = "run -p ROMEO: -n 60 --temp 0 -ngl 0 -ctk q4_0 --json";
    let texts =
        ["", " -khad"].map(|flag| place.run(&format!("{line}{flag}")).json()["text"].clone());
    assert_ne!(texts[0], texts[1]);
    let folder = place.path().join("slots");
    std::fs::create_dir(&folder).unwrap();
    let flags = format!("-np 2 -c 512 -ctk q4_0 -khad --slot-save-path {}", folder.display());
    let server = Server::start_in(place, &flags);
    let ask = |slot: i64, prompt: &str| {
        let body = json!({ "prompt": prompt, "id_slot": slot, "n_predict": 4, "temperature": 0.0 });
        let found = server.post("/completion", &body).good();
        assert_eq!(found["id_slot"], json!(slot));
        (found["content"].clone(), found["timings"]["cache_n"].as_u64().unwrap())
    };
    let act = |slot: u32, action: &str, body: &Value| {
        server.post(&format!("/slots/{slot}?action={action}"), body)
    };
    let name = json!({ "filename": "romeo.bin" });
    let (text, cached) = ask(1, "ROMEO:\nBut, soft!");
    assert_eq!(cached, 0);
    assert_eq!(act(0, "save", &name).status, 400, "slot 0 is empty");
    let saved = act(1, "save", &name).good();
    assert!(saved["n_saved"].as_u64() > Some(4) && saved["n_written"].as_u64() > Some(100));
    assert!(act(1, "erase", &json!({})).good()["n_erased"].as_u64() > Some(4));
    assert_eq!(ask(1, "ROMEO:\nBut, soft!"), (text.clone(), 0));
    assert_eq!(ask(0, "ROMEO:\nBut, soft!").1, 0, "slots share nothing that names them");
    let restored = act(0, "restore", &name).good();
    assert_eq!(restored["n_restored"], saved["n_saved"]);
    assert_eq!(restored["n_read"], saved["n_written"]);
    let (again, cached) = ask(0, "ROMEO:\nBut, soft!");
    assert_eq!(again, text);
    assert!(cached > 4);
    for (slot, action, body, part) in [
        (0, "save", json!({ "filename": "../up" }), "filename"),
        (0, "save", json!({ "filename": ".hidden" }), "filename"),
        (0, "restore", json!({ "filename": "missing" }), "missing"),
        (0, "restore", json!({}), "filename"),
        (2, "erase", json!({}), "no slot 2"),
        (0, "burn", json!({}), "action"),
    ] {
        let reply = act(slot, action, &body);
        assert_eq!(reply.status, 400, "{action} {body}: {reply:?}");
        assert!(reply.body.contains(part), "{action} {body}: {reply:?}");
    }
    assert_eq!(server.post("/completion", &json!({ "prompt": "a", "id_slot": 2 })).status, 400);
    for reply in [server.post("/slots/abc?action=save", &json!({})), server.get("/v1/models/%ff")] {
        assert_eq!(reply.json()["error"]["code"], 400, "{reply:?}");
    }
    // The folder is gone for a while.
    let moved = folder.with_file_name("moved");
    std::fs::rename(&folder, &moved).unwrap();
    let reply = act(0, "save", &json!({ "filename": "lost.bin" }));
    assert!(reply.status == 500 && reply.body.contains("lost.bin"), "{reply:?}");
    std::fs::rename(&moved, &folder).unwrap();
    std::fs::write(folder.join("bad.bin"), "BLYRSEQ1 and no more").unwrap();
    let reply = act(0, "restore", &json!({ "filename": "bad.bin" }));
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("bad.bin"), "{reply:?}");
    let body = json!({ "prompt": "ROMEO:", "n_predict": 60, "temperature": 0.0 });
    assert_eq!(server.post("/completion", &body).good()["content"], texts[1]);
}

#[test]
fn answers_are_drafted_and_contexts_shifted() {
    let plain = Server::start("-np 1 -c 128");
    let body = json!({ "prompt": "ROMEO:\n", "temperature": 0.0, "n_predict": 60 });
    let expected = plain.post("/completion", &body).good();
    assert_eq!(expected["timings"]["draft_n"], Value::Null);
    let server = Server::start("-np 1 -c 128 --lookup --context-shift --metrics");
    let found = server.post("/completion", &body).good();
    assert_eq!(found["content"], expected["content"]);
    let drafted = found["timings"]["draft_n"].as_u64().unwrap();
    let line = format!("llamacpp:spec_decode_num_draft_tokens_total {drafted}\n");
    assert!(drafted > 0 && server.get("/metrics").body.contains(&line), "{line}");
    assert_eq!(server.get("/slots").good()[0]["speculative"], true);
    let long = json!({ "prompt": "ROMEO:\n", "n_predict": 300, "ignore_eos": true, "seed": 1 });
    let found = plain.post("/completion", &long).good();
    assert_eq!((&found["truncated"], &found["stop_type"]), (&json!(true), &json!("limit")));
    assert!(found["tokens_predicted"].as_u64() < Some(128));
    let found = server.post("/completion", &long).good();
    assert_eq!((&found["truncated"], &found["tokens_predicted"]), (&json!(true), &json!(300)));
}

#[test]
fn templates_get_the_arguments_of_earlier_calls_as_objects() {
    let place = Place::new();
    let template = "{% for m in messages %}{% for c in m.tool_calls or [] %}city={{ \
                    c.function.arguments.city }};{% endfor %}{{ m.content }}|{% endfor %}\
                    {% if enable_thinking %}thinks{% endif %}{{ reasoning_effort }}";
    let file = place.file("template.jinja", template);
    let flags = "-np 1 --chat-template-kwargs {\"enable_thinking\":false} --chat-template-file";
    let server = Server::start_in(place, &format!("{flags} {}", file.display()));
    let call = json!({ "id": "1", "type": "function", "function": {
        "name": "weather", "arguments": "{\"city\":\"Verona\"}",
    } });
    let body = json!({ "messages": [
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": "", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "1", "content": "sunny" },
    ] });
    let found = server.post("/apply-template", &body).good();
    assert_eq!(found["prompt"], "Weather?|city=Verona;|sunny|");
    // As in a chat, the last message of the assistant is continued; the only message if that is asked for.
    let (user, answer) = (
        json!({ "role": "user", "content": "Weather?" }),
        json!({ "role": "assistant", "content": "Fair" }),
    );
    for (messages, continues, expected) in [
        (json!([user, answer]), None, "Weather?|Fair"),
        (json!([user, with(answer.clone(), &json!({ "tool_calls": [] }))]), None, "Weather?|Fair"),
        (json!([answer]), None, "Fair|"),
        (json!([answer]), Some(true), "Fair"),
    ] {
        let body = json!({ "messages": messages, "continue_final_message": continues });
        assert_eq!(server.post("/apply-template", &body).good()["prompt"], expected);
    }
    let body = json!({ "messages": [user], "tools": [{ "name": "look" }, { "name": "look" }] });
    let wrong = server.post("/apply-template", &body);
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("tools[1].name")));
    // Anthropic's effort says nothing of whether there is reasoning.
    let count = |more: Value| {
        let body = with(json!({ "messages": [user], "max_tokens": 1 }), &more);
        let found = server.post("/v1/messages/count_tokens", &body).good();
        found["input_tokens"].as_u64().unwrap()
    };
    let effort = json!({ "output_config": { "effort": "low" } });
    let thinking = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } });
    let tokens = |text: &str| {
        let body = json!({ "content": text });
        server.post("/tokenize", &body).good()["tokens"].as_array().unwrap().len() as u64
    };
    let added = tokens("Weather?|low") - tokens("Weather?|");
    assert_eq!(count(effort.clone()), count(json!({})) + added);
    assert!(count(with(effort, &thinking)) > count(json!({})) + added);
}

/// A file may have another template for conversations with functions, in which calls have another form too.
#[test]
fn a_template_for_tools_writes_prompts_with_tools() {
    let place = Place::new();
    let file = File::open(DEMO.as_ref()).unwrap();
    let mut metadata = file.metadata().clone();
    metadata.set("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}|{% endfor %}");
    let other = "TOOLS{% for m in messages %}{{ m.content }}|{% endfor %}{# [TOOL_CALLS] [ARGS] #}";
    metadata.set("tokenizer.chat_template.tool_use", other);
    for (id, mark) in (10u32..).zip(["pre", "suf", "mid", "sep", "rep"]) {
        metadata.set(&format!("tokenizer.ggml.fim_{mark}_token_id"), id);
    }
    let tensors = file.tensors().iter().map(|tensor| {
        let layout = tensor.layout();
        NewTensor::bytes(tensor.name(), layout.ty(), layout.shape(), file.bytes(tensor).to_vec())
    });
    let model = to_bytes(&metadata, tensors.collect::<Vec<_>>()).unwrap();
    let model = place.file("model.gguf", model);
    let server = Server::start_in(place, &format!("-np 1 -c 4096 -m {}", model.display()));
    let parameters = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let tool =
        json!({ "type": "function", "function": { "name": "now", "parameters": parameters } });
    let ask = |more| {
        with(json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 100 }), &more)
    };
    let prompt = |more| server.post("/apply-template", &ask(more)).good()["prompt"].clone();
    assert_eq!(prompt(json!({})), "Hi|");
    assert!(prompt(json!({ "tools": [tool] })).as_str().unwrap().contains("TOOLS"));
    assert_eq!(prompt(json!({ "tools": [tool], "tool_choice": "none" })), "Hi|");
    assert_eq!(prompt(json!({ "tools": [] })), "Hi|");
    let forced = ask(json!({ "tools": [tool], "tool_choice": "required" }));
    let found = server.post("/v1/chat/completions", &forced).good();
    let call = &found["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "now", "{found}");
    assert_eq!(server.get("/props").good()["chat_template_tool_use"], other);
    // The repository and the file with the cursor have llama-server's names.
    let infill = |more: Value| {
        let body = json!({ "input_prefix": "first", "input_suffix": "last", "n_predict": 1 });
        server.post("/infill", &with(body, &more)).good()["prompt"].as_str().unwrap().to_owned()
    };
    let other = json!({ "input_extra": [{ "text": "other", "filename": "o.rs" }] });
    let files: &[&str] = &["myproject\n", "o.rs\n", "other", "filename\n", "first", "last"];
    let alone: &[&str] = &["myproject\n", "filename\n", "first", "last"];
    for (more, parts) in [(json!({}), alone), (other, files)] {
        let prompt = infill(more);
        let mut rest = prompt.as_str();
        for part in parts {
            rest = rest.split_once(part).unwrap_or_else(|| panic!("no {part}: {prompt}")).1;
        }
    }
}

/// ChatML has no role for functions, and Gemma none for the system either.
#[test]
fn functions_and_system_messages_are_shown_by_templates_without_them() {
    let place = Place::new();
    let server = Server::start_in(place, "-np 1 -c 1024 --chat-template gemma");
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": {
        "type": "object", "properties": { "city": { "type": "string", "maxLength": 8 } }, "required": ["city"],
        "additionalProperties": false } } });
    let function = json!({ "name": "weather", "arguments": "{\"city\":\"Verona\"}" });
    let call = json!({ "id": "1", "type": "function", "function": function });
    let messages = json!([
        { "role": "system", "content": "Be brief" },
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "1", "content": "sunny" },
    ]);
    let body = json!({ "messages": messages, "tools": [tool] });
    let prompt = server.post("/apply-template", &body).good()["prompt"].clone();
    let mut rest = prompt.as_str().unwrap();
    for part in
        ["Be brief", "weather", "Weather?", "<tool_call>", "Verona", "<tool_response>", "sunny"]
    {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("no {part}: {prompt}")).1;
    }
    let short = json!({ "messages": [{ "role": "user", "content": "a" }], "tools": [tool], "max_tokens": 200,
        "parallel_tool_calls": false });
    let ask = |more: Value| server.post("/v1/chat/completions", &with(short.clone(), &more));
    let found = ask(json!({ "tool_choice": "required", "seed": 1 })).good();
    let message = &found["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["name"], "weather", "{found}");
    // Either a call or an answer by the schema.
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"],
        "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    let mut calls = 0;
    for seed in 0..4 {
        let found = ask(json!({ "response_format": format, "seed": seed })).good();
        let choice = &found["choices"][0];
        match choice["finish_reason"].as_str() {
            Some("tool_calls") => {
                assert!(choice["message"]["content"].is_null(), "{found}");
                calls += 1;
            }
            _ => {
                let text = choice["message"]["content"].as_str().unwrap();
                let value: Value =
                    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {found}"));
                assert!([json!({ "a": 1 }), json!({ "a": 2 })].contains(&value), "{found}");
            }
        }
    }
    assert!(calls > 0, "no seed calls");
    let never = json!({ "type": "object", "properties": { "a": { "type": "no such type" } } });
    let refused = json!({ "type": "function", "function": { "name": "f", "strict": true, "parameters": never } });
    for (more, field) in [
        (json!({ "grammar": "root ::= \"a\"" }), "grammar"),
        (json!({ "response_format": format, "tool_choice": "required" }), "tool_choice"),
        (json!({ "response_format": format, "tools": [refused] }), "tools"),
        (
            json!({ "response_format": { "type": "json_object", "schema": never } }),
            "response_format",
        ),
    ] {
        let reply = ask(more);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(field)));
    }
}

#[test]
fn what_llama_server_users_type_works() {
    let place = Place::new();
    let log = place.path().join("log");
    let server = Server::start_in(
        place,
        &format!(
            "-np 1 -cb --slots -tb 2 -cram 0 --jinja --reasoning-budget 0 --no-cache-prompt --log-jsonl --log-file {}",
            log.display()
        ),
    );
    let body = json!({ "prompt": "ROMEO:\n", "n_predict": 2 });
    for _ in 0..2 {
        assert_eq!(server.post("/completion", &body).good()["timings"]["cache_n"], 0);
    }
    let with = json!({ "prompt": "ROMEO:\n", "n_predict": 2, "cache_prompt": true });
    server.post("/completion", &with).good();
    assert!(server.post("/completion", &with).good()["timings"]["cache_n"].as_u64() > Some(0));
    let written = std::fs::read_to_string(&log).unwrap();
    let lines = written.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(lines.filter(|line| line["path"] == "/completion").count(), 4);
    assert!(!written.contains("ROMEO"), "prompts are not logged");
}

#[cfg(unix)]
#[test]
fn tls_is_served_with_the_given_certificate() {
    let place = Place::new();
    let (key, cert) = (place.path().join("key.pem"), place.path().join("cert.pem"));
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout"])
        .args([&key, std::path::Path::new("-out"), &cert])
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("skipped: openssl, which makes the certificate, is not installed");
        return;
    }
    let arguments =
        format!("-np 1 --ssl-key-file {} --ssl-cert-file {}", key.display(), cert.display());
    let server = Server::start_in(place, &arguments);
    let mut client = std::process::Command::new("openssl")
        .args(["s_client", "-quiet", "-verify_return_error", "-connect", &server.address])
        .args([std::path::Path::new("-CAfile"), &cert])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    stdin.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    client.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    client.wait().unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    // Without TLS there is no answer, and the server goes on.
    let mut plain = server.connect();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert_ne!(Reply::read(plain).status, 200);
}

/// A place with a model and an adapter of it.
fn adapted() -> Place {
    let place = Place::new();
    let model = place.file("model.gguf", words::tiny(bilayer_quant::Type::F32, 1));
    place.file("adapter.gguf", words::adapter(&model, 4));
    place.file("other.gguf", words::adapter(&model, 8));
    place
}

/// Each request has the adapters that it asks for, whatever runs beside it and whatever is cached; the texts are those of
/// `run` with the same strengths.
#[test]
fn requests_choose_the_strength_of_adapters() {
    let place = adapted();
    let text = |flags: &str| {
        let line = format!(
            "run -m model.gguf -p abcabc -n 24 --temp 0 --ignore-eos -ngl 0 --json {flags}"
        );
        place.run(&line).json()["text"].as_str().unwrap().to_owned()
    };
    let cases = [
        (json!([]), text("")),
        (json!([{ "id": 0, "scale": 1.0 }]), text("--lora adapter.gguf")),
        (json!([{ "id": 0, "scale": -9.0 }]), text("--lora-scaled adapter.gguf:-9")),
        (
            json!([{ "id": 1, "scale": 20.0 }, { "id": 0, "scale": 3.0 }]),
            text("--lora-scaled adapter.gguf:3,other.gguf:20"),
        ),
    ];
    let as_opened = text("--lora-scaled adapter.gguf:30,other.gguf:1");
    let mut all: Vec<&String> = cases.iter().map(|(_, text)| text).chain([&as_opened]).collect();
    all.sort();
    all.dedup();
    assert!(all.len() >= 4, "the adapters make a difference: {all:?}");

    let path = |name: &str| place.path().join(name);
    let builder = bilayer::Model::builder(path("model.gguf")).gpu_layers(0).adapters_by_request();
    let builder = builder.lora(path("adapter.gguf"), 30.0).lora(path("other.gguf"), 1.0);
    let mut model = builder.parallel(2).open().unwrap();
    let request = || bilayer::Request::new("abcabc").max_tokens(24).greedy().ignore_eos();
    let strengths = [[0.0, 0.0], [1.0, 0.0], [-9.0, 0.0], [3.0, 20.0]];
    for (strengths, (_, expected)) in strengths.iter().zip(&cases) {
        let answer = model.generate(request().lora(strengths.to_vec())).unwrap();
        assert_eq!(&answer.text().unwrap(), expected, "{strengths:?}");
    }
    assert_eq!(model.generate(request()).unwrap().text().unwrap(), as_opened);
    let error = model.generate(request().lora([1.0])).err().unwrap().to_string();
    assert!(error.contains("lora"), "{error}");

    let adapters = place.run("devices --json").json()["adapters"].as_array().unwrap().len();
    let cut = (adapters > 0).then_some("-dev software -ngl 2");
    for device in ["-ngl 0"].into_iter().chain(cut) {
        let flags = "-m model.gguf -np 4 --lora-scaled adapter.gguf:30,other.gguf:1";
        let server = Server::start_in(adapted(), &format!("{flags} {device}"));
        check_adapters(&server, &cases, &as_opened);
    }
}

/// Requests to a server whose adapters have the strengths 30 and 1.
fn check_adapters(server: &Server, cases: &[(Value, String)], as_opened: &str) {
    let body =
        json!({ "prompt": "abcabc", "n_predict": 24, "temperature": 0.0, "ignore_eos": true });
    let ask = |lora: Option<&Value>| {
        let body = match lora {
            Some(lora) => with(body.clone(), &json!({ "lora": lora })),
            None => body.clone(),
        };
        server.post("/completion", &body).good()
    };
    let list = server.get("/lora-adapters").good();
    assert_eq!((&list[0]["id"], &list[0]["scale"]), (&json!(0), &json!(30.0)), "{list}");
    assert!(list[1]["path"].as_str().unwrap().ends_with("other.gguf"), "{list}");
    for _ in 0..2 {
        assert_eq!(ask(None)["content"], json!(as_opened));
        for (lora, expected) in cases {
            assert_eq!(ask(Some(lora))["content"], json!(expected), "{lora}");
        }
    }
    // The second time, each continues the prefix that was computed with its own strengths.
    assert!(ask(Some(&cases[1].0))["timings"]["cache_n"].as_u64() > Some(0));
    // In the same steps.
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..3)
            .flat_map(|_| cases)
            .map(|(lora, expected)| (scope.spawn(|| ask(Some(lora))), lora, expected))
            .collect();
        for (answer, lora, expected) in asked {
            assert_eq!(answer.join().unwrap()["content"], json!(expected), "{lora}");
        }
    });
    // What a server is told applies to requests that ask for nothing.
    assert_eq!(server.post("/lora-adapters", &cases[1].0).good()["success"], true);
    assert_eq!(ask(None)["content"], json!(cases[1].1));
    let list = server.get("/lora-adapters").good();
    assert_eq!((&list[0]["scale"], &list[1]["scale"]), (&json!(1.0), &json!(0.0)));
    for wrong in [json!([{ "id": 2, "scale": 1.0 }]), json!([{ "id": 0 }]), json!([3]), json!({})] {
        let reply = server.post("/lora-adapters", &wrong);
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!("lora")),
            "{wrong}"
        );
    }
    let wrong = with(body.clone(), &json!({ "lora": [{ "id": 7, "scale": 1.0 }] }));
    assert_eq!(server.post("/completion", &wrong).status, 400);
}

#[test]
fn adapters_may_wait_to_be_asked_for() {
    let place = adapted();
    let line = "run -m model.gguf -p abcabc -n 12 --temp 0 --ignore-eos -ngl 0 --json";
    let plain = place.run(line).json()["text"].clone();
    let server = Server::start_in(
        place,
        "-m model.gguf --lora-scaled adapter.gguf:30 --lora-init-without-apply",
    );
    let body =
        json!({ "prompt": "abcabc", "n_predict": 12, "temperature": 0.0, "ignore_eos": true });
    assert_eq!(server.post("/completion", &body).good()["content"], plain);
    assert_eq!(server.get("/lora-adapters").good()[0]["scale"], 0.0);
    let without = Server::start("");
    assert_eq!(without.get("/lora-adapters").good(), json!([]));
    let wrong = with(body, &json!({ "lora": [{ "id": 0, "scale": 1.0 }] }));
    assert_eq!(without.post("/completion", &wrong).status, 400);
}
