//! `/slots`: what is running, and slots in files. Prompts are not shown.

use std::io::ErrorKind;
use std::path::{Path as FilePath, PathBuf};
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
    loaded.decoder()?;
    let turn = app.slot_files.turn(app.config.limits.deadline()).await?;
    let began = Instant::now();
    let name = body.text("filename").unwrap_or_default().to_owned();
    let namespace = caller.namespace(&app.config);
    // In a task of its own, which goes on if the client leaves meanwhile: the turn ends with the copy of the sequence.
    let task = tokio::spawn(async move {
        let _turn = turn;
        match is_save {
            true => save(&loaded, id, path).await,
            false => restore(&loaded, id, path, namespace).await,
        }
    });
    let (tokens, bytes) = task.await.map_err(|_| ApiError::internal())??;
    let ms = began.elapsed().as_secs_f64() * 1e3;
    Ok(json(&match is_save {
        true => json!({
            "id_slot": id, "filename": name, "n_saved": tokens, "n_written": bytes,
            "timings": { "save_ms": ms },
        }),
        false => json!({
            "id_slot": id, "filename": name, "n_restored": tokens, "n_read": bytes,
            "timings": { "restore_ms": ms },
        }),
    }))
}

/// Saves a slot. Returns the tokens and the bytes that were written.
async fn save(loaded: &Loaded, id: u32, path: PathBuf) -> Result<(usize, u64), ApiError> {
    let target = path.clone();
    blocking::run("checking a slot's file", move || check_replaced(&target)).await??;
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

/// Refuses a path of a file that is no saved slot, such as the model that is served.
fn check_replaced(path: &FilePath) -> Result<(), ApiError> {
    let problem = match SavedSequence::is_at(path) {
        Ok(true) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(false) => "which is no saved slot and is not replaced".to_owned(),
        Err(error) => format!("which may be no saved slot, as it cannot be read: {error}"),
    };
    Err(ApiError::field("filename", format!("names {}, {problem}", path.display())))
}

/// Restores a slot. Returns the tokens and the bytes that were read.
async fn restore(
    loaded: &Loaded,
    id: u32,
    path: PathBuf,
    namespace: u64,
) -> Result<(usize, u64), ApiError> {
    let (model, context) = (loaded.model.clone(), loaded.context);
    let read = move || {
        let found = std::fs::metadata(&path);
        // Opening a pipe would wait for its writer.
        if found.as_ref().is_ok_and(|found| !found.is_file()) {
            return Err(format!("names {}, which is no file", path.display()));
        }
        let saved = SavedSequence::read(&path, &model, context);
        let saved = saved.map_err(|error| format!("names {error}"))?;
        Ok((saved, found.map_or(0, |found| found.len())))
    };
    let read = blocking::run("reading a slot", read).await?;
    let (saved, bytes) = read.map_err(|problem| ApiError::field("filename", problem))?;
    let tokens = saved.tokens().len();
    loaded.decoder()?.slot(id, SlotAction::Restore(Box::new(saved), namespace)).await?;
    Ok((tokens, bytes))
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
