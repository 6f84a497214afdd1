//! `/slots`: what is running, and slots in files. Prompts are not shown.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use bilayer_engine::session::SavedSequence;
use hyper::Uri;
use serde_json::{Value, json};

use crate::api::{changed, json, parameter, shown};
use crate::app::{App, Caller, Shared};
use crate::blocking;
use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};
use crate::models::Loaded;
use crate::worker::{SlotAction, SlotOutcome};

/// `GET /slots`.
pub async fn list(State(app): Shared, uri: Uri) -> Result<Response, ApiError> {
    if !app.config.switches.slots {
        return Err(ApiError::not_supported(
            "this server does not offer slots; start it with --slots",
        ));
    }
    let loaded = shown(&app, &uri).await?;
    let live = loaded.decoder()?.live();
    let slots = (0..app.config.slots).map(|id| {
        let slot = live.slots.iter().find(|slot| slot.slot as usize == id);
        json!({
            "id": id,
            "id_task": slot.map_or(-1, |slot| slot.ticket as i64),
            "n_ctx": loaded.context,
            "speculative": loaded.is_speculative,
            "is_processing": slot.is_some(),
            "n_past": slot.map_or(0, |slot| slot.cached),
        })
    });
    Ok(json(&Value::Array(slots.collect())))
}

/// Fields of `POST /slots/{id}` with `action=save` or `restore`.
pub const FIELDS: &[Field] = &[Field::new(
    "filename",
    Accepts::Text(NAME_BYTES),
    "A file name without folders, in the folder of --slot-save-path.",
)];

/// Longest name of a file.
const NAME_BYTES: usize = 200;

/// `POST /slots/{id}?action=save`, `restore` or `erase`.
pub async fn act(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    id: Result<Path<u32>, PathRejection>,
    uri: Uri,
    body: HttpBody,
) -> Result<Response, ApiError> {
    let Path(id) = id?;
    let is_save = match parameter(&uri, "action").as_deref() {
        Some("save") => true,
        Some("restore") => false,
        Some("erase") => return erase(&app, &uri, id).await,
        _ => return Err(ApiError::field("action", "must be save, restore or erase in the query")),
    };
    let body = app.fields(body, &[FIELDS]).await?;
    let path = file(&app, &body)?;
    let loaded = slot(&app, &uri, id).await?;
    let worker = loaded.decoder()?;
    let began = Instant::now();
    let ms = |began: Instant| began.elapsed().as_secs_f64() * 1e3;
    let name = body.text("filename");
    if is_save {
        // In a task of its own, which ends with the file also if the client leaves meanwhile.
        let saved = tokio::spawn(save(loaded.clone(), id, path)).await;
        let (tokens, bytes) = saved.map_err(|_| ApiError::server("saving a slot panicked"))??;
        let timings = json!({ "save_ms": ms(began) });
        return Ok(json(&json!({
            "id_slot": id, "filename": name, "n_saved": tokens, "n_written": bytes, "timings": timings,
        })));
    }
    let (model, context) = (loaded.model.clone(), loaded.context);
    let bytes = std::fs::metadata(&path).map_or(0, |found| found.len());
    let read = move || SavedSequence::read(&path, &model, context);
    let saved = blocking::run("reading a slot", read).await?;
    let saved = saved.map_err(|error| ApiError::field("filename", format!("names {error}")))?;
    let tokens = saved.tokens().len();
    let namespace = caller.namespace(&app.config);
    worker.slot(id, SlotAction::Restore(Box::new(saved), namespace)).await?;
    let timings = json!({ "restore_ms": ms(began) });
    Ok(json(&json!({
        "id_slot": id, "filename": name, "n_restored": tokens, "n_read": bytes, "timings": timings,
    })))
}

/// Saves a slot. Returns the tokens and the bytes that were written.
async fn save(loaded: Arc<Loaded>, id: u32, path: PathBuf) -> Result<(usize, u64), ApiError> {
    let SlotOutcome::Saved(saved) = loaded.decoder()?.slot(id, SlotAction::Save).await? else {
        return Err(ApiError::server("the slot was not saved"));
    };
    let saved = saved.ok_or_else(|| ApiError::invalid(format!("slot {id} is empty")))?;
    let tokens = saved.tokens().len();
    let written = blocking::run("writing a slot", move || saved.write(&path)).await?;
    // The folder is the server's, so the request is not at fault.
    let failed = |error| ApiError::server(format!("slot {id} cannot be saved: {error}"));
    Ok((tokens, written.map_err(failed)?))
}

async fn erase(app: &App, uri: &Uri, id: u32) -> Result<Response, ApiError> {
    let loaded = slot(app, uri, id).await?;
    match loaded.decoder()?.slot(id, SlotAction::Erase).await? {
        SlotOutcome::Erased(tokens) => Ok(json(&json!({ "id_slot": id, "n_erased": tokens }))),
        _ => Err(ApiError::server("the slot was not erased")),
    }
}

/// The model, if it has such a slot.
async fn slot(app: &App, uri: &Uri, id: u32) -> Result<Arc<Loaded>, ApiError> {
    if id as usize >= app.config.slots {
        return Err(ApiError::invalid(format!("there is no slot {id}")));
    }
    changed(app, uri).await
}

/// The file that a request names, in the folder for saved slots and nowhere else.
fn file(app: &App, body: &Body) -> Result<PathBuf, ApiError> {
    let Some(folder) = &app.config.slot_folder else {
        return Err(ApiError::not_supported(
            "this server does not save slots; start it with --slot-save-path",
        ));
    };
    let name = body.required("filename")?.as_str().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ' ');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
        let problem = "must be a file name of ASCII letters, digits, spaces, _, - and . that begins with no dot";
        return Err(ApiError::field("filename", problem));
    }
    Ok(folder.join(name))
}
