//! `/tokenize`, `/detokenize` and `/apply-template`.

use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use crate::api::{chat, json, json_text};
use crate::app::Shared;
use crate::blocking;
use crate::conversation;
use crate::error::ApiError;
use crate::fields::{Accepts, Field};
use crate::params;
use crate::prompt::{self, Reading};

/// Fields of `/tokenize`.
pub const TOKENIZE: &[Field] = &[
    Field::new(
        "model",
        Accepts::Text(512),
        "The model; any name where one is served without --models-dir.",
    ),
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
    Field::new(
        "model",
        Accepts::Text(512),
        "The model; any name where one is served without --models-dir.",
    ),
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
    let respond = move || {
        let ids = match body.get("content") {
            Some(content) => prompt::one(&loaded.model, content, reading)?,
            None => Vec::new(),
        };
        let tokens = ids.iter().map(|&id| match body.flag("with_pieces") {
            true => spelled(loaded.model.tokenizer().piece(id).unwrap_or_default(), id),
            false => id.to_string(),
        });
        Ok::<_, ApiError>(list(tokens))
    };
    blocking::run("tokenizing", respond).await?
}

/// A token with its text, which is a list of bytes if it is no text.
fn spelled(piece: &[u8], id: u32) -> String {
    let shown = std::str::from_utf8(piece);
    let shown = shown.map_or_else(|_| json!(piece), |text| json!(text));
    format!(r#"{{"id":{id},"piece":{shown}}}"#)
}

/// A response with a list of tokens that are JSON. It is written at once, since a tree of so many would take many times
/// its memory.
fn list(tokens: impl Iterator<Item = String>) -> Response {
    let mut text = r#"{"tokens":["#.to_owned();
    for (index, token) in tokens.enumerate() {
        if index > 0 {
            text.push(',');
        }
        text += &token;
    }
    json_text(text + "]}")
}

/// `POST /detokenize`: the pieces of the tokens, control tokens and leading spaces included.
pub async fn detokenize(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let body = app.fields(body, &[DETOKENIZE]).await?;
    let loaded = app.models.get(body.text("model")).await?;
    let respond = move || {
        let ids = body.required("tokens")?.as_array().into_iter().flatten().map(|id| {
            let wrong = || ApiError::field("tokens", "must be a list of token ids");
            prompt::token(&loaded.model, id.as_u64().ok_or_else(wrong)?, "tokens")
        });
        let ids: Vec<u32> = ids.collect::<Result<_, _>>()?;
        Ok(json(&json!({ "content": loaded.spelled(&ids) })))
    };
    blocking::run("spelling the tokens", respond).await?
}

/// `POST /apply-template`.
pub async fn apply_template(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let body = app.fields(body, &[params::FIELDS, chat::FIELDS]).await?;
    let loaded = app.models.get(body.text("model")).await?;
    let render = move || {
        let body = chat::translated(body)?;
        let body = chat::allowed_tools::restricted(body)?;
        conversation::functions(&body)?;
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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::{list, spelled};

    #[tokio::test]
    async fn lists_of_tokens_are_json() {
        let pieces = [&b"a\"\n"[..], b"\xff\x01", b""];
        let tokens = pieces.iter().zip(1..).map(|(piece, id)| spelled(piece, id));
        for (response, expected) in [
            (list(std::iter::empty()), json!([])),
            (
                list(tokens),
                json!([
                    { "id": 1, "piece": "a\"\n" },
                    { "id": 2, "piece": [255, 1] },
                    { "id": 3, "piece": "" },
                ]),
            ),
        ] {
            let bytes = response.into_body().collect().await.expect("a body").to_bytes();
            let found: Value = serde_json::from_slice(&bytes).expect("JSON");
            assert_eq!(found, json!({ "tokens": expected }));
        }
    }
}
