//! OpenAI's Responses API.

use serde_json::{Map, Value, json};

use super::{Result, array, call, object, one_answer, refused, text};

pub use stream::{REPEATED, ResponseStream, response};
pub use tools::left_out;

mod stream;
mod tools;

/// Fields with a counterpart of another name or form, or with none; all others are passed on.
pub const OWN: &[&str] = &[
    "background",
    "conversation",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "previous_response_id",
    "reasoning",
    "store",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "truncation",
];

/// The chat completion request of a Responses request.
///
/// # Errors
/// The field that is missing, of a wrong type, or that has no counterpart.
pub fn request(body: &Value) -> Result<Value> {
    let body = object(body, "the request")?;
    one_answer(body)?;
    let given = |key: &str| body.get(key).filter(|value| !value.is_null());
    let stored = ["previous_response_id", "conversation"];
    if let Some(field) = stored.into_iter().find(|field| given(field).is_some()) {
        return refused(field, "is not supported: responses are not stored");
    }
    if given("background") == Some(&Value::Bool(true)) {
        return refused("background", "is not supported: responses are not stored");
    }
    let passed = body.iter().filter(|(key, _)| !OWN.contains(&key.as_str()));
    let mut chat: Map<String, Value> =
        passed.map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut messages = Vec::new();
    if let Some(instructions) = given("instructions") {
        let Some(instructions) = instructions.as_str() else {
            return refused("instructions", "must be a string");
        };
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match given("input") {
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) => conversation(items, &mut messages)?,
        Some(_) => return refused("input", "must be a string or an array of items"),
        None => return refused("input", "is missing"),
    }
    if messages.is_empty() {
        return refused("input", "has no message");
    }
    chat.insert("messages".into(), messages.into());
    let tools = given("tools").unwrap_or(&Value::Null);
    if !tools.is_null() {
        let functions = tools::functions(tools)?;
        if given("tool_choice").is_some_and(|choice| choice == "required") {
            functions.required(&left_out(tools))?;
        }
        chat.insert("tools".into(), functions.list.into());
    }
    if let Some(choice) = given("tool_choice") {
        chat.insert("tool_choice".into(), tools::choice(choice, tools)?);
    }
    let format = given("text").and_then(|text| text.get("format"));
    if let Some(format) = format.filter(|format| !format.is_null()) {
        chat.insert("response_format".into(), response_format(format)?);
    }
    if let Some(most) = given("max_output_tokens") {
        chat.insert("max_tokens".into(), most.clone());
    }
    if let Some(effort) = given("reasoning").and_then(|reasoning| reasoning.get("effort")) {
        chat.insert("reasoning_effort".into(), effort.clone());
    }
    if let Some(include) = given("include") {
        let wants = "message.output_text.logprobs";
        if array(include, "include")?.iter().any(|name| name == wants) {
            chat.insert("logprobs".into(), true.into());
        }
    }
    if let Some(number) = given("top_logprobs") {
        chat.insert("logprobs".into(), true.into());
        chat.insert("top_logprobs".into(), number.clone());
    }
    if given("stream") == Some(&Value::Bool(true)) {
        chat.insert("stream_options".into(), json!({ "include_usage": true }));
    }
    Ok(chat.into())
}

/// Appends the chat messages of the items. Reasoning and calls that follow one another make one message; reasoning that
/// neither a call nor a message of the assistant follows is left out.
fn conversation(items: &[Value], messages: &mut Vec<Value>) -> Result<()> {
    let mut thoughts = String::new();
    for (index, item) in items.iter().enumerate() {
        let at = format!("input[{index}]");
        let fields = object(item, &at)?;
        let kind = fields.get("type").filter(|kind| !kind.is_null());
        let kind = kind.map_or(Some("message"), Value::as_str).unwrap_or_default();
        match kind {
            "message" => {
                let role = match text(fields, "role", &at)? {
                    "developer" => "system",
                    role @ ("system" | "user" | "assistant") => role,
                    _ => {
                        let roles = "must be user, assistant, system or developer";
                        return refused(format!("{at}.role"), roles);
                    }
                };
                let mut message = json!({ "role": role, "content": content(fields, &at)? });
                let thoughts = std::mem::take(&mut thoughts);
                if role == "assistant" && !thoughts.is_empty() {
                    message["reasoning_content"] = thoughts.into();
                }
                messages.push(message);
            }
            "reasoning" => {
                let text = reasoning(fields);
                if !thoughts.is_empty() && !text.is_empty() {
                    thoughts += "\n\n";
                }
                thoughts += &text;
            }
            kind if is_left_out(kind) => {}
            kind if kind.ends_with("call") => {
                let made = made_call(kind, fields, &at)?;
                called(made, &mut thoughts, messages);
            }
            kind if kind.ends_with("call_output") => {
                thoughts.clear();
                let output = output(kind, fields, &at)?;
                let id = call_id(fields, &at)?;
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
            }
            kind => return unsupported(kind, &at),
        }
    }
    Ok(())
}

fn unsupported<T>(kind: &str, at: &str) -> Result<T> {
    refused(format!("{at}.type"), format!("items of type {kind:?} are not supported"))
}

/// Whether an item is of a tool that OpenAI's servers run. It is left out as the tool is.
fn is_left_out(kind: &str) -> bool {
    let kinds =
        ["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"];
    kinds.contains(&kind) || kind.starts_with("mcp_")
}

/// The call of an item, as a chat has it. The text that a custom tool was given is the argument `input`; what a shell was to
/// do, or a patch to change, are the arguments.
fn made_call(kind: &str, fields: &Map<String, Value>, at: &str) -> Result<Value> {
    let name = || text(fields, "name", at);
    match kind {
        "function_call" => {
            let id = call_id(fields, at)?;
            let namespace = fields.get("namespace").and_then(Value::as_str);
            let name = tools::full_name(namespace, name()?);
            Ok(call(id, &name, text(fields, "arguments", at)?))
        }
        "custom_tool_call" => {
            let input = json!({ "input": text(fields, "input", at)? });
            Ok(call(call_id(fields, at)?, name()?, &input.to_string()))
        }
        "local_shell_call" => {
            Ok(call(call_id(fields, at)?, "local_shell", &arguments(fields, "action", at)?))
        }
        "shell_call" => Ok(call(call_id(fields, at)?, "shell", &arguments(fields, "action", at)?)),
        "apply_patch_call" => {
            Ok(call(call_id(fields, at)?, "apply_patch", &arguments(fields, "operation", at)?))
        }
        kind => unsupported(kind, at),
    }
}

/// The arguments that an object of an item holds. The only type of actions is no argument.
fn arguments(fields: &Map<String, Value>, key: &str, at: &str) -> Result<String> {
    let Some(given) = fields.get(key).and_then(Value::as_object) else {
        return refused(format!("{at}.{key}"), "must be an object");
    };
    let mut arguments = given.clone();
    arguments.retain(|name, value| !value.is_null() && (key != "action" || name != "type"));
    Ok(Value::from(arguments).to_string())
}

/// Items that hold what a call gave.
const OUTPUTS: &[&str] = &[
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
];

/// What a call gave, as a chat has it: of a shell the outputs of its commands as JSON, of a patch without a text its status.
fn output(kind: &str, fields: &Map<String, Value>, at: &str) -> Result<Value> {
    if !OUTPUTS.contains(&kind) {
        return unsupported(kind, at);
    }
    let place = format!("{at}.output");
    match fields.get("output") {
        Some(Value::String(text)) => Ok(text.as_str().into()),
        Some(list @ Value::Array(_)) if kind == "shell_call_output" => Ok(list.to_string().into()),
        Some(Value::Array(parts)) => joined(parts, &place),
        None | Some(Value::Null) if kind == "apply_patch_call_output" => {
            Ok(text(fields, "status", at)?.into())
        }
        _ => refused(place, "must be a string or an array of parts"),
    }
}

/// The id of an item's call; local shells have it as that of the item too.
fn call_id<'v>(fields: &'v Map<String, Value>, at: &str) -> Result<&'v str> {
    match fields.get("call_id") {
        None | Some(Value::Null) if fields.contains_key("id") => text(fields, "id", at),
        _ => text(fields, "call_id", at),
    }
}

/// The text of a reasoning item, or its summary if it has none.
fn reasoning(fields: &Map<String, Value>) -> String {
    let text = |key: &str| -> String {
        let parts = fields.get(key).and_then(Value::as_array).into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str()).collect()
    };
    let content = text("content");
    if content.is_empty() { text("summary") } else { content }
}

/// Adds a call to the assistant's message, which follows the thoughts.
fn called(made: Value, thoughts: &mut String, messages: &mut Vec<Value>) {
    let last = messages.last_mut().filter(|last| last["role"] == "assistant");
    if let Some(last) = last.filter(|_| thoughts.is_empty()) {
        match last["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(made),
            None => last["tool_calls"] = json!([made]),
        }
        return;
    }
    let mut message = json!({ "role": "assistant", "content": "", "tool_calls": [made] });
    if !thoughts.is_empty() {
        message["reasoning_content"] = std::mem::take(thoughts).into();
    }
    messages.push(message);
}

fn content(fields: &Map<String, Value>, at: &str) -> Result<Value> {
    let at = format!("{at}.content");
    match fields.get("content") {
        Some(Value::String(text)) => Ok(text.as_str().into()),
        Some(Value::Array(parts)) => joined(parts, &at),
        _ => refused(at, "must be a string or an array of parts"),
    }
}

/// Parts as one text if all are texts, else as the parts of a chat message.
fn joined(parts: &[Value], at: &str) -> Result<Value> {
    let parts = parts.iter().enumerate().map(|(index, part)| {
        let at = format!("{at}[{index}]");
        let part = object(part, &at)?;
        let kind = text(part, "type", &at)?;
        match kind {
            "input_text" | "output_text" | "text" => {
                Ok(json!({ "type": "text", "text": text(part, "text", &at)? }))
            }
            "refusal" => Ok(json!({ "type": "text", "text": text(part, "refusal", &at)? })),
            "input_image" => {
                let url = text(part, "image_url", &at)?;
                Ok(json!({ "type": "image_url", "image_url": { "url": url } }))
            }
            _ => refused(format!("{at}.type"), format!("parts of type {kind:?} are not supported")),
        }
    });
    let parts: Vec<Value> = parts.collect::<Result<_>>()?;
    let texts: Option<String> = parts.iter().map(|part| part["text"].as_str()).collect();
    Ok(texts.map_or_else(|| parts.into(), Value::from))
}

fn response_format(format: &Value) -> Result<Value> {
    let at = "text.format";
    let fields = object(format, at)?;
    match text(fields, "type", at)? {
        "text" | "json_object" => Ok(json!({ "type": fields["type"] })),
        "json_schema" => {
            let mut schema = fields.clone();
            schema.remove("type");
            Ok(json!({ "type": "json_schema", "json_schema": schema }))
        }
        _ => refused("text.format.type", "must be text, json_object or json_schema"),
    }
}
