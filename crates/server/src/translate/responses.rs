//! OpenAI's Responses API.

use serde_json::{Map, Value, json};

use super::spelled::spelled;
use super::{Result, array, call, count, object, refused, renamed, text};

/// Fields with a counterpart of another name or form, or with none; all others are passed on.
const OWN: &[&str] = &[
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
    if let Some(tools) = given("tools") {
        let tools = array(tools, "tools")?.iter().enumerate();
        let tools: Result<Vec<Value>> =
            tools.map(|(at, tool)| function(tool, &format!("tools[{at}]"))).collect();
        chat.insert("tools".into(), tools?.into());
    }
    if let Some(choice) = given("tool_choice") {
        chat.insert("tool_choice".into(), tool_choice(choice)?);
    }
    if let Some(format) = given("text").and_then(|text| text.get("format")) {
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

/// Appends the chat messages of the items. Reasoning and calls that follow one another make one message.
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
                if role == "assistant" && !thoughts.is_empty() {
                    message["reasoning_content"] = std::mem::take(&mut thoughts).into();
                }
                messages.push(message);
            }
            "reasoning" => {
                for part in ["content", "summary"].iter().filter_map(|key| fields.get(*key)).take(2)
                {
                    let parts = part.as_array().map(Vec::as_slice).unwrap_or_default();
                    let texts: String =
                        parts.iter().filter_map(|part| part["text"].as_str()).collect();
                    if thoughts.is_empty() {
                        thoughts = texts;
                    }
                }
            }
            "function_call" => called(fields, &at, &mut thoughts, messages)?,
            "function_call_output" => {
                let id = text(fields, "call_id", &at)?;
                let output = match fields.get("output") {
                    Some(Value::String(text)) => text.as_str().into(),
                    Some(Value::Array(parts)) => joined(parts, &format!("{at}.output"))?,
                    _ => {
                        return refused(
                            format!("{at}.output"),
                            "must be a string or an array of parts",
                        );
                    }
                };
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
            }
            kind => {
                return refused(
                    format!("{at}.type"),
                    format!("items of type {kind:?} are not supported"),
                );
            }
        }
    }
    Ok(())
}

/// Adds a call to the assistant's message, which follows the thoughts.
fn called(
    fields: &Map<String, Value>,
    at: &str,
    thoughts: &mut String,
    messages: &mut Vec<Value>,
) -> Result<()> {
    let [id, name, arguments] = ["call_id", "name", "arguments"].map(|key| text(fields, key, at));
    let made = call(id?, name?, arguments?);
    let last = messages.last_mut().filter(|last| last["role"] == "assistant");
    if let Some(last) = last.filter(|_| thoughts.is_empty()) {
        match last["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(made),
            None => last["tool_calls"] = json!([made]),
        }
        return Ok(());
    }
    let mut message = json!({ "role": "assistant", "content": "", "tool_calls": [made] });
    if !thoughts.is_empty() {
        message["reasoning_content"] = std::mem::take(thoughts).into();
    }
    messages.push(message);
    Ok(())
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

fn function(tool: &Value, at: &str) -> Result<Value> {
    let fields = object(tool, at)?;
    match text(fields, "type", at)? {
        "function" => {}
        kind => {
            return refused(
                format!("{at}.type"),
                format!("tools of type {kind:?} are not supported"),
            );
        }
    }
    text(fields, "name", at)?;
    let kept = ["name", "description", "parameters", "strict"];
    let function: Map<String, Value> = kept
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), fields.get(*key)?.clone())))
        .filter(|(_, value)| !value.is_null())
        .collect();
    Ok(json!({ "type": "function", "function": function }))
}

fn tool_choice(choice: &Value) -> Result<Value> {
    match choice {
        Value::String(name) if matches!(name.as_str(), "none" | "auto" | "required") => {
            Ok(choice.clone())
        }
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "function") => {
            let name = text(fields, "name", "tool_choice")?;
            Ok(json!({ "type": "function", "function": { "name": name } }))
        }
        // A chat has it in this form too.
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "allowed_tools") => {
            Ok(choice.clone())
        }
        _ => refused("tool_choice", "must be none, auto, required, a function or allowed tools"),
    }
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

/// The error event of a stream.
fn failure(error: &Value, sequence_number: u64) -> Value {
    let text = |key: &str| error.get(key).and_then(Value::as_str);
    json!({
        "type": "error",
        "code": text("type").unwrap_or("server_error"),
        "message": text("message").unwrap_or("the reply failed"),
        "param": text("param"),
        "sequence_number": sequence_number,
    })
}

/// The output item being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenItem {
    None,
    Reasoning,
    Message,
    /// The call with this number.
    Call(u64),
}

/// Turns the chunks of a chat completion into events. Each event's SSE name is its `type`.
#[derive(Debug)]
pub struct ResponseStream {
    /// The response without what changes.
    base: Value,
    id: String,
    sequence: u64,
    started: bool,
    open: OpenItem,
    /// All output items; the last one is the open one.
    output: Vec<Value>,
    text: String,
    /// Log-probabilities of the open message.
    logprobs: Vec<Value>,
    /// Those of tokens whose text comes with the next one.
    held: Vec<Value>,
    finish_reason: Value,
    usage: Value,
    timings: Option<Value>,
}

impl ResponseStream {
    /// The answer to `request`, created at this second of the Unix epoch.
    pub fn new(request: &Value, created_at: u64) -> Self {
        let or = |key: &str, default: Value| match request.get(key) {
            None | Some(Value::Null) => default,
            Some(value) => value.clone(),
        };
        let base = json!({
            "object": "response",
            "created_at": created_at,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": or("instructions", Value::Null),
            "max_output_tokens": or("max_output_tokens", Value::Null),
            "metadata": or("metadata", json!({})),
            "model": or("model", json!("")),
            "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
            "previous_response_id": null,
            "reasoning": or("reasoning", json!({ "effort": null, "summary": null })),
            "store": false,
            "temperature": or("temperature", Value::Null),
            "text": or("text", json!({ "format": { "type": "text" } })),
            "tool_choice": or("tool_choice", json!("auto")),
            "tools": or("tools", json!([])),
            "top_p": or("top_p", Value::Null),
            "truncation": or("truncation", json!("disabled")),
        });
        Self {
            base,
            id: String::new(),
            sequence: 0,
            started: false,
            open: OpenItem::None,
            output: Vec::new(),
            text: String::new(),
            logprobs: Vec::new(),
            held: Vec::new(),
            finish_reason: Value::Null,
            usage: Value::Null,
            timings: None,
        }
    }

    fn response(&self, status: &str) -> Value {
        let mut response = self.base.clone();
        response["id"] = renamed("resp_", &self.id).into();
        response["status"] = status.into();
        response["output"] = self.output.clone().into();
        response
    }

    fn event(&mut self, mut event: Value, events: &mut Vec<Value>) {
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        events.push(event);
    }

    /// The events of a chunk. `timings` and `prompt_progress` of a chunk are kept in its events.
    pub fn push(&mut self, chunk: &Value) -> Vec<Value> {
        let mut events = Vec::new();
        if let Some(error) = chunk.get("error") {
            self.sequence += 1;
            return vec![failure(error, self.sequence - 1)];
        }
        if !self.started {
            self.started = true;
            chunk["id"].as_str().unwrap_or_default().clone_into(&mut self.id);
            if let Some(model) = chunk["model"].as_str().filter(|model| !model.is_empty()) {
                self.base["model"] = model.into();
            }
            for kind in ["response.created", "response.in_progress"] {
                let response = self.response("in_progress");
                self.event(json!({ "type": kind, "response": response }), &mut events);
            }
        }
        if let Some(progress) = chunk.get("prompt_progress") {
            let response = self.response("in_progress");
            let event = json!({
                "type": "response.in_progress", "response": response, "prompt_progress": progress,
            });
            self.event(event, &mut events);
        }
        let choice = &chunk["choices"][0];
        self.delta(&choice["delta"], &choice["logprobs"], &mut events);
        for (kept, found) in [
            (&mut self.finish_reason, choice.get("finish_reason")),
            (&mut self.usage, chunk.get("usage")),
        ] {
            if let Some(found) = found.filter(|found| !found.is_null()) {
                *kept = found.clone();
            }
        }
        if let Some(timings) = chunk.get("timings") {
            events.iter_mut().for_each(|event| event["timings"] = timings.clone());
            self.timings = Some(timings.clone());
        }
        events
    }

    fn delta(&mut self, delta: &Value, logprobs: &Value, events: &mut Vec<Value>) {
        self.held.extend(logprobs["content"].as_array().into_iter().flatten().cloned());
        if let Some(text) = delta["reasoning_content"].as_str().filter(|text| !text.is_empty()) {
            if spelled(&mut self.held, text).is_none()
                && delta["content"].as_str().is_none_or(str::is_empty)
            {
                self.held.clear();
            }
            self.begin(OpenItem::Reasoning, events);
            self.append("response.reasoning_text.delta", text, Value::Null, events);
        }
        if let Some(text) = delta["content"].as_str().filter(|text| !text.is_empty()) {
            self.begin(OpenItem::Message, events);
            let logprobs =
                spelled(&mut self.held, text).unwrap_or_else(|| std::mem::take(&mut self.held));
            self.logprobs.extend(logprobs.iter().cloned());
            self.append("response.output_text.delta", text, json!(logprobs), events);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.held.clear();
            let open = OpenItem::Call(call["index"].as_u64().unwrap_or(0));
            let function = &call["function"];
            if self.open != open {
                self.close("completed", events);
                let id = call["id"].as_str().unwrap_or_default();
                let item = json!({
                    "id": format!("fc_{id}"), "type": "function_call", "status": "in_progress",
                    "call_id": id, "name": function["name"], "arguments": "",
                });
                self.add(open, &item, events);
            }
            if let Some(text) = function["arguments"].as_str().filter(|text| !text.is_empty()) {
                self.append("response.function_call_arguments.delta", text, Value::Null, events);
            }
        }
    }

    /// An event about the open item.
    fn about(&self, kind: &str) -> Value {
        let at = self.output.len().saturating_sub(1);
        let mut event = json!({
            "type": kind, "output_index": at, "item_id": self.output.last().map(|item| &item["id"]),
        });
        if !matches!(self.open, OpenItem::Call(_)) {
            event["content_index"] = 0.into();
        }
        event
    }

    fn append(&mut self, kind: &str, text: &str, logprobs: Value, events: &mut Vec<Value>) {
        self.text.push_str(text);
        let mut event = self.about(kind);
        event["delta"] = text.into();
        if !logprobs.is_null() {
            event["logprobs"] = logprobs;
        }
        self.event(event, events);
    }

    fn add(&mut self, open: OpenItem, item: &Value, events: &mut Vec<Value>) {
        self.open = open;
        self.text.clear();
        self.logprobs.clear();
        self.output.push(item.clone());
        let at = self.output.len() - 1;
        let event =
            json!({ "type": "response.output_item.added", "output_index": at, "item": item });
        self.event(event, events);
    }

    /// Begins a message or reasoning unless it is open.
    fn begin(&mut self, open: OpenItem, events: &mut Vec<Value>) {
        if self.open == open {
            return;
        }
        self.close("completed", events);
        let number = self.output.len();
        let id = |prefix: &str| match number {
            0 => renamed(prefix, &self.id),
            _ => format!("{}_{number}", renamed(prefix, &self.id)),
        };
        let item = match open {
            OpenItem::Reasoning => json!({
                "id": id("rs_"), "type": "reasoning", "status": "in_progress",
                "summary": [], "content": [],
            }),
            _ => json!({
                "id": id("msg_"), "type": "message", "status": "in_progress", "role": "assistant",
                "content": [],
            }),
        };
        self.add(open, &item, events);
        let mut event = self.about("response.content_part.added");
        event["part"] = self.part();
        self.event(event, events);
    }

    /// The open item's content.
    fn part(&self) -> Value {
        match self.open {
            OpenItem::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            _ => json!({
                "type": "output_text", "text": self.text, "annotations": [],
                "logprobs": self.logprobs,
            }),
        }
    }

    fn close(&mut self, status: &str, events: &mut Vec<Value>) {
        let (done, key) = match self.open {
            OpenItem::None => return,
            OpenItem::Reasoning => ("response.reasoning_text.done", "text"),
            OpenItem::Message => ("response.output_text.done", "text"),
            OpenItem::Call(_) => ("response.function_call_arguments.done", "arguments"),
        };
        let mut event = self.about(done);
        event[key] = self.text.as_str().into();
        let is_call = matches!(self.open, OpenItem::Call(_));
        if self.open == OpenItem::Message {
            self.logprobs.append(&mut self.held);
            event["logprobs"] = json!(self.logprobs);
        }
        if is_call {
            event["name"] = self.output.last().map(|item| item["name"].clone()).unwrap_or_default();
        }
        self.event(event, events);
        let part = self.part();
        if !is_call {
            let mut event = self.about("response.content_part.done");
            event["part"] = part.clone();
            self.event(event, events);
        }
        if let Some(item) = self.output.last_mut() {
            item["status"] = status.into();
            match is_call {
                true => item["arguments"] = self.text.as_str().into(),
                false => item["content"] = json!([part]),
            }
        }
        let at = self.output.len().saturating_sub(1);
        let item = self.output.last().cloned().unwrap_or_default();
        let event =
            json!({ "type": "response.output_item.done", "output_index": at, "item": item });
        self.event(event, events);
        self.open = OpenItem::None;
    }

    /// The last events of a reply that ended without an error.
    pub fn finish(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        let is_cut = self.finish_reason == "length";
        let status = if is_cut { "incomplete" } else { "completed" };
        if self.output.is_empty() {
            self.begin(OpenItem::Message, &mut events);
        }
        self.close(status, &mut events);
        let mut response = self.response(status);
        if is_cut {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let (input, output) =
            (count(&self.usage, "/prompt_tokens"), count(&self.usage, "/completion_tokens"));
        let cached = count(&self.usage, "/prompt_tokens_details/cached_tokens");
        let thought = count(&self.usage, "/completion_tokens_details/reasoning_tokens");
        response["usage"] = json!({
            "input_tokens": input,
            "input_tokens_details": { "cached_tokens": cached, "cache_write_tokens": 0 },
            "output_tokens": output,
            "output_tokens_details": { "reasoning_tokens": thought },
            "total_tokens": input + output,
        });
        let mut event = json!({ "type": format!("response.{status}"), "response": response });
        if let Some(timings) = self.timings.take() {
            event["timings"] = timings;
        }
        self.event(event, &mut events);
        events
    }
}

/// The response of a chat completion that was not streamed.
pub fn response(request: &Value, completion: &Value) -> Value {
    let mut stream = ResponseStream::new(request, completion["created"].as_u64().unwrap_or(0));
    let mut chunk = completion.clone();
    let choice = &completion["choices"][0];
    let mut message = choice["message"].clone();
    for (at, call) in message["tool_calls"].as_array_mut().into_iter().flatten().enumerate() {
        call["index"] = at.into();
    }
    chunk["choices"] = json!([{
        "delta": message, "finish_reason": choice["finish_reason"], "logprobs": choice["logprobs"],
    }]);
    stream.push(&chunk);
    let mut events = stream.finish();
    let mut last = events.pop().unwrap_or_default();
    last["response"].take()
}
