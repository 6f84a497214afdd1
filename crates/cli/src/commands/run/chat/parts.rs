//! An answer taken apart: its text, its reasoning, the functions that it calls.

use bilayer_engine::conversation::Function;
use bilayer_text::chat::reply::{Delta, Parser};
use serde_json::{Value, json};

/// The parts of an answer.
#[derive(Debug, Default)]
pub struct Parts {
    /// The text.
    pub content: String,
    /// The reasoning before it.
    pub reasoning: String,
    /// The calls, in order.
    pub calls: Vec<Function>,
}

impl Parts {
    /// Takes a whole answer apart.
    pub fn of(mut parser: Parser, text: &str) -> Parts {
        let mut deltas = parser.push(text);
        deltas.extend(parser.finish());
        let mut parts = Parts::default();
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => parts.reasoning += &text,
                Delta::Content(text) => parts.content += &text,
                Delta::Call { name, .. } => {
                    parts.calls.push(Function { name, arguments: String::new() });
                }
                Delta::Arguments { index, text } => {
                    if let Some(call) = parts.calls.get_mut(index) {
                        call.arguments += &text;
                    }
                }
            }
        }
        parts
    }

    /// Adds the parts to the answer's document, if it is more than text.
    pub fn add_to(&self, document: &mut Value) {
        if self.reasoning.is_empty() && self.calls.is_empty() {
            return;
        }
        document["content"] = self.content.as_str().into();
        if !self.reasoning.is_empty() {
            document["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            let call = |function| json!({ "type": "function", "function": function });
            document["tool_calls"] = self.calls.iter().map(call).collect();
        }
    }
}
