//! The parts of an answer in its document.

use bilayer_engine::tools::Reply;
use serde_json::{Value, json};

/// Adds the parts to the answer's document, if it is more than text.
pub fn add(reply: &Reply, document: &mut Value) {
    if reply.reasoning.is_empty() && reply.calls.is_empty() {
        return;
    }
    document["content"] = reply.content.as_str().into();
    if !reply.reasoning.is_empty() {
        document["reasoning_content"] = reply.reasoning.as_str().into();
    }
    if !reply.calls.is_empty() {
        let call = |function| json!({ "type": "function", "function": function });
        document["tool_calls"] = reply.calls.iter().map(call).collect();
    }
}
