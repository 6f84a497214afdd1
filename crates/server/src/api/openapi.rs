//! `/openapi.json`: made from the tables of fields that also check requests.

use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::api::json;
use crate::endpoint::{Endpoint, Takes};
use crate::fields::Field;

/// The document of some endpoints.
pub fn document(endpoints: &[Endpoint]) -> Response {
    json(&made(endpoints))
}

fn made(endpoints: &[Endpoint]) -> Value {
    let error = json!({ "description": "An error.", "content": { "application/json": { "schema": {
        "type": "object", "required": ["error"],
        "properties": { "error": { "type": "object", "required": ["message", "type", "code"] } },
    } } } });
    let responses = json!({
        "200": { "description": "The answer.", "content": { "application/json": { "schema": {} } } },
        "4XX": error, "5XX": error,
    });
    let mut paths = Map::new();
    for endpoint in endpoints {
        let methods = paths.entry(shown(endpoint.path())).or_insert_with(|| json!({}));
        let method = if endpoint.takes.is_some() { "post" } else { "get" };
        methods[method] = operation(endpoint, &responses);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Bilayer", "version": env!("CARGO_PKG_VERSION") },
        "components": { "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } } },
        "paths": paths,
    })
}

/// A path in the notation of OpenAPI.
fn shown(path: &str) -> String {
    path.replace("{*", "{")
}

fn operation(endpoint: &Endpoint, responses: &Value) -> Value {
    let mut responses = responses.clone();
    responses["200"]["content"] = json!({ endpoint.content: { "schema": {} } });
    let mut operation = json!({ "summary": endpoint.summary, "responses": responses });
    let parameter = |place: &str, name: &str, doc: &str, is_required: bool| {
        // The variables of paths are numbers.
        let ty = if place == "path" { "integer" } else { "string" };
        json!({
            "name": name, "in": place, "required": is_required, "description": doc,
            "schema": { "type": ty },
        })
    };
    let path = shown(endpoint.path());
    let variable = path.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let variable = variable.map(|(name, _)| parameter("path", name, "Which one.", true));
    let query = endpoint.query.iter();
    let query = query.map(|of| parameter("query", of.name, of.doc, of.is_required));
    let parameters: Vec<Value> = variable.into_iter().chain(query).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    let others = &endpoint.paths[1..];
    if !others.is_empty() {
        operation["description"] = format!("Also {}.", others.join(", ")).into();
    }
    let schema = match endpoint.takes {
        None => return operation,
        Some(Takes::Object { tables, required }) => object(tables, required),
        Some(Takes::List(fields)) => json!({ "type": "array", "items": object(&[fields], &[]) }),
    };
    let content = json!({ "application/json": { "schema": schema } });
    operation["requestBody"] = json!({ "required": true, "content": content });
    operation
}

/// The schema of an object.
fn object(tables: &[&[Field]], required: &[&str]) -> Value {
    let properties = tables.iter().copied().flatten();
    let properties = properties.map(|field| (field.name.to_owned(), field.schema()));
    let properties: Map<String, Value> = properties.collect();
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::{made, shown};
    use crate::endpoints::ENDPOINTS;

    #[test]
    fn every_route_is_in_the_document_once() {
        let document = made(ENDPOINTS);
        let mut operations = 0;
        for methods in document["paths"].as_object().expect("paths").values() {
            operations += methods.as_object().expect("methods").len();
        }
        assert_eq!(operations, ENDPOINTS.len());
        for endpoint in ENDPOINTS {
            let method = if endpoint.takes.is_some() { "post" } else { "get" };
            let found = &document["paths"][shown(endpoint.path())][method];
            assert_eq!(found["summary"], endpoint.summary, "{}", endpoint.path());
            for other in &endpoint.paths[1..] {
                let description = found["description"].as_str().unwrap_or_default();
                assert!(description.contains(other), "{other}: {description}");
            }
        }
    }
}
