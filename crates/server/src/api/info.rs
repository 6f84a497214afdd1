//! Health, readiness, models, properties and metrics.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use axum::body::Body as HttpBody;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use bilayer_text::chat::Template;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Uri};
use serde_json::{Map, Value, json};

use crate::api::{json, parameter, shown};
use crate::app::{App, Shared};
use crate::blocking;
use crate::config::Offer;
use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};
use crate::models::{Kind, Loaded, Status};
use crate::params::Params;

/// Fields of `/models/load` and `/models/unload`.
pub const MODEL: &[Field] = &[Field::new("model", Accepts::Text(512), "The model's id.")];

/// `GET /health`: whether requests are answered.
pub async fn health(State(app): Shared) -> Result<Response, ApiError> {
    if !app.is_ready.load(Ordering::Relaxed) {
        return Err(ApiError::unavailable("Loading model"));
    }
    Ok(json(&json!({ "status": "ok" })))
}

/// `GET /livez`: whether the process works.
pub async fn alive() -> Response {
    json(&json!({ "status": "ok" }))
}

/// `GET /readyz`: whether a balancer shall send requests here.
pub async fn ready(State(app): Shared) -> Result<Response, ApiError> {
    if app.is_draining.load(Ordering::Relaxed) {
        return Err(ApiError::unavailable("draining"));
    }
    let models = app.models.clone();
    if blocking::run("examining files", move || models.are_unusable()).await? {
        let problem = "no model can be loaded from its files; /v1/models names the reasons";
        return Err(ApiError::unavailable(problem));
    }
    health(State(app)).await
}

/// `GET /v1/models`; with `reload=1` after the folder of models was read again.
pub async fn models(
    State(app): Shared,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if parameter(&uri, "reload").is_some_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
    {
        app.models.rescan().await?;
    }
    let list = app.models.list();
    let data = list
        .iter()
        .map(|(offer, status, loaded)| described(&app, offer, status, loaded.as_deref()));
    let mut data: Vec<Value> = data.collect();
    let mut whole = json!({ "object": "list" });
    if is_of_anthropic(&headers) {
        data.iter_mut().for_each(add_anthropic_fields);
        let id = |model: Option<&Value>| model.map(|model| model["id"].clone());
        whole["first_id"] = json!(id(data.first()));
        whole["last_id"] = json!(id(data.last()));
        whole["has_more"] = false.into();
    }
    whole["data"] = data.into();
    Ok(json(&whole))
}

/// Whether a client of Anthropic's API asks.
fn is_of_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// Adds what Anthropic's API says of a model.
fn add_anthropic_fields(model: &mut Value) {
    let created = model["created"].as_u64().and_then(|seconds| i64::try_from(seconds).ok());
    let created = created.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    model["type"] = "model".into();
    model["display_name"] = model["id"].clone();
    model["created_at"] = json!(created.map(|time| time.to_string()));
}

/// `GET /v1/models/{id}`.
pub async fn model(
    State(app): Shared,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path(id) = id?;
    let find = || app.models.list().into_iter().find(|(offer, ..)| offer.names.contains(&id));
    let mut found = find();
    if found.is_none() {
        app.models.rescan_for_name().await?;
        found = find();
    }
    let (offer, status, loaded) =
        found.ok_or_else(|| ApiError::not_found(format!("there is no model '{id}'")))?;
    let mut model = described(&app, &offer, &status, loaded.as_deref());
    if is_of_anthropic(&headers) {
        add_anthropic_fields(&mut model);
    }
    Ok(json(&model))
}

/// `POST /models/load`.
pub async fn load(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let body = app.fields(body, &[MODEL]).await?;
    body.required("model")?;
    app.models.load_named(body.text("model").unwrap_or_default()).await?;
    Ok(json(&json!({ "success": true })))
}

/// `POST /models/unload`.
pub async fn unload(State(app): Shared, body: HttpBody) -> Result<Response, ApiError> {
    let body = app.fields(body, &[MODEL]).await?;
    body.required("model")?;
    app.models.unload(body.text("model").unwrap_or_default())?;
    Ok(json(&json!({ "success": true })))
}

fn described(app: &App, offer: &Offer, status: &Status, loaded: Option<&Loaded>) -> Value {
    let (state, failure) = match status {
        Status::Unloaded => ("unloaded", None),
        Status::Loading => ("loading", None),
        Status::Loaded => ("loaded", None),
        Status::Failed(message) => ("failed", Some(message)),
    };
    let meta = loaded.map(|loaded| {
        let config = loaded.model.config();
        json!({
            "n_vocab": config.vocab,
            "n_ctx": loaded.context,
            "n_ctx_train": config.context,
            "n_embd": config.width,
            "n_params": loaded.parameters(),
            "size": offer.bytes,
        })
    });
    json!({
        "id": offer.names.first(),
        "object": "model",
        "created": app.models.created,
        "owned_by": "bilayer",
        "aliases": offer.names,
        "tags": offer.tags,
        "status": { "value": state, "failure": failure },
        "meta": meta,
    })
}

/// `GET /props`.
pub async fn props(State(app): Shared, uri: Uri) -> Result<Response, ApiError> {
    let loaded = shown(&app, &uri).await?;
    let params = Params::of(&Body::default(), &loaded.model, &app.config.defaults)?;
    let mut settings: Map<String, Value> = params.settings(&Body::default());
    if let Some(seed) = app.config.defaults.seed {
        settings.insert("seed".to_owned(), json!(seed));
    }
    let tokenizer = loaded.model.tokenizer();
    let spelled = |id: Option<u32>| {
        let piece = id.and_then(|id| tokenizer.piece(id)).unwrap_or_default();
        String::from_utf8_lossy(piece).into_owned()
    };
    let source = |template: Option<&Template>| template.map(|it| it.source().to_owned());
    Ok(json(&json!({
        "default_generation_settings": {
            "id": 0, "id_task": -1, "n_ctx": loaded.context, "speculative": false,
            "is_processing": false, "params": settings,
        },
        "total_slots": app.config.slots,
        "model_path": loaded.offer.path,
        "model_alias": loaded.id(),
        "modalities": { "vision": false, "audio": false },
        "chat_template": source(loaded.templates.default.as_ref()),
        "chat_template_tool_use": source(loaded.templates.tool_use.as_ref()),
        "bos_token": spelled(tokenizer.bos()),
        "eos_token": spelled(tokenizer.eos()),
        "build_info": app.config.build,
        "is_sleeping": false,
        "bilayer": {
            "placement_map": loaded.map,
            "parameters": loaded.parameters(),
            "bytes": loaded.offer.bytes,
            "architecture": loaded.model.config().architecture,
            "kind": match &loaded.kind { Kind::Decoder(_) => "decoder", Kind::Encoder(_) => "encoder" },
        },
    })))
}

/// `GET /metrics`.
pub async fn metrics(State(app): Shared) -> Result<Response, ApiError> {
    if !app.config.switches.metrics {
        return Err(ApiError::not_supported(
            "this server does not offer metrics; start it with --metrics",
        ));
    }
    let (mut running, mut waiting, mut kv, mut steps, mut rows) = (0, 0, 0.0f64, 0, 0);
    let mut memory = BTreeMap::new();
    for loaded in app.models.loaded() {
        match &loaded.kind {
            Kind::Decoder(worker) => {
                let live = worker.live();
                running += live.slots.len();
                waiting += live.waiting;
                kv = kv.max(live.kv_used);
                steps += live.steps;
                rows += live.rows_total;
                for device in live.devices {
                    *memory.entry(device.name).or_insert(0) += device.used_bytes;
                }
            }
            Kind::Encoder(encoder) => waiting += encoder.worker.waiting(),
        }
    }
    app.metrics.set_memory(&memory);
    let set = |name, help, value| app.metrics.set(name, help, value);
    set("llamacpp:requests_processing", "Requests that are running", running as f64);
    set("llamacpp:requests_deferred", "Requests that are waiting", waiting as f64);
    set(
        "llamacpp:n_busy_slots_per_decode",
        "Mean rows of a step",
        rows as f64 / f64::max(steps as f64, 1.0),
    );
    set("bilayer:num_requests_running", "Requests that are running", running as f64);
    set("bilayer:num_requests_waiting", "Requests that are waiting", waiting as f64);
    set(
        "bilayer:kv_cache_usage_perc",
        "Share of the KV cache that running requests hold, 0 to 1",
        kv,
    );
    let mut response = app.metrics.render().into_response();
    let text = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(CONTENT_TYPE, text);
    let started = HeaderName::from_static("process-start-time-unix");
    response.headers_mut().insert(started, app.metrics.started.into());
    Ok(response)
}
