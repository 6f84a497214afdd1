//! Makes a GGUF file from a checkpoint folder of the shared data, through our own writer and name tables.

use std::path::Path;

use bilayer_gguf::{File, Metadata, NewTensor, to_bytes};
use bilayer_models::{Architecture, Llama3, RowOrder, interleaved_source, translate};
use bilayer_quant::Type;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// The folder's model as a file of `architecture`, F32 throughout.
pub fn gguf(folder: &Path, architecture: &Architecture) -> File {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let metadata = metadata(&json, architecture.name);
    let config = bilayer_models::config(&metadata).unwrap();

    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let checkpoint = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = Vec::new();
    for (name, view) in checkpoint.tensors() {
        assert_eq!(view.dtype(), Dtype::F32, "{name}");
        let (gguf, entry) = translate(architecture.names, &name)
            .unwrap_or_else(|| panic!("the table has no name for {name}"));
        let shape: Vec<u64> = view.shape().iter().map(|&d| d as u64).collect();
        let rows = view.shape()[0];
        let row_bytes = view.data().len() / rows;
        let source = |row: usize| match entry.rows {
            RowOrder::Kept => row,
            RowOrder::Interleaved => interleaved_source(row, config.head_dim, config.rope.dims),
        };
        let data: Vec<u8> = (0..rows)
            .flat_map(|row| &view.data()[source(row) * row_bytes..][..row_bytes])
            .copied()
            .collect();
        tensors.push(NewTensor::bytes(&gguf, Type::F32, &shape, data));
    }
    if let Some(rule) = llama3(&json) {
        let factors = rule.factors(config.rope.base, config.rope.dims);
        let data: Vec<u8> = factors.iter().flat_map(|f| f.to_le_bytes()).collect();
        let shape = [factors.len() as u64];
        tensors.push(NewTensor::bytes("rope_freqs.weight", Type::F32, &shape, data));
    }
    File::from_bytes(&folder.display().to_string(), to_bytes(&metadata, tensors).unwrap()).unwrap()
}

fn metadata(json: &Value, name: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", name);
    let sizes = [
        ("vocab_size", "vocab_size"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
        ("attention.sliding_window", "sliding_window"),
    ];
    for (key, field) in sizes {
        if let Some(size) = json[field].as_u64() {
            metadata.set(&format!("{name}.{key}"), size as u32);
        }
    }
    let numbers = [
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("rope.freq_base", "rope_theta"),
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
    ];
    for (key, field) in numbers {
        if let Some(number) = json[field].as_f64() {
            metadata.set(&format!("{name}.{key}"), number as f32);
        }
    }
    metadata
}

fn llama3(json: &Value) -> Option<Llama3> {
    let scaling = &json["rope_scaling"];
    let number = |field: &str| scaling[field].as_f64().unwrap() as f32;
    (scaling["rope_type"] == "llama3").then(|| Llama3 {
        factor: number("factor"),
        low_freq_factor: number("low_freq_factor"),
        high_freq_factor: number("high_freq_factor"),
        original_context: number("original_max_position_embeddings") as usize,
    })
}
