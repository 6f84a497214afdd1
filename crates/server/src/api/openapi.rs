//! `/openapi.json`: made from the tables of fields that also check requests.

use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::api::{
    chat, completions, embeddings, extract, info, json, native, rerank, responses, tokens,
};
use crate::fields::Field;
use crate::params;

/// An endpoint with a body: path, what it does, its tables, the fields that must be there.
type Endpoint = (&'static str, &'static str, &'static [&'static [Field]], &'static [&'static str]);

/// The endpoints with bodies.
pub const ENDPOINTS: &[Endpoint] = &[
    (
        "/v1/chat/completions",
        "Answer a conversation.",
        &[params::FIELDS, chat::FIELDS],
        &["messages"],
    ),
    (
        "/v1/chat/completions/input_tokens",
        "Count the tokens of a conversation.",
        &[params::FIELDS, chat::FIELDS],
        &["messages"],
    ),
    (
        "/v1/responses",
        "Answer an input, with OpenAI's Responses API.",
        &[responses::FIELDS],
        &["input"],
    ),
    ("/v1/completions", "Continue texts.", &[params::FIELDS, completions::FIELDS], &["prompt"]),
    (
        "/completion",
        "Continue a text, with llama-server's fields.",
        &[params::FIELDS, native::FIELDS],
        &["prompt"],
    ),
    (
        "/infill",
        "Fill in code between a prefix and a suffix.",
        &[params::FIELDS, native::FIELDS, native::INFILL],
        &[],
    ),
    ("/v1/embeddings", "Make a vector of each text.", &[embeddings::FIELDS], &["input"]),
    ("/v1/rerank", "Score documents for a query.", &[rerank::FIELDS], &["query"]),
    ("/v1/classify", "Label texts.", &[rerank::CLASSIFY], &["input"]),
    ("/v1/extract", "Extract entities from texts.", &[extract::FIELDS], &["input"]),
    ("/tokenize", "Turn a text into tokens.", &[tokens::TOKENIZE], &[]),
    ("/detokenize", "Turn tokens into text.", &[tokens::DETOKENIZE], &["tokens"]),
    (
        "/apply-template",
        "Render a conversation by the chat template.",
        &[params::FIELDS, chat::FIELDS],
        &["messages"],
    ),
    ("/models/load", "Load a model.", &[info::MODEL], &["model"]),
    ("/models/unload", "Unload a model.", &[info::MODEL], &["model"]),
];

/// Endpoints without bodies: path, what it gives, the type of its content.
const READS: &[(&str, &str, &str)] = &[
    ("/health", "Whether requests are answered.", JSON),
    ("/livez", "Whether the process works.", JSON),
    ("/readyz", "Whether a balancer shall send requests.", JSON),
    ("/v1/models", "The models.", JSON),
    ("/props", "Properties of the server and a model.", JSON),
    ("/slots", "What is running.", JSON),
    ("/lora-adapters", "The LoRA adapters and their strengths.", JSON),
    ("/metrics", "Prometheus metrics.", "text/plain"),
];

/// Those of [`READS`] that tell about one of the models.
const OF_A_MODEL: &[&str] = &["/props", "/slots", "/lora-adapters"];

const JSON: &str = "application/json";

/// `GET /openapi.json`.
pub async fn document() -> Response {
    json(&made())
}

fn made() -> Value {
    let error = json!({ "description": "An error.", "content": { "application/json": { "schema": {
        "type": "object", "required": ["error"],
        "properties": { "error": { "type": "object", "required": ["message", "type", "code"] } },
    } } } });
    let responses = json!({
        "200": { "description": "The answer.", "content": { "application/json": { "schema": {} } } },
        "4XX": error, "5XX": error,
    });
    let mut paths = Map::new();
    for (path, summary, tables, required) in ENDPOINTS {
        let properties = tables.iter().copied().flatten();
        let properties = properties.map(|field| (field.name.to_owned(), field.schema()));
        let properties: Map<String, Value> = properties.collect();
        let mut schema = json!({ "type": "object", "properties": properties });
        if let (Some(object), false) = (schema.as_object_mut(), required.is_empty()) {
            object.insert("required".to_owned(), json!(required));
        }
        let post = json!({
            "summary": summary,
            "requestBody": { "required": true, "content": { "application/json": { "schema": schema } } },
            "responses": responses,
        });
        paths.insert((*path).to_owned(), json!({ "post": post }));
    }
    for (path, summary, kind) in READS {
        let mut responses = responses.clone();
        responses["200"]["content"] = json!({ *kind: { "schema": {} } });
        let mut get = json!({ "summary": summary, "responses": responses });
        if OF_A_MODEL.contains(path) {
            get["parameters"] = json!([{
                "name": "model",
                "in": "query",
                "description": "A model that is loaded; without it, the one used last.",
                "schema": { "type": "string" },
            }]);
        }
        paths.insert((*path).to_owned(), json!({ "get": get }));
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Bilayer", "version": env!("CARGO_PKG_VERSION") },
        "components": { "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } } },
        "paths": paths,
    })
}
