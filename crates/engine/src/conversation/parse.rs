//! Conversations in JSON, as the OpenAI API and transformers' `apply_chat_template` have them.

use bilayer_text::chat::openai::{self, Problem};
use serde_json::{Map, Value};

use super::{Function, Message, MessagesError, Role, ToolCall};

impl Message {
    /// Reads a JSON list of messages: objects with `role` and `content`, a text or a list of text parts. The content of an
    /// answer may be null, and its `tool_calls` may lack ids and have arguments as objects. A result of a function has the
    /// role `tool` and may have a `tool_call_id`. The chat template is given all other fields as they are.
    ///
    /// # Errors
    /// The place in the list that has another form, or an empty list.
    ///
    /// ```
    /// use bilayer_engine::conversation::Message;
    ///
    /// let messages = Message::list(r#"[{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]"#)?;
    /// assert_eq!(messages, [Message::user("Hello!")]);
    /// let error = Message::list(r#"[{"role": "user"}]"#).unwrap_err();
    /// assert_eq!(error.to_string(), "messages[0] must have role and content");
    /// # Ok::<(), bilayer_engine::conversation::MessagesError>(())
    /// ```
    pub fn list(json: &str) -> Result<Vec<Message>, MessagesError> {
        let given = serde_json::from_str(json);
        Message::all(given.map_err(|error| MessagesError::Json(error.to_string()))?)
    }

    /// The messages of a JSON value, as [`Message::list`] reads them.
    ///
    /// # Errors
    /// As [`Message::list`].
    pub fn all(given: Value) -> Result<Vec<Message>, MessagesError> {
        let messages = openai::messages(given)?;
        messages.into_iter().enumerate().map(|(at, message)| typed(at, message)).collect()
    }
}

/// A message that [`openai::messages`] has completed.
fn typed(at: usize, message: Value) -> Result<Message, MessagesError> {
    let mut fields = match message {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let role = match fields.shift_remove("role").unwrap_or_default() {
        Value::String(role) if role == "system" => Role::System,
        Value::String(role) if role == "user" => Role::User,
        Value::String(role) if role == "assistant" => Role::Assistant,
        Value::String(role) if role == "tool" => Role::Tool,
        other => {
            let problem = Problem::Role(other).to_string();
            return Err(MessagesError::Field { place: format!("messages[{at}].role"), problem });
        }
    };
    let mut text = |key: &str| match fields.shift_remove(key) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let (content, tool_call_id) = (text("content").unwrap_or_default(), text("tool_call_id"));
    let calls = fields.shift_remove("tool_calls").unwrap_or_default();
    let tool_calls = calls.as_array().into_iter().flatten().map(call).collect();
    Ok(Message { role, content, tool_calls, tool_call_id, extra: fields })
}

/// A call that [`openai::messages`] has completed.
fn call(call: &Value) -> ToolCall {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        object => object.to_string(),
    };
    let (id, function) = (text(&call["id"]), &call["function"]);
    let function =
        Function { name: text(&function["name"]), arguments: text(&function["arguments"]) };
    ToolCall::Function { id, function }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Function, Message, Role, ToolCall};

    #[test]
    fn calls_and_results_are_those_of_the_given_messages() {
        let given = json!([
            { "role": "developer", "content": "Be terse." },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, "b"], "name": "Ada" },
            { "role": "assistant", "content": null, "reasoning_content": "Hm", "tool_calls": [
                { "type": "function", "function": { "name": "f", "arguments": { "b": 1, "a": 2 } } },
                { "id": "x", "function": { "name": "g", "arguments": "{}" } },
            ] },
            { "role": "tool", "tool_call_id": "x", "content": "3" },
        ]);
        let messages = Message::list(&given.to_string()).unwrap();
        assert_eq!(messages[0], Message::system("Be terse."));
        assert_eq!((&*messages[1].content, &messages[1].extra["name"]), ("a\nb", &json!("Ada")));
        let call = |id: &str, name: &str, arguments: &str| ToolCall::Function {
            id: id.to_owned(),
            function: Function { name: name.to_owned(), arguments: arguments.to_owned() },
        };
        let calls = [call("call00000", "f", r#"{"b":1,"a":2}"#), call("x", "g", "{}")];
        assert_eq!((&*messages[2].content, &messages[2].tool_calls[..]), ("", &calls[..]));
        assert_eq!(json!(messages[2])["reasoning_content"], "Hm");
        assert_eq!(
            (messages[3].role, messages[3].tool_call_id.as_deref()),
            (Role::Tool, Some("x"))
        );
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let of = |message| Message::list(&json!([message]).to_string()).unwrap_err().to_string();
        let call = |call| json!({ "role": "assistant", "tool_calls": [call] });
        for (message, expected) in [
            (json!(3), "messages[0] must be an object"),
            (json!({ "role": "user" }), "messages[0] must have role and content"),
            (
                json!({ "role": "wizard", "content": "" }),
                "messages[0].role is \"wizard\"; it must be system, developer, user, assistant or tool",
            ),
            (
                json!({ "role": "user", "content": null }),
                "messages[0].content must be a text or a list of text parts",
            ),
            (
                json!({ "role": "user", "content": [{ "type": "image_url" }] }),
                "messages[0].content[0] is of type image_url; it must be text",
            ),
            (
                call(json!({})),
                "messages[0].tool_calls[0].function must be an object with name and arguments",
            ),
            (
                call(json!({ "function": { "arguments": "{}" } })),
                "messages[0].tool_calls[0].function.name must be a text",
            ),
            (
                call(json!({ "function": { "name": "f", "arguments": 3 } })),
                "messages[0].tool_calls[0].function.arguments must be an object or its JSON text",
            ),
        ] {
            assert_eq!(of(message), expected);
        }
        assert!(Message::list("[{").unwrap_err().to_string().starts_with("messages: "));
        assert_eq!(Message::list("[]").unwrap_err().to_string(), "messages must not be empty");
        assert_eq!(Message::list("3").unwrap_err().to_string(), "messages must be a list");
    }
}
