//! What a model file contains, and what prevents it from running.

use std::path::Path;

use bilayer_gguf::{Array, File, Value};
use bilayer_models::Pooling;
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use crate::{Error, open_file, problems};

/// What a file contains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// The architecture that it names.
    pub architecture: Option<String>,
    /// The version of GGUF.
    pub version: u32,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Its size with all shards, bytes.
    pub bytes: u64,
    /// What comes out, if it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gives: Option<String>,
    /// SHA-256 over all shards, if that was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Its metadata as JSON, in full. Numbers that are not finite are null.
    pub metadata: Map<String, Json>,
    /// Its tensors.
    pub tensors: Vec<TensorInfo>,
    /// What prevents it from running; empty if it runs.
    pub problems: Vec<String>,
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its shape, rightmost contiguous.
    pub shape: Vec<u64>,
    /// The name of its type.
    pub r#type: &'static str,
    /// Offset in its file, bytes.
    pub offset: u64,
    /// Its size, bytes.
    pub bytes: u64,
}

impl Inspection {
    /// Opens and reads a file, or the first of its shards.
    ///
    /// # Errors
    /// It is missing, unreadable or damaged.
    pub fn open(path: &Path) -> Result<Inspection, Error> {
        Ok(Inspection::of(&open_file(path)?))
    }

    /// What an open file contains.
    pub fn of(file: &File) -> Inspection {
        Inspection {
            architecture: file.metadata().str("general.architecture").ok().map(str::to_owned),
            version: file.version(),
            parameters: file.tensors().iter().map(|t| t.layout().elements()).sum(),
            bytes: file.file_bytes(),
            gives: gives(file),
            sha256: None,
            metadata: file.metadata().iter().map(|(k, v)| (k.to_owned(), value(v))).collect(),
            tensors: file.tensors().iter().map(tensor).collect(),
            problems: problems(file),
        }
    }
}

/// What the model of a file computes.
fn gives(file: &File) -> Option<String> {
    let (config, _) = bilayer_models::read(file).ok()?;
    Some(match config.encoder {
        None => "text".to_owned(),
        Some(encoder) if encoder.scores => format!("scores: {}", encoder.head.labels.join(", ")),
        Some(encoder) => match encoder.pooling {
            Pooling::None => "embeddings of tokens".to_owned(),
            Pooling::Mean => "embeddings, the mean of a text's rows".to_owned(),
            Pooling::Cls => "embeddings, the first of a text's rows".to_owned(),
            Pooling::Last => "embeddings, the last of a text's rows".to_owned(),
        },
    })
}

fn tensor(tensor: &bilayer_gguf::Tensor) -> TensorInfo {
    let layout = tensor.layout();
    TensorInfo {
        name: tensor.name().to_owned(),
        shape: layout.shape().to_vec(),
        r#type: layout.ty().name,
        offset: layout.offset(),
        bytes: layout.len_bytes(),
    }
}

/// A value as JSON, in full. Numbers that are not finite are null.
fn value(value: &Value) -> Json {
    match value {
        Value::U8(x) => json!(x),
        Value::I8(x) => json!(x),
        Value::U16(x) => json!(x),
        Value::I16(x) => json!(x),
        Value::U32(x) => json!(x),
        Value::I32(x) => json!(x),
        Value::U64(x) => json!(x),
        Value::I64(x) => json!(x),
        Value::F32(x) => json!(x),
        Value::F64(x) => json!(x),
        Value::Bool(x) => json!(x),
        Value::String(x) => json!(x),
        Value::Array(array) => elements(array),
    }
}

fn elements(array: &Array) -> Json {
    match array {
        Array::U8(x) => json!(x),
        Array::I8(x) => json!(x),
        Array::U16(x) => json!(x),
        Array::I16(x) => json!(x),
        Array::U32(x) => json!(x),
        Array::I32(x) => json!(x),
        Array::U64(x) => json!(x),
        Array::I64(x) => json!(x),
        Array::F32(x) => json!(x),
        Array::F64(x) => json!(x),
        Array::Bool(x) => json!(x),
        Array::String(x) => x.iter().map(|text| json!(text)).collect(),
    }
}
