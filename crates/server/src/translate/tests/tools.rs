//! Tools, and their calls in the history, that are no functions or have names within namespaces.

use serde_json::{Value, json};

use super::super::{call, messages, responses};
use super::completion;

/// Codex sends OpenAI's own tools beside its functions, and those of its MCP servers within namespaces.
#[test]
fn tools_that_are_no_functions_are_left_out_and_namespaces_are_flattened() {
    let function = |name: &str| json!({ "type": "function", "name": name, "parameters": {} });
    let flat =
        |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": {} } });
    let tools = json!([
        { "type": "web_search" }, function("exec"), { "type": "custom", "name": "apply_patch" },
        { "type": "namespace", "name": "mcp__files__", "tools": [function("read"), { "type": "custom" }] },
        { "type": "namespace", "name": "git", "tools": [function("log")] },
    ]);
    assert_eq!(responses::left_out(&tools), ["web_search", "custom", "custom"]);
    let choice = json!({ "type": "function", "namespace": "git", "name": "log" });
    let chat = responses::request(&json!({ "input": "Hi", "tools": tools, "tool_choice": choice }));
    let chat = chat.expect("a chat");
    let expected = json!([flat("exec"), flat("mcp__files__read"), flat("git__log")]);
    assert_eq!(chat["tools"], expected);
    assert_eq!(chat["tool_choice"]["function"]["name"], "git__log");
    // An empty namespace is none.
    let tools_of_none = json!([{ "type": "namespace", "name": "", "tools": [function("log")] }]);
    let choice = json!({ "type": "function", "namespace": "", "name": "log" });
    let chat = responses::request(&json!({
        "tools": tools_of_none, "tool_choice": choice, "input": [{ "role": "user", "content": "Hi" },
            { "type": "function_call", "call_id": "1", "namespace": "", "name": "log", "arguments": "{}" }],
    }))
    .expect("a chat");
    assert_eq!(
        (&chat["tools"][0], &chat["tool_choice"]["function"]["name"]),
        (&flat("log"), &json!("log"))
    );
    assert_eq!(chat["messages"][1]["tool_calls"][0]["function"]["name"], "log");
    let mut whole = completion();
    whole["choices"][0]["message"]["tool_calls"] = json!([call("1", "log", "{}")]);
    let output = responses::response(&json!({ "tools": tools_of_none }), &whole)["output"].clone();
    assert_eq!((output[2].get("namespace"), &output[2]["name"]), (None, &json!("log")));
    // The client gets the call with the names that it gave.
    let read = call("1", "mcp__files__read", "{}");
    let mut whole = completion();
    whole["choices"][0]["message"]["tool_calls"] = json!([read, call("2", "exec", "{}")]);
    let output = responses::response(&json!({ "tools": tools }), &whole)["output"].clone();
    assert_eq!(
        (&output[2]["namespace"], &output[2]["name"]),
        (&json!("mcp__files__"), &json!("read"))
    );
    assert_eq!((output[3].get("namespace"), &output[3]["name"]), (None, &json!("exec")));
}

#[test]
fn calls_of_other_tools_are_calls_of_functions_in_the_history() {
    let chat = responses::request(&json!({ "input": [
        { "role": "user", "content": "Hi" },
        { "type": "web_search_call", "id": "w", "status": "completed" },
        { "type": "mcp_list_tools", "id": "l" },
        { "type": "mcp_call", "id": "m", "name": "ask", "arguments": "{}", "output": "x" },
        { "type": "mcp_approval_request", "id": "q" },
        { "type": "mcp_approval_response", "approval_request_id": "q", "approve": true },
        { "type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": "a\nb" },
        { "type": "local_shell_call", "id": "2", "call_id": null,
            "action": { "type": "exec", "command": ["ls"], "user": null } },
        { "type": "function_call", "call_id": "3", "namespace": "git", "name": "log", "arguments": "{}" },
        { "type": "shell_call", "call_id": "4",
            "action": { "commands": ["ls", "pwd"], "timeout_ms": 10, "max_output_length": null } },
        { "type": "apply_patch_call", "call_id": "5",
            "operation": { "type": "delete_file", "path": "a.rs" } },
        { "type": "apply_patch_call", "call_id": "6",
            "operation": { "type": "delete_file", "path": "b.rs" } },
        { "type": "custom_tool_call_output", "call_id": "1", "output": "done" },
        { "type": "local_shell_call_output", "id": "2", "output": "a.rs" },
        { "type": "function_call_output", "call_id": "3", "output": "none" },
        { "type": "shell_call_output", "call_id": "4", "output": [{ "stdout": "a" }] },
        { "type": "apply_patch_call_output", "call_id": "5", "status": "failed", "output": "no" },
        { "type": "apply_patch_call_output", "call_id": "6", "status": "completed" },
    ] }));
    let messages = chat.expect("a chat")["messages"].clone();
    let calls = json!([
        call("1", "apply_patch", "{\"input\":\"a\\nb\"}"),
        call("2", "local_shell", "{\"command\":[\"ls\"]}"),
        call("3", "git__log", "{}"),
        call("4", "shell", "{\"commands\":[\"ls\",\"pwd\"],\"timeout_ms\":10}"),
        call("5", "apply_patch", "{\"type\":\"delete_file\",\"path\":\"a.rs\"}"),
        call("6", "apply_patch", "{\"type\":\"delete_file\",\"path\":\"b.rs\"}"),
    ]);
    assert_eq!(messages[1]["tool_calls"], calls);
    let answers: Vec<(&Value, &Value)> = messages.as_array().expect("messages")[2..]
        .iter()
        .map(|message| (&message["tool_call_id"], &message["content"]))
        .collect();
    let expected = [
        ("1", "done"),
        ("2", "a.rs"),
        ("3", "none"),
        ("4", "[{\"stdout\":\"a\"}]"),
        ("5", "no"),
        ("6", "completed"),
    ];
    let expected = expected.map(|(id, text)| (json!(id), json!(text)));
    assert_eq!(answers, expected.iter().map(|(id, text)| (id, text)).collect::<Vec<_>>());
}

#[test]
fn anthropics_own_tools_are_left_out() {
    let own = json!({ "type": "web_search_20250305", "name": "web_search", "max_uses": 5 });
    let tools = json!([own, { "type": "custom", "name": "f", "input_schema": {} }]);
    assert_eq!(messages::left_out(&tools), ["web_search_20250305"]);
    let history = json!([
        { "role": "user", "content": [
            { "type": "text", "text": "Hi" }, { "type": "container_upload", "file_id": "f" } ] },
        { "role": "assistant", "content": [
            { "type": "mcp_tool_use", "id": "m", "name": "ask", "server_name": "s", "input": {} },
            { "type": "mcp_tool_result", "tool_use_id": "m", "content": [] },
            { "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} },
            { "type": "web_search_tool_result", "tool_use_id": "s", "content": [] },
            { "type": "text", "text": "Ok" } ] },
    ]);
    let of = |name: &str| {
        let choice = json!({ "type": "tool", "name": name });
        messages::request(&json!({ "messages": history, "tools": tools, "tool_choice": choice }))
    };
    let chat = of("f").expect("a chat");
    let expected = json!([{ "type": "function", "function": { "name": "f", "parameters": {} } }]);
    assert_eq!(chat["tools"], expected);
    let expected = [
        json!({ "role": "user", "content": "Hi" }),
        json!({ "role": "assistant", "content": "Ok" }),
    ];
    assert_eq!(chat["messages"], json!(expected));
    let error = messages::request(
        &json!({ "messages": history, "tools": [own], "tool_choice": { "type": "any" } }),
    );
    let error = error.expect_err("all are left out");
    assert!(error.reason.contains("left out") && error.reason.ends_with(": web_search_20250305"));
    assert_eq!(of("web_search").expect_err("left out").field, "tool_choice.name");
}
