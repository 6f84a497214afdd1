//! The forms in which clients give prompts: texts, tokens, both mixed, objects, and lists of them.

use bilayer_engine::Model;
use bilayer_text::Encode;
use bilayer_text::chat::openai::{self, Problem};
use serde_json::Value;

use crate::error::ApiError;

/// Prompts that one request may have.
const PROMPTS_MAX: usize = 2048;

/// How texts are tokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The field's name, for errors.
    pub field: &'static str,
    /// Add the special tokens around a text.
    pub add_special: bool,
    /// Take control tokens spelled in a text as such.
    pub parse_special: bool,
}

/// The prompts of a field: one, or a list of them.
///
/// # Errors
/// It is none of the forms, or has a token outside the vocabulary.
pub fn prompts(model: &Model, value: &Value, reading: Reading) -> Result<Vec<Vec<u32>>, ApiError> {
    let is_many = |list: &[Value]| {
        let is_whole = |value: &Value| value.is_array() || value.is_object();
        list.iter().any(is_whole) || (list.len() != 1 && list.iter().all(Value::is_string))
    };
    match value {
        Value::Array(list) if list.is_empty() => {
            Err(ApiError::field(reading.field, "must not be an empty list"))
        }
        Value::Array(list) if list.len() > PROMPTS_MAX && is_many(list) => {
            let problem = format!("has {} elements; at most {PROMPTS_MAX} are allowed", list.len());
            Err(ApiError::field(reading.field, problem))
        }
        Value::Array(list) if is_many(list) || list.iter().all(Value::is_string) => {
            list.iter().map(|value| one(model, value, reading)).collect()
        }
        value => Ok(vec![one(model, value, reading)?]),
    }
}

/// One prompt: a text, a list of tokens and texts, or an object with a text.
///
/// # Errors
/// As [`prompts`].
pub fn one(model: &Model, value: &Value, reading: Reading) -> Result<Vec<u32>, ApiError> {
    match value {
        Value::String(text) => encode(model, text, reading),
        Value::Array(parts) => {
            let mut tokens = Vec::new();
            for part in parts {
                match (part.as_u64(), part.as_str()) {
                    (Some(id), _) => tokens.push(token(model, id, reading.field)?),
                    (None, Some(text)) => {
                        // Special tokens go around the whole, not around each text.
                        let whole = Reading {
                            add_special: tokens.is_empty() && reading.add_special,
                            ..reading
                        };
                        tokens.extend(encode(model, text, whole)?);
                    }
                    (None, None) => return Err(wrong(reading.field)),
                }
            }
            Ok(tokens)
        }
        Value::Object(object) => {
            let has_media = |key: &str| object.get(key).is_some_and(|media| !media.is_null());
            if has_media("multimodal_data") {
                let problem = "has multimodal_data; this model takes text only";
                return Err(ApiError::field(reading.field, problem));
            }
            match (object.get("prompt_string"), object.get("content")) {
                (Some(Value::String(text)), _) => encode(model, text, reading),
                (None, Some(Value::Array(parts))) => {
                    let texts = parts.iter().map(openai::text).collect::<Result<String, _>>();
                    let text = texts.map_err(|problem| match problem {
                        Problem::Part(kind) => not_text(reading.field, &kind),
                        problem => ApiError::field(reading.field, problem),
                    });
                    encode(model, &text?, reading)
                }
                _ => Err(wrong(reading.field)),
            }
        }
        _ => Err(wrong(reading.field)),
    }
}

/// The error of a content part of the type `kind`, which is no text or has none.
pub fn not_text(field: &str, kind: &str) -> ApiError {
    let problem = match kind {
        "" => "has a part without a text".to_owned(),
        "refusal" => "has a part of type 'refusal' that has no refusal, a string".to_owned(),
        "text" | "input_text" | "output_text" => {
            format!("has a part of type '{kind}' that has no text, a string")
        }
        "image_url" | "input_image" | "input_audio" | "input_video" | "image" | "file" => {
            format!("has a part of type '{kind}'; this model takes text only")
        }
        _ => format!("has a part of an unknown type '{kind}'"),
    };
    ApiError::field(field, problem)
}

fn encode(model: &Model, text: &str, reading: Reading) -> Result<Vec<u32>, ApiError> {
    let Reading { add_special, parse_special, .. } = reading;
    Ok(model.tokenizer().encode(text, Encode { add_special, parse_special })?)
}

/// A token id of a request.
///
/// # Errors
/// It is not in the vocabulary.
pub fn token(model: &Model, id: u64, field: &str) -> Result<u32, ApiError> {
    let vocab = model.config().vocab as u64;
    if id >= vocab {
        let problem = format!("has the token {id}; the vocabulary has {vocab}");
        return Err(ApiError::field(field, problem));
    }
    Ok(id as u32)
}

fn wrong(field: &str) -> ApiError {
    ApiError::field(field, "must be a string, a list of tokens, or a list of these")
}
