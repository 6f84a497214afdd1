//! Tools of the Responses API as functions of a chat, and the names under which the model calls them.

use serde_json::{Map, Value, json};

use super::super::{Result, array, object, refused, text};

/// The functions among the tools, also those within a namespace. Tools of other types, which OpenAI's servers or the client
/// itself define, are left out.
///
/// # Errors
/// A tool has no type, a function has no name, or two have the same.
pub(super) fn functions(tools: &Value) -> Result<Vec<Value>> {
    let mut functions = Vec::new();
    let mut add = |function: Value, at: &str| {
        let name = &function["function"]["name"];
        if functions.iter().any(|other: &Value| other["function"]["name"] == *name) {
            return refused(format!("{at}.name"), format!("gives two functions the name {name}"));
        }
        functions.push(function);
        Ok(())
    };
    for (at, tool) in array(tools, "tools")?.iter().enumerate() {
        let at = format!("tools[{at}]");
        let fields = object(tool, &at)?;
        match text(fields, "type", &at)? {
            "function" => add(function(fields, None, &at)?, &at)?,
            "namespace" => {
                let namespace = text(fields, "name", &at)?;
                let at = format!("{at}.tools");
                let inner = fields.get("tools").map_or(Ok(&[][..]), |tools| array(tools, &at))?;
                for (index, tool) in inner.iter().enumerate() {
                    let at = format!("{at}[{index}]");
                    let fields = object(tool, &at)?;
                    if text(fields, "type", &at)? == "function" {
                        add(function(fields, Some(namespace), &at)?, &at)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(functions)
}

/// The types of the tools that [`functions`] leaves out.
pub fn left_out(tools: &Value) -> Vec<&str> {
    let inner = listed(tools).filter(|tool| tool["type"] == "namespace");
    let inner = inner.flat_map(|tool| listed(&tool["tools"]));
    let kinds = listed(tools).chain(inner).filter_map(|tool| tool["type"].as_str());
    kinds.filter(|kind| !matches!(*kind, "function" | "namespace")).collect()
}

fn listed(tools: &Value) -> impl Iterator<Item = &Value> {
    tools.as_array().into_iter().flatten()
}

fn function(fields: &Map<String, Value>, namespace: Option<&str>, at: &str) -> Result<Value> {
    let name = full_name(namespace, text(fields, "name", at)?);
    let mut function = Map::from_iter([("name".to_owned(), Value::from(name))]);
    let kept = ["description", "parameters", "strict"].iter();
    let kept = kept.filter_map(|key| Some(((*key).to_owned(), fields.get(*key)?.clone())));
    function.extend(kept.filter(|(_, value)| !value.is_null()));
    Ok(json!({ "type": "function", "function": function }))
}

/// The name under which the model knows a function of a namespace.
pub(super) fn full_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) if namespace.ends_with('_') => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
        None => name.to_owned(),
    }
}

/// The namespace and the name in it of a function that the model calls; `None` for one without a namespace.
pub(super) fn namespaced<'t>(tools: &'t Value, called: &str) -> Option<(&'t str, &'t str)> {
    let spaces = tools.as_array()?.iter().filter(|tool| tool["type"] == "namespace");
    let names = spaces.flat_map(|space| {
        listed(&space["tools"])
            .filter_map(|tool| Some((space["name"].as_str()?, tool["name"].as_str()?)))
    });
    let mut names = names.filter(|(space, name)| full_name(Some(space), name) == called);
    names.next()
}

/// The choice of a chat.
///
/// # Errors
/// It is none, or is a tool that is left out.
pub(super) fn choice(choice: &Value) -> Result<Value> {
    match choice {
        Value::String(name) if matches!(name.as_str(), "none" | "auto" | "required") => {
            Ok(choice.clone())
        }
        Value::Object(fields) => match fields.get("type").and_then(Value::as_str) {
            Some("function") => {
                let name = text(fields, "name", "tool_choice")?;
                let name = full_name(fields.get("namespace").and_then(Value::as_str), name);
                Ok(json!({ "type": "function", "function": { "name": name } }))
            }
            Some("allowed_tools") => allowed(choice),
            Some(kind) => {
                let problem = format!("tools of type {kind:?} are not supported; only functions");
                refused("tool_choice.type", problem)
            }
            None => refused("tool_choice.type", "is missing"),
        },
        _ => refused("tool_choice", "must be none, auto, required, a function or allowed tools"),
    }
}

/// The choice of some tools, which a chat has in this form too: functions by the names under which the model knows them,
/// without tools that are left out. If no other may be called, none is.
///
/// # Errors
/// A tool that is left out must be called.
fn allowed(choice: &Value) -> Result<Value> {
    let mut choice = choice.clone();
    let fields = if choice["allowed_tools"].is_object() {
        &mut choice["allowed_tools"]
    } else {
        &mut choice
    };
    let is_required = fields["mode"] == "required";
    let Some(tools) = fields["tools"].as_array_mut().filter(|tools| !tools.is_empty()) else {
        return Ok(choice);
    };
    let is_kept = |tool: &Value| match tool["type"].as_str() {
        Some(kind) => matches!(kind, "function" | "namespace"),
        None => true,
    };
    tools.retain(is_kept);
    if tools.is_empty() {
        return match is_required {
            true => refused("tool_choice.tools", "has no function; other tools are not supported"),
            false => Ok("none".into()),
        };
    }
    for tool in tools.iter_mut().filter_map(Value::as_object_mut) {
        let namespace = tool.shift_remove("namespace");
        let namespace = namespace.as_ref().and_then(Value::as_str);
        if let Some(name) = tool.get("name").and_then(Value::as_str) {
            let name = full_name(namespace, name);
            tool.insert("name".to_owned(), name.into());
        }
    }
    Ok(choice)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::request;

    #[test]
    fn allowed_tools_have_the_names_that_the_model_knows() {
        let space = json!({ "type": "function", "namespace": "g", "name": "f" });
        let (web, own) =
            (json!({ "type": "web_search" }), json!({ "type": "function", "name": "h" }));
        let flat = json!({ "type": "function", "name": "g__f" });
        let wrapped = |tools: &Value| json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": tools } });
        let choice =
            |tools: &Value| json!({ "type": "allowed_tools", "mode": "auto", "tools": tools });
        let of = |choice: Value| {
            let chat = request(&json!({ "input": "Hi", "tool_choice": choice }));
            chat.expect("a chat")["tool_choice"].clone()
        };
        let (given, expected) = (json!([web, space, own]), json!([flat, own]));
        assert_eq!(of(choice(&given)), choice(&expected));
        assert_eq!(of(wrapped(&given)), wrapped(&expected));
        assert_eq!(of(choice(&json!([web]))), "none");
        assert_eq!(of(choice(&json!([]))), choice(&json!([])), "a chat says what is wrong");
    }
}
