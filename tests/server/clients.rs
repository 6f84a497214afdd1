//! What clients of other servers send: Codex, Anthropic's client, llama-server's folder of models.

use std::io::{BufRead, BufReader, Read, Write};

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
    let allowed = json!([{ "type": "web_search" }, choice]);
    let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": allowed });
    let found = ask(allowed).good();
    assert_eq!(found["output"].as_array().unwrap().last().unwrap()["name"], "log", "{found}");
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
    let ids = |path: &str| ids(&server, path);
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

/// The names of the models that a server offers.
fn ids(server: &Server, path: &str) -> Vec<String> {
    let list = server.get(path).good();
    let all = list["data"].as_array().unwrap().iter();
    all.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

/// The name of the model that answers to a name, or the status of the refusal.
fn answering(server: &Server, model: &str) -> Result<String, u16> {
    let body = json!({ "prompt": "a", "max_tokens": 1, "model": model });
    let reply = server.post("/v1/completions", &body);
    match reply.status {
        200 => Ok(reply.json()["model"].as_str().unwrap().to_owned()),
        status => Err(status),
    }
}

fn folder_of(place: &Place, paths: &[&str]) -> std::path::PathBuf {
    let folder = place.path().join("models");
    for path in paths {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::copy(DEMO, path).unwrap();
    }
    folder
}

#[test]
fn a_folder_that_is_away_for_a_moment_loses_no_model() {
    let place = Place::new();
    let (folder, away) = (folder_of(&place, &["gem/x.gguf", "z.gguf"]), place.path().join("away"));
    let flags = format!("-np 1 -m {0}/z.gguf --models-dir {0}", folder.display());
    let server = Server::start_in(place, &flags);
    assert_eq!(ids(&server, "/v1/models"), ["z", "gem"]);
    std::fs::rename(&folder, &away).unwrap();
    assert_eq!(answering(&server, "other"), Err(503));
    let refused = server.get("/v1/models?reload=1");
    assert!(refused.status == 503 && refused.body.contains("models: No such file"), "{refused:?}");
    assert_eq!(ids(&server, "/v1/models"), ["z", "gem"]);
    std::fs::rename(&away, &folder).unwrap();
    assert_eq!(answering(&server, "z"), Ok("z".to_owned()));
    assert_eq!(answering(&server, "other"), Err(404));
    // What -m names is not the folder's to lose.
    std::fs::rename(folder.join("z.gguf"), folder.join("y.gguf")).unwrap();
    assert_eq!(ids(&server, "/v1/models?reload=1"), ["z", "gem", "y"]);
    std::fs::rename(folder.join("y.gguf"), folder.join("z.gguf")).unwrap();
    assert_eq!(ids(&server, "/v1/models?reload=1"), ["z", "gem"]);
    // A second file beside a model.
    std::fs::copy(DEMO, folder.join("gem/y.gguf")).unwrap();
    assert_eq!(ids(&server, "/v1/models?reload=1"), ["z", "gem", "y"]);
    assert_eq!(answering(&server, "gem"), Ok("gem".to_owned()));
}

/// Also with a path that is spelled in another way.
#[test]
fn a_file_of_the_folder_that_is_given_by_its_path_is_one_model() {
    let place = Place::new();
    folder_of(&place, &["a.gguf"]);
    let server = Server::start_in(
        place,
        "-np 1 -m ./models/../models/a.gguf --alias foo --models-dir models",
    );
    assert_eq!(ids(&server, "/v1/models?reload=1"), ["foo"]);
    assert_eq!(answering(&server, "foo"), Ok("foo".to_owned()));
    assert_eq!(answering(&server, "any"), Err(404), "the folder may have had a model of that name");
}

#[test]
fn files_of_a_folder_with_one_name_are_named_by_their_folders() {
    let place = Place::new();
    let folder = folder_of(&place, &["a.gguf", "b.gguf", "old/a.gguf", "old/c.gguf"]);
    let flags = format!("-np 1 --alias b -m {DEMO} --models-dir {}", folder.display());
    let server = Server::start_in(place, &flags);
    let expected = ["b", "a", "b.gguf", "old/a", "c"];
    assert_eq!(ids(&server, "/v1/models"), expected);
    assert_eq!(ids(&server, "/v1/models?reload=1"), expected);
    assert_eq!(answering(&server, "old/a"), Ok("old/a".to_owned()));
    std::fs::create_dir(folder.join("new")).unwrap();
    for path in ["new/a.gguf", "new/d.gguf"] {
        std::fs::copy(DEMO, folder.join(path)).unwrap();
    }
    let expected = ["b", "a", "b.gguf", "old/a", "c", "new/a", "d"];
    assert_eq!(ids(&server, "/v1/models?reload=1"), expected);
}

/// Each error has the length that its head says, so that the next response is where the client looks for it.
#[test]
fn errors_in_anthropics_shape_leave_the_connection_usable() {
    let server = Server::start("-np 1");
    let mut stream = server.connect();
    let version = "anthropic-version: 1\r\n";
    let requests = [
        ("POST", "/v1/messages/batches", "content-length: 2\r\n", "{}"),
        ("GET", "/v1/messages/x", "", ""),
        ("GET", "/v1/messages", "", ""),
        ("GET", "/v1/nix", version, ""),
        ("HEAD", "/v1/nix", version, ""),
    ];
    for (method, path, headers, body) in requests {
        // In one piece: a server may answer and close before the rest of a body comes.
        let request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n{headers}\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reader = BufReader::new(&stream);
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &String| !line.is_empty()) {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0, "{method} {path}: {lines:?}");
            lines.push(line.trim_end().to_lowercase());
        }
        assert!(lines[0].starts_with("http/1.1 40"), "{method} {path}: {lines:?}");
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "));
        let length = match method {
            "HEAD" => 0,
            _ => length.unwrap_or_else(|| panic!("{method} {path}: {lines:?}")).parse().unwrap(),
        };
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        assert!(reader.buffer().is_empty(), "{method} {path}: {:?}", reader.buffer());
        if !body.is_empty() {
            let error: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(error["type"], "error", "{method} {path}");
        }
    }
    assert_eq!(server.get("/v1/models").status, 200);
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
