//! LoRA adapters of a model: how strongly requests have them, and what a request asks for.

use std::sync::{Mutex, PoisonError};

use bilayer_engine::Model;
use serde_json::{Value, json};

use crate::error::ApiError;

/// The adapters of a model with the strengths of requests that ask for none.
pub struct Adapters {
    names: Vec<String>,
    usual: Mutex<Vec<f32>>,
}

impl Adapters {
    /// Those that a model was opened with.
    pub fn of(model: &Model) -> Adapters {
        let loras = model.loras();
        Adapters {
            // A prefix is the file and a colon.
            names: loras.iter().map(|lora| lora.prefix.trim_end_matches(": ").to_owned()).collect(),
            usual: Mutex::new(loras.iter().map(|lora| lora.scale).collect()),
        }
    }

    /// llama-server's list: id, file and strength of each.
    pub fn list(&self) -> Value {
        let usual = self.usual();
        let entries = self.names.iter().zip(&usual).enumerate();
        entries
            .map(|(id, (path, scale))| json!({ "id": id, "path": path, "scale": scale }))
            .collect()
    }

    /// Sets the strengths of requests that ask for none.
    ///
    /// # Errors
    /// The list is wrong.
    pub fn set(&self, list: &Value) -> Result<(), ApiError> {
        let strengths = self.strengths(list)?;
        *self.usual.lock().unwrap_or_else(PoisonError::into_inner) = strengths;
        Ok(())
    }

    /// The strengths for a request whose field `lora` is this; `None` if the model has no adapters.
    ///
    /// # Errors
    /// The list is wrong.
    pub fn asked(&self, list: Option<&Value>) -> Result<Option<Vec<f32>>, ApiError> {
        match list {
            Some(list) => self.strengths(list).map(|all| (!all.is_empty()).then_some(all)),
            None if self.names.is_empty() => Ok(None),
            None => Ok(Some(self.usual())),
        }
    }

    fn usual(&self) -> Vec<f32> {
        self.usual.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The strengths of a list of objects with `id` and `scale`; adapters that it does not name are off.
    fn strengths(&self, list: &Value) -> Result<Vec<f32>, ApiError> {
        let wrong = |problem: String| ApiError::field("lora", problem);
        let form = || wrong("must be a list of objects with `id` and `scale`".to_owned());
        let mut strengths = vec![0.0; self.names.len()];
        for entry in list.as_array().ok_or_else(form)? {
            let id = entry.get("id").and_then(Value::as_u64).ok_or_else(form)?;
            let scale = entry.get("scale").and_then(Value::as_f64).ok_or_else(form)? as f32;
            let known = self.names.len();
            let place = usize::try_from(id).ok().and_then(|id| strengths.get_mut(id));
            let place = place.ok_or_else(|| {
                wrong(format!(
                    "names adapter {id}; there are {known}, GET /lora-adapters lists them"
                ))
            })?;
            if !scale.is_finite() {
                return Err(wrong(format!("has the scale {scale}; it must be a finite number")));
            }
            *place = scale;
        }
        Ok(strengths)
    }
}
