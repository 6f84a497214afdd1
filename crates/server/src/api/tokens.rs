//! `/tokenize`, `/detokenize` and `/apply-template`.

use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use crate::api::{chat, json};
use crate::app::Shared;
use crate::blocking;
use crate::conversation;
use crate::error::ApiError;
use crate::fields::{Accepts, Field};
use crate::params;
use crate::prompt::{self, Reading};

/// Fields of `/tokenize`.
pub const TOKENIZE: &[Field] = &[
    Field::new("model", Accepts::Text(512), "The model; any name where only one is served."),
    Field::new("content", Accepts::Any, "A text, or a list of tokens and texts."),
    Field::new(
        "add_special",
        Accepts::Bool,
        "Add the special tokens around a text; off by default.",
    ),
    Field::new(
        "parse_special",
        Accepts::Bool,
        "Take control tokens spelled in the text as such; on by default.",
    ),
    Field::new("with_pieces", Accepts::Bool, "Return each token's text too."),
];

/// Fields of `/detokenize`.
pub const DETOKENIZE: &[Field] = &[
    Field::new("model", Accepts::Text(512), "The model; any name where only one is served."),
    Field::new("tokens", Accepts::List(1 << 20), "Token ids."),
];

/// `POST /tokenize`.
pub async fn tokenize(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let body = app.fields(body, &[TOKENIZE]).await?;
    let loaded = app.models.get(body.text("model")).await?;
    let reading = Reading {
        field: "content",
        add_special: body.flag("add_special"),
        parse_special: body.bool("parse_special").unwrap_or(true),
    };
    let (of, has_pieces) = (loaded.clone(), body.flag("with_pieces"));
    let tokenize = move || match body.get("content") {
        Some(content) => prompt::one(&of.model, content, reading),
        None => Ok(Vec::new()),
    };
    let ids = blocking::run("tokenizing", tokenize).await??;
    if !has_pieces {
        return Ok(json(&json!({ "tokens": ids })));
    }
    let tokens = ids.iter().map(|&id| {
        let piece = loaded.model.tokenizer().piece(id).unwrap_or_default();
        // A piece that is no text is a list of bytes.
        let shown = std::str::from_utf8(piece).map_or_else(|_| json!(piece), |text| json!(text));
        json!({ "id": id, "piece": shown })
    });
    Ok(json(&json!({ "tokens": tokens.collect::<Vec<_>>() })))
}

/// `POST /detokenize`: the pieces of the tokens, control tokens and leading spaces included.
pub async fn detokenize(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let body = app.fields(body, &[DETOKENIZE]).await?;
    let loaded = app.models.get(body.text("model")).await?;
    let ids = body.required("tokens")?.as_array().into_iter().flatten().map(|id| {
        let id =
            id.as_u64().ok_or_else(|| ApiError::field("tokens", "must be a list of token ids"))?;
        prompt::token(&loaded.model, id, "tokens")
    });
    let ids: Vec<u32> = ids.collect::<Result<_, _>>()?;
    Ok(json(&json!({ "content": loaded.spelled(&ids) })))
}

/// `POST /apply-template`.
pub async fn apply_template(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let body = app.fields(body, &[params::FIELDS, chat::FIELDS]).await?;
    let loaded = app.models.get(body.text("model")).await?;
    let render = move || {
        let body = chat::translated(body)?;
        let body = chat::allowed_tools::restricted(body)?;
        let messages = conversation::messages(body.required("messages")?)?;
        let prompt = conversation::prompt(&app, &loaded, &body, &messages)?;
        // Whoever tokenizes the text adds this token again.
        let tokenizer = loaded.model.tokenizer();
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let bos = bos.map(|id| loaded.spelled(&[id])).unwrap_or_default();
        Ok::<_, ApiError>(prompt.text.strip_prefix(&bos).unwrap_or(&prompt.text).to_owned())
    };
    let prompt = blocking::run("rendering the template", render).await??;
    Ok(json(&json!({ "prompt": prompt })))
}
