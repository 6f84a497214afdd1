//! The older form of tools in chat completions: `functions`, `function_call` and messages with the role `function`.

use bilayer_text::chat::openai::call_id;
use serde_json::{Value, json};

use super::{Result, array, object, refused, text};

/// The request with tools in the place of functions.
///
/// # Errors
/// The field that is of a wrong type, or that has no counterpart.
pub fn request(body: &Value) -> Result<Value> {
    let fields = object(body, "the request")?;
    let given = |key: &str| fields.get(key).filter(|value| !value.is_null());
    let (functions, choice) = (given("functions"), given("function_call"));
    let mut chat = fields.clone();
    chat.shift_remove("functions");
    chat.shift_remove("function_call");
    if let Some(functions) = functions {
        if given("tools").is_some() {
            return refused("functions", "cannot be combined with tools");
        }
        let functions = array(functions, "functions")?.iter();
        let tools: Vec<Value> =
            functions.map(|function| json!({ "type": "function", "function": function })).collect();
        chat.insert("tools".into(), tools.into());
        chat.insert("parallel_tool_calls".into(), false.into());
    }
    if let Some(choice) = choice {
        if functions.is_none() {
            return refused("function_call", "needs functions");
        }
        chat.insert("tool_choice".into(), tool_choice(choice)?);
    }
    if let Some(list) = given("messages").and_then(Value::as_array) {
        let mut calls = 0;
        let messages = list.iter().enumerate();
        let messages: Result<Vec<Value>> =
            messages.map(|(at, given)| message(given, at, &mut calls)).collect();
        chat.insert("messages".into(), messages?.into());
    }
    Ok(chat.into())
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

/// A message whose call has an id; what a function returned belongs to the last of the calls.
fn message(given: &Value, at: usize, calls: &mut usize) -> Result<Value> {
    let mut message = given.clone();
    let Some(fields) = message.as_object_mut().filter(|_| is_old(given)) else {
        return Ok(message);
    };
    if given["role"] == "function" {
        let Some(last) = calls.checked_sub(1) else {
            return refused(format!("messages[{at}]"), "follows no function_call");
        };
        fields.insert("role".into(), "tool".into());
        fields.insert("tool_call_id".into(), call_id(last).into());
    } else if let Some(call) = fields.shift_remove("function_call") {
        let call = json!({ "id": call_id(*calls), "type": "function", "function": call });
        fields.insert("tool_calls".into(), json!([call]));
        *calls += 1;
    }
    Ok(message)
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

    use super::{request, respond};

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
        let same = json!({ "messages": [{ "role": "user", "content": "a" }] });
        assert_eq!(request(&same).as_ref(), Ok(&same));
        for (body, field) in [
            (json!({ "functions": [], "tools": [] }), "functions"),
            (json!({ "functions": {} }), "functions"),
            (json!({ "function_call": "auto" }), "function_call"),
            (json!({ "functions": [], "function_call": "required" }), "function_call"),
            (json!({ "functions": [], "function_call": {} }), "function_call.name"),
            (json!({ "messages": [{ "role": "function", "content": "1" }] }), "messages[0]"),
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
