//! What clients of other servers send: Codex, Anthropic's client, llama-server's folder of models.

use serde_json::{Value, json};

use super::support::http::{Reply, Server};
use super::support::program::Place;
use super::{DEMO, chat, with};

/// Codex sends OpenAI's own tools, and the functions of its MCP servers in namespaces; the log names what is left out once.
#[test]
fn responses_leave_out_tools_that_are_no_functions() {
    let place = Place::new();
    let log = place.path().join("server.log");
    let flags = format!("-np 1 -c 4096 --log-file {}", log.display());
    let server = Server::start_in(place, &flags);
    let none = json!({ "type": "object", "properties": {} });
    let function = |name: &str| json!({ "type": "function", "name": name, "parameters": none });
    let tools = json!([
        { "type": "web_search" }, { "type": "local_shell" },
        { "type": "custom", "name": "apply_patch", "format": { "type": "grammar" } },
        { "type": "namespace", "name": "mcp__git__", "tools": [function("log")] }, function("exec"),
    ]);
    let history = json!([
        { "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] },
        { "type": "web_search_call", "id": "w", "status": "completed" },
        { "type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": "a" },
        { "type": "custom_tool_call_output", "call_id": "1", "output": "done" },
        { "type": "local_shell_call", "call_id": "2", "action": { "type": "exec", "command": ["ls"] } },
        { "type": "function_call_output", "call_id": "2", "output": "a.rs" },
        { "type": "function_call", "call_id": "3", "namespace": "mcp__git__", "name": "log", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "3", "output": "none" },
        { "role": "user", "content": [{ "type": "input_text", "text": "Again" }] },
    ]);
    let ask = |choice: Value| {
        let body = json!({ "input": history, "tools": tools, "tool_choice": choice, "max_output_tokens": 100 });
        server.post("/v1/responses", &body)
    };
    let choice = json!({ "type": "function", "namespace": "mcp__git__", "name": "log" });
    for _ in 0..2 {
        let found = ask(choice.clone()).good();
        let call = &found["output"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(call["type"], "function_call", "{found}");
        assert_eq!((&call["namespace"], &call["name"]), (&json!("mcp__git__"), &json!("log")));
        assert_eq!(call["arguments"], "{}");
    }
    let refused = ask(json!({ "type": "web_search" }));
    assert!(refused.status == 400 && refused.body.contains("web_search"), "{refused:?}");
    let log = std::fs::read_to_string(log).unwrap();
    for kind in ["web_search", "local_shell", "custom"] {
        let line = format!("warning: tools: left out: a tool of type {kind}, since only functions");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
    let own = json!({ "type": "web_search_20250305", "name": "web_search" });
    let body = with(chat("Hi"), &json!({ "tools": [own] }));
    assert_eq!(server.post("/v1/messages", &body).good()["type"], "message");
}

/// One folder for each model of several parts, and files that come and go.
#[test]
fn a_folder_of_models_is_read_again_when_asked() {
    let place = Place::new();
    let folder = place.path().join("models");
    std::fs::create_dir_all(folder.join("large")).unwrap();
    std::fs::copy(DEMO, folder.join("small.gguf")).unwrap();
    std::fs::copy(DEMO, folder.join("large/part-00001-of-00001.gguf")).unwrap();
    std::fs::write(folder.join("large/mmproj-F16.gguf"), "no model").unwrap();
    let server = Server::start_in(place, &format!("-np 1 --models-dir {}", folder.display()));
    let ids = |path: &str| -> Vec<String> {
        let list = server.get(path).good();
        let all = list["data"].as_array().unwrap().iter();
        all.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    let ask = |model: &str| -> Reply {
        server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 2, "model": model }))
    };
    assert_eq!(ids("/v1/models"), ["large", "small"]);
    assert_eq!(ask("large").good()["model"], "large");
    std::fs::copy(DEMO, folder.join("new.gguf")).unwrap();
    assert_eq!(ids("/v1/models"), ["large", "small"]);
    assert_eq!(ids("/v1/models?reload=1"), ["large", "small", "new"]);
    std::fs::copy(DEMO, folder.join("newer.gguf")).unwrap();
    assert_eq!(ask("newer").good()["model"], "newer");
    std::fs::remove_dir_all(folder.join("large")).unwrap();
    assert_eq!(ids("/models?reload=1"), ["small", "new", "newer"]);
    let missing = ask("large");
    assert!(missing.status == 404 && missing.body.contains("small, new, newer"), "{missing:?}");
    assert_eq!(server.get("/v1/models/large").status, 404);
    assert_eq!(
        server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 })).good()["model"],
        "small"
    );
}

#[test]
fn models_are_described_as_anthropics_client_expects() {
    let server = Server::start("-np 1 --alias demo");
    let get = |path: &str, headers: &[(&str, &str)]| server.send("GET", path, headers, "").good();
    let version = [("anthropic-version", "2023-06-01")];
    let list = get("/v1/models", &version);
    let model = &list["data"][0];
    assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!("demo")));
    assert!(
        model["created_at"]
            .as_str()
            .is_some_and(|time| time.starts_with("20") && time.ends_with('Z'))
    );
    assert_eq!((&list["first_id"], &list["has_more"]), (&json!("demo"), &json!(false)));
    assert_eq!(get("/v1/models/demo", &version)["display_name"], "demo");
    let plain = get("/v1/models", &[]);
    assert!(plain["data"][0].get("type").is_none() && plain.get("has_more").is_none());
}

/// By the names of the request's fields, not those of flags.
#[test]
fn numbers_out_of_range_name_their_field() {
    let server = Server::start("-np 1 -c 512");
    for (more, field, problem) in [
        (
            json!({ "mirostat": 2, "mirostat_tau": 0 }),
            "mirostat_tau",
            "is 0; it must be a number above 0",
        ),
        (
            json!({ "dry_multiplier": 0.5, "dry_base": 0.5 }),
            "dry_base",
            "is 0.5; it must be a number of at least 1",
        ),
    ] {
        let reply = server.post("/v1/chat/completions", &with(chat("Hi"), &more));
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["param"]), (400, &json!(field)), "{error}");
        assert_eq!(error["message"], format!("'{field}' {problem}"));
    }
    let empty = json!({ "messages": [{ "role": "user", "content": [{ "type": "text" }] }] });
    let reply = server.post("/v1/chat/completions", &empty);
    assert!(reply.status == 400 && reply.body.contains("has no text"), "{reply:?}");
}

#[test]
fn a_decoder_that_makes_embeddings_says_why_it_does_not_chat() {
    let server = Server::start("--pooling mean");
    let reply = server.post("/v1/chat/completions", &chat("Hi"));
    assert!(reply.status == 501 && reply.body.contains("is served with --pooling"), "{reply:?}");
}

/// A stream that is cut by the end of the drain time.
#[cfg(unix)]
#[test]
fn a_stream_that_a_stop_cuts_says_so() {
    let mut server = Server::start("-np 1 -c 512 --context-shift --drain-timeout 1");
    let body = json!({ "prompt": "a", "ignore_eos": true, "stream": true, "n_predict": 1_000_000 });
    let mut stream = server.stream("/v1/completions", &body);
    assert!(stream.event().is_some());
    let status =
        std::process::Command::new("kill").args(["-TERM", &server.pid().to_string()]).status();
    assert!(status.unwrap().success());
    let mut last = Value::Null;
    while let Some(event) = stream.event() {
        last = event;
    }
    assert_eq!(last["error"]["message"], "the server is stopping", "{last}");
    server.wait();
}
