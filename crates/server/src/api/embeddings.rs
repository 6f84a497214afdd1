//! `/v1/embeddings`, and llama-server's `/embedding`.

use std::borrow::Cow;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bilayer_engine::Error as Engine;
use bilayer_engine::encode::Norm;
use bilayer_text::Encode;
use serde_json::{Value, json};

use crate::api::json;
use crate::app::{App, Caller, Shared};
use crate::blocking;
use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};
use crate::models::{EncoderHandle, Loaded};
use crate::prompt::{self, Reading};

/// Fields of an embedding request.
pub const FIELDS: &[Field] = &[
    Field::new(
        "model",
        Accepts::Text(512),
        "The model; any name where one is served without --models-dir.",
    ),
    Field::new("input", Accepts::Any, "A text, a list of tokens, or a list of these."),
    Field::new("content", Accepts::Any, "As input, for `/embedding`."),
    Field::new(
        "encoding_format",
        Accepts::Word(&["float", "base64"]),
        "How vectors are written; `float` by default.",
    ),
    Field::new(
        "dimensions",
        Accepts::Integer(1, 1 << 20),
        "Keep so many elements and normalize again.",
    ),
    Field::new(
        "embd_normalize",
        Accepts::Integer(-1, 1 << 16),
        "P-norm of 1; 0 makes the largest value 32760, -1 keeps vectors as computed. 2 by default, or as the model says.",
    ),
    Field::new(
        "prompt_name",
        Accepts::Text(512),
        "The model's prompt that comes before every text, such as `query`; by default the one that the model names, or none.",
    ),
    Field::new(
        "truncate",
        Accepts::Bool,
        "Truncate inputs that are too long; by default they are an error.",
    ),
    Field::new("user", Accepts::Text(512), "Accepted and not used."),
];

/// Fields that are read when the vectors are computed.
const LASTING: &[&str] = &["encoding_format", "dimensions", "embd_normalize"];

/// How inputs are tokenized: text is never a control token.
const READING: Reading = Reading { field: "input", add_special: true, parse_special: false };

/// `POST /v1/embeddings`.
pub async fn embed(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let (body, loaded, inputs) = read(&app, body).await?;
    let encoder = vectors_of(&loaded)?;
    if !encoder.is_pooled {
        return Err(ApiError::invalid(
            "the server was started with --pooling none: there is no vector per text; use /embedding",
        ));
    }
    let tokens: usize = inputs.iter().map(Vec::len).sum();
    let rows = encoder.run(caller.key, inputs, app.config.limits.deadline()).await?;
    let as_base64 = body.text("encoding_format") == Some("base64");
    let data = rows.into_iter().enumerate().map(|(index, row)| {
        let row = finished(&body, encoder, row);
        let embedding = if as_base64 {
            let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
            json!(STANDARD.encode(bytes))
        } else {
            json!(row)
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    Ok(json(&json!({
        "object": "list",
        "model": loaded.id(),
        "data": data.collect::<Vec<_>>(),
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

/// `POST /embedding`: a list with the rows of each input.
pub async fn native(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let (body, loaded, inputs) = read(&app, body).await?;
    let encoder = vectors_of(&loaded)?;
    let (is_pooled, width) = (encoder.is_pooled, encoder.width);
    let rows = encoder.run(caller.key, inputs, app.config.limits.deadline()).await?;
    let results = rows.into_iter().enumerate().map(|(index, rows)| {
        let rows = rows.chunks(width).map(|row| match is_pooled {
            true => finished(&body, encoder, row.to_vec()),
            false => row.to_vec(),
        });
        json!({ "index": index, "embedding": rows.collect::<Vec<_>>() })
    });
    Ok(json(&json!(results.collect::<Vec<_>>())))
}

async fn read(
    app: &App,
    body: HttpBody,
) -> Result<(Body, std::sync::Arc<Loaded>, Vec<Vec<u32>>), ApiError> {
    let body = app.fields(body, &[FIELDS]).await?;
    given(&body)?;
    let loaded = app.models.get(body.text("model")).await?;
    let width = loaded.encoder()?.width;
    if let Some(dimensions) = body.count("dimensions").filter(|&dimensions| dimensions > width) {
        let problem = format!("is {dimensions}; vectors of {} have {width} elements", loaded.id());
        return Err(ApiError::field("dimensions", problem));
    }
    blocking::run("tokenizing", move || {
        let mut body = body;
        let prompt = loaded.encoder()?.prompts.find(body.text("prompt_name"));
        let prompt = prompt.map_err(|error| ApiError::field("prompt_name", error))?;
        let given = prompted(given(&body)?, prompt);
        let mut inputs = prompt::prompts(&loaded.model, &given, READING)?;
        for input in &mut inputs {
            if input.is_empty() {
                return Err(ApiError::field("input", "has no tokens"));
            }
            fit(&loaded, &body, input)?;
        }
        body.retain(LASTING);
        Ok((body, loaded, inputs))
    })
    .await?
}

/// The inputs with a text before each of those that are texts.
fn prompted<'b>(given: &'b Value, prompt: &str) -> Cow<'b, Value> {
    let one = |value: &Value| match value {
        Value::String(text) => Value::String(format!("{prompt}{text}")),
        Value::Object(object) => {
            let mut object = object.clone();
            if let Some(Value::String(text)) = object.get_mut("prompt_string") {
                text.insert_str(0, prompt);
            } else if let Some(Value::Array(parts)) = object.get_mut("content") {
                parts.insert(0, json!({ "type": "text", "text": prompt }));
            }
            Value::Object(object)
        }
        other => other.clone(),
    };
    match given {
        _ if prompt.is_empty() => Cow::Borrowed(given),
        Value::Array(list) if !list.iter().any(Value::is_number) => {
            Cow::Owned(list.iter().map(one).collect())
        }
        one_alone => Cow::Owned(one(one_alone)),
    }
}

/// The inputs as they are given.
fn given(body: &Body) -> Result<&Value, ApiError> {
    let given = body.get("input").or_else(|| body.get("content"));
    given.ok_or_else(|| ApiError::field("input", "is required"))
}

/// Truncates an input that is too long if the request allows it.
fn fit(loaded: &Loaded, body: &Body, input: &mut Vec<u32>) -> Result<(), ApiError> {
    let (tokens, context) = (input.len(), loaded.context);
    if tokens <= context {
        return Ok(());
    }
    if !body.flag("truncate") {
        return Err(Engine::TooLong { tokens, context }.into());
    }
    // Tokens that were given need not end with the one behind a text.
    let empty = Encode { add_special: true, parse_special: false };
    let around = loaded.model.tokenizer().encode("", empty)?;
    let adds = loaded.model.tokenizer().adds_eos();
    let last = input.last().copied().filter(|id| adds && around.last() == Some(id));
    input.truncate(context - usize::from(last.is_some()));
    input.extend(last);
    Ok(())
}

/// The encoder, if its rows are vectors.
fn vectors_of(loaded: &Loaded) -> Result<&EncoderHandle, ApiError> {
    let encoder = loaded.encoder()?;
    if encoder.scores {
        return Err(ApiError::not_supported(format!(
            "{} gives scores; start the server with --embedding for its vectors",
            loaded.id()
        )));
    }
    Ok(encoder)
}

/// Shortens and scales a row as the request asks.
fn finished(body: &Body, encoder: &EncoderHandle, mut row: Vec<f32>) -> Vec<f32> {
    if let Some(dimensions) = body.count("dimensions") {
        row.truncate(dimensions);
    }
    body.integer("embd_normalize").map_or(encoder.norm, Norm::numbered).apply(&mut row);
    row
}

/// The texts of `input`: one, or a list of them.
///
/// # Errors
/// It is missing, or neither.
pub fn input(body: &Body) -> Result<Vec<String>, ApiError> {
    match body.required("input")? {
        Value::String(text) => Ok(vec![text.clone()]),
        list => texts(list, "input"),
    }
}

/// A JSON list of texts.
///
/// # Errors
/// It is something else, or empty.
pub fn texts(value: &Value, field: &str) -> Result<Vec<String>, ApiError> {
    let list = value.as_array().filter(|list| !list.is_empty() && list.len() <= 2048);
    let wrong = || ApiError::field(field, "must be a list of 1 to 2048 texts");
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(object) => object.get("text")?.as_str().map(str::to_owned),
        _ => None,
    };
    list.ok_or_else(wrong)?.iter().map(|value| text(value).ok_or_else(wrong)).collect()
}
