//! The schemas of a tool's arguments.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::chat::reply::Tool;

/// The properties of a tool's arguments, and whether each is required.
pub fn properties(tool: &Tool) -> impl Iterator<Item = (&str, Value, bool)> {
    let all = tool.parameters.get("properties").and_then(Value::as_object);
    let required = tool.parameters.get("required").and_then(Value::as_array);
    let required: HashSet<&str> =
        required.into_iter().flatten().filter_map(Value::as_str).collect();
    all.into_iter()
        .flatten()
        .map(move |(key, schema)| (key.as_str(), schema.clone(), required.contains(key.as_str())))
}

/// The schema of a tool's arguments, which are an object.
pub fn object(parameters: &Value) -> Value {
    match parameters {
        Value::Object(schema) if schema.contains_key("type") || schema.contains_key("$ref") => {
            parameters.clone()
        }
        Value::Object(schema) => {
            let mut schema = schema.clone();
            schema.insert("type".to_owned(), json!("object"));
            Value::Object(schema)
        }
        _ => json!({ "type": "object" }),
    }
}

/// The schema of one argument with the definitions that it may refer to.
pub fn with_definitions(schema: &Value, tool: &Tool) -> Value {
    let mut schema = schema.clone();
    for key in ["$defs", "definitions"] {
        if let (Some(all), Some(schema)) = (tool.parameters.get(key), schema.as_object_mut()) {
            schema.insert(key.to_owned(), all.clone());
        }
    }
    schema
}
