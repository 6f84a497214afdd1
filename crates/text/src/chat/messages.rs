//! Messages of a request in the form that templates expect.

use serde_json::{Value, json};

use super::integers;

/// How templates take the arguments of earlier tool calls, which requests hold as JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentForm {
    /// As objects, as transformers documents it.
    Object,
    /// As JSON text, which some templates write out as it is.
    Text,
}

/// What templates expect in earlier messages.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// The arguments of calls.
    pub arguments: ArgumentForm,
    /// Whether the content of calls without text is null, as in transformers, or an empty text.
    pub null_content: bool,
}

/// A message with its content as one text, the arguments of its calls in the given form, and no null content but that of
/// calls where the form has it. Reasoning is also available under the other names that templates know.
pub fn prepared(message: &Value, form: Form) -> Value {
    let mut message = message.clone();
    let Some(fields) = message.as_object_mut() else { return message };
    let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
    let has_calls = calls.as_ref().is_some_and(|calls| !calls.is_empty());
    for call in calls.into_iter().flatten() {
        let function = match call.get("function").is_some() {
            true => call.get_mut("function"),
            false => Some(call),
        };
        if let Some(arguments) = function.and_then(|function| function.get_mut("arguments")) {
            convert(arguments, form.arguments);
        }
    }
    if let Some(text) = fields.get("content").and_then(joined) {
        fields.insert("content".to_owned(), text.into());
    }
    let has_role = |roles: &[&str]| {
        fields.get("role").and_then(Value::as_str).is_some_and(|role| roles.contains(&role))
    };
    let is_null = fields.get("content").is_none_or(Value::is_null);
    let is_empty = is_null || fields.get("content").is_some_and(|content| content == "");
    if is_empty && has_calls && form.null_content && has_role(&["assistant"]) {
        fields.insert("content".to_owned(), Value::Null);
    } else if is_null && has_role(&["assistant", "tool"]) {
        fields.insert("content".to_owned(), "".into());
    }
    if let Some(reasoning) =
        fields.get("reasoning_content").filter(|text| text.is_string()).cloned()
    {
        fields.entry("reasoning").or_insert(reasoning.clone());
        // Only beside calls: with content, the template of gpt-oss refuses it.
        if has_calls && is_empty {
            fields.entry("thinking").or_insert(reasoning);
        }
    }
    message
}

fn convert(arguments: &mut Value, form: ArgumentForm) {
    match (&*arguments, form) {
        (Value::String(text), ArgumentForm::Object) => {
            let text = if text.trim().is_empty() { "{}" } else { text };
            if let Ok(object @ Value::Object(_)) = integers::parse(text) {
                *arguments = object;
            }
        }
        (Value::Null, ArgumentForm::Object) => *arguments = json!({}),
        (Value::Object(_), ArgumentForm::Text) => *arguments = arguments.to_string().into(),
        _ => {}
    }
}

/// The text of content that is a list of text parts.
fn joined(content: &Value) -> Option<String> {
    let parts = content.as_array()?;
    parts.iter().map(|part| part.get("text").and_then(Value::as_str)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(message: &Value, arguments: ArgumentForm) -> Value {
        super::prepared(message, Form { arguments, null_content: false })
    }

    #[test]
    fn calls_without_text_may_have_null_content() {
        let form = Form { arguments: ArgumentForm::Object, null_content: true };
        let of = |role: &str, content: Value, calls: Value| {
            let message = json!({ "role": role, "content": content, "tool_calls": calls });
            super::prepared(&message, form)["content"].clone()
        };
        for content in [Value::Null, json!("")] {
            assert_eq!(of("assistant", content.clone(), json!([{}])), Value::Null);
            assert_eq!(of("assistant", content.clone(), json!([])), "");
            assert_eq!(of("tool", content, json!([{}])), "");
        }
        assert_eq!(of("assistant", json!("a"), json!([{}])), "a");
    }

    #[test]
    fn messages_take_the_form_of_templates() {
        let call = |arguments: Value| {
            json!({ "role": "assistant", "content": null, "reasoning_content": "Hm",
                "tool_calls": [{ "id": "1", "function": { "name": "f", "arguments": arguments } }] })
        };
        let object = prepared(&call("{\"a\": 1}".into()), ArgumentForm::Object);
        assert_eq!(object["tool_calls"][0]["function"]["arguments"], json!({ "a": 1 }));
        assert_eq!((&object["content"], &object["thinking"]), (&json!(""), &json!("Hm")));
        let none = prepared(&call(Value::Null), ArgumentForm::Object);
        assert_eq!(none["tool_calls"][0]["function"]["arguments"], json!({}));
        let wide = prepared(&call("{\"a\": 123456789012345678901}".into()), ArgumentForm::Object);
        let wide =
            crate::chat::value(&wide["tool_calls"][0]["function"]["arguments"], &str::to_owned);
        assert_eq!(wide.to_string(), "{'a': 123456789012345678901}");
        let text = prepared(&call(json!({ "a": 1 })), ArgumentForm::Text);
        assert_eq!(text["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        let odd = prepared(&call("[1".into()), ArgumentForm::Object);
        assert_eq!(odd["tool_calls"][0]["function"]["arguments"], "[1");
        let parts = json!({ "role": "user", "content": [{ "type": "text", "text": "a" }, { "text": "b" }] });
        assert_eq!(prepared(&parts, ArgumentForm::Object)["content"], "ab");
        let image = json!({ "role": "user", "content": [{ "type": "image_url" }] });
        assert_eq!(prepared(&image, ArgumentForm::Object), image);
        assert_eq!(prepared(&json!(3), ArgumentForm::Object), json!(3));
    }

    #[test]
    fn arguments_take_either_form() {
        use ArgumentForm::{Object, Text};
        let (text, object) = (json!("{\"a\": 1}"), json!({ "a": 1 }));
        let cases = [
            (text.clone(), object.clone(), text),
            (object.clone(), object, json!("{\"a\":1}")),
            (json!(" "), json!({}), json!(" ")),
            (json!("3"), json!("3"), json!("3")),
            (Value::Null, json!({}), Value::Null),
            (json!([1]), json!([1]), json!([1])),
        ];
        for (given, as_object, as_text) in cases {
            for (form, expected) in [(Object, as_object), (Text, as_text)] {
                let calls =
                    json!([{ "arguments": given }, { "function": { "arguments": given } }, {}]);
                let message = prepared(&json!({ "role": "user", "tool_calls": calls }), form);
                let calls = json!([{ "arguments": expected }, { "function": { "arguments": expected } }, {}]);
                assert_eq!(message, json!({ "role": "user", "tool_calls": calls }), "{form:?}");
            }
        }
    }

    #[test]
    fn content_and_reasoning_are_where_templates_look() {
        let call = json!([{}]);
        let cases = [
            // Without content, only what answers has an empty one.
            (json!({ "role": "assistant" }), json!({ "role": "assistant", "content": "" })),
            (json!({ "role": "tool", "content": null }), json!({ "role": "tool", "content": "" })),
            (json!({ "role": "user" }), json!({ "role": "user" })),
            (
                json!({ "role": "user", "content": null }),
                json!({ "role": "user", "content": null }),
            ),
            (json!({ "content": "a", "role": "tool" }), json!({ "content": "a", "role": "tool" })),
            // Reasoning has several names, one of them beside calls alone.
            (
                json!({ "role": "assistant", "content": "a", "reasoning_content": "b", "tool_calls": call }),
                json!({ "role": "assistant", "content": "a", "reasoning_content": "b", "tool_calls": call,
                    "reasoning": "b" }),
            ),
            (
                json!({ "role": "assistant", "reasoning_content": "b", "tool_calls": call }),
                json!({ "role": "assistant", "reasoning_content": "b", "tool_calls": call, "content": "",
                    "reasoning": "b", "thinking": "b" }),
            ),
            (
                json!({ "role": "assistant", "reasoning_content": "b", "tool_calls": [] }),
                json!({ "role": "assistant", "reasoning_content": "b", "tool_calls": [], "content": "",
                    "reasoning": "b" }),
            ),
            (
                json!({ "role": "user", "reasoning_content": "b", "reasoning": "c" }),
                json!({ "role": "user", "reasoning_content": "b", "reasoning": "c" }),
            ),
            (json!({ "reasoning_content": 3 }), json!({ "reasoning_content": 3 })),
        ];
        for (given, expected) in cases {
            assert_eq!(prepared(&given, ArgumentForm::Text), expected, "{given}");
        }
    }
}
