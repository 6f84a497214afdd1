//! Opening a model with settings in JSON.

use std::ffi::{c_char, c_void};

use bilayer::settings::{Value, names};
use bilayer::{Builder, Cancel, Model, Progress};
use serde_json::Value as Json;

use crate::failure::{Failure, guarded};
use crate::model::{BilayerModel, opened, room};
use crate::pointers::{text, text_or_null};

/// Called while a model is loaded, with the bytes of weights that are loaded, those of all weights (0 while devices are
/// measured), and the pointer given along. The loading goes on while it returns true.
pub type BilayerProgress =
    Option<unsafe extern "C" fn(done_bytes: u64, total_bytes: u64, user: *mut c_void) -> bool>;

/// As bilayer_open, with settings in JSON: an object of the names that docs/c.md lists, such as
/// `{"gpu_layers": "auto", "cache_type": "q8_0"}`; NULL: none. Those that are left out or null have their defaults.
/// `progress` may be NULL; BILAYER_INTERRUPTED if it ended the loading.
///
/// # Safety
/// `path` and `settings` end with NUL; `settings` may be NULL; `model` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_open_json(
    path: *const c_char,
    settings: *const c_char,
    progress: BilayerProgress,
    user: *mut c_void,
    model: *mut *mut BilayerModel,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, path, settings) =
            unsafe { (room(model)?, text(path, "path")?, text_or_null(settings, "settings")?) };
        let cancel = Cancel::new();
        let mut builder = Model::builder(path).cancel(&cancel);
        if let Some(settings) = settings {
            builder = set(builder, settings)?;
        }
        if let Some(progress) = progress {
            let cancel = cancel.clone();
            builder = builder.progress(move |told: Progress| {
                // SAFETY: the caller promises a function of this type.
                if !unsafe { progress(told.done_bytes, told.total_bytes, user) } {
                    cancel.cancel();
                }
            });
        }
        model.write(opened(builder, cancel)?);
        Ok(())
    })
}

/// Sets what an object names.
fn set<'p>(builder: Builder<'p>, settings: &str) -> Result<Builder<'p>, Failure> {
    let parsed: Json = serde_json::from_str(settings)
        .map_err(|error| Failure::usage(format!("settings are no JSON: {error}")))?;
    let Json::Object(settings) = parsed else {
        return Err(Failure::usage("settings must be an object of JSON"));
    };
    settings.iter().try_fold(builder, |builder, (name, json)| {
        let is_known = names().any(|known| known == name);
        match value(json) {
            // The error says which there are.
            _ if !is_known => Ok(builder.set(name, false)?),
            Some(value) => Ok(builder.set(name, value)?),
            None if json.is_null() => Ok(builder),
            None => {
                Err(Failure::usage(format!("{name} has null or an integer above {}", i64::MAX)))
            }
        }
    })
}

/// A value of a setting; `None` for null, and for integers that are too large.
fn value(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Null => return None,
        Json::Bool(flag) => Value::Flag(*flag),
        Json::Number(number) if number.is_f64() => Value::Number(number.as_f64()?),
        Json::Number(number) => Value::Whole(number.as_i64()?),
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(items) => Value::List(items.iter().map(value).collect::<Option<_>>()?),
        Json::Object(items) => {
            let pair = |(key, json): (&String, &Json)| {
                Some(Value::List(vec![Value::Text(key.clone()), value(json)?]))
            };
            Value::List(items.iter().map(pair).collect::<Option<_>>()?)
        }
    })
}
