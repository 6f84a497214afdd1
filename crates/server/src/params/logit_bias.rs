//! `logit_bias`: numbers that are added to the logits of tokens.

use bilayer_engine::Model;
use bilayer_text::Encode;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Body;

/// Entries that it may have, and tokens of them.
const ENTRIES_MAX: usize = 4096;

/// `{"token or text": bias}` or `[[token or text, bias], ...]`; false forbids a token. A text that is a number is a token
/// as a key of the object, which has no numbers, and a text in the list. `None` if the body has none.
///
/// # Errors
/// It has neither form, too many entries, or a token outside the vocabulary.
pub fn logit_bias(body: &Body, model: &Model) -> Result<Option<Vec<(u32, f32)>>, ApiError> {
    let wrong = || {
        let problem = "must be an object from tokens to biases, or a list of [token, bias]";
        ApiError::field("logit_bias", problem)
    };
    let of_key = |key: &str| key.parse::<u64>().map_or_else(|_| json!(key), |id| json!(id));
    let entries: Vec<(Value, &Value)> = match body.get("logit_bias") {
        None => return Ok(None),
        Some(Value::Object(object)) => {
            object.iter().map(|(key, bias)| (of_key(key), bias)).collect()
        }
        Some(Value::Array(list)) => {
            let pair = |entry: &'_ Value| match entry.as_array().map(Vec::as_slice) {
                Some([token, _]) => Ok(token.clone()),
                _ => Err(wrong()),
            };
            let tokens: Vec<Value> = list.iter().map(pair).collect::<Result<_, _>>()?;
            tokens.into_iter().zip(list.iter().map(|entry| &entry[1])).collect()
        }
        Some(_) => return Err(wrong()),
    };
    let too_many = || {
        let problem = format!("has more than {ENTRIES_MAX} entries or tokens");
        ApiError::field("logit_bias", problem)
    };
    if entries.len() > ENTRIES_MAX {
        return Err(too_many());
    }
    let mut found = Vec::new();
    for (token, bias) in entries {
        let bias = match bias {
            Value::Bool(false) => f32::NEG_INFINITY,
            bias => bias.as_f64().ok_or_else(wrong)? as f32,
        };
        match (token.as_u64(), token.as_str()) {
            (Some(id), _) => {
                let id = u32::try_from(id).map_err(|_| wrong())?;
                model.check_tokens(&[id]).map_err(|error| ApiError::field("logit_bias", error))?;
                found.push((id, bias));
            }
            (None, Some(text)) => {
                let ids = model.tokenizer().encode(text, Encode::default())?;
                found.extend(ids.into_iter().map(|id| (id, bias)));
            }
            (None, None) => return Err(wrong()),
        }
        if found.len() > ENTRIES_MAX {
            return Err(too_many());
        }
    }
    Ok(Some(found))
}
