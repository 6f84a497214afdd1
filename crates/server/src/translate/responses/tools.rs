//! Tools of the Responses API as functions of a chat, and the names under which the model calls them.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::super::{Functions, Result, array, object, refused, text};

/// The functions among the tools, also those within a namespace. Tools of other types, which OpenAI's servers or the client
/// itself define, are left out.
///
/// # Errors
/// A tool has no type, a function has no name, two have the same, or there are too many.
pub(super) fn functions(tools: &Value) -> Result<Functions> {
    let mut functions = Functions::default();
    for (at, tool) in array(tools, "tools")?.iter().enumerate() {
        let at = format!("tools[{at}]");
        let fields = object(tool, &at)?;
        match text(fields, "type", &at)? {
            "function" => functions.add(function(fields, None, &at)?, "tools", &at)?,
            "namespace" => {
                let namespace = text(fields, "name", &at)?;
                let list = format!("{at}.tools");
                let inner = fields.get("tools").map_or(Ok(&[][..]), |tools| array(tools, &list))?;
                for (index, tool) in inner.iter().enumerate() {
                    let at = format!("{list}[{index}]");
                    let fields = object(tool, &at)?;
                    if text(fields, "type", &at)? == "function" {
                        functions.add(function(fields, Some(namespace), &at)?, &list, &at)?;
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
    Ok(function.into())
}

/// The name under which the model knows a function of a namespace. An empty namespace is none.
pub(super) fn full_name(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| !namespace.is_empty()) {
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
    let mut names =
        names.filter(|(space, name)| !space.is_empty() && full_name(Some(space), name) == called);
    names.next()
}

/// The choice of a chat with these tools.
///
/// # Errors
/// It is none, or is a tool that is left out.
pub(super) fn choice(choice: &Value, tools: &Value) -> Result<Value> {
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
            Some("allowed_tools") => allowed(choice, tools),
            Some(kind) => {
                let problem = format!("tools of type {kind:?} are not supported; only functions");
                refused("tool_choice.type", problem)
            }
            None => refused("tool_choice.type", "is missing"),
        },
        _ => refused("tool_choice", "must be none, auto, required, a function or allowed tools"),
    }
}

/// The choice of some tools, which a chat has in this form too: functions by the names under which the model knows them, all
/// of a namespace for its name, without tools that are left out. If no other may be called, none is.
///
/// # Errors
/// A tool that is left out must be called; a namespace is not one of the tools.
fn allowed(choice: &Value, tools: &Value) -> Result<Value> {
    let mut choice = choice.clone();
    let fields = if choice["allowed_tools"].is_object() {
        &mut choice["allowed_tools"]
    } else {
        &mut choice
    };
    let is_required = fields["mode"] == "required";
    let Some(given) = fields["tools"].as_array_mut().filter(|tools| !tools.is_empty()) else {
        return Ok(choice);
    };
    let spaces = namespaces(tools);
    let (mut kept, mut seen) = (Vec::new(), HashSet::new());
    for mut tool in std::mem::take(given) {
        match tool["type"].as_str() {
            Some("namespace") => {
                let Some(space) = tool["name"].as_str() else {
                    return refused("tool_choice.tools", "has a namespace without a name");
                };
                let Some(functions) = spaces.get(space) else {
                    let problem =
                        format!("has the namespace {space:?}, which is not one of the tools");
                    return refused("tool_choice.tools", problem);
                };
                if seen.insert(space.to_owned()) {
                    let names = functions.iter().map(|name| full_name(Some(space), name));
                    kept.extend(names.map(|name| json!({ "type": "function", "name": name })));
                }
            }
            None | Some("function") => {
                if let Some(fields) = tool.as_object_mut() {
                    let namespace = fields.shift_remove("namespace");
                    let namespace = namespace.as_ref().and_then(Value::as_str);
                    if let Some(name) = fields.get("name").and_then(Value::as_str) {
                        let name = full_name(namespace, name);
                        fields.insert("name".to_owned(), name.into());
                    }
                }
                kept.push(tool);
            }
            Some(_) => {}
        }
    }
    if kept.is_empty() {
        return match is_required {
            true => refused("tool_choice.tools", "has no function; other tools are not supported"),
            false => Ok("none".into()),
        };
    }
    *given = kept;
    Ok(choice)
}

/// The functions of each namespace among the tools.
fn namespaces(tools: &Value) -> HashMap<&str, Vec<&str>> {
    let mut spaces: HashMap<&str, Vec<&str>> = HashMap::new();
    for tool in listed(tools).filter(|tool| tool["type"] == "namespace") {
        let functions = listed(&tool["tools"]).filter(|tool| tool["type"] == "function");
        if let Some(name) = tool["name"].as_str() {
            spaces.entry(name).or_default().extend(functions.filter_map(|of| of["name"].as_str()));
        }
    }
    spaces
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
        let function = |name: &str| json!({ "type": "function", "name": name });
        let tools = json!([
            { "type": "namespace", "name": "g", "tools": [function("f"), function("k"), web] }, function("h"),
            { "type": "namespace", "name": "empty" },
        ]);
        let chat = |choice: Value| {
            request(&json!({ "input": "Hi", "tools": tools, "tool_choice": choice }))
        };
        let of = |choice: Value| chat(choice).expect("a chat")["tool_choice"].clone();
        let (given, expected) = (json!([web, space, own]), json!([flat, own]));
        assert_eq!(of(choice(&given)), choice(&expected));
        assert_eq!(of(wrapped(&given)), wrapped(&expected));
        let whole = json!({ "type": "namespace", "name": "g" });
        let (given, expected) = (json!([whole, own, whole]), json!([flat, function("g__k"), own]));
        assert_eq!(of(choice(&given)), choice(&expected));
        assert_eq!(of(choice(&json!([web]))), "none");
        assert_eq!(of(choice(&json!([{ "type": "namespace", "name": "empty" }]))), "none");
        for name in [json!("git"), json!(3)] {
            let other = json!([{ "type": "namespace", "name": name }]);
            assert_eq!(chat(choice(&other)).expect_err("no such").field, "tool_choice.tools");
        }
        assert_eq!(of(choice(&json!([]))), choice(&json!([])), "a chat says what is wrong");
    }
}
