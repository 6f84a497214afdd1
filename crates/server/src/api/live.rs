//! `/live`: what the devices do, as server-sent events, for the panel of the web page.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::{App, Shared};
use crate::error::ApiError;
use crate::models::{Kind, Loaded};
use crate::sse;
use crate::worker::Live;

/// `GET /live`: an event a second while something runs, else one every ten seconds; it ends when the server stops.
pub async fn stream(State(app): Shared) -> Result<Response, ApiError> {
    Ok(sse::respond(app.config.limits.ping, async move |events| {
        let mut quiet = 0;
        while !app.is_draining.load(Ordering::Relaxed) {
            if let Some((runs, document)) = now(&app) {
                if (runs || quiet % 10 == 0) && events.data(&document).await.is_err() {
                    return;
                }
                quiet = if runs { 0 } else { quiet + 1 };
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }))
}

/// Whether the first loaded decoder runs something, and what it does. The model is not held, so that it can be unloaded.
fn now(app: &App) -> Option<(bool, Value)> {
    let loaded = app.models.loaded();
    loaded.iter().find_map(|loaded| {
        let Kind::Decoder(worker) = &loaded.kind else { return None };
        let live = worker.live();
        let runs = !live.slots.is_empty() || live.waiting > 0;
        Some((runs, document(loaded, &live)))
    })
}

fn document(loaded: &Loaded, live: &Live) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let devices = live.devices.iter().map(|device| {
        json!({
            "name": device.name,
            "busy": device.busy,
            "memory_used_bytes": device.used_bytes,
            "memory_bytes": device.budget_bytes,
        })
    });
    let busy: Vec<f64> = live.step.devices.iter().map(|time| ms(*time)).collect();
    let (total, crossing) = (ms(live.step.total), ms(live.step.crossing));
    // With two devices at once their times add up to more than the step.
    let wait = (total - crossing - busy.iter().sum::<f64>()).max(0.0);
    json!({
        "model": loaded.id(),
        "devices": devices.collect::<Vec<_>>(),
        "embedding": live.embedding,
        "layers": live.layers,
        "output": live.output,
        "map": live.map,
        "step": {
            "ms": total,
            "devices_ms": busy,
            "crossing_ms": crossing,
            "wait_ms": wait,
            "decode_rows": live.decode_rows,
            "prefill_rows": live.prefill_rows,
        },
        "decode_tps": live.decode_tps,
        "prefill_tps": live.prefill_tps,
        "running": live.slots.len(),
        "waiting": live.waiting,
        "kv_used": live.kv_used,
        "steps": live.steps,
    })
}
