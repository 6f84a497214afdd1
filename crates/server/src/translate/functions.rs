//! The older form of tools in chat completions: `functions`, `function_call` and messages with the role `function`.

use std::collections::HashSet;

use bilayer_text::chat::openai::call_id;
use serde_json::{Map, Value, json};

use super::{Result, array, refused, same_name, text};

/// The request with tools in the place of functions.
///
/// # Errors
/// The field that is of a wrong type, or that has no counterpart.
pub fn request(mut body: Map<String, Value>) -> Result<Value> {
    let mut taken = |key: &str| body.shift_remove(key).filter(|value| !value.is_null());
    let (functions, choice) = (taken("functions"), taken("function_call"));
    if let Some(choice) = choice {
        if functions.is_none() {
            return refused("function_call", "needs functions");
        }
        body.insert("tool_choice".into(), tool_choice(&choice)?);
    }
    if let Some(functions) = functions {
        if body.get("tools").is_some_and(|tools| !tools.is_null()) {
            return refused("functions", "cannot be combined with tools");
        }
        let functions = array(&functions, "functions")?;
        let mut names = HashSet::new();
        for (at, function) in functions.iter().enumerate() {
            if let Some(name) = function["name"].as_str().filter(|name| !names.insert(*name)) {
                return Err(same_name(&format!("functions[{at}]"), name));
            }
        }
        let tool = |function| json!({ "type": "function", "function": function });
        let tools: Vec<Value> = functions.iter().map(tool).collect();
        body.insert("tools".into(), tools.into());
        body.insert("parallel_tool_calls".into(), false.into());
    }
    if let Some(Value::Array(messages)) = body.get_mut("messages") {
        let (mut count, mut last) = (0, None);
        for message in messages.iter_mut().filter_map(Value::as_object_mut) {
            complete(message, &mut count, &mut last);
        }
    }
    Ok(body.into())
}

/// Whether a message has a call in the older form, or is what a function returned.
pub fn is_old(message: &Value) -> bool {
    message["role"] == "function" || message.get("function_call").is_some_and(Value::is_object)
}

fn tool_choice(choice: &Value) -> Result<Value> {
    match choice {
        Value::String(choice) if matches!(choice.as_str(), "none" | "auto") => {
            Ok(choice.as_str().into())
        }
        Value::Object(fields) => {
            let name = text(fields, "name", "function_call")?;
            Ok(json!({ "type": "function", "function": { "name": name } }))
        }
        _ => {
            refused("function_call", "must be none, auto or an object with the name of a function")
        }
    }
}

/// Gives a call an id, and what a function returned the id of the last call before it; without one the message stays as it
/// is. `count` counts the calls in the older form, `last` is the id of the last call in either form.
fn complete(message: &mut Map<String, Value>, count: &mut usize, last: &mut Option<String>) {
    if message.get("role").is_some_and(|role| role == "function") {
        if let Some(id) = last.clone() {
            message.insert("role".into(), "tool".into());
            message.insert("tool_call_id".into(), id.into());
        }
        return;
    }
    if message.get("function_call").is_some_and(Value::is_object)
        && let Some(call) = message.shift_remove("function_call")
    {
        let call = json!({ "id": call_id(*count), "type": "function", "function": call });
        message.insert("tool_calls".into(), json!([call]));
        *count += 1;
    }
    let calls = message.get("tool_calls").and_then(Value::as_array);
    if let Some(id) = calls.and_then(|calls| calls.last()?.get("id")?.as_str()) {
        *last = Some(id.to_owned());
    }
}

/// Gives the choices of a completion or of a chunk the older form. They have one call at most.
pub fn respond(completion: &mut Value) {
    for choice in completion["choices"].as_array_mut().into_iter().flatten() {
        if choice["finish_reason"] == "tool_calls" {
            choice["finish_reason"] = "function_call".into();
        }
        for key in ["message", "delta"] {
            let Some(message) = choice.get_mut(key).and_then(Value::as_object_mut) else {
                continue;
            };
            let calls = message.shift_remove("tool_calls");
            let call = calls.as_ref().and_then(|calls| calls.pointer("/0/function")).cloned();
            message.extend(call.map(|call| ("function_call".to_owned(), call)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Result, respond};

    fn request(body: &Value) -> Result<Value> {
        super::request(body.as_object().expect("an object").clone())
    }

    #[test]
    fn functions_become_tools() {
        let function = json!({ "name": "f", "parameters": {} });
        let chat = request(&json!({
            "functions": [function], "function_call": { "name": "f" }, "seed": 1,
            "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": null, "function_call": { "name": "f", "arguments": "{}" } },
                { "role": "function", "name": "f", "content": "1" },
                { "role": "assistant", "content": "b", "function_call": null },
            ],
        }));
        let call = json!({ "id": "call00000", "type": "function", "function": { "name": "f", "arguments": "{}" } });
        let expected = json!({
            "seed": 1, "tools": [{ "type": "function", "function": function }],
            "parallel_tool_calls": false,
            "tool_choice": { "type": "function", "function": { "name": "f" } },
            "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": null, "tool_calls": [call] },
                { "role": "tool", "name": "f", "content": "1", "tool_call_id": "call00000" },
                { "role": "assistant", "content": "b", "function_call": null },
            ],
        });
        assert_eq!(chat, Ok(expected));
        // The last has no call before it; templates judge other roles.
        for message in [
            json!({ "role": "user", "content": "a" }),
            json!({ "role": "function", "content": "1" }),
        ] {
            let same = json!({ "messages": [message] });
            assert_eq!(request(&same).as_ref(), Ok(&same));
        }
        let chat = request(&json!({ "messages": [
            { "role": "assistant", "tool_calls": [{ "id": "x" }, { "id": "y" }] },
            { "role": "function", "name": "f", "content": "1" },
        ] }));
        assert_eq!(chat.expect("valid messages")["messages"][1]["tool_call_id"], "y");
        for (body, field) in [
            (json!({ "functions": [], "tools": [] }), "functions"),
            (json!({ "functions": {} }), "functions"),
            (json!({ "functions": [{ "name": "f" }, { "name": "f" }] }), "functions[1].name"),
            (json!({ "function_call": "auto" }), "function_call"),
            (json!({ "functions": [], "function_call": "required" }), "function_call"),
            (json!({ "functions": [], "function_call": {} }), "function_call.name"),
        ] {
            assert_eq!(request(&body).expect_err(field).field, field);
        }
    }

    #[test]
    fn calls_are_answered_in_the_older_form() {
        let function = json!({ "name": "f", "arguments": "{}" });
        let call = json!({ "index": 0, "id": "1", "type": "function", "function": function });
        let of = |key: &str, calls: Value, finish: Value| {
            let mut chunk = json!({ "choices": [{ key: calls, "finish_reason": finish }] });
            respond(&mut chunk);
            chunk["choices"][0].clone()
        };
        for key in ["message", "delta"] {
            let found =
                of(key, json!({ "content": null, "tool_calls": [call] }), "tool_calls".into());
            let expected = json!({ "content": null, "function_call": function });
            assert_eq!(found, json!({ key: expected, "finish_reason": "function_call" }));
            let found = of(key, json!({ "content": "a" }), Value::Null);
            assert_eq!(found, json!({ key: { "content": "a" }, "finish_reason": null }));
        }
    }
}
