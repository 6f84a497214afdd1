//! Anthropic's Messages API.

use serde_json::{Map, Value, json};

use super::{Functions, Result, array, call, count, object, one_answer, refused, renamed, text};

/// Fields with a counterpart of another name or form; all others are passed on.
pub const OWN: &[&str] = &[
    "system",
    "messages",
    "tools",
    "tool_choice",
    "stop_sequences",
    "thinking",
    "metadata",
    "output_config",
    "output_format",
];

/// The chat completion request of a Messages request.
///
/// # Errors
/// The field that is missing, of a wrong type, or that has no counterpart.
pub fn request(body: &Value) -> Result<Value> {
    let body = object(body, "the request")?;
    one_answer(body)?;
    let is_passed = |key: &str| !OWN.contains(&key);
    let mut chat: Map<String, Value> = body
        .iter()
        .filter(|(key, _)| is_passed(key))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let mut messages = Vec::new();
    if let Some(system) = body.get("system").filter(|system| !system.is_null()) {
        messages.push(json!({ "role": "system", "content": plain(system, "system")? }));
    }
    let Some(given) = body.get("messages") else { return refused("messages", "is missing") };
    for (at, message) in array(given, "messages")?.iter().enumerate() {
        conversation(message, &format!("messages[{at}]"), &mut messages)?;
    }
    chat.insert("messages".into(), messages.into());
    if let Some(tools) = body.get("tools").filter(|tools| !tools.is_null()) {
        let functions = functions(tools)?;
        if body.get("tool_choice").is_some_and(|choice| choice["type"] == "any") {
            functions.required(&left_out(tools))?;
        }
        chat.insert("tools".into(), functions.list.into());
    }
    if let Some(choice) = body.get("tool_choice").filter(|choice| !choice.is_null()) {
        tool_choice(choice, &mut chat)?;
        let named = choice.get("name").filter(|_| choice["type"] == "tool");
        let tools = body.get("tools").and_then(Value::as_array).into_iter().flatten();
        let mut left_out = tools.filter(|tool| is_left_out(tool));
        if let Some(tool) = left_out.find(|tool| named.is_some_and(|name| tool["name"] == *name)) {
            let problem = format!("tools of type {} are not supported", tool["type"]);
            return refused("tool_choice.name", problem);
        }
    }
    if let Some(stops) = body.get("stop_sequences").filter(|stops| !stops.is_null()) {
        array(stops, "stop_sequences")?;
        chat.insert("stop".into(), stops.clone());
    }
    if let Some(thinking) = body.get("thinking").filter(|thinking| !thinking.is_null()) {
        let fields = object(thinking, "thinking")?;
        let enabled = text(fields, "type", "thinking")? != "disabled";
        variable(&mut chat, "enable_thinking", enabled.into());
    }
    output(body, &mut chat)?;
    if let Some(user) = body.get("metadata").and_then(|metadata| metadata.get("user_id")) {
        chat.insert("user".into(), user.clone());
    }
    if body.get("stream") == Some(&Value::Bool(true)) {
        chat.insert("stream_options".into(), json!({ "include_usage": true }));
    }
    Ok(chat.into())
}

/// Efforts of `output_config`.
const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];

/// Sets a variable of the chat template unless the request has it.
fn variable(chat: &mut Map<String, Value>, name: &str, value: Value) {
    let variables = chat.entry("chat_template_kwargs").or_insert_with(|| json!({}));
    if let Some(variables) = variables.as_object_mut() {
        variables.entry(name).or_insert(value);
    }
}

/// The form of the answer and the effort for it, which says nothing of whether there is reasoning: `thinking` does.
/// `output_format` is the earlier place of `output_config.format`.
fn output(body: &Map<String, Value>, chat: &mut Map<String, Value>) -> Result<()> {
    let given = |fields: &Map<String, Value>, key: &str| {
        fields.get(key).filter(|value| !value.is_null()).cloned()
    };
    let mut format = given(body, "output_format").map(|format| (format, "output_format"));
    if let Some(config) = given(body, "output_config") {
        let config = object(&config, "output_config")?;
        if let Some(own) = given(config, "format") {
            format = Some((own, "output_config.format"));
        }
        if config.get("effort").is_some_and(|effort| !effort.is_null()) {
            let effort = text(config, "effort", "output_config")?;
            if !EFFORTS.contains(&effort) {
                let problem = format!("must be one of {}", EFFORTS.join(", "));
                return refused("output_config.effort", problem);
            }
            // Some templates reason wherever an effort is named.
            let is_off = body.get("thinking").is_some_and(|of| of["type"] == "disabled");
            if !is_off {
                variable(chat, "reasoning_effort", effort.into());
            }
        }
    }
    let Some((format, at)) = format else { return Ok(()) };
    let fields = object(&format, at)?;
    if text(fields, "type", at)? != "json_schema" {
        return refused(format!("{at}.type"), "must be json_schema");
    }
    let Some(schema) = fields.get("schema") else {
        return refused(format!("{at}.schema"), "is missing");
    };
    object(schema, &format!("{at}.schema"))?;
    let schema = json!({ "name": "output", "schema": schema });
    let format = json!({ "type": "json_schema", "json_schema": schema });
    chat.insert("response_format".into(), format);
    Ok(())
}

/// The text of a string or of text blocks.
fn plain(content: &Value, at: &str) -> Result<String> {
    if let Some(text) = content.as_str() {
        return Ok(text.to_owned());
    }
    let Some(blocks) = content.as_array() else {
        return refused(at, "must be a string or an array of blocks");
    };
    let texts = blocks.iter().enumerate().map(|(index, block)| {
        let at = format!("{at}[{index}]");
        text(object(block, &at)?, "text", &at)
    });
    texts.collect()
}

/// Appends the chat messages of one message: results of tools are messages of their own, before the rest.
fn conversation(message: &Value, at: &str, messages: &mut Vec<Value>) -> Result<()> {
    let fields = object(message, at)?;
    let role = text(fields, "role", at)?;
    if !matches!(role, "user" | "assistant" | "system") {
        return refused(format!("{at}.role"), "must be user, assistant or system");
    }
    let at = format!("{at}.content");
    let Some(content) = fields.get("content") else { return refused(at, "is missing") };
    if content.is_string() {
        messages.push(json!({ "role": role, "content": content }));
        return Ok(());
    }
    let Some(blocks) = content.as_array() else {
        return refused(at, "must be a string or an array of blocks");
    };
    let (mut parts, mut calls, mut thoughts) = (Vec::new(), Vec::new(), String::new());
    for (index, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let block = object(block, &at)?;
        match (text(block, "type", &at)?, role) {
            ("text", _) => parts.push(json!({ "type": "text", "text": text(block, "text", &at)? })),
            ("image", "user") => parts.push(image(block, &at)?),
            ("thinking", "assistant") => thoughts.push_str(text(block, "thinking", &at)?),
            ("redacted_thinking" | "server_tool_use" | "mcp_tool_use", "assistant") => {}
            // A file for a tool of Anthropic's servers.
            ("container_upload", "user" | "assistant") => {}
            // Of a tool that is left out.
            (kind, "assistant") if kind.ends_with("_tool_result") => {}
            ("tool_use", "assistant") => {
                let input = block.get("input").map_or_else(|| "{}".to_owned(), Value::to_string);
                calls.push(call(text(block, "id", &at)?, text(block, "name", &at)?, &input));
            }
            ("tool_result", "user") => messages.push(json!({
                "role": "tool",
                "tool_call_id": text(block, "tool_use_id", &at)?,
                "content": result(block.get("content"), &at)?,
            })),
            (kind, _) => {
                return refused(
                    at,
                    format!("blocks of type {kind} are not supported in messages of {role}"),
                );
            }
        }
    }
    if role == "user" && parts.is_empty() && !blocks.is_empty() {
        return Ok(());
    }
    let mut message = json!({ "role": role, "content": content_of(parts) });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    messages.push(message);
    Ok(())
}

/// Parts as one text if all are texts.
fn content_of(parts: Vec<Value>) -> Value {
    let texts: Option<String> = parts.iter().map(|part| part["text"].as_str()).collect();
    texts.map_or_else(|| parts.into(), Value::from)
}

/// What a tool answered.
fn result(content: Option<&Value>, at: &str) -> Result<Value> {
    let at = format!("{at}.content");
    let blocks = match content {
        None | Some(Value::Null) => return Ok("".into()),
        Some(Value::String(text)) => return Ok(text.as_str().into()),
        Some(blocks) => array(blocks, &at)?,
    };
    let parts = blocks.iter().enumerate().map(|(index, block)| {
        let at = format!("{at}[{index}]");
        let block = object(block, &at)?;
        match text(block, "type", &at)? {
            "text" => Ok(json!({ "type": "text", "text": text(block, "text", &at)? })),
            "image" => image(block, &at),
            kind => refused(at, format!("blocks of type {kind} are not supported")),
        }
    });
    Ok(content_of(parts.collect::<Result<_>>()?))
}

fn image(block: &Map<String, Value>, at: &str) -> Result<Value> {
    let at = format!("{at}.source");
    let Some(source) = block.get("source") else { return refused(at, "is missing") };
    let source = object(source, &at)?;
    let url = match text(source, "type", &at)? {
        "base64" => {
            let media = text(source, "media_type", &at)?;
            format!("data:{media};base64,{}", text(source, "data", &at)?)
        }
        "url" => text(source, "url", &at)?.to_owned(),
        kind => return refused(at, format!("images of type {kind} are not supported")),
    };
    Ok(json!({ "type": "image_url", "image_url": { "url": url } }))
}

/// Whether a tool has a type of its own, such as `web_search_20250305` or `bash_20250124`: Anthropic's servers run it, or
/// Anthropic's models know its arguments.
fn is_left_out(tool: &Value) -> bool {
    tool["type"].as_str().is_some_and(|kind| kind != "custom")
}

/// The types of the tools that are left out.
pub fn left_out(tools: &Value) -> Vec<&str> {
    let tools = tools.as_array().into_iter().flatten().filter(|tool| is_left_out(tool));
    tools.filter_map(|tool| tool["type"].as_str()).collect()
}

/// The functions among the tools.
///
/// # Errors
/// A function is wrong, two have the same name, or there are too many.
fn functions(tools: &Value) -> Result<Functions> {
    let mut functions = Functions::default();
    for (at, tool) in array(tools, "tools")?.iter().enumerate() {
        if !is_left_out(tool) {
            let at = format!("tools[{at}]");
            functions.add(function(tool, &at)?, "tools", &at)?;
        }
    }
    Ok(functions)
}

fn function(tool: &Value, at: &str) -> Result<Value> {
    let fields = object(tool, at)?;
    let name = text(fields, "name", at)?;
    if fields.get("type").is_some_and(|kind| !kind.is_null() && kind != "custom") {
        return refused(format!("{at}.type"), "must be a string");
    }
    let Some(schema) = fields.get("input_schema") else {
        return refused(format!("{at}.input_schema"), "is missing");
    };
    object(schema, &format!("{at}.input_schema"))?;
    let mut function = json!({ "name": name, "parameters": schema });
    if let Some(description) = fields.get("description") {
        function["description"] = description.clone();
    }
    Ok(function)
}

fn tool_choice(choice: &Value, chat: &mut Map<String, Value>) -> Result<()> {
    let fields = object(choice, "tool_choice")?;
    let choice = match text(fields, "type", "tool_choice")? {
        "auto" => json!("auto"),
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => {
            let name = text(fields, "name", "tool_choice")?;
            json!({ "type": "function", "function": { "name": name } })
        }
        _ => return refused("tool_choice.type", "must be auto, any, tool or none"),
    };
    chat.insert("tool_choice".into(), choice);
    if let Some(disabled) = fields.get("disable_parallel_tool_use") {
        let Some(disabled) = disabled.as_bool() else {
            return refused("tool_choice.disable_parallel_tool_use", "must be true or false");
        };
        if disabled {
            chat.insert("parallel_tool_calls".into(), false.into());
        }
    }
    Ok(())
}

/// Why a reply ended, in this API's words. `stop_sequence` is the stop text that ended it.
fn stop_reason(finish_reason: &Value, stop_sequence: &Value) -> &'static str {
    match finish_reason.as_str() {
        Some("length") => "max_tokens",
        Some("tool_calls") => "tool_use",
        Some("content_filter") => "refusal",
        _ if stop_sequence.is_string() => "stop_sequence",
        _ => "end_turn",
    }
}

fn usage_of(usage: &Value) -> Value {
    let cached = count(usage, "/prompt_tokens_details/cached_tokens");
    json!({
        "input_tokens": count(usage, "/prompt_tokens").saturating_sub(cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": count(usage, "/completion_tokens"),
    })
}

/// The message of a chat completion. The stop text that ended it is its choice's `stop_sequence`, if there is one.
pub fn response(completion: &Value) -> Value {
    let choice = &completion["choices"][0];
    let message = &choice["message"];
    let mut content = Vec::new();
    if let Some(thoughts) = message["reasoning_content"].as_str().filter(|text| !text.is_empty()) {
        content.push(json!({ "type": "thinking", "thinking": thoughts, "signature": "" }));
    }
    let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = message["content"].as_str().unwrap_or_default();
    if !text.is_empty() || (content.is_empty() && calls.is_empty()) {
        content.push(json!({ "type": "text", "text": text }));
    }
    for call in calls {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        let input: Option<Value> = serde_json::from_str(arguments).ok();
        content.push(json!({
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": input.filter(Value::is_object).unwrap_or_else(|| json!({})),
        }));
    }
    let stop_sequence = choice.get("stop_sequence").cloned().unwrap_or_default();
    json!({
        "id": renamed("msg_", completion["id"].as_str().unwrap_or_default()),
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": content,
        "stop_reason": stop_reason(&choice["finish_reason"], &stop_sequence),
        "stop_sequence": stop_sequence,
        "usage": usage_of(&completion["usage"]),
    })
}

/// An error in this API's form.
pub fn error(status: u16, message: &str) -> Value {
    let kind = match status {
        400 | 405 | 409 | 415 | 422 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

/// The block being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    None,
    Thinking,
    Text,
    /// The call with this number.
    Call(u64),
}

/// Turns the chunks of a chat completion into events. Each event's SSE name is its `type`.
#[derive(Debug)]
pub struct MessageStream {
    input_tokens: u64,
    started: bool,
    open: OpenBlock,
    /// Blocks begun so far.
    blocks: u64,
    finish_reason: Value,
    stop_sequence: Value,
    usage: Value,
}

impl MessageStream {
    /// A stream for a prompt of so many tokens.
    pub fn new(input_tokens: u64) -> Self {
        Self {
            input_tokens,
            started: false,
            open: OpenBlock::None,
            blocks: 0,
            finish_reason: Value::Null,
            stop_sequence: Value::Null,
            usage: Value::Null,
        }
    }

    /// The events of a chunk.
    pub fn push(&mut self, chunk: &Value) -> Vec<Value> {
        let mut events = Vec::new();
        if let Some(failure) = chunk.get("error") {
            let status = failure["code"].as_u64().and_then(|code| u16::try_from(code).ok());
            let message = failure["message"].as_str().unwrap_or("the reply failed");
            return vec![error(status.unwrap_or(500), message)];
        }
        if !self.started {
            self.started = true;
            events.push(self.start(chunk));
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        if let Some(text) = delta["reasoning_content"].as_str().filter(|text| !text.is_empty()) {
            self.begin(
                OpenBlock::Thinking,
                &json!({ "type": "thinking", "thinking": "", "signature": "" }),
                &mut events,
            );
            events.push(self.delta(&json!({ "type": "thinking_delta", "thinking": text })));
        }
        if let Some(text) = delta["content"].as_str().filter(|text| !text.is_empty()) {
            self.begin(OpenBlock::Text, &json!({ "type": "text", "text": "" }), &mut events);
            events.push(self.delta(&json!({ "type": "text_delta", "text": text })));
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap_or(0);
            let function = &call["function"];
            let block = json!({ "type": "tool_use", "id": call["id"], "name": function["name"], "input": {} });
            self.begin(OpenBlock::Call(index), &block, &mut events);
            if let Some(text) = function["arguments"].as_str().filter(|text| !text.is_empty()) {
                events
                    .push(self.delta(&json!({ "type": "input_json_delta", "partial_json": text })));
            }
        }
        for (kept, found) in [
            (&mut self.finish_reason, choice.get("finish_reason")),
            (&mut self.stop_sequence, choice.get("stop_sequence")),
            (&mut self.usage, chunk.get("usage")),
        ] {
            if let Some(found) = found.filter(|found| !found.is_null()) {
                *kept = found.clone();
            }
        }
        events
    }

    fn start(&self, chunk: &Value) -> Value {
        json!({ "type": "message_start", "message": {
            "id": renamed("msg_", chunk["id"].as_str().unwrap_or_default()),
            "type": "message",
            "role": "assistant",
            "model": chunk["model"],
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": { "input_tokens": self.input_tokens, "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 0, "output_tokens": 0 },
        } })
    }

    fn delta(&self, delta: &Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.blocks.saturating_sub(1), "delta": delta })
    }

    /// Begins `block` unless it is the open one.
    fn begin(&mut self, open: OpenBlock, block: &Value, events: &mut Vec<Value>) {
        if self.open == open {
            return;
        }
        self.close(events);
        self.open = open;
        events.push(
            json!({ "type": "content_block_start", "index": self.blocks, "content_block": block }),
        );
        self.blocks += 1;
        if self.blocks == 1 {
            events.push(json!({ "type": "ping" }));
        }
    }

    fn close(&mut self, events: &mut Vec<Value>) {
        match std::mem::replace(&mut self.open, OpenBlock::None) {
            OpenBlock::None => return,
            OpenBlock::Thinking => {
                events.push(self.delta(&json!({ "type": "signature_delta", "signature": "" })));
            }
            OpenBlock::Text | OpenBlock::Call(_) => {}
        }
        events
            .push(json!({ "type": "content_block_stop", "index": self.blocks.saturating_sub(1) }));
    }

    /// The last events of a reply that ended without an error.
    pub fn finish(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        if self.blocks == 0 {
            self.begin(OpenBlock::Text, &json!({ "type": "text", "text": "" }), &mut events);
        }
        self.close(&mut events);
        let reason = stop_reason(&self.finish_reason, &self.stop_sequence);
        events.push(json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": self.stop_sequence },
            "usage": usage_of(&self.usage),
        }));
        events.push(json!({ "type": "message_stop" }));
        events
    }
}
