//! `/slots`: what is running. Prompts are not shown.

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::api::json;
use crate::app::Shared;
use crate::error::ApiError;

/// `GET /slots`.
pub async fn list(State(app): Shared) -> Result<Response, ApiError> {
    if !app.config.switches.slots {
        return Err(ApiError::not_supported(
            "this server does not offer slots; start it with --slots",
        ));
    }
    let loaded = app.models.get(None).await?;
    let live = loaded.decoder()?.live();
    let slots = (0..app.config.slots).map(|id| {
        let slot = live.slots.get(id);
        json!({
            "id": id,
            "id_task": slot.map_or(-1, |slot| slot.ticket as i64),
            "n_ctx": loaded.context,
            "speculative": false,
            "is_processing": slot.is_some(),
            "n_past": slot.map_or(0, |slot| slot.cached),
        })
    });
    Ok(json(&Value::Array(slots.collect())))
}

/// `POST /slots/{id}?action=erase`.
pub async fn act(
    State(app): Shared,
    Path(id): Path<usize>,
    uri: hyper::Uri,
) -> Result<Response, ApiError> {
    let loaded = app.models.get(None).await?;
    let worker = loaded.decoder()?;
    if id >= app.config.slots {
        return Err(ApiError::invalid(format!("there is no slot {id}")));
    }
    let query = uri.query().unwrap_or_default();
    let action = query.split('&').find_map(|pair| pair.strip_prefix("action="));
    match action {
        Some("erase") => {
            worker.clear_cache(None);
            Ok(json(&json!({ "id_slot": id, "n_erased": 0 })))
        }
        Some("save" | "restore") => Err(ApiError::not_supported(
            "slots are not saved: cached prefixes are shared by all requests and are lost with the process",
        )),
        _ => Err(ApiError::invalid("the query must have action=save, restore or erase")),
    }
}
