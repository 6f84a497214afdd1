//! The conversation of a chat request: its messages, checked, and its prompt.

use std::collections::HashSet;

use bilayer_text::chat::openai::{self, Fault, Problem};
use bilayer_text::chat::reply::Tool;
use bilayer_text::chat::{Inputs, Prompt};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Body;
use crate::models::Loaded;
use crate::prompt::not_text;
use crate::translate;

/// The tools of a request that the model may call.
pub fn tools(body: &Body) -> Option<&Value> {
    let is_none = body.text("tool_choice") == Some("none");
    body.get("tools").filter(|tools| !is_none && tools.as_array().is_some_and(|t| !t.is_empty()))
}

/// All functions of a request, also if none may be called.
///
/// # Errors
/// One has no name, or that of another.
pub fn functions(body: &Body) -> Result<Vec<Tool>, ApiError> {
    let Some(given) = body.get("tools") else { return Ok(Vec::new()) };
    let tools = Tool::list(given).ok_or_else(|| {
        let problem =
            "must be functions, each with a name: {\"type\": \"function\", \"function\": {...}}";
        ApiError::field("tools", problem)
    })?;
    let mut names = HashSet::new();
    if let Some(at) = tools.iter().position(|tool| !names.insert(tool.name.as_str())) {
        let function = given[at].get("function").map_or("", |_| ".function");
        let error = translate::same_name(&format!("tools[{at}]{function}"), &tools[at].name);
        return Err(ApiError::field(&error.field, error.reason));
    }
    Ok(tools)
}

/// The prompt of a conversation. It ends within the last message if that is the beginning of the answer.
///
/// # Errors
/// The template refuses the messages, or none of them could be continued as the body asks.
pub fn prompt(
    app: &App,
    loaded: &Loaded,
    body: &Body,
    messages: &[Value],
) -> Result<Prompt, ApiError> {
    let continues = continues(body, messages)?;
    let tokenizer = loaded.model.tokenizer();
    let mut extra = usual_variables();
    extra.extend(app.config.template_variables.clone());
    if let Some(effort) = body.text("reasoning_effort") {
        extra.insert("reasoning_effort".to_owned(), json!(effort));
        extra.insert("enable_thinking".to_owned(), json!(effort != "none"));
    }
    if let Some(Value::Object(variables)) = body.get("chat_template_kwargs") {
        extra.extend(variables.clone());
    }
    let tools = tools(body);
    let add_generation_prompt = body.bool("add_generation_prompt").unwrap_or(true);
    let inputs = Inputs { tools, extra, add_generation_prompt, ..Inputs::new(messages) };
    let inputs = inputs.with_tokens_of(tokenizer);
    let template = loaded.template(tools)?;
    Ok(match continues {
        true => template.continuation(&inputs, tokenizer)?,
        false => template.conversation(&inputs, tokenizer)?,
    })
}

/// Variables that templates may use although transformers does not define them: llama-server's.
fn usual_variables() -> Map<String, Value> {
    let now = jiff::Zoned::now();
    Map::from_iter([
        ("enable_thinking".to_owned(), json!(true)),
        ("date_string".to_owned(), json!(now.strftime("%d %b %Y").to_string())),
        ("datetime".to_owned(), json!(now.strftime("%b %d %Y %H:%M:%S").to_string())),
    ])
}

/// Checks messages and gives them the form that templates expect.
///
/// # Errors
/// A message is wrong; the error names it.
pub fn messages(given: &Value) -> Result<Vec<Value>, ApiError> {
    Ok(openai::messages(given.clone())?)
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> ApiError {
        let message = match fault.message {
            Some(at) => format!("messages[{at}]"),
            None => fault.path.clone(),
        };
        match fault.problem {
            Problem::List | Problem::Empty if fault.message.is_none() => {
                ApiError::field(&message, "must be a list of messages")
            }
            Problem::NoRole | Problem::Role(_) => {
                ApiError::field(&message, "must have a 'role', a string")
            }
            Problem::NoContent | Problem::Content => {
                let problem = "must have a 'content', a string or a list of text parts";
                ApiError::field(&message, problem)
            }
            Problem::Part(kind) => not_text(&format!("{message}.content"), &kind),
            problem => ApiError::field(&fault.path, problem),
        }
    }
}

/// Whether the answer continues the last message.
///
/// # Errors
/// It cannot be continued.
fn continues(body: &Body, messages: &[Value]) -> Result<bool, ApiError> {
    let continues = body.flag("continue_final_message");
    if continues && body.flag("add_generation_prompt") {
        let problem = "cannot be true together with add_generation_prompt";
        return Err(ApiError::field("continue_final_message", problem));
    }
    let ends_with_answer = openai::ends_with_answer(messages)?;
    if continues && !ends_with_answer {
        let problem = "needs a last message of the assistant";
        return Err(ApiError::field("continue_final_message", problem));
    }
    Ok(ends_with_answer && (messages.len() > 1 || continues))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{functions, messages};
    use crate::fields::Body;

    #[test]
    fn every_function_has_a_name_of_its_own() {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let given = |tools| Body::check(json!({ "tools": tools }), &[]).expect("a body");
        let tools = functions(&given(json!([tool("a"), { "name": "b" }]))).expect("two names");
        assert_eq!(tools.len(), 2);
        for (tools, param, message) in [
            (json!([tool("a"), {}]), "tools", "must be functions, each with a name"),
            (
                json!([tool("a"), tool("b"), tool("a")]),
                "tools[2].function.name",
                r#"gives two functions the name "a""#,
            ),
            (
                json!([tool("a"), { "name": "a" }]),
                "tools[1].name",
                r#"gives two functions the name "a""#,
            ),
        ] {
            let error = functions(&given(tools)).expect_err("wrong functions");
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)));
            assert!(error.message.contains(message), "{}", error.message);
        }
    }

    #[test]
    fn errors_name_the_message_and_what_it_must_have() {
        let call = |call| json!({ "role": "assistant", "tool_calls": [call] });
        let part = |part| json!({ "role": "user", "content": [part] });
        for (message, param, problem) in [
            (json!(3), "messages[0]", "must be an object"),
            (json!({ "role": 1 }), "messages[0]", "must have a 'role', a string"),
            (json!({ "content": "" }), "messages[0]", "must have a 'role', a string"),
            (
                json!({ "role": "user", "content": 1 }),
                "messages[0]",
                "must have a 'content', a string or a list of text parts",
            ),
            (
                json!({ "role": "user" }),
                "messages[0]",
                "must have a 'content', a string or a list of text parts",
            ),
            (
                part(json!({ "type": "image_url" })),
                "messages[0].content",
                "has a part of type 'image_url'; this model takes text only",
            ),
            (
                part(json!({ "type": "text" })),
                "messages[0].content",
                "has a part of type 'text' that has no text, a string",
            ),
            (call(json!({ "id": 1 })), "messages[0].tool_calls[0].id", "must be a text"),
            (
                call(json!({})),
                "messages[0].tool_calls[0].function",
                "must be an object with name and arguments",
            ),
        ] {
            let error = messages(&json!([message])).expect_err("a wrong message");
            let expected = (Some(param), format!("'{param}' {problem}"));
            assert_eq!((error.param.as_deref(), error.message), expected);
            assert_eq!(error.status, 400);
        }
        for wrong in [json!([]), json!({})] {
            let error = messages(&wrong).expect_err("no messages");
            assert_eq!(error.message, "'messages' must be a list of messages");
        }
    }

    /// Roles of their own, which only some templates know, are for these to judge.
    #[test]
    fn a_template_may_have_other_roles() {
        let given = json!([{ "role": "ipython", "content": "a" }]);
        assert_eq!(json!(messages(&given).expect("messages")), given);
    }
}
