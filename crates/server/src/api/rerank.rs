//! `/v1/rerank` in the shape of Jina and Cohere or of TEI, and `/v1/classify`.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use bilayer_engine::Error as Engine;
use bilayer_engine::encode::pair::{Relevance, template, tokens};
use serde_json::{Value, json};

use crate::api::embeddings::{input, texts};
use crate::api::json;
use crate::app::{Caller, Shared};
use crate::blocking;
use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};
use crate::models::{EncoderHandle, Loaded};

/// Fields of a rerank request.
pub const FIELDS: &[Field] = &[
    Field::new(
        "model",
        Accepts::Text(512),
        "The model; any name where one is served without --models-dir.",
    ),
    Field::new("query", Accepts::Text(1 << 20), "What the documents shall answer."),
    Field::new("documents", Accepts::Any, "The documents, a list of texts (Jina, Cohere)."),
    Field::new("texts", Accepts::Any, "The documents, a list of texts (TEI)."),
    Field::new("top_n", Accepts::Integer(1, 1 << 20), "Return the best ones only."),
    Field::new("return_documents", Accepts::Bool, "Return the documents' texts too."),
    Field::new("return_text", Accepts::Bool, "TEI: return the documents' texts too."),
    Field::new(
        "raw_scores",
        Accepts::Bool,
        "TEI: scores as the model gives them, not as probabilities.",
    ),
];

/// Fields of a classify request.
pub const CLASSIFY: &[Field] = &[
    Field::new(
        "model",
        Accepts::Text(512),
        "The model; any name where one is served without --models-dir.",
    ),
    Field::new("input", Accepts::Any, "A text or a list of texts."),
    Field::new("top_k", Accepts::Integer(1, 1 << 16), "Return the best labels only."),
];

/// `POST /v1/rerank`.
pub async fn rerank(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let read = |mut body: Body| {
        let query = body.required("query")?.as_str().unwrap_or_default().to_owned();
        let is_tei = body.get("texts").is_some();
        let field = if is_tei { "texts" } else { "documents" };
        let documents = Arc::new(texts(body.required(field)?, field)?);
        body.retain(&["model", "top_n", "return_documents", "return_text", "raw_scores"]);
        Ok((body, query, is_tei, documents))
    };
    let (body, query, is_tei, documents) = app.translated(body, &[FIELDS], read).await?;
    let loaded = app.models.get(body.text("model")).await?;
    let encoder = scores_of(&loaded)?;
    let relevance = Relevance::of(&encoder.labels).ok_or_else(|| {
        ApiError::not_supported(format!(
            "{} gives {} scores, none of which is a relevance score; /v1/classify returns them",
            loaded.id(),
            encoder.labels.len()
        ))
    })?;
    let inputs = tokenized(&loaded, Some(query), documents.clone()).await?;
    let used: usize = inputs.iter().map(Vec::len).sum();
    let rows = encoder.run(caller.key, inputs, app.config.limits.deadline()).await?;
    let score = |row: &Vec<f32>| relevance.score(row);
    let mut ranked: Vec<(usize, f32)> = rows.iter().map(score).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.truncate(body.count("top_n").unwrap_or(usize::MAX));
    let with_text = body.flag("return_documents") || is_tei && body.flag("return_text");
    let results = ranked.into_iter().map(|(index, score)| {
        let shown = match is_tei && !body.flag("raw_scores") {
            true => relevance.probability(&rows[index]),
            false => score,
        };
        let mut result = match is_tei {
            true => json!({ "index": index, "score": shown }),
            false => json!({ "index": index, "relevance_score": shown }),
        };
        if let Some(object) = result.as_object_mut().filter(|_| with_text) {
            let text = &documents[index];
            let shown = if is_tei { json!(text) } else { json!({ "text": text }) };
            object.insert(if is_tei { "text" } else { "document" }.to_owned(), shown);
        }
        result
    });
    let results: Vec<Value> = results.collect();
    Ok(match is_tei {
        true => json(&json!(results)),
        false => json(&json!({
            "object": "list",
            "model": loaded.id(),
            "results": results,
            "usage": { "prompt_tokens": used, "total_tokens": used },
        })),
    })
}

/// `POST /v1/classify`: for each text its label, and all labels with probabilities.
pub async fn classify(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let read = |mut body: Body| {
        let given = input(&body)?;
        body.retain(&["model", "top_k"]);
        Ok((body, given))
    };
    let (body, given) = app.translated(body, &[CLASSIFY], read).await?;
    let loaded = app.models.get(body.text("model")).await?;
    let encoder = scores_of(&loaded)?;
    let inputs = tokenized(&loaded, None, Arc::new(given)).await?;
    let used: usize = inputs.iter().map(Vec::len).sum();
    let rows = encoder.run(caller.key, inputs, app.config.limits.deadline()).await?;
    let most = body.count("top_k").unwrap_or(usize::MAX);
    let data = rows.iter().enumerate().map(|(index, row)| {
        let probabilities = encoder.labelling.probabilities(row);
        let mut labels: Vec<(usize, f32)> = probabilities.into_iter().enumerate().collect();
        labels.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let named = |at: usize| encoder.labels.get(at).cloned().unwrap_or(format!("LABEL_{at}"));
        let best = labels.first().map(|&(at, _)| named(at));
        let labels = labels.into_iter().take(most);
        let labels = labels.map(|(at, score)| json!({ "label": named(at), "score": score }));
        json!({ "index": index, "label": best, "scores": labels.collect::<Vec<_>>() })
    });
    Ok(json(&json!({
        "object": "list",
        "model": loaded.id(),
        "data": data.collect::<Vec<_>>(),
        "usage": { "prompt_tokens": used, "total_tokens": used },
    })))
}

fn scores_of(loaded: &Arc<Loaded>) -> Result<&EncoderHandle, ApiError> {
    let encoder = loaded.encoder()?;
    if !encoder.scores {
        return Err(ApiError::not_supported(format!(
            "{} gives vectors; this needs a model with a head for scores",
            loaded.id()
        )));
    }
    if encoder.labels_tokens {
        return Err(Engine::TokenHead { name: loaded.id().to_owned() }.into());
    }
    Ok(encoder)
}

/// The tokens of texts, each alone or as the second of a pair.
async fn tokenized(
    loaded: &Arc<Loaded>,
    first: Option<String>,
    texts: Arc<Vec<String>>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let loaded = loaded.clone();
    blocking::run("tokenizing", move || {
        let tokens = |text: &String| match &first {
            Some(first) => pair(&loaded, first, Some(text)),
            None => pair(&loaded, text, None),
        };
        texts.iter().map(tokens).collect()
    })
    .await?
}

/// The tokens of a text, or of a pair.
fn pair(loaded: &Loaded, text: &str, pair: Option<&str>) -> Result<Vec<u32>, ApiError> {
    let input = bilayer_engine::encode::Input { text, pair };
    let tokens = tokens(loaded.model.tokenizer(), template(&loaded.model)?, input)?;
    if tokens.is_empty() {
        return Err(Engine::NoTokens.into());
    }
    let (count, context) = (tokens.len(), loaded.context);
    if count > context {
        return Err(Engine::TooLong { tokens: count, context }.into());
    }
    Ok(tokens)
}
