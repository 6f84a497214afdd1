//! `bilayer inspect`: what a file holds, and what would stop it from running.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use bilayer_gguf::{Array, File, Value};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::args::Inspect;
use crate::failure::Failure;
use crate::{output, progress};

/// Array elements shown in the table and in JSON.
const SHOWN: usize = 8;

#[derive(Serialize)]
struct Document {
    architecture: Option<String>,
    version: u32,
    parameters: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    metadata: serde_json::Map<String, serde_json::Value>,
    tensors: Vec<Tensor>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
    r#type: String,
    offset: u64,
    bytes: u64,
}

/// Lists the file.
pub fn execute(args: &Inspect) -> Result<u8, Failure> {
    let path = args.path.as_deref().or(args.model.as_deref());
    let path = path.ok_or_else(|| Failure::usage("inspect: which file?"))?;
    let file = bilayer_engine::open_file(path)?;
    let document = Document {
        architecture: file.metadata().str("general.architecture").ok().map(str::to_owned),
        version: file.version(),
        parameters: file.tensors().iter().map(|t| t.layout().elements()).sum(),
        bytes: file.file_bytes(),
        sha256: if args.hash { Some(hash(&file)?) } else { None },
        metadata: file.metadata().iter().map(|(k, v)| (k.to_owned(), shown(v))).collect(),
        tensors: file.tensors().iter().map(tensor).collect(),
        problems: bilayer_engine::problems(&file),
    };
    if args.json { output::json(&document)? } else { output::text(&table(&document))? }
    Ok(0)
}

fn tensor(tensor: &bilayer_gguf::Tensor) -> Tensor {
    let layout = tensor.layout();
    Tensor {
        name: tensor.name().to_owned(),
        shape: layout.shape().to_vec(),
        r#type: layout.ty().to_string(),
        offset: layout.offset(),
        bytes: layout.len_bytes(),
    }
}

fn table(document: &Document) -> String {
    let mut text = String::new();
    let mut line = |s: String| {
        text.push_str(&s);
        text.push('\n');
    };
    let architecture = document.architecture.as_deref().unwrap_or("none given");
    line(format!("architecture  {architecture}"));
    line(format!("GGUF version  {}", document.version));
    line(format!("parameters    {}", document.parameters));
    line(format!("bytes         {}", document.bytes));
    if let Some(hash) = &document.sha256 {
        line(format!("sha256        {hash}"));
    }
    let mut types: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for tensor in &document.tensors {
        let entry = types.entry(&tensor.r#type).or_default();
        *entry = (entry.0 + 1, entry.1 + tensor.bytes);
    }
    for (ty, (count, bytes)) in &types {
        line(format!("type          {ty}: {count} tensors, {bytes} bytes"));
    }
    line(format!("\nmetadata ({} keys)", document.metadata.len()));
    for (key, value) in &document.metadata {
        line(format!("  {key} = {value}"));
    }
    line(format!("\ntensors ({})", document.tensors.len()));
    for tensor in &document.tensors {
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        line(format!("  {:<36} {:<8} {shape}  ({} bytes)", tensor.name, tensor.r#type, tensor.bytes));
    }
    if document.problems.is_empty() {
        line("\nruns: yes".to_owned());
    } else {
        line("\nruns: no".to_owned());
        for problem in &document.problems {
            line(format!("  {problem}"));
        }
    }
    text
}

/// A value as JSON; long arrays by their length and first elements.
fn shown(value: &Value) -> serde_json::Value {
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
    fn first<T: Serialize + Copy>(values: &[T]) -> Vec<serde_json::Value> {
        values.iter().take(SHOWN).map(|x| json!(x)).collect()
    }
    let first = match array {
        Array::U8(v) => first(v),
        Array::I8(v) => first(v),
        Array::U16(v) => first(v),
        Array::I16(v) => first(v),
        Array::U32(v) => first(v),
        Array::I32(v) => first(v),
        Array::U64(v) => first(v),
        Array::I64(v) => first(v),
        Array::F32(v) => first(v),
        Array::F64(v) => first(v),
        Array::Bool(v) => first(v),
        Array::String(v) => v.iter().take(SHOWN).map(|x| json!(x)).collect(),
    };
    if array.len() <= SHOWN {
        serde_json::Value::Array(first)
    } else {
        json!({ "length": array.len(), "first": first })
    }
}

/// SHA-256 over the bytes of all shards, in their order.
fn hash(file: &File) -> Result<String, Failure> {
    let bar = progress::bytes("hashing");
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    for name in file.shard_names() {
        let path = Path::new(name);
        let mut shard = std::fs::File::open(path).map_err(|e| Failure::input(path, &e))?;
        loop {
            let read = shard.read(&mut buffer).map_err(|e| Failure::input(path, &e))?;
            if read == 0 {
                break;
            }
            hasher.update(&buffer[..read]);
            done += read as u64;
            progress::set(&bar, done, file.file_bytes());
        }
    }
    bar.finish_and_clear();
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
