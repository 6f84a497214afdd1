//! The events of a response, and a whole one.

use serde_json::{Value, json};

use super::super::spelled::spelled;
use super::super::{count, renamed};
use super::tools::namespaced;

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

/// Fields of a request that are read when it is answered, most of which the response repeats.
pub const REPEATED: &[&str] = &[
    "instructions",
    "max_output_tokens",
    "metadata",
    "model",
    "parallel_tool_calls",
    "reasoning",
    "stream",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "truncation",
];

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
                let mut item = json!({
                    "id": format!("fc_{id}"), "type": "function_call", "status": "in_progress",
                    "call_id": id, "name": function["name"], "arguments": "",
                });
                let called = function["name"].as_str().unwrap_or_default();
                if let Some((namespace, name)) = namespaced(&self.base["tools"], called) {
                    (item["name"], item["namespace"]) = (name.into(), namespace.into());
                }
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
            // The others spell nothing of it: a stop text, or the marker of a call.
            self.held.clear();
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
