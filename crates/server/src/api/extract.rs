//! `/v1/extract`: entities in texts.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use bilayer_engine::Error as Engine;
use bilayer_engine::encode::extract::{Document, Entity, Extractor, Options};
use serde_json::{Value, json};

use crate::api::embeddings::{input, texts};
use crate::api::json;
use crate::app::{Caller, Shared};
use crate::blocking;
use crate::encoders::WAITING_MAX;
use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};

/// Fields of an extract request.
pub const FIELDS: &[Field] = &[
    Field::new(
        "model",
        Accepts::Text(512),
        "The model; any name where one is served without --models-dir.",
    ),
    Field::new("input", Accepts::Any, "A text or a list of texts."),
    Field::new(
        "aggregation",
        Accepts::Text(16),
        "How labels of tokens become entities: none, simple (as by default), first, average, max.",
    ),
    Field::new("stride", Accepts::Integer(0, 1 << 20), "Tokens that windows of a long text share."),
    Field::new("ignore_labels", Accepts::Any, "Labels to leave out, by default O."),
];

/// `POST /v1/extract`.
pub async fn extract(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let read = |mut body: Body| {
        let given = input(&body)?;
        let defaults = Options::default();
        let options = Options {
            aggregation: match body.text("aggregation") {
                Some(name) => name.parse()?,
                None => defaults.aggregation,
            },
            stride: body.count("stride"),
            ignored: match body.get("ignore_labels") {
                Some(Value::Array(none)) if none.is_empty() => Vec::new(),
                Some(list) => texts(list, "ignore_labels")?,
                None => defaults.ignored,
            },
        };
        body.retain(&["model"]);
        Ok((body, given, options))
    };
    let (body, given, options) = app.translated(body, &[FIELDS], read).await?;
    let loaded = app.models.get(body.text("model")).await?;
    let encoder = loaded.encoder()?;
    if !encoder.labels_tokens {
        return Err(Engine::NoTokenHead { name: loaded.id().to_owned() }.into());
    }
    let tokenizer = loaded.model.tokenizer().clone();
    let extractor = Extractor::new(tokenizer, &encoder.labels, loaded.context, options)?;
    let given: Arc<[String]> = given.into();
    let inputs = {
        let (extractor, given) = (extractor.clone(), given.clone());
        let windows = move || -> Result<Vec<Vec<u32>>, ApiError> {
            let documents = documents(&extractor, &given)?;
            let windows = documents.iter().flat_map(Document::windows);
            Ok(windows.map(|window| window.ids.clone()).collect())
        };
        blocking::run("tokenizing", windows).await??
    };
    let used: usize = inputs.iter().map(Vec::len).sum();
    let rows = encoder.run(caller.key, inputs, app.config.limits.deadline()).await?;
    let data = blocking::run("merging labels", move || -> Result<Vec<Value>, ApiError> {
        let mut rest = rows.as_slice();
        let documents = documents(&extractor, &given)?;
        let entry = |(index, document): (usize, &Document<'_>)| {
            let (rows, after) = rest.split_at(document.windows().len());
            rest = after;
            let entities = extractor.entities(document, rows);
            json!({ "index": index, "entities": entities.iter().map(shown).collect::<Vec<_>>() })
        };
        Ok(documents.iter().enumerate().map(entry).collect())
    })
    .await??;
    Ok(json(&json!({
        "object": "list",
        "model": loaded.id(),
        "data": data,
        "usage": { "prompt_tokens": used, "total_tokens": used },
    })))
}

/// Tokens that the windows of a request may have together.
const WINDOW_TOKENS_MAX: usize = 1 << 22;

/// The texts in windows.
///
/// # Errors
/// The vocabulary cannot express a text; they have too many windows, or too many tokens in these.
fn documents<'t>(
    extractor: &Extractor,
    texts: &'t [String],
) -> Result<Vec<Document<'t>>, ApiError> {
    let (mut windows, mut tokens) = (0, 0);
    let documents = texts.iter().map(|text| {
        let of_text = extractor.tokens(text)?;
        let (more_windows, more_tokens) = extractor.windows(of_text.len());
        windows += more_windows;
        tokens += more_tokens;
        if windows > WAITING_MAX || tokens > WINDOW_TOKENS_MAX {
            let problem = format!(
                "takes more than {WAITING_MAX} windows or {WINDOW_TOKENS_MAX} tokens in windows; send less text or a \
                 smaller stride"
            );
            return Err(ApiError::field("input", problem));
        }
        Ok(extractor.divided(text, of_text))
    });
    documents.collect()
}

fn shown(entity: &Entity) -> Value {
    json!({
        "label": entity.label,
        "score": entity.score,
        "text": entity.text,
        "start": entity.chars.start,
        "end": entity.chars.end,
        "start_byte": entity.bytes.start,
        "end_byte": entity.bytes.end,
    })
}
