//! Conversations in JSON, as the OpenAI API and transformers' `apply_chat_template` have them.

use serde_json::{Map, Value};

use super::{Function, Message, Role, ToolCall};

/// Why a text is not a list of messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessagesError {
    /// The text is not valid JSON.
    #[error("messages: {0}; give a JSON list of objects with role and content")]
    Json(String),
    /// The list has no message.
    #[error("messages must not be empty")]
    Empty,
    /// A field is missing or of another form.
    #[error("{place} {problem}")]
    Field {
        /// The field, such as `messages[1].tool_calls[0].function.name`.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
}

type Object = Map<String, Value>;

fn wrong<T>(place: &str, problem: impl Into<String>) -> Result<T, MessagesError> {
    Err(MessagesError::Field { place: place.to_owned(), problem: problem.into() })
}

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
        let given: Value =
            serde_json::from_str(json).map_err(|error| MessagesError::Json(error.to_string()))?;
        let Value::Array(list) = given else { return wrong("messages", "must be a list") };
        if list.is_empty() {
            return Err(MessagesError::Empty);
        }
        let mut calls = 0;
        let message =
            |(at, message): (usize, Value)| read(message, &format!("messages[{at}]"), &mut calls);
        list.into_iter().enumerate().map(message).collect()
    }
}

/// Reads a message; `calls` counts the calls so far.
fn read(message: Value, place: &str, calls: &mut usize) -> Result<Message, MessagesError> {
    let Value::Object(mut fields) = message else { return wrong(place, "must be an object") };
    let given = fields.shift_remove("tool_calls").unwrap_or_default();
    let tool_calls = tool_calls(given, &format!("{place}.tool_calls"), calls)?;
    let (role, content) = (fields.shift_remove("role"), fields.shift_remove("content"));
    let (Some(role), true) = (role, content.is_some() || !tool_calls.is_empty()) else {
        return wrong(place, "must have role and content");
    };
    let role = self::role(&role, &format!("{place}.role"))?;
    let content = match content.unwrap_or_default() {
        Value::Null if role == Role::Assistant => String::new(),
        content => text(content, &format!("{place}.content"))?,
    };
    let tool_call_id = match fields.shift_remove("tool_call_id").unwrap_or_default() {
        Value::Null => None,
        Value::String(id) => Some(id),
        _ => return wrong(&format!("{place}.tool_call_id"), "must be a text"),
    };
    Ok(Message { role, content, tool_calls, tool_call_id, extra: fields })
}

fn role(role: &Value, place: &str) -> Result<Role, MessagesError> {
    match role.as_str() {
        // The developer's instructions are what templates call the system's.
        Some("system" | "developer") => Ok(Role::System),
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        Some("tool") => Ok(Role::Tool),
        _ => wrong(
            place,
            format!("is {role}; it must be system, developer, user, assistant or tool"),
        ),
    }
}

/// The text of a message; parts of it are lines.
fn text(content: Value, place: &str) -> Result<String, MessagesError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return wrong(place, "must be a text or a list of text parts"),
    };
    let parts =
        parts.iter().enumerate().map(|(at, part)| text_part(part, &format!("{place}[{at}]")));
    let parts: Vec<&str> = parts.collect::<Result<_, _>>()?;
    Ok(parts.join("\n"))
}

fn text_part<'t>(part: &'t Value, place: &str) -> Result<&'t str, MessagesError> {
    match (part, part["type"].as_str(), &part["text"]) {
        (Value::String(text), ..) | (_, None | Some("text"), Value::String(text)) => Ok(text),
        (_, Some(kind), _) if kind != "text" => {
            wrong(place, format!("is of type {kind}; it must be text"))
        }
        _ => wrong(place, "must be a text part"),
    }
}

fn tool_calls(
    given: Value,
    place: &str,
    count: &mut usize,
) -> Result<Vec<ToolCall>, MessagesError> {
    let list = match given {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        _ => return wrong(place, "must be a list"),
    };
    let call = |(at, call): (usize, Value)| {
        let place = format!("{place}[{at}]");
        let Value::Object(mut fields) = call else { return wrong(&place, "must be an object") };
        let id = match fields.shift_remove("id").unwrap_or_default() {
            Value::Null => super::call_id(*count),
            Value::String(id) => id,
            _ => return wrong(&format!("{place}.id"), "must be a text"),
        };
        *count += 1;
        let place = format!("{place}.function");
        let function = match fields.shift_remove("function") {
            Some(Value::Object(function)) => function,
            _ => return wrong(&place, "must be an object with name and arguments"),
        };
        Ok(ToolCall::Function { id, function: self::function(function, &place)? })
    };
    list.into_iter().enumerate().map(call).collect()
}

fn function(mut fields: Object, place: &str) -> Result<Function, MessagesError> {
    let Some(Value::String(name)) = fields.shift_remove("name") else {
        return wrong(&format!("{place}.name"), "must be a text");
    };
    let arguments = match fields.shift_remove("arguments").unwrap_or_default() {
        Value::Null => "{}".to_owned(),
        Value::String(text) => text,
        object @ Value::Object(_) => object.to_string(),
        _ => return wrong(&format!("{place}.arguments"), "must be an object or its JSON text"),
    };
    Ok(Function { name, arguments })
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
