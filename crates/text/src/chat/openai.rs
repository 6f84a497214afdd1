//! Messages in the form of OpenAI's chat completions, checked and completed.
//!
//! [`messages`] takes what OpenAI's API takes, and also what its clients send although the API does not have it: calls without
//! ids or types, arguments as objects, functions in the place of calls, strings among content parts, parts of the Responses
//! API.

use serde_json::{Map, Value, json};

/// A place in messages that has another form than that of the API.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path} {problem}")]
pub struct Fault {
    /// The number of the message, from 0; `None` if the list as a whole is wrong.
    pub message: Option<usize>,
    /// The field, such as `messages[1].tool_calls[0].function.name`.
    pub path: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a place in messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is no list.
    #[error("must be a list")]
    List,
    /// There is no message.
    #[error("must not be empty")]
    Empty,
    /// It is no object.
    #[error("must be an object")]
    Object,
    /// A message has no role.
    #[error("must have role and content")]
    NoRole,
    /// The role is no text, or none that a caller knows: [`messages`] allows all texts.
    #[error("is {0}; it must be system, developer, user, assistant or tool")]
    Role(Value),
    /// A message has no content, and no calls or refusal in its place.
    #[error("must have role and content")]
    NoContent,
    /// The content has another form.
    #[error("must be a text or a list of text parts")]
    Content,
    /// A part of the content is no text; this is its `type`, empty if it has none.
    #[error("{}", not_text(.0))]
    Part(String),
    /// It is no text.
    #[error("must be a text")]
    Text,
    /// A call has no function.
    #[error("must be an object with name and arguments")]
    Function,
    /// The arguments of a call have another form.
    #[error("must be an object or its JSON text")]
    Arguments,
    /// It is not clear which answer is continued.
    #[error("ends with more than one message of the assistant")]
    Answers,
}

/// Types of parts that are text.
const TEXTS: [&str; 5] = ["", "text", "input_text", "output_text", "refusal"];

fn not_text(kind: &str) -> String {
    match TEXTS.contains(&kind) {
        true => "must be a text part".to_owned(),
        false => format!("is of type {kind}; it must be text"),
    }
}

type Object = Map<String, Value>;

fn fault<T>(message: usize, field: &str, problem: Problem) -> Result<T, Fault> {
    let path = format!("messages[{message}]{field}");
    Err(Fault { message: Some(message), path, problem })
}

fn list_fault<T>(problem: Problem) -> Result<T, Fault> {
    Err(Fault { message: None, path: "messages".to_owned(), problem })
}

/// An id for the call with a number; some templates insist on nine letters and digits.
pub fn call_id(number: usize) -> String {
    format!("call{number:05}")
}

/// Checks the messages of a request and gives them one form, in which a message has
///
/// - a `role`, a text; `developer` has become `system`, the name that templates know;
/// - a `content`, a text, or null beside calls; parts have become lines of one text, those of an assistant's last message
///   paragraphs as in llama-server, and a refusal the content of an answer that has none;
/// - `tool_calls` only if there are some, each with an `id`, a `type`, and a `function` with a `name` and `arguments`, an
///   object or JSON text;
/// - all other fields as they were given.
///
/// # Errors
/// The place that has another form.
///
/// ```
/// use bilayer_text::chat::openai;
/// use serde_json::json;
///
/// let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
/// let messages = openai::messages(json!([{ "role": "user", "content": parts }]))?;
/// assert_eq!(messages, [json!({ "role": "user", "content": "a\nb" })]);
/// let fault = openai::messages(json!([{ "role": "user", "content": 3 }])).unwrap_err();
/// assert_eq!(fault.path, "messages[0].content");
/// # Ok::<(), openai::Fault>(())
/// ```
pub fn messages(given: Value) -> Result<Vec<Value>, Fault> {
    let Value::Array(list) = given else { return list_fault(Problem::List) };
    let Some(last) = list.len().checked_sub(1) else { return list_fault(Problem::Empty) };
    let mut calls = 0;
    let each = list.into_iter().enumerate();
    each.map(|(at, message)| completed(message, (at, last), &mut calls)).collect()
}

/// Whether the last message is an answer without calls, which can be continued.
///
/// # Errors
/// [`Problem::Answers`] if there are several of them at the end.
pub fn ends_with_answer(messages: &[Value]) -> Result<bool, Fault> {
    let is_answer = |message: &&Value| {
        message["role"] == "assistant" && message.get("tool_calls").is_none_or(Value::is_null)
    };
    match messages.iter().rev().take_while(is_answer).count() {
        0 => Ok(false),
        1 => Ok(true),
        _ => list_fault(Problem::Answers),
    }
}

/// The text of a content part.
///
/// # Errors
/// [`Problem::Part`] if it is no text.
pub fn text(part: &Value) -> Result<&str, Problem> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let text = part.get(if kind == "refusal" { kind } else { "text" }).and_then(Value::as_str);
    text.filter(|_| TEXTS.contains(&kind)).ok_or_else(|| Problem::Part(kind.to_owned()))
}

/// Message `at` in the form of [`messages`], which end with message `last`; `calls` counts the calls so far.
fn completed(given: Value, (at, last): (usize, usize), calls: &mut usize) -> Result<Value, Fault> {
    let Value::Object(mut fields) = given else { return fault(at, "", Problem::Object) };
    let is_answer = match fields.get_mut("role") {
        Some(Value::String(role)) => {
            // The developer's instructions are what templates call the system's.
            if role == "developer" {
                "system".clone_into(role);
            }
            role == "assistant"
        }
        Some(other) => return fault(at, ".role", Problem::Role(other.take())),
        None => return fault(at, "", Problem::NoRole),
    };
    let has_list = fields.get("tool_calls").is_some_and(|calls| !calls.is_null());
    let has_calls = complete_calls(&mut fields, at, calls)?;
    let refusal = fields.get("refusal").filter(|text| text.is_string() && !has_calls);
    let content = match fields.get("content") {
        Some(Value::String(_)) => None,
        Some(Value::Array(parts)) => {
            let between = if is_answer && at == last { "\n\n" } else { "\n" };
            Some(joined(parts, between, at)?.into())
        }
        given @ (None | Some(Value::Null)) if is_answer => match refusal {
            Some(refusal) => Some(refusal.clone()),
            None if has_calls => Some(Value::Null),
            None if has_list || given.is_some() => Some("".into()),
            None => return fault(at, "", Problem::NoContent),
        },
        None => return fault(at, "", Problem::NoContent),
        Some(_) => return fault(at, ".content", Problem::Content),
    };
    fields.extend(content.map(|content| ("content".to_owned(), content)));
    match fields.get("tool_call_id") {
        Some(Value::Null) => drop(fields.shift_remove("tool_call_id")),
        None | Some(Value::String(_)) => {}
        Some(_) => return fault(at, ".tool_call_id", Problem::Text),
    }
    Ok(Value::Object(fields))
}

/// The texts of content parts as one.
fn joined(parts: &[Value], between: &str, message: usize) -> Result<String, Fault> {
    let text = |(at, part)| {
        text(part).or_else(|problem| fault(message, &format!(".content[{at}]"), problem))
    };
    let texts: Vec<&str> = parts.iter().enumerate().map(text).collect::<Result<_, _>>()?;
    Ok(texts.join(between))
}

/// Completes the calls of a message. Returns whether it has any: clients send empty lists, which are removed.
fn complete_calls(fields: &mut Object, at: usize, count: &mut usize) -> Result<bool, Fault> {
    match fields.get_mut("tool_calls") {
        Some(Value::Array(list)) if !list.is_empty() => {
            for (number, call) in list.iter_mut().enumerate() {
                let place = format!(".tool_calls[{number}]");
                let Value::Object(call) = call else { return fault(at, &place, Problem::Object) };
                complete_call(call, call_id(*count))
                    .or_else(|(field, problem)| fault(at, &format!("{place}{field}"), problem))?;
                *count += 1;
            }
            Ok(true)
        }
        None | Some(Value::Null | Value::Array(_)) => {
            fields.shift_remove("tool_calls");
            Ok(false)
        }
        Some(_) => fault(at, ".tool_calls", Problem::List),
    }
}

/// Completes a call; `id` is for one that has none.
///
/// # Errors
/// The field within the call that is wrong.
fn complete_call(call: &mut Object, id: String) -> Result<(), (&'static str, Problem)> {
    if !call.contains_key("function") && call.contains_key("name") {
        let moved = ["name", "arguments"].map(|key| (key.to_owned(), call.shift_remove(key)));
        let moved = moved.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let function: Object = moved.collect();
        call.insert("function".to_owned(), function.into());
    }
    match call.get("id") {
        None | Some(Value::Null) => drop(call.insert("id".to_owned(), id.into())),
        Some(Value::String(_)) => {}
        Some(_) => return Err((".id", Problem::Text)),
    }
    if call.get("type").is_none_or(Value::is_null) {
        call.insert("type".to_owned(), "function".into());
    }
    let Some(Value::Object(function)) = call.get_mut("function") else {
        return Err((".function", Problem::Function));
    };
    if !function.get("name").is_some_and(Value::is_string) {
        return Err((".function.name", Problem::Text));
    }
    match function.get("arguments") {
        None | Some(Value::Null) => {
            function.insert("arguments".to_owned(), json!("{}"));
        }
        Some(Value::String(_) | Value::Object(_)) => {}
        Some(_) => return Err((".function.arguments", Problem::Arguments)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_all_clients_have_one_form() {
        let given = json!([
            { "role": "developer", "content": "Be terse." },
            { "role": "user", "content": [
                { "type": "text", "text": "a" }, "b", { "text": "c" }, { "type": "input_text", "text": "d" },
            ], "name": "Ada" },
            { "role": "assistant", "content": null, "reasoning_content": "Hm", "tool_calls": [
                { "type": "function", "function": { "name": "f", "arguments": { "b": 1, "a": 2 } } },
                { "id": "x", "name": "g", "index": 1 },
            ] },
            { "role": "tool", "tool_call_id": "x", "content": "3" },
            { "role": "tool", "tool_call_id": null, "content": "" },
            { "role": "assistant", "content": null, "refusal": "No", "tool_calls": null },
            { "role": "assistant", "tool_calls": [] },
            { "role": "assistant", "content": [{ "type": "refusal", "refusal": "a" }, { "type": "output_text", "text": "b" }] },
        ]);
        let expected = [
            json!({ "role": "system", "content": "Be terse." }),
            json!({ "role": "user", "content": "a\nb\nc\nd", "name": "Ada" }),
            json!({ "role": "assistant", "content": null, "reasoning_content": "Hm", "tool_calls": [
                { "type": "function", "function": { "name": "f", "arguments": { "b": 1, "a": 2 } }, "id": "call00000" },
                { "id": "x", "index": 1, "type": "function", "function": { "name": "g", "arguments": "{}" } },
            ] }),
            json!({ "role": "tool", "tool_call_id": "x", "content": "3" }),
            json!({ "role": "tool", "content": "" }),
            json!({ "role": "assistant", "content": "No", "refusal": "No" }),
            json!({ "role": "assistant", "content": "" }),
            json!({ "role": "assistant", "content": "a\n\nb" }),
        ];
        assert_eq!(messages(given), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        let of = |message: Value| messages(json!([message])).unwrap_err().to_string();
        let call = |call: Value| json!({ "role": "assistant", "tool_calls": [call] });
        let function = |function: Value| call(json!({ "function": function }));
        for (message, expected) in [
            (json!(3), "messages[0] must be an object"),
            (json!({ "content": "a" }), "messages[0] must have role and content"),
            (json!({ "role": "user" }), "messages[0] must have role and content"),
            (json!({ "role": "assistant" }), "messages[0] must have role and content"),
            (json!({ "role": "user", "refusal": "a" }), "messages[0] must have role and content"),
            (
                json!({ "role": 3, "content": "" }),
                "messages[0].role is 3; it must be system, developer, user, assistant or tool",
            ),
            (
                json!({ "role": "tool", "content": null }),
                "messages[0].content must be a text or a list of text parts",
            ),
            (
                json!({ "role": "user", "content": ["a", { "type": "image_url" }] }),
                "messages[0].content[1] is of type image_url; it must be text",
            ),
            (
                json!({ "role": "user", "content": [{ "type": "text" }] }),
                "messages[0].content[0] must be a text part",
            ),
            (
                json!({ "role": "tool", "content": "", "tool_call_id": 3 }),
                "messages[0].tool_call_id must be a text",
            ),
            (
                json!({ "role": "assistant", "tool_calls": {} }),
                "messages[0].tool_calls must be a list",
            ),
            (call(json!(3)), "messages[0].tool_calls[0] must be an object"),
            (call(json!({ "id": 3 })), "messages[0].tool_calls[0].id must be a text"),
            (
                call(json!({ "type": "custom", "custom": {} })),
                "messages[0].tool_calls[0].function must be an object with name and arguments",
            ),
            (function(json!({})), "messages[0].tool_calls[0].function.name must be a text"),
            (
                function(json!({ "name": "f", "arguments": 3 })),
                "messages[0].tool_calls[0].function.arguments must be an object or its JSON text",
            ),
        ] {
            assert_eq!(of(message), expected);
        }
        let empty = messages(json!([])).unwrap_err();
        assert_eq!((empty.message, &*empty.to_string()), (None, "messages must not be empty"));
        assert_eq!(messages(json!({})).unwrap_err().to_string(), "messages must be a list");
    }

    #[test]
    fn an_answer_at_the_end_can_be_continued() {
        let user = json!({ "role": "user", "content": "a" });
        let answer = json!({ "role": "assistant", "content": "b" });
        let call = json!({ "role": "assistant", "content": "b", "tool_calls": [{}] });
        let of = |messages: &[&Value]| {
            ends_with_answer(&messages.iter().map(|&each| each.clone()).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), Ok(false));
        assert_eq!(of(&[&answer, &user]), Ok(false));
        assert_eq!(of(&[&answer, &call]), Ok(false));
        assert_eq!(of(&[&user, &answer]), Ok(true));
        let several = of(&[&user, &answer, &answer]).unwrap_err();
        assert_eq!(
            several.to_string(),
            "messages ends with more than one message of the assistant"
        );
    }
}
