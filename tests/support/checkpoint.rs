//! Makes a GGUF file from a checkpoint folder of the shared data, through our own writer and name tables.

use std::collections::BTreeMap;
use std::path::Path;

use bilayer_gguf::{File, Metadata, NewTensor, Strings, to_bytes};
use bilayer_graph::SharedBytes;
use bilayer_models::{Architecture, Change, Config, Llama3, interleaved_source, translate};
use bilayer_quant::Type;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// Shape and values of a tensor.
type Values = (Vec<usize>, Vec<f32>);

/// The folder's model as a file of `architecture`, F32 throughout.
pub fn gguf(folder: &Path, architecture: &Architecture) -> File {
    let bytes = bytes(folder, architecture, Type::F32);
    File::from_bytes(&folder.display().to_string(), bytes).unwrap()
}

/// The same file's bytes, with its matrices as `ty`; tables of positions and of token types stay F32.
pub fn bytes(folder: &Path, architecture: &Architecture, ty: Type) -> SharedBytes {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let mut metadata = metadata(&json, architecture.name);
    vocabulary(folder, &mut metadata);
    let config = bilayer_models::config(&metadata).unwrap();

    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let checkpoint = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = Vec::new();
    let mut stacks: BTreeMap<String, BTreeMap<usize, Values>> = BTreeMap::new();
    for (name, view) in checkpoint.tensors() {
        if architecture.ignored.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        let known = translate(architecture.names, &name);
        assert!(!known.is_empty(), "the table has no name for {name}");
        let values = match view.dtype() {
            Dtype::F32 => floats(view.data()),
            Dtype::F16 => halves(view.data()),
            other => panic!("{name} is {other:?}"),
        };
        for known in known {
            let change = known.by.change;
            let (shape, values) = changed(change, view.shape(), &values, &config);
            match known.expert {
                None => {
                    let kept = shape.len() == 1
                        || known.name.ends_with(".bias")
                        || ["position_embd.weight", "token_types.weight"].contains(&&*known.name);
                    let ty = if kept { Type::F32 } else { ty };
                    tensors.push(tensor(&known.name, &shape, &values, ty));
                }
                Some(expert) => {
                    assert_eq!(change, Change::Stacked, "{name}");
                    stacks.entry(known.name).or_default().insert(expert, (shape, values));
                }
            }
        }
    }
    for (name, experts) in stacks {
        let shape = [&[experts.len()], &experts[&0].0[..]].concat();
        let values: Vec<f32> = experts.into_values().flat_map(|(_, values)| values).collect();
        tensors.push(tensor(&name, &shape, &values, ty));
    }
    if let Some(rule) = llama3(&json) {
        let rope = config.layers[0].rope.unwrap();
        let factors = rule.factors(rope.base, rope.dims);
        tensors.push(tensor("rope_freqs.weight", &[factors.len()], &factors, Type::F32));
    }
    to_bytes(&metadata, tensors).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn halves(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| half::f16::from_le_bytes(bytes).to_f32()).collect()
}

fn tensor(name: &str, shape: &[usize], values: &[f32], ty: Type) -> NewTensor<'static> {
    let cols = *shape.last().unwrap();
    let mut data = vec![0; values.len() / cols * ty.row_bytes(cols).unwrap()];
    ty.quantize(values, None, &mut data).unwrap();
    let shape: Vec<u64> = shape.iter().map(|&d| d as u64).collect();
    NewTensor::bytes(name, ty, &shape, data)
}

/// The WordPiece vocabulary of the folder, if it has one, as GGUF spells it: the start of a word is marked and not what
/// continues one.
fn vocabulary(folder: &Path, metadata: &mut Metadata) {
    let Ok(text) = std::fs::read_to_string(folder.join("vocab.txt")) else { return };
    let is_control =
        |token: &str| token.starts_with('[') && token.ends_with(']') && token.len() > 2;
    let spelled = |token: &str| match token.strip_prefix("##") {
        Some(rest) => rest.to_owned(),
        None if is_control(token) => token.to_owned(),
        None => format!("\u{2581}{token}"),
    };
    let tokens: Strings = text.lines().map(spelled).collect();
    let types: Vec<i32> = text.lines().map(|token| if is_control(token) { 3 } else { 1 }).collect();
    metadata.set("tokenizer.ggml.model", "bert");
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.token_type", types);
    let specials =
        [("unknown", "[UNK]"), ("cls", "[CLS]"), ("seperator", "[SEP]"), ("padding", "[PAD]")];
    for (key, token) in specials {
        let id = text.lines().position(|line| line == token).unwrap();
        metadata.set(&format!("tokenizer.ggml.{key}_token_id"), id as u32);
    }
}

/// A tensor of that shape as GGUF has it.
fn changed(
    change: Change,
    shape: &[usize],
    values: &[f32],
    config: &Config,
) -> (Vec<usize>, Vec<f32>) {
    let (rows, cols) = (shape[0], values.len() / shape[0]);
    let row = |row: usize| &values[row * cols..][..cols];
    match change {
        Change::None | Change::Stacked => (shape.to_vec(), values.to_vec()),
        Change::OneMore => (shape.to_vec(), values.iter().map(|value| value + 1.0).collect()),
        Change::Transposed => {
            let values = (0..cols).flat_map(|c| (0..rows).map(move |r| row(r)[c])).collect();
            (shape.iter().rev().copied().collect(), values)
        }
        Change::EachTransposed { first, step } => {
            let all = *shape.last().unwrap();
            let cols = values.len() / shape[0] / all;
            let kept = (first..all).step_by(step);
            let each = values.chunks_exact(all * cols);
            let turned = each.flat_map(|values| {
                let row = move |row: usize| (0..cols).map(move |col| values[col * all + row]);
                kept.clone().flat_map(row)
            });
            let sizes = if shape.len() == 2 { vec![] } else { vec![cols] };
            ([&[shape[0], kept.len()][..], &sizes].concat(), turned.collect())
        }
        Change::Interleaved => {
            let dims = config.layers[0].rope.unwrap().dims;
            let source = |to: usize| interleaved_source(to, config.head_dim, dims);
            (shape.to_vec(), (0..rows).flat_map(|to| row(source(to))).copied().collect())
        }
    }
}

fn metadata(json: &Value, name: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", name);
    let sizes = [
        ("vocab_size", "vocab_size"),
        ("context_length", "max_position_embeddings"),
        ("context_length", "n_positions"),
        ("embedding_length", "hidden_size"),
        ("embedding_length", "n_embd"),
        ("block_count", "num_hidden_layers"),
        ("block_count", "n_layer"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count", "n_head"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
        ("attention.sliding_window", "sliding_window"),
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("rope.scaling.original_context_length", "original_max_position_embeddings"),
    ];
    for (key, field) in sizes {
        if let Some(size) = json[field].as_u64() {
            metadata.set(&format!("{name}.{key}"), size as u32);
        }
    }
    if let Some(types) = json["type_vocab_size"].as_u64() {
        metadata.set("tokenizer.ggml.token_type_count", types as u32);
    }
    encoder(json, name, &mut metadata);
    yarn(json, name, &mut metadata);
    // GPT-2 says its inner length only where it is another than this.
    if let (None, Some(width)) = (json["intermediate_size"].as_u64(), json["n_embd"].as_u64()) {
        metadata.set(&format!("{name}.feed_forward_length"), 4 * width as u32);
    }
    let numbers = [
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("attention.layer_norm_epsilon", "norm_epsilon"),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
        ("attention.layer_norm_epsilon", "layer_norm_eps"),
        ("attention.layer_norm_epsilon", "norm_eps"),
        ("rope.freq_base", "rope_theta"),
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ];
    for (key, field) in numbers {
        if let Some(number) = json[field].as_f64() {
            metadata.set(&format!("{name}.{key}"), number as f32);
        }
    }
    metadata
}

fn yarn(json: &Value, name: &str, metadata: &mut Metadata) {
    let rope = &json["rope_parameters"];
    if rope["rope_type"] != "yarn" {
        return;
    }
    metadata.set(&format!("{name}.rope.scaling.type"), "yarn");
    let tokens = rope["original_max_position_embeddings"].as_u64().unwrap();
    metadata.set(&format!("{name}.rope.scaling.original_context_length"), tokens as u32);
    let numbers =
        [("factor", "factor"), ("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")];
    for (key, field) in numbers {
        if let Some(number) = rope[field].as_f64() {
            metadata.set(&format!("{name}.rope.scaling.{key}"), number as f32);
        }
    }
}

/// What checkpoints of encoders say in their own words.
fn encoder(json: &Value, name: &str, metadata: &mut Metadata) {
    let sizes = [
        ("attention.sliding_window", "local_attention"),
        ("attention.sliding_window_pattern", "global_attn_every_n_layers"),
    ];
    for (key, field) in sizes {
        if let Some(size) = json[field].as_u64() {
            metadata.set(&format!("{name}.{key}"), size as u32);
        }
    }
    let ropes = &json["rope_parameters"];
    let bases = [
        ("rope.freq_base", &ropes["rope_theta"]),
        ("rope.freq_base", &ropes["full_attention"]["rope_theta"]),
        ("rope.freq_base_swa", &ropes["sliding_attention"]["rope_theta"]),
    ];
    for (key, base) in bases {
        if let (Some(base), None) = (base.as_f64(), json["rope_theta"].as_f64()) {
            metadata.set(&format!("{name}.{key}"), base as f32);
        }
    }
    let scores = |name: &Value| name.as_str().unwrap().ends_with("ForSequenceClassification");
    if json["architectures"].as_array().is_some_and(|names| names.iter().any(scores)) {
        // Two labels are what a checkpoint does not say.
        let labels: Strings = match json["id2label"].as_object() {
            Some(labels) => labels.values().map(|label| label.as_str().unwrap()).collect(),
            None => ["LABEL_0", "LABEL_1"].into_iter().collect(),
        };
        metadata.set(&format!("{name}.classifier.output_labels"), labels);
    }
    if let Some(id) = json["sep_token_id"].as_u64() {
        metadata.set("tokenizer.ggml.seperator_token_id", id as u32);
    }
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
