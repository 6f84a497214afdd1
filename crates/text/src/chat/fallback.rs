//! Conversations for templates that lack a role: functions, their calls and results, and system messages as plain text.

use serde_json::{Map, Value as Json, json};

use super::integers;
use super::reply::Format;
use super::support::Support;

/// Messages that the template shows as a whole: what it does not show is text of other messages.
///
/// - Functions are described in the system message.
/// - Calls are text of the assistant's message, as `format` reads them in replies, or one to a message.
/// - Results, in the order of their calls, and then system messages are text of the user: before the next message if
///   that is the user's, else in a message of their own. One joins the user message right before it, since templates
///   may demand that roles alternate.
pub fn adapted(
    mut messages: Vec<Json>,
    tools: Option<&Json>,
    support: &Support,
    format: &Format,
) -> Vec<Json> {
    if !support.results {
        sort_results(&mut messages);
        messages = as_users(messages, |message| {
            let is_result = is(message, "tool");
            is_result.then(|| format!("<tool_response>\n{}\n</tool_response>", content(message)))
        });
    }
    if support.calls && !support.parallel_calls {
        messages = one_call_each(messages);
    }
    if !support.calls {
        messages.iter_mut().for_each(|message| write_calls(message, format));
    }
    if let Some(tools) = tools.filter(|_| !support.tools) {
        describe(&mut messages, tools, format);
    }
    if !support.system {
        messages = as_users(messages, |message| is(message, "system").then(|| content(message)));
    }
    messages
}

/// Functions with what some templates take for granted: descriptions, also of parameters, and parameters.
pub fn completed(tools: &Json) -> Json {
    let mut tools = tools.clone();
    for tool in tools.as_array_mut().into_iter().flatten() {
        let function = match tool.get("function") {
            Some(_) => &mut tool["function"],
            None => tool,
        };
        let Some(function) = function.as_object_mut() else { continue };
        function.entry("description").or_insert_with(|| "".into());
        let parameters = function.entry("parameters").or_insert_with(|| json!({}));
        let Some(parameters) = parameters.as_object_mut() else { continue };
        parameters.entry("type").or_insert_with(|| "object".into());
        let properties = parameters.entry("properties").or_insert_with(|| json!({}));
        for property in properties.as_object_mut().into_iter().flat_map(Map::values_mut) {
            let property = property.as_object_mut();
            let described = property.map(|property| property.entry("description"));
            described.map(|entry| entry.or_insert_with(|| "".into()));
        }
    }
    tools
}

/// Whether a message needs the fallback.
pub fn concerns(messages: &[Json]) -> bool {
    messages.iter().any(|message| {
        is(message, "system") || is(message, "tool") || message.get("tool_calls").is_some()
    })
}

fn is(message: &Json, role: &str) -> bool {
    message.get("role").is_some_and(|found| found == role)
}

fn content(message: &Json) -> String {
    message.get("content").map(text_of).unwrap_or_default()
}

/// The text of a content.
fn text_of(content: &Json) -> String {
    match content {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Appends the content of a user message to that of the last message if that is the user's too, else the message.
fn push_user(messages: &mut Vec<Json>, mut user: Json) {
    match messages.last_mut().filter(|last| is(last, "user")) {
        Some(last) => last["content"] = joined(last["content"].take(), user["content"].take()),
        None => messages.push(user),
    }
}

/// Two contents as one, the second on a new line: a list of parts if one of them is such a list, else text.
fn joined(first: Json, second: Json) -> Json {
    let part = |text: String| json!({ "type": "text", "text": text });
    match (first, second) {
        (Json::Null, other) | (other, Json::Null) => other,
        (Json::String(text), other) | (other, Json::String(text)) if text.is_empty() => other,
        (Json::Array(mut first), Json::Array(second)) => {
            first.push(part("\n".to_owned()));
            first.extend(second);
            Json::Array(first)
        }
        (Json::Array(mut parts), other) => {
            parts.push(part(format!("\n{}", text_of(&other))));
            Json::Array(parts)
        }
        (other, Json::Array(mut parts)) => {
            parts.insert(0, part(format!("{}\n", text_of(&other))));
            Json::Array(parts)
        }
        (first, second) => format!("{}\n{}", text_of(&first), text_of(&second)).into(),
    }
}

/// Gives each call of a message a message of its own, with its result right behind. The first has the content, and the last
/// is followed by results of no known call.
fn one_call_each(messages: Vec<Json>) -> Vec<Json> {
    let mut done = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
        let Some(calls) = calls.filter(|calls| calls.len() > 1).map(std::mem::take) else {
            done.push(message);
            continue;
        };
        let mut results = Vec::new();
        while let Some(result) = messages.next_if(|next| is(next, "tool")) {
            results.push(result);
        }
        for call in calls {
            let id = call.get("id").filter(|id| !id.is_null());
            let own = |result: &Json| id.is_some() && result.get("tool_call_id") == id;
            let has_none = |result: &Json| result.get("tool_call_id").is_none();
            let at = results.iter().position(own).or_else(|| results.iter().position(has_none));
            let result = at.map(|at| results.remove(at));
            message["tool_calls"] = json!([call]);
            done.push(message.clone());
            done.extend(result);
            // What the first has said the others do not repeat.
            if let Some(fields) = message.as_object_mut() {
                fields.retain(|key, _| matches!(key.as_str(), "role" | "tool_calls" | "content"));
                if let Some(content) = fields.get_mut("content").filter(|own| !own.is_null()) {
                    *content = "".into();
                }
            }
        }
        done.extend(results);
    }
    done
}

/// Sorts the results after each message with calls by their calls.
fn sort_results(messages: &mut [Json]) {
    let mut rest = messages;
    while let Some(at) = rest.iter().position(|message| is(message, "tool")) {
        let (before, results) = rest.split_at_mut(at);
        let count = results.iter().take_while(|message| is(message, "tool")).count();
        let (results, after) = results.split_at_mut(count);
        let calls = before.last().and_then(|message| message.get("tool_calls"));
        let calls = calls.and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
        let ids: Vec<Option<&Json>> = calls.iter().map(|call| call.get("id")).collect();
        results.sort_by_cached_key(|result| {
            let id = result.get("tool_call_id");
            ids.iter().position(|known| *known == id).unwrap_or(ids.len())
        });
        rest = after;
    }
}

/// Replaces the messages in which `taken` finds texts by user messages with these, joined with those right before and
/// after. Without a text, nothing takes the place of a message.
fn as_users(messages: Vec<Json>, taken: impl Fn(&Json) -> Option<String>) -> Vec<Json> {
    let mut done = Vec::with_capacity(messages.len());
    let mut texts: Option<Json> = None;
    for mut message in messages {
        if let Some(text) = taken(&message) {
            texts = Some(joined(texts.unwrap_or_default(), text.into()));
            continue;
        }
        match texts.take() {
            Some(text) if is(&message, "user") => {
                message["content"] = joined(text, message["content"].take());
                push_user(&mut done, message);
                continue;
            }
            Some(text) if text != "" => push_user(&mut done, user(text)),
            _ => {}
        }
        done.push(message);
    }
    if let Some(text) = texts.filter(|text| text != "") {
        push_user(&mut done, user(text));
    }
    done
}

fn user(content: Json) -> Json {
    Json::Object(
        [("role".to_owned(), "user".into()), ("content".to_owned(), content)].into_iter().collect(),
    )
}

/// Moves the calls of a message into its content.
fn write_calls(message: &mut Json, format: &Format) {
    let Some(fields) = message.as_object_mut() else { return };
    let Some(Json::Array(calls)) = fields.remove("tool_calls") else { return };
    let calls: Vec<(String, Json)> = calls.iter().filter_map(call).collect();
    if calls.is_empty() {
        return;
    }
    let written = format.written(&calls);
    let text = match fields.get("content") {
        Some(Json::String(own)) if !own.is_empty() => format!("{own}\n{written}"),
        _ => written,
    };
    fields.insert("content".to_owned(), text.into());
}

/// The function of a call and its arguments.
fn call(call: &Json) -> Option<(String, Json)> {
    let function = call.get("function").unwrap_or(call);
    let name = function.get("name")?.as_str()?.to_owned();
    let arguments = match function.get("arguments") {
        Some(Json::String(text)) => integers::parse(text).unwrap_or_else(|_| json!(text)),
        Some(arguments) => arguments.clone(),
        None => Json::Object(Map::new()),
    };
    Some((name, arguments))
}

/// Describes functions in the system message.
fn describe(messages: &mut Vec<Json>, tools: &Json, format: &Format) {
    let example = format.written(&[("NAME".to_owned(), json!({ "ARGUMENT": "VALUE" }))]);
    let text = format!(
        "You may call functions to answer. Their descriptions in JSON:\n{tools}\n\nTo call a function, write this with \
         its name and its arguments, and nothing after it:\n{example}\nThe result is in the next message."
    );
    match messages.first_mut().filter(|first| is(first, "system")) {
        Some(first) => {
            let own = content(first);
            let text = if own.is_empty() { text } else { format!("{own}\n\n{text}") };
            first["content"] = text.into();
        }
        None => messages.insert(0, json!({ "role": "system", "content": text })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Support = Support {
        system: false,
        tools: false,
        calls: false,
        results: false,
        null_content: false,
        parallel_calls: true,
        short_ids: false,
    };

    fn call_of(id: &str, place: &str) -> Json {
        let arguments = format!("{{\"place\":\"{place}\"}}");
        json!({ "id": id, "type": "function", "function": { "name": "look", "arguments": arguments } })
    }

    #[test]
    fn calls_and_results_are_text_in_the_order_of_the_calls() {
        let given = vec![
            json!({ "role": "user", "content": "Look" }),
            json!({ "role": "assistant", "content": null,
                "tool_calls": [call_of("1", "Rome"), call_of("2", "Oslo")] }),
            json!({ "role": "tool", "tool_call_id": "2", "content": "snow" }),
            json!({ "role": "tool", "tool_call_id": "1", "content": "sun" }),
            json!({ "role": "user", "content": "And?" }),
        ];
        let calls = ["Rome", "Oslo"].map(|place| {
            format!("<tool_call>\n{{\"name\": \"look\", \"arguments\": {{\"place\": \"{place}\"}}}}\n</tool_call>")
        });
        let results =
            "<tool_response>\nsun\n</tool_response>\n<tool_response>\nsnow\n</tool_response>";
        let support = Support { system: true, ..NONE };
        let found = adapted(given, None, &support, &Format::of(""));
        assert_eq!(
            found,
            [
                json!({ "role": "user", "content": "Look" }),
                json!({ "role": "assistant", "content": calls.join("\n") }),
                json!({ "role": "user", "content": format!("{results}\nAnd?") }),
            ]
        );
    }

    #[test]
    fn calls_of_one_message_may_need_several() {
        let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": id });
        let calls = |calls: &[&str], content: &str| {
            let calls: Vec<Json> = calls.iter().map(|id| call_of(id, "Rome")).collect();
            json!({ "role": "assistant", "content": content, "tool_calls": calls })
        };
        let user = json!({ "role": "user", "content": "Look" });
        let given =
            vec![user.clone(), calls(&["1", "2"], "So"), result("2"), result("3"), result("1")];
        let all = Support { system: true, tools: true, calls: true, results: true, ..NONE };
        let of = |support| adapted(given.clone(), None, &support, &Format::of(""));
        assert_eq!(of(all), given);
        assert_eq!(
            of(Support { parallel_calls: false, ..all }),
            [user, calls(&["1"], "So"), result("1"), calls(&["2"], ""), result("2"), result("3")]
        );
    }

    #[test]
    fn arguments_keep_the_digits_of_their_integers() {
        let function = json!({ "name": "look", "arguments": "{\"id\": 123456789012345678901}" });
        let given = vec![json!({ "role": "assistant", "tool_calls": [{ "function": function }] })];
        let found = adapted(given, None, &NONE, &Format::of(""));
        let call = "{\"name\": \"look\", \"arguments\": {\"id\": 123456789012345678901}}";
        assert_eq!(content(&found[0]), format!("<tool_call>\n{call}\n</tool_call>"));
    }

    #[test]
    fn system_messages_are_text_of_the_user() {
        let system = |text: &str| json!({ "role": "system", "content": text });
        let user = |content: Json| json!({ "role": "user", "content": content });
        let answer = json!({ "role": "assistant", "content": "Yes" });
        let part = |text: &str| json!({ "type": "text", "text": text });
        let cases = [
            (vec![system("Be brief"), user(json!("Hi"))], vec![user(json!("Be brief\nHi"))]),
            (
                vec![system("Be brief"), answer.clone(), system("A"), system("B")],
                vec![user(json!("Be brief")), answer.clone(), user(json!("A\nB"))],
            ),
            (
                vec![system("Be brief"), user(json!([part("Hi")]))],
                vec![user(json!([part("Be brief\n"), part("Hi")]))],
            ),
            (vec![system(""), user(json!("Hi"))], vec![user(json!("Hi"))]),
            // User messages that become neighbours are one.
            (
                vec![user(json!("Hi")), system(""), user(json!("there"))],
                vec![user(json!("Hi\nthere"))],
            ),
            (
                vec![user(json!("Hi")), answer.clone(), system(""), answer.clone()],
                vec![user(json!("Hi")), answer.clone(), answer.clone()],
            ),
            (
                vec![user(json!([part("Hi")])), system("A"), user(json!("there"))],
                vec![user(json!([part("Hi"), part("\nA\nthere")]))],
            ),
            (
                vec![user(json!([part("Hi")])), system("A"), user(json!([part("there")]))],
                vec![user(json!([part("Hi"), part("\n"), part("A\n"), part("there")]))],
            ),
            (
                vec![user(json!("Hi")), user(json!("there"))],
                vec![user(json!("Hi")), user(json!("there"))],
            ),
        ];
        for (given, expected) in cases {
            assert_eq!(adapted(given, None, &NONE, &Format::of("")), expected);
        }
    }

    #[test]
    fn functions_are_described_after_the_instructions() {
        let tools = json!([{ "name": "look" }]);
        let system = json!({ "role": "system", "content": "Be brief" });
        let user = json!({ "role": "user", "content": "Hi" });
        let support = Support { system: true, ..NONE };
        let of = |messages| adapted(messages, Some(&tools), &support, &Format::of(""));
        let found = of(vec![system, user.clone()]);
        let text = content(&found[0]);
        assert!(text.starts_with("Be brief\n\nYou may call functions"), "{text}");
        for part in ["[{\"name\":\"look\"}]", "<tool_call>\n{\"name\": \"NAME\""] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!((found.len(), of(vec![user]).len()), (2, 2));
    }
}
