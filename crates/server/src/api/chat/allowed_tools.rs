//! `tool_choice` of the type `allowed_tools`: only some of a request's tools may be called.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Body;

/// The body with only the tools that it allows, and with their mode, `auto` or `required`, as its choice. Any other body
/// is as it was.
///
/// # Errors
/// The choice has no mode, or names a tool that the body does not have.
pub fn restricted(body: Body) -> Result<Body, ApiError> {
    let wrong = |problem: String| ApiError::field("tool_choice", problem);
    let Some(choice) = body.get("tool_choice").filter(|choice| choice["type"] == "allowed_tools")
    else {
        return Ok(body);
    };
    // The Responses API has no object in between.
    let allowed = choice.get("allowed_tools").unwrap_or(choice);
    let mode = allowed["mode"].as_str().filter(|mode| matches!(*mode, "auto" | "required"));
    let mode = mode.ok_or_else(|| wrong("must have a mode, auto or required".to_owned()))?;
    let names = allowed["tools"].as_array().filter(|names| !names.is_empty());
    let names = names.ok_or_else(|| wrong("must have a list of tools".to_owned()))?;
    let tools = body.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let known: HashSet<&str> = tools.iter().filter_map(name).collect();
    let is_known = |tool: &&Value| name(tool).is_some_and(|name| known.contains(name));
    if let Some(other) = names.iter().find(|tool| !is_known(tool)) {
        return Err(wrong(format!("names {other}, which is not one of the tools")));
    }
    let names: HashSet<&str> = names.iter().filter_map(name).collect();
    let is_allowed = |tool: &&Value| name(tool).is_some_and(|name| names.contains(name));
    let tools: Vec<Value> = tools.iter().filter(is_allowed).cloned().collect();
    let mode = json!(mode);
    let mut value = body.value();
    value["tools"] = json!(tools);
    value["tool_choice"] = mode;
    Body::check(value, &[])
}

/// The name of a function.
fn name(tool: &Value) -> Option<&str> {
    tool.pointer("/function/name").or_else(|| tool.get("name"))?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::restricted;
    use crate::fields::Body;

    fn body(choice: &Value) -> Body {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let tools = json!([tool("a"), tool("b"), tool("c")]);
        let body = json!({ "tools": tools, "tool_choice": choice, "seed": 1 });
        Body::check(body, &[]).expect("a body")
    }

    #[test]
    fn only_the_allowed_tools_stay() {
        let named = json!([{ "type": "function", "function": { "name": "c" } }, { "name": "a" }]);
        let inner = json!({ "mode": "required", "tools": named });
        let nested = json!({ "type": "allowed_tools", "allowed_tools": inner });
        let flat = json!({ "type": "allowed_tools", "mode": "required", "tools": named });
        for choice in [nested, flat] {
            let found = restricted(body(&choice)).expect("a choice");
            assert_eq!(found.text("tool_choice"), Some("required"));
            let tools = found.get("tools").and_then(Value::as_array).expect("tools");
            let names: Vec<&Value> = tools.iter().map(|tool| &tool["function"]["name"]).collect();
            assert_eq!(names, ["a", "c"]);
            assert_eq!(found.integer("seed"), Some(1));
        }
        for choice in [json!("auto"), json!({ "type": "function", "function": { "name": "b" } })] {
            let found = restricted(body(&choice)).expect("another choice");
            assert_eq!(
                (found.get("tool_choice"), found.value()["tools"].as_array().map(Vec::len)),
                (Some(&choice), Some(3))
            );
        }
    }

    #[test]
    fn choices_that_are_wrong_are_named() {
        let wrong = [
            json!({ "type": "allowed_tools" }),
            json!({ "type": "allowed_tools", "mode": "none", "tools": [{ "name": "a" }] }),
            json!({ "type": "allowed_tools", "mode": "auto", "tools": [] }),
            json!({ "type": "allowed_tools", "mode": "auto", "tools": [{ "name": "d" }] }),
            json!({ "type": "allowed_tools", "mode": "auto", "tools": [{}] }),
        ];
        for choice in wrong {
            let error = restricted(body(&choice)).expect_err("wrong");
            assert_eq!(error.param.as_deref(), Some("tool_choice"), "{choice}");
        }
    }
}
