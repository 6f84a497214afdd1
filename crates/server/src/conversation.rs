//! The conversation of a chat request: its messages, checked, and its prompt.

use bilayer_text::chat::{Inputs, Prompt};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::call_ids;
use crate::error::ApiError;
use crate::fields::Body;
use crate::models::Loaded;
use crate::prompt::text_of;

/// The tools of a request that the model may call.
pub fn tools(body: &Body) -> Option<&Value> {
    let is_none = body.text("tool_choice") == Some("none");
    body.get("tools").filter(|tools| !is_none && tools.as_array().is_some_and(|t| !t.is_empty()))
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
    // A template may want the tools as one text.
    let functions = tools.map(Value::to_string).unwrap_or_default();
    extra.entry("functions").or_insert(json!(functions));
    let short = loaded.takes_short_call_ids.then(|| call_ids::shortened(messages));
    let messages = short.as_deref().unwrap_or(messages);
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

/// Checks messages and joins their text parts.
///
/// # Errors
/// A message is wrong; the error names it.
pub fn messages(value: &Value) -> Result<Vec<Value>, ApiError> {
    let wrong = |at: usize, what: &str| ApiError::field(&format!("messages[{at}]"), what);
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| ApiError::field("messages", "must be a list of messages"))?;
    let mut messages = Vec::with_capacity(list.len());
    for (at, message) in list.iter().enumerate() {
        let object = message.as_object().ok_or_else(|| wrong(at, "must be an object"))?;
        let mut object = object.clone();
        let role = object.get("role").and_then(Value::as_str);
        let role = role.ok_or_else(|| wrong(at, "must have a 'role', a string"))?.to_owned();
        let given = object.get("tool_calls").filter(|calls| !calls.is_null());
        let (has_list, calls) = (given.is_some(), given.is_some_and(|calls| *calls != json!([])));
        if !calls {
            // Clients send empty lists where there is no call.
            object.shift_remove("tool_calls");
        }
        let refusal = object.get("refusal").filter(|text| role == "assistant" && text.is_string());
        match object.get("content") {
            Some(Value::String(_)) => {}
            Some(Value::Array(parts)) => {
                // As in llama-server, parts of an answer that is continued are paragraphs.
                let is_continued = role == "assistant" && at + 1 == list.len();
                let between = if is_continued { "\n\n" } else { "\n" };
                let text = text_of(parts, &format!("messages[{at}].content"))?.join(between);
                object.insert("content".to_owned(), json!(text));
            }
            None | Some(Value::Null) if !calls && refusal.is_some() => {
                let refusal = refusal.cloned().unwrap_or_default();
                object.insert("content".to_owned(), refusal);
            }
            None | Some(Value::Null)
                if role == "assistant" && (has_list || object.contains_key("content")) =>
            {
                object.insert("content".to_owned(), if calls { Value::Null } else { json!("") });
            }
            _ => return Err(wrong(at, "must have a 'content', a string or a list of text parts")),
        }
        // The developer's instructions are what templates call the system's.
        if role == "developer" {
            object.insert("role".to_owned(), json!("system"));
        }
        messages.push(Value::Object(object));
    }
    Ok(messages)
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
    let is_answer = |message: &Value| {
        message["role"] == "assistant" && message.get("tool_calls").is_none_or(Value::is_null)
    };
    let last = messages.iter().rev().take_while(|message| is_answer(message)).count();
    if last > 1 {
        let problem = "ends with more than one message of the assistant";
        return Err(ApiError::field("messages", problem));
    }
    if continues && last == 0 {
        let problem = "needs a last message of the assistant";
        return Err(ApiError::field("continue_final_message", problem));
    }
    Ok(last == 1 && (messages.len() > 1 || continues))
}
