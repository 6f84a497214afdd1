//! `bilayer inspect`: shows a file's contents and what prevents it from running.

use std::collections::BTreeMap;

use bilayer_gguf::{Array, File, Value};
use bilayer_models::Pooling;
use bilayer_text::hash::hex;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::args::Inspect;
use crate::failure::{BAD_MODEL, Failure, one_line};
use crate::{output, progress};

#[derive(Serialize)]
struct Document {
    architecture: Option<String>,
    version: u32,
    parameters: u64,
    bytes: u64,
    /// What comes out, if it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    gives: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    metadata: serde_json::Map<String, serde_json::Value>,
    tensors: Vec<Tensor>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    /// Rightmost contiguous.
    shape: Vec<u64>,
    r#type: &'static str,
    /// Offset in its file, bytes.
    offset: u64,
    bytes: u64,
}

/// Prints the contents. The exit code is [`BAD_MODEL`] if the file does not run.
pub fn execute(args: &Inspect) -> Result<u8, Failure> {
    let path = args.path.as_deref().or(args.model.as_deref());
    let path = path.ok_or_else(|| Failure::usage("inspect: no file; give its path"))?;
    let file = bilayer_engine::open_file(path)?;
    let document = Document {
        architecture: file.metadata().str("general.architecture").ok().map(str::to_owned),
        version: file.version(),
        parameters: file.tensors().iter().map(|t| t.layout().elements()).sum(),
        bytes: file.file_bytes(),
        gives: gives(&file),
        sha256: if args.hash { Some(hash(&file)?) } else { None },
        metadata: file.metadata().iter().map(|(k, v)| (k.to_owned(), value(v))).collect(),
        tensors: file.tensors().iter().map(tensor).collect(),
        problems: bilayer_engine::problems(&file),
    };
    if args.json {
        output::json(&document)?;
    } else {
        output::text(&listing(&file, &document))?;
    }
    Ok(if document.problems.is_empty() { 0 } else { BAD_MODEL })
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

fn tensor(tensor: &bilayer_gguf::Tensor) -> Tensor {
    let layout = tensor.layout();
    Tensor {
        name: tensor.name().to_owned(),
        shape: layout.shape().to_vec(),
        r#type: layout.ty().name,
        offset: layout.offset(),
        bytes: layout.len_bytes(),
    }
}

/// The text output: a summary, then metadata and tensors. Names and texts come from the file, so line breaks in them are
/// escaped.
fn listing(file: &File, document: &Document) -> String {
    let mut lines = summary(file, document);
    lines.push(format!("\nmetadata ({} keys)", file.metadata().len()));
    let entries = file.metadata().iter();
    lines.extend(entries.map(|(key, value)| format!("  {} = {value}", key.escape_debug())));
    lines.push(format!("\ntensors ({})", document.tensors.len()));
    lines.extend(document.tensors.iter().map(|tensor| {
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        let name = tensor.name.escape_debug().to_string();
        format!("  {name:<28} {:<7} {shape:<16} {} bytes", tensor.r#type, tensor.bytes)
    }));
    lines.join("\n") + "\n"
}

/// What it is, how large, and whether it runs.
fn summary(file: &File, document: &Document) -> Vec<String> {
    let metadata = file.metadata();
    let architecture = document.architecture.as_deref().unwrap_or("none given");
    let context = metadata.get(&format!("{architecture}.context_length"));
    let context = context.map_or("not given".to_owned(), |tokens| format!("{tokens} tokens"));
    let template = match metadata.str("tokenizer.chat_template") {
        Ok(template) => format!("yes, {} characters", template.chars().count()),
        Err(_) => "none".to_owned(),
    };
    let licence = metadata.str("general.license").unwrap_or("not given");
    let mut types: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for tensor in &document.tensors {
        let (count, bytes) = types.entry(tensor.r#type).or_default();
        *count += 1;
        *bytes += tensor.bytes;
    }
    let types = types.iter().map(|(ty, (count, bytes))| format!("{ty} {count} ({bytes} bytes)"));
    let types = types.collect::<Vec<_>>().join(", ");
    let mut lines = vec![
        format!("architecture  {}", architecture.escape_debug()),
        format!("size          {} bytes, {} parameters", document.bytes, document.parameters),
        format!("tensors       {types}"),
        format!("context       {context}"),
        format!("chat template {template}"),
        format!("licence       {}", licence.escape_debug()),
    ];
    let gives = document.gives.iter();
    lines.extend(gives.map(|gives| format!("gives         {}", one_line(gives))));
    lines.extend(document.sha256.iter().map(|hash| format!("sha256        {hash}")));
    lines.push(format!("GGUF version  {}", document.version));
    let runs = if document.problems.is_empty() { "yes" } else { "no" };
    lines.push(format!("runs: {runs}"));
    lines.extend(document.problems.iter().map(|p| format!("  {}", one_line(p))));
    lines
}

/// A value as JSON, in full. Numbers that are not finite are null.
fn value(value: &Value) -> serde_json::Value {
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

fn elements(array: &Array) -> serde_json::Value {
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

/// SHA-256 over the bytes of all shards, in their order.
pub fn hash(file: &File) -> Result<String, Failure> {
    let bar = progress::bytes("hashing");
    let mut hasher = Sha256::new();
    let mut done = 0;
    for map in file.maps() {
        for part in map.chunks(1 << 20) {
            hasher.update(part);
            done += part.len() as u64;
            progress::set(&bar, done, file.file_bytes());
        }
    }
    bar.finish_and_clear();
    file.check_unchanged().map_err(bilayer_engine::Error::File)?;
    Ok(hex(hasher.finalize()))
}
